"""Low-shot tasks, classifier heads, and the scoring of methods."""
