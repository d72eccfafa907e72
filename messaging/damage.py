"""What a reader is told of a record that it can't be handed (protocol §3.4). Blocks."""

from contextlib import closing

from messaging.keys import PLACE_SIZE, message_key, place_after, place_number
from messaging.query import Query, before_row
from messaging.run_table import rows_max
from messaging.storage.seam import Store, StoreDamagedError
from tuff.protocol.errors import DamagedRecordError
from tuff.protocol.ids import Place, past_group


def refusal(id_bytes: bytes, behind: bytes, finding: str) -> DamagedRecordError:
    """The refusal of this record, which names the place behind it."""
    return DamagedRecordError(
        f"the record {id_bytes.hex()} {finding}; to go on without it, read on from "
        f"{behind.hex()}, exclusive",
        members={"id": id_bytes.hex(), "next": behind.hex()},
    )


def may_hold(store: Store, key: bytes, value: bytes, *, after: int, passed: bytes) -> str:
    """What else may be lost with a record, of which no row stands up to a place, given as a number,
    nor up to the one that was passed, given as bytes or none."""
    after = max(after, int.from_bytes(passed[:PLACE_SIZE], "big"))
    count = min(rows_max(store, key, value), place_number(key) - after)
    if count <= 1:
        return ""
    return f" and may have been up to {count} messages, of which this was the last"


def behind_block(store: Store, query: Query, damaged: Place) -> bytes:
    """A place behind a stretch whose end the engine can't tell: ever larger steps in time."""
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
            return before_row(at)
    return past_group(query.served).to_bytes()
