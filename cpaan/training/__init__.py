"""Training by episodes: the loop, its checkpoints, its workers."""
