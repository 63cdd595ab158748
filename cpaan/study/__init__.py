"""What runs on Ray. Nothing outside this folder knows of it."""
