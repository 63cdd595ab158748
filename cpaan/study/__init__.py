"""Searches, reports and backbone training on Ray. No other package imports Ray."""
