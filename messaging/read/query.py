"""What a reader asks for, and at which ids a read starts and goes on (protocol §3.4).

Ids are handled as 160-bit numbers. "After this id" is "from the next number on": an exclusive start
compares numbers, and never just drops the first row.
"""

from dataclasses import dataclass
from enum import Enum

from tuff.protocol.ids import LAST_ID, MESSAGE_ID_SIZE, MessageId, Offset, past_group
from tuff.protocol.transaction import Transaction

LAST_NUMBER = LAST_ID.to_int()

_TIME_SHIFT = 96  # bits of an id behind its publish time


class Undecided(Enum):
    """What a read in a fixed snapshot does at a row that is not decided for it."""

    HOLD = "hold"
    SKIP = "skip"


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """What to read. `start` is the number of the first id that may be delivered, `through` the last
    id; `high_water_mark` the last offset that readers may be shown; `live_from` the first that
    retention has left."""

    prefix: bytes
    start: int
    through: MessageId
    high_water_mark: Offset
    log_start: MessageId
    live_from: Offset
    now_ms: int
    limit: int
    bytes_max: int
    snapshot: Transaction | None
    undecided: Undecided = Undecided.HOLD


def start_number(start: MessageId | int | None, *, inclusive: bool) -> int:
    """The number of the first id that a start lets through; a time is the start of its ms."""
    if start is None:
        return 0
    if isinstance(start, MessageId):
        return start.to_int() + (0 if inclusive else 1)
    return (start if inclusive else start + 1) << _TIME_SHIFT


def time_in(number: int) -> int:
    """The publish time, in ms, of the id with this number."""
    return number >> _TIME_SHIFT


def first_number(query: Query) -> int:
    """The number of the first id that the reader may be handed, whatever rows there are."""
    return max(query.start, query.log_start.to_int(), MessageId(*query.live_from).to_int())


def next_at_first(query: Query, number: int) -> bytes:
    """Where a reader goes on that was handed nothing, when it began to read at this number."""
    # Never behind what is served because of the time alone: should the clock go back, the next
    # message gets an id that lies before what is live now, and this reader must be handed it.
    passed = max(query.start, min(number, past_group(query.high_water_mark).to_int() + 1)) - 1
    return min(max(0, passed), LAST_NUMBER).to_bytes(MESSAGE_ID_SIZE, "big")


def next_at_end(query: Query, number: int) -> bytes:
    """The same, when nothing is left after it up to what is served, or up to `through`."""
    # Every later row gets an id behind what is served, whatever the clock does. Left behind at
    # what was live when it looked, the reader would be told soon that it is too late.
    end = min(past_group(query.high_water_mark), query.through)
    return max(next_at_first(query, number), end.to_bytes())


def before_row(offset: Offset) -> bytes:
    """The last id before a row: as an exclusive start, it leads to all that the row brings."""
    return (MessageId(*offset).to_int() - 1).to_bytes(MESSAGE_ID_SIZE, "big")
