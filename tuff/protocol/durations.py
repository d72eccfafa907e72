"""Durations as programs give them."""

import math
from datetime import timedelta

Duration = float | timedelta  # a float is in seconds


def seconds_of(duration: object, *, what: str) -> float:
    """A duration in seconds.

    Raises:
        TypeError: it is neither a number of seconds nor a timedelta.
        ValueError: it is not finite, or below 0.
    """
    if isinstance(duration, timedelta):
        seconds = duration.total_seconds()
    elif isinstance(duration, int | float) and not isinstance(duration, bool):
        seconds = duration
    else:
        raise TypeError(
            f"{what} is a number of seconds or a timedelta, not {type(duration).__name__}"
        )
    if not 0 <= seconds < math.inf:
        raise ValueError(f"{what} is a number of seconds from 0 on, not {seconds}")
    return seconds
