"""Methods times draws times seeds: what is run, and the table of scores."""
