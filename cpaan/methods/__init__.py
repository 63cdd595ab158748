"""The rows of the table: a file for each method."""
