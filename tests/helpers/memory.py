"""Memory that is held, as the allocators count it: what the system says differs between runs."""

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa


@contextmanager
def peak_memory() -> Iterator[Callable[[], float]]:
    """Give a function that returns the most MiB that Python, NumPy and Arrow have held since."""
    before = pa.default_memory_pool()
    pool = pa.proxy_memory_pool(before)
    pa.set_memory_pool(pool)
    tracemalloc.start()
    try:
        yield lambda: (tracemalloc.get_traced_memory()[1] + pool.max_memory()) / 2**20
    finally:
        tracemalloc.stop()
        pa.set_memory_pool(before)
