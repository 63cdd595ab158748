"""Methods of the table, one per file."""
