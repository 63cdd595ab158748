"""Evaluation of all methods, draws and seeds, and the table of scores."""
