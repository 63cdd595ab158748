"""Wait for other processes."""

import time
from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


def wait_for(
    condition: Callable[[], Value],
    seconds: float,
    about: Callable[[], str],
    *,
    is_over: Callable[[], bool] = lambda: False,
) -> Value:
    """Wait until a condition returns a true value, and return that value.

    Args:
        condition: Called several times per second.
        seconds: Time limit.
        about: Called after a failure for the message, such as a log.
        is_over: Returns whether the condition can no longer become true.
    """
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        assert not is_over(), about()
        assert time.monotonic() < deadline, f"not within {seconds} s: {about()}"
        time.sleep(0.2)
    return value
