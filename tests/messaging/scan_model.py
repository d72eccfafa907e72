"""Rows of a topic as a model, what a read of them must deliver, and the store that has them."""

from collections.abc import Callable
from dataclasses import dataclass, replace

from hypothesis import strategies as st

from messaging.engines.engine_interface import Engine
from messaging.engines.memory import MemoryStore
from messaging.engines.row_store import Store
from messaging.log import scan
from messaging.log.scan import ReadResult
from messaging.model.row_format import (
    NO_PAYLOADS,
    MessageRow,
    PayloadRange,
    message_key,
    payload_key,
    prefix_of,
)
from messaging.model.visibility import Query, Undecided, start_after
from tuff.protocol.ids import FIRST_ID, LAST_ID, MESSAGE_ID_SIZE, MessageId, Offset, TopicId
from tuff.protocol.transaction import Transaction

PREFIX = prefix_of(TopicId("default", "t"), 1)
NOW_MS = 1_000_000
TTL_S = 100
COMMITTED_POINTER, INVALID_POINTER, UNDECIDED_POINTER = 10, 20, 30
SNAPSHOT = Transaction(
    transaction_id=100,
    read_pointer=99,
    write_pointer=100,
    invalids=(INVALID_POINTER,),
    in_progress=(UNDECIDED_POINTER,),
)


@dataclass(frozen=True, slots=True)
class ModelRow:
    """One row: payloads with their own time to live, inline (one) or stored."""

    timestamp_ms: int
    pointer: int | None
    payloads: tuple[tuple[bytes, int | None], ...]
    is_reference: bool


payload_values = st.tuples(st.binary(max_size=6), st.sampled_from([None, None, 1, 50]))
inline = st.builds(
    lambda ts, pointer, payload: ModelRow(ts, pointer, (payload,), is_reference=False),
    st.sampled_from([899_000, 900_001, 950_000, 999_500]),
    st.sampled_from(
        [None, None, COMMITTED_POINTER, -COMMITTED_POINTER, INVALID_POINTER, UNDECIDED_POINTER]
    ),
    payload_values,
)
references = st.builds(
    lambda ts, pointer, payloads: ModelRow(ts, pointer, tuple(payloads), is_reference=True),
    st.sampled_from([899_000, 900_001, 950_000, 999_500]),
    st.sampled_from(
        [
            COMMITTED_POINTER,
            COMMITTED_POINTER,
            -COMMITTED_POINTER,
            INVALID_POINTER,
            UNDECIDED_POINTER,
        ]
    ),
    st.lists(payload_values, max_size=4),
)
topics = st.lists(inline | references, max_size=8).map(
    lambda rows: sorted(rows, key=lambda row: row.timestamp_ms)
)
snapshots = st.sampled_from(
    [(None, Undecided.HOLD), (SNAPSHOT, Undecided.HOLD), (SNAPSHOT, Undecided.SKIP)]
)


@dataclass(frozen=True, slots=True)
class Expected:
    """What the rows mean: each message with its id, or where a reader in a snapshot is held."""

    items: list[tuple[bytes, bytes]]
    is_held: bool


def build(
    rows: list[ModelRow], *, attributes_of: Callable[[bytes], bytes | None] = lambda _payload: None
) -> tuple[MemoryStore, Offset, list[tuple[Offset, list[Offset]]]]:
    """A store with these rows, its served mark, and where each row and its payloads stand. Messages
    have the stored attributes that belong to their payload."""
    table = MemoryStore()
    places: list[tuple[Offset, list[Offset]]] = []
    seq_id = 0
    for row in rows:
        stored = []
        for payload, ttl_s in row.payloads if row.is_reference else ():
            assert row.pointer is not None
            stored.append(Offset(row.timestamp_ms, seq_id))
            key = payload_key(PREFIX, abs(row.pointer), stored[-1])
            found = MessageRow(payload=payload, ttl_s=ttl_s, attributes=attributes_of(payload))
            table.write([(key, found.to_bytes(key))])
            seq_id += 1
        place = Offset(row.timestamp_ms, seq_id)
        seq_id += 1
        key = message_key(PREFIX, place)
        if row.is_reference:
            brings = PayloadRange(stored[0], stored[-1], len(stored)) if stored else NO_PAYLOADS
            value = MessageRow(tx_pointer=row.pointer, reference=brings)
        else:
            ((payload, ttl_s),) = row.payloads
            value = MessageRow(
                tx_pointer=row.pointer,
                ttl_s=ttl_s,
                payload=payload,
                attributes=attributes_of(payload),
            )
        table.write([(key, value.to_bytes(key))])
        places.append((place, stored))
    return table, Offset(NOW_MS, 0), places


def model(
    rows: list[ModelRow],
    places: list[tuple[Offset, list[Offset]]],
    *,
    snapshot: Transaction | None,
    undecided: Undecided,
) -> Expected:
    items: list[tuple[bytes, bytes]] = []
    for row, (place, stored) in zip(rows, places, strict=True):
        if is_expired(row, None) or (not row.is_reference and is_expired(row, row.payloads[0][1])):
            continue
        if (
            snapshot is not None
            and row.pointer == UNDECIDED_POINTER
            and undecided is Undecided.HOLD
        ):
            return Expected(items, is_held=True)
        if snapshot is not None and row.pointer not in (None, COMMITTED_POINTER):
            continue
        for (payload, ttl_s), at in zip(row.payloads, stored or [Offset(0, 0)], strict=False):
            if not is_expired(row, ttl_s):
                items.append((MessageId(*place, *at).to_bytes(), payload))
    return Expected(items, is_held=False)


def is_expired(row: ModelRow, ttl_s: int | None) -> bool:
    return row.timestamp_ms + 1000 * (TTL_S if ttl_s is None else ttl_s) <= NOW_MS


def start_number(start: MessageId | int | None, *, inclusive: bool) -> int:
    """The number of the first id that a read from this start delivers."""
    return int.from_bytes(start_after(start, inclusive=inclusive), "big") + 1


def read(store: Engine | Store, query: Query) -> ReadResult:
    """A read of an engine, or of a store over one."""
    return scan.read(store if isinstance(store, Store) else Store(store), query)


def query(*, start: int = 0, through: MessageId = LAST_ID, **changed: object) -> Query:
    """A query of ids from the number `start` on."""
    plain = Query(
        prefix=PREFIX,
        after=max(0, start - 1).to_bytes(MESSAGE_ID_SIZE, "big"),
        through=through.to_bytes(),
        high_water_mark=Offset(NOW_MS, 0),
        log_start=FIRST_ID,
        live_from=Offset(NOW_MS - 1000 * TTL_S + 1, 0),
        now_ms=NOW_MS,
        limit=1000,
        bytes_max=1 << 20,
        snapshot=None,
    )
    return replace(plain, **changed)  # type: ignore[arg-type] # fields by name


def comparable(reading: ReadResult | str) -> object:
    """What two readings must have in common, of which each may be an error."""
    if isinstance(reading, str):
        return reading
    return (
        reading.items,
        reading.messages.attributes,
        reading.next_id,
        reading.caught_up,
        reading.blocking_pointer,
        reading.finished,
    )
