"""What a reader sees: the verdict on a row (protocol §6), and where a read starts and continues
(§3.4). Pure.

Ids are handled as 160-bit numbers. "After this id" is "from the next number on": an exclusive start
compares numbers, and never just drops the first row.
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from messaging.retention.expiry import is_expired
from tuff.protocol.attributes import TagFilter
from tuff.protocol.ids import LAST_ID, MESSAGE_ID_SIZE, MessageId, Offset, past_group
from tuff.protocol.pointer_list import holds
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
    retention has left; `tags` selects messages, None: all."""

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
    tags: TagFilter | None = None


class Verdict(Enum):
    """What a reader does with a row."""

    ACCEPT = "accept"
    SKIP = "skip"
    HOLD = "hold"


class BlockingRow(NamedTuple):
    """A row that holds a reader back."""

    pointer: int
    offset: Offset
    ttl_s: int | None  # the row's own time to live


def verdict(query: Query, offset: Offset, *, pointer: int | None, ttl_s: int | None) -> Verdict:
    """The verdict of this reader on a live row, by the row's write pointer and its own time to
    live."""
    if is_past_own_ttl(query, offset, ttl_s):
        return Verdict.SKIP
    found = visibility(pointer, query.snapshot)
    if found is Verdict.HOLD and query.undecided is Undecided.SKIP:
        return Verdict.SKIP
    return found


def is_past_own_ttl(query: Query, offset: Offset, ttl_s: int | None) -> bool:
    """Whether a row's own time to live, if it has one, has passed."""
    return ttl_s is not None and is_expired(offset.timestamp_ms, ttl_s, now_ms=query.now_ms)


def visibility(pointer: int | None, snapshot: Transaction | None) -> Verdict:
    """The verdict of a snapshot, or of a reader without one, on a row with this pointer.

    The pointer is negative once the row was rolled back, and None for a row that was published
    without a transaction.
    """
    if pointer is None or snapshot is None:
        return Verdict.ACCEPT
    if pointer < 0 or holds(snapshot.invalids, pointer):
        return Verdict.SKIP
    if snapshot.is_visible(pointer):
        return Verdict.ACCEPT
    # A transaction that hides its own pointer has decided: however it ends, this reader never sees
    # the row.
    return Verdict.SKIP if snapshot.is_own(pointer) else Verdict.HOLD


def start_number(start: MessageId | int | None, *, inclusive: bool) -> int:
    """The number of the first id to deliver; a time stands for the start of its millisecond."""
    if start is None:
        return 0
    if isinstance(start, MessageId):
        return start.to_int() + (0 if inclusive else 1)
    return (start if inclusive else start + 1) << _TIME_SHIFT


def time_in(number: int) -> int:
    """The publish time, in ms, of the id with this number."""
    return number >> _TIME_SHIFT


def first_number(query: Query) -> int:
    """The number of the first id that the reader may receive, regardless of the rows."""
    return max(query.start, first_live_number(query))


def first_live_number(query: Query) -> int:
    """The number of the first id that neither truncation nor the time to live has passed."""
    return max(query.log_start.to_int(), MessageId(*query.live_from).to_int())


def next_at_first(query: Query, number: int) -> bytes:
    """Where a reader continues that began at this number and received nothing."""
    # Time alone must not move a reader past the high-water mark: if the clock goes back, the next
    # message gets an id before what is live now, and this reader must receive it.
    passed = max(query.start, min(number, past_group(query.high_water_mark).to_int() + 1)) - 1
    return min(max(0, passed), LAST_NUMBER).to_bytes(MESSAGE_ID_SIZE, "big")


def next_at_end(query: Query, number: int) -> bytes:
    """The same, if no message is left up to the high-water mark, or up to `through`."""
    # Every later row gets an id behind the high-water mark, even if the clock goes back. A reader
    # that stayed at the first live offset would soon get Tuff-Expired.
    end = min(past_group(query.high_water_mark), query.through)
    return max(next_at_first(query, number), end.to_bytes())


def before_row(offset: Offset) -> bytes:
    """The last id before a row; as an exclusive start, it delivers everything of the row."""
    return (MessageId(*offset).to_int() - 1).to_bytes(MESSAGE_ID_SIZE, "big")
