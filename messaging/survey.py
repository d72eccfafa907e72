"""Where a topic's live messages begin and end for a reader (protocol §3.6). Blocks."""

from contextlib import closing
from dataclasses import dataclass, replace

from messaging.keys import message_key, place_after, place_in
from messaging.query import Query
from messaging.reader import first_id
from messaging.retention import is_expired
from messaging.rows import DamagedRowError, MessageRow
from messaging.storage.seam import Store
from messaging.visibility import Verdict, verdict
from tuff.protocol.ids import MessageId, Place, past_group


@dataclass(frozen=True, slots=True, kw_only=True)
class Extent:
    """`earliest`: the first message this reader would be handed; `end`: the last message such that
    it and all before it are decided; `held_by`: the pointer of the first that is not."""

    earliest: MessageId | None
    end: MessageId | None
    held_by: int | None


def survey(store: Store, query: Query, *, undecided_from: Place) -> Extent:
    """The extent of a topic. Rows before `undecided_from` are known to be decided.

    Raises:
        DamagedRecordError: the first message is damaged; StoreError.
    """
    earliest = first_id(store, replace(query, start=0))
    place, row = _first_undecided(store, query, max(undecided_from, first_live(query)))
    return Extent(
        earliest=earliest,
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
    if row.ttl_s is not None and is_expired(place.timestamp_ms, row.ttl_s, now_ms=query.now_ms):
        return False
    return verdict(row.tx_pointer, query.snapshot) is Verdict.HOLD


def _last_before(store: Store, query: Query, stop: Place) -> MessageId | None:
    start = first_live(query)
    if start >= stop:
        return None
    keys = message_key(query.prefix, start), message_key(query.prefix, stop)
    with closing(store.scan(*keys, reverse=True)) as rows:
        for key, value in rows:
            place, row = place_in(key), _decoded(key, value)
            if place < stop:  # else it can't be read, and only may begin before
                return past_group(place) if row is None else _id_of(query, place, row)
    return None


def _id_of(query: Query, place: Place, row: MessageRow) -> MessageId:
    """The id of the last message of a decided row; a place past the row if it brings none."""
    if verdict(row.tx_pointer, query.snapshot) is not Verdict.ACCEPT:
        return past_group(place)
    if row.reference is None:
        return MessageId(*place)
    return MessageId(*place, *row.reference.last) if row.reference.count else past_group(place)


def _decoded(key: bytes, value: bytes) -> MessageRow | None:
    try:
        return MessageRow.from_bytes(key, value)
    except DamagedRowError:
        return None
