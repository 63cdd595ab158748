"""Benchmarks that time our code and a plain version in one run: ``python -m cpaan.bench``."""
