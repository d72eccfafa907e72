"""How many records a scan reads ahead: few at first, then more, bounded in bytes."""

from collections.abc import Sequence
from operator import itemgetter

GROWTH = 4  # factor from one chunk to the next
COUNT_MAX = 256  # records; a larger chunk makes a record no cheaper
BYTES_MAX = (
    128 << 10
)  # bytes of values, unless one value has more; what the reader does not take was read in vain

_VALUE = itemgetter(1)


def next_count(chunk: Sequence[tuple[bytes, bytes]], count: int) -> int:
    """How many records to read after this chunk, for which `count` were asked."""
    size_bytes = sum(map(len, map(_VALUE, chunk)))
    fitting = BYTES_MAX * len(chunk) // size_bytes if size_bytes else COUNT_MAX
    return max(1, min(GROWTH * count, COUNT_MAX, fitting))
