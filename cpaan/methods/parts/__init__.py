"""What several baselines share, or what is too much for the file of one."""
