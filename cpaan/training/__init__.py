"""Episodic training: the loop, checkpoints and workers."""
