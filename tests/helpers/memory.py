"""Measure memory with the counts of the allocators; those of the system vary between runs."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa


@contextmanager
def peak_memory() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the peak memory of Python, NumPy and Arrow so far, in MiB."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        yield lambda: (tracemalloc.get_traced_memory()[1] + pool.max_memory()) / 2**20
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
