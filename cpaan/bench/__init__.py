"""Benchmarks: ratios measured side by side in one run, by ``python -m cpaan.bench``."""
