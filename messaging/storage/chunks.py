"""How many records to read ahead: few at first, and never many bytes."""

from collections.abc import Sequence
from operator import itemgetter

GROWTH = 4  # times more than last time
COUNT_MAX = 256  # records; of larger chunks one costs no less
BYTES_MAX = (
    128 << 10
)  # bytes of values, unless one alone has more; what is not taken was for nothing

_VALUE = itemgetter(1)


def next_count(chunk: Sequence[tuple[bytes, bytes]], count: int) -> int:
    """How many to read after this chunk, when so many were asked for."""
    size_bytes = sum(map(len, map(_VALUE, chunk)))
    fitting = BYTES_MAX * len(chunk) // size_bytes if size_bytes else COUNT_MAX
    return max(1, min(GROWTH * count, COUNT_MAX, fitting))
