"""What a reader is told of a record that it can't be handed (protocol §3.4). Blocks."""

from contextlib import closing

from messaging.keys import (
    MESSAGES,
    PLACE_SIZE,
    first_place,
    message_key,
    place_after,
    place_number,
    pointer_prefix,
)
from messaging.query import Query, before_row
from messaging.run_table import rows_max
from messaging.storage.seam import Store, StoreDamagedError
from tuff.protocol.errors import DamagedRecordError
from tuff.protocol.ids import MessageId, Place, past_group


def refusal(id_bytes: bytes, behind: bytes, finding: str) -> DamagedRecordError:
    """The refusal of this record, which names the place behind it."""
    return DamagedRecordError(
        f"the record {id_bytes.hex()} {finding}; to go on without it, read on from "
        f"{behind.hex()}, exclusive",
        members={"id": id_bytes.hex(), "next": behind.hex()},
    )


def block_refusal(passed: bytes, behind: bytes, error: StoreDamagedError) -> DamagedRecordError:
    """The refusal of all that may have stood between two places, of which the first was passed."""
    first = MessageId.from_bytes(passed).to_int() + 1
    return DamagedRecordError(
        f"messages behind {passed.hex()} are damaged, or can't be told ({error}); to go on without "
        f"them, read on from {behind.hex()}, exclusive",
        members={"id": MessageId.from_int(first).hex(), "next": behind.hex()},
    )


def may_hold(store: Store, key: bytes, value: bytes, *, after: int, passed: bytes) -> str:
    """What else may be lost with a record, of which no row stands up to a place, given as a number,
    nor up to the one that was passed, given as bytes or none."""
    after = max(after, int.from_bytes(passed[:PLACE_SIZE], "big"))
    count = min(rows_max(store, key, value), place_number(key) - after)
    if count <= 1:
        return ""
    return f" and may have been up to {count} messages, of which this was the last"


def behind_block(store: Store, query: Query, damaged: Place, error: StoreDamagedError) -> bytes:
    """A place behind a stretch of messages that can't be read, which begins at this one."""
    if error.readable_from is not None:
        place = first_place(MESSAGES + query.prefix, error.readable_from)
    else:
        place = _readable_place(store, query, damaged)
    if place is None or place > query.served:
        return past_group(query.served).to_bytes()
    return before_row(place)


def behind_in_group(
    prefix: bytes, pointer: int, place: Place, last: Place, error: StoreDamagedError
) -> bytes:
    """The same in the payload group that a row brings, up to its last payload."""
    front = pointer_prefix(prefix, pointer)
    inside = None if error.readable_from is None else first_place(front, error.readable_from)
    if inside is None or inside > last:
        return before_row(place_after(place))
    return MessageId.from_int(MessageId(*place, *inside).to_int() - 1).to_bytes()


def _readable_place(store: Store, query: Query, damaged: Place) -> Place | None:
    """Ever larger steps in time, where the engine can't tell the end."""
    stop = message_key(query.prefix, place_after(query.served))
    step_ms = 1
    while damaged.timestamp_ms + step_ms <= query.served.timestamp_ms:
        at = Place(damaged.timestamp_ms + step_ms, 0)
        try:
            with closing(store.scan(message_key(query.prefix, at), stop)) as rows:
                next(rows, None)
        except StoreDamagedError:
            step_ms *= 2
        else:
            return at
    return None
