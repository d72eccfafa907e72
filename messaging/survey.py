"""Where a topic's live messages begin and end for a reader (protocol §3.6). Blocks."""

from contextlib import closing
from dataclasses import dataclass

from messaging.keys import message_key, payload_key, place_after, place_in
from messaging.query import Query
from messaging.reader import first
from messaging.retention import is_expired
from messaging.rows import DamagedRowError, MessageRow, PayloadRow
from messaging.storage.seam import Store
from messaging.visibility import Verdict, verdict
from tuff.protocol.errors import DamagedRecordError
from tuff.protocol.ids import MessageId, Place, past_group


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The id of the first message this reader would be handed, or of the damaged record at which it
    would be refused; None where there is neither. `go_on_from`: the number of the id from which to
    look on, where so many rows had to be passed over that the rest is left for another step."""

    id: MessageId | None
    go_on_from: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """`end`: the last message such that it and all before it are decided; `held_by`: the pointer of
    the first that is not."""

    end: MessageId | None
    held_by: int | None


def beginning(store: Store, query: Query) -> Beginning:
    """Where the messages from the start on begin, as far as one step tells. Raises: StoreError."""
    try:
        reading = first(store, query)
    except DamagedRecordError as error:
        # A message may have stood there, and who reads from there is told so.
        return Beginning(id=MessageId.from_hex(str(error.members["id"])))
    if reading.page:
        return Beginning(id=MessageId.from_bytes(reading.items[0][0]))
    if reading.finished:
        return Beginning(id=None)
    return Beginning(id=None, go_on_from=int.from_bytes(reading.next_id, "big") + 1)


def ending(store: Store, query: Query, *, undecided_from: Place) -> Ending:
    """Where a topic ends for a reader. Rows before `undecided_from` are known to be decided.

    Raises:
        StoreError: the engine can't read.
    """
    place, row = _first_undecided(store, query, max(undecided_from, first_live(query)))
    return Ending(
        end=_last_before(store, query, place),
        held_by=None if row is None else row.tx_pointer,
    )


def newest_id(store: Store, query: Query) -> MessageId | None:
    """The `end` of a topic for a reader without a snapshot, for whom every row is decided: one step
    back from the end. None where nothing is live. Raises: StoreError."""
    return _last_before(store, query, place_after(query.served))


def first_live(query: Query) -> Place:
    """The first place that neither truncation nor the time to live has passed."""
    return max(query.floor.place, query.live_from)


def _first_undecided(store: Store, query: Query, start: Place) -> tuple[Place, MessageRow | None]:
    """The first place that is not decided: that of a held row, of a damaged one, or the end."""
    end = place_after(query.served)
    if start < end:
        keys = message_key(query.prefix, start), message_key(query.prefix, end)
        with closing(store.scan(*keys)) as rows:
            for key, value in rows:
                place, row = place_in(key), _decoded(key, value)
                if row is None or _is_held(query, place, row):
                    return min(place, end), row
    return end, None


def _is_held(query: Query, place: Place, row: MessageRow) -> bool:
    return not _is_over(query, place, row.ttl_s) and (
        verdict(row.tx_pointer, query.snapshot) is Verdict.HOLD
    )


def _is_over(query: Query, place: Place, ttl_s: int | None) -> bool:
    return ttl_s is not None and is_expired(place.timestamp_ms, ttl_s, now_ms=query.now_ms)


def _last_before(store: Store, query: Query, stop: Place) -> MessageId | None:
    start = first_live(query)
    if start >= stop:
        return None
    keys = message_key(query.prefix, start), message_key(query.prefix, stop)
    with closing(store.scan(*keys, reverse=True)) as rows:
        for key, value in rows:
            place, row = place_in(key), _decoded(key, value)
            if place < stop:  # else it can't be read, and only may begin before
                return past_group(place) if row is None else _id_of(store, query, place, row)
    return None


def _id_of(store: Store, query: Query, place: Place, row: MessageRow) -> MessageId:
    """The id of the last message of a decided row; a place past the row if that was skipped."""
    is_skipped = verdict(row.tx_pointer, query.snapshot) is not Verdict.ACCEPT
    if is_skipped or _is_over(query, place, row.ttl_s):
        return past_group(place)
    if row.reference is None:
        return MessageId(*place)
    if not (row.reference.count and _is_last_live(store, query, place, row)):
        return past_group(place)
    return MessageId(*place, *row.reference.last)


def _is_last_live(store: Store, query: Query, place: Place, row: MessageRow) -> bool:
    assert row.reference is not None
    assert row.tx_pointer is not None
    key = payload_key(query.prefix, abs(row.tx_pointer), row.reference.last)
    value = store.get(key)
    try:
        return value is not None and not _is_over(
            query, place, PayloadRow.from_bytes(key, value).ttl_s
        )
    except DamagedRowError:
        return False


def _decoded(key: bytes, value: bytes) -> MessageRow | None:
    try:
        return MessageRow.from_bytes(key, value)
    except DamagedRowError:
        return None
