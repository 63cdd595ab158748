"""Feature tables and their files, splits and draws, the built-in data set."""
