"""What a reader sees: the verdict on a row (protocol §6), and where a read starts and continues
(§3.4). Pure.

Ids are their 20 bytes here, whose order is that of the messages. A read begins behind an id: no
message has the id of all zeros, so a read from the beginning is one behind that id.
"""

from dataclasses import replace
from enum import Enum
from typing import NamedTuple

from messaging.model.expiry import is_expired
from messaging.model.row_format import OFFSET_SIZE, MessageRow, pack_offset
from tuff.protocol.attributes import TagFilter
from tuff.protocol.ids import FIRST_ID, LAST_ID, MESSAGE_ID_SIZE, TIMESTAMP_LIMIT, MessageId, Offset
from tuff.protocol.pointer_list import holds
from tuff.protocol.transaction import Transaction
from tuff.protocol.values import value

BEGINNING = bytes(MESSAGE_ID_SIZE)  # an id before all messages
PAST_ALL = b"\xff" * MESSAGE_ID_SIZE  # an id that no message is behind
PAST_GROUP = b"\xff" * OFFSET_SIZE  # the second half of an id behind all that a row can bring

_TIME_SIZE = 8  # bytes of an id with its publish time


class Undecided(Enum):
    """What a read in a fixed snapshot does at a row that is not decided for it."""

    HOLD = "hold"
    SKIP = "skip"


@value(kw_only=True)
class Query:
    """What to read, as of one moment. Messages behind the id `after` may be delivered, up to the id
    `through`; `high_water_mark` is the last offset that readers may be shown; `live_from` the first
    that retention has left; `tags` selects messages, None: all."""

    prefix: bytes
    after: bytes
    through: bytes
    high_water_mark: Offset
    log_start: MessageId
    live_from: Offset
    now_ms: int
    limit: int
    bytes_max: int
    snapshot: Transaction | None
    undecided: Undecided = Undecided.HOLD
    tags: TagFilter | None = None

    @property
    def last(self) -> bytes:
        """The last offset of a row that may be delivered."""
        return min(pack_offset(*self.high_water_mark), self.through[:OFFSET_SIZE])


def as_stored(query: Query) -> Query:
    """A query to which also what has expired or is before the log start is live."""
    return replace(query, log_start=FIRST_ID, live_from=Offset(0, 0), now_ms=0)


class Verdict(Enum):
    """What a reader does with a row."""

    ACCEPT = "accept"
    SKIP = "skip"
    BLOCK = "block"


class BlockingRow(NamedTuple):
    """A row that blocks a reader."""

    pointer: int
    offset: Offset
    ttl_s: int | None  # the row's own time to live


def verdict(query: Query, offset: Offset, row: MessageRow) -> Verdict:
    """The verdict of this reader on a live row, by the row's write pointer and its own time to
    live."""
    if is_past_own_ttl(query, offset, row.ttl_s):
        return Verdict.SKIP
    found = visibility(row.tx_pointer, query.snapshot)
    if found is Verdict.BLOCK and query.undecided is Undecided.SKIP:
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
    return Verdict.SKIP if snapshot.is_own(pointer) else Verdict.BLOCK


def first_id(start: MessageId | int | None) -> MessageId:
    """The first id that this start stands for: an id, a time in ms, or None for the beginning."""
    if start is None:
        return FIRST_ID
    if isinstance(start, MessageId):
        return start
    return MessageId(start, 0) if start < TIMESTAMP_LIMIT else LAST_ID


def start_after(start: MessageId | int | None, *, inclusive: bool) -> bytes:
    """The id behind which a read begins; a time in ms stands for the start of its millisecond."""
    if start is None:
        return BEGINNING
    if inclusive:
        return id_before(first_id(start).to_bytes())
    if isinstance(start, MessageId):
        return start.to_bytes()
    return min(start, TIMESTAMP_LIMIT - 1).to_bytes(_TIME_SIZE, "big") + PAST_ALL[_TIME_SIZE:]


def id_before(message_id: bytes) -> bytes:
    """The id in front of this one; the first has none, and stands for itself."""
    number = int.from_bytes(message_id, "big")
    return max(0, number - 1).to_bytes(MESSAGE_ID_SIZE, "big")


def id_after(message_id: bytes) -> bytes:
    """The next possible id; there is none after the last, which stands for itself."""
    number = int.from_bytes(message_id, "big") + 1
    return PAST_ALL if message_id == PAST_ALL else number.to_bytes(MESSAGE_ID_SIZE, "big")


def first_offset_after(after: bytes) -> bytes:
    """The offset of the first row that may bring messages behind this id."""
    offset = after[:OFFSET_SIZE]
    if after[OFFSET_SIZE:] != PAST_GROUP or after == PAST_ALL:
        return offset
    return (int.from_bytes(offset, "big") + 1).to_bytes(OFFSET_SIZE, "big")


def live_after(query: Query) -> bytes:
    """The last id that truncation or the time to live has passed."""
    return id_before(_first_live_id(query))


def read_after(query: Query) -> bytes:
    """The id behind which the reader may receive messages, regardless of the rows."""
    first = _first_live_id(query)
    return query.after if query.after >= first else id_before(first)


def _first_live_id(query: Query) -> bytes:
    live_from = pack_offset(*query.live_from) + bytes(OFFSET_SIZE)
    return max(query.log_start.to_bytes(), live_from)


def next_at_first(query: Query, after: bytes) -> bytes:
    """Where a reader continues that began behind this id and received nothing."""
    # Time alone must not move a reader past the high-water mark: if the clock goes back, the next
    # message gets an id before what is live now, and this reader must receive it.
    return max(query.after, min(after, past_row(query.high_water_mark)))


def next_at_end(query: Query, after: bytes) -> bytes:
    """Where a reader continues if no message is left up to the high-water mark, or up to
    `through`."""
    # Every later row gets an id behind the high-water mark, even if the clock goes back. A reader
    # that stayed at the first live offset would soon get Tuff-Expired.
    end = min(past_row(query.high_water_mark), query.through)
    return max(next_at_first(query, after), end)


def before_row(offset: Offset) -> bytes:
    """The last id before a row; a read behind it delivers everything of the row."""
    return id_before(pack_offset(*offset) + bytes(OFFSET_SIZE))


def past_row(offset: Offset) -> bytes:
    """An id behind everything that the row at this offset brings."""
    return pack_offset(*offset) + PAST_GROUP
