"""Waiting for what other processes do."""

import time
from collections.abc import Callable
from typing import TypeVar

Found = TypeVar("Found")


def wait_for(
    condition: Callable[[], Found],
    seconds: float,
    about: Callable[[], str],
    *,
    is_over: Callable[[], bool] = lambda: False,
) -> Found:
    """Return what a condition gives, as soon as it is true.

    Args:
        condition: Called several times a second.
        seconds: How long at most.
        about: Called if it does not come true, for the message: a log, say.
        is_over: Whether it cannot come true any more.
    """
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert not is_over(), about()
        assert time.monotonic() < deadline, f"not within {seconds} s: {about()}"
        time.sleep(0.05)
    return found
