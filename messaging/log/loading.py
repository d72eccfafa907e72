"""Loads the state from an opened store: topics, pointer index, last batch, metadata. Blocks.

A single server loads everything at its start. A server of a cluster loads what describes its own
store, and each topic when it becomes the topic's owner (decision 0042).
"""

import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple

from kernel.log_events import event
from messaging.engines.engine_interface import Corruption, StoreDamagedError, StoreError
from messaging.engines.row_store import Store
from messaging.log.rows_by_transaction import IndexedRange
from messaging.log.store_end import StoreEndFile
from messaging.log.topics import TopicRecord
from messaging.model.producer_rows import GapRow, ProducerRow, split_producer_key
from messaging.model.row_format import (
    ALL_TABLES,
    BEFORE_ALL,
    DELAYED,
    HOLDS,
    INDEX,
    LAST_BATCH_KEY,
    MESSAGES,
    METADATA_KEY,
    POSITIONS,
    PRODUCERS,
    ROWS_STOP,
    TOPICS,
    DamagedRowError,
    Hold,
    LastBatch,
    NewerRowError,
    Position,
    StoreMetadata,
    delayed_stop,
    is_undecided,
    offset_in,
    prefix_of,
    prefix_stop,
    row_prefix,
    split_named_row_key,
    split_prefix,
    split_topic,
    topic_key,
)
from tuff.protocol.ids import DelayedId, Offset, TopicId

log = logging.getLogger(__name__)

_METADATA_ROW = "the store's metadata row"


class LoadedProducer(NamedTuple):
    """A row of the table of producers, of a topic's current generation; None: it can't be read."""

    topic: TopicId
    generation: int
    key: bytes
    row: ProducerRow | GapRow | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The loaded state. A topic whose row can't be read has the reason instead of a record;
    `due_ms` has the time of the next delayed message of each topic that has one; `metadata` is None
    in a store without any batch. `has_accepted_loss`: the store ends before `last_batch`."""

    topics: dict[TopicId, TopicRecord | str]
    due_ms: dict[TopicId, int]
    index: list[IndexedRange]
    producers: list[LoadedProducer]
    last_batch: LastBatch
    metadata: StoreMetadata | None
    has_accepted_loss: bool = False


def load(
    store: Store,
    *,
    new_store_refusal: Callable[[], str | None] = lambda: None,
    end_file: StoreEndFile | None = None,
) -> Loaded:
    """The state. `new_store_refusal` returns why an empty store must not be accepted as a new one:
    a sentence, or None. `end_file`: what is recorded elsewhere of how far the store was written.

    Raises:
        StoreError: the engine can't read; or a row that is required for safe operation is damaged
            or of a newer version, and the sentence says which; or the store must not be empty.
        MessagesLostError: the store was written further.
    """
    # The metadata first: its format says whether this version can read the other rows.
    metadata = _read_metadata(store)
    if metadata is None:
        _require_empty(store)
    if metadata is None and (reason := new_store_refusal()) is not None:
        raise StoreError(reason)
    found = continued = read_last_batch(store)
    if end_file is not None:
        continued = end_file.continued(found, None if metadata is None else metadata.store_id)
    topics = dict(_topics(store, TOPICS))
    _load_holds_and_positions(store, topics)
    return Loaded(
        topics=topics,
        due_ms=_next_due_ms(store, topics),
        index=load_index(store),
        producers=list(_producers(store, topics)),
        last_batch=continued,
        metadata=metadata,
        has_accepted_loss=continued is not found,
    )


def load_member(store: Store) -> Loaded:
    """The state of a server of a cluster at its start: it owns no topic. Raises: StoreError."""
    return Loaded(
        topics={},
        due_ms={},
        index=[],
        producers=[],
        last_batch=read_member_last_batch(store),
        metadata=_read_metadata(store),
    )


def read_member_last_batch(store: Store) -> LastBatch:
    """How far a server of a cluster has written. Raises: StoreError."""
    value = store.get(LAST_BATCH_KEY)
    with _required("the last-batch row of the store"):
        return LastBatch() if value is None else LastBatch.from_bytes(LAST_BATCH_KEY, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTopics:
    """What the store has of some topics. One without a row has None, and one whose row can't be
    read has the reason. `due_ms` is that of `Loaded`. `index`: the rows of the pointer index that
    name one of them."""

    records: dict[TopicId, TopicRecord | str | None]
    due_ms: dict[TopicId, int]
    index: list[IndexedRange]
    producers: list[LoadedProducer]


def load_topics(store: Store, units: Collection[TopicId]) -> LoadedTopics:
    """The state of these topics and logs of groups, with partitions and logs of share groups, also
    of those that were deleted: the next one of that name begins above their generation.
    Takes a few calls for each, and one scan of the pointer index. Raises: StoreError."""
    found: dict[TopicId, TopicRecord | str] = {}
    for unit in units:
        # The key of a topic is its name with a colon, so it begins those of the partitions.
        of_name = _topics(store, topic_key(unit))
        found |= {topic: record for topic, record in of_name if topic.unit == unit}
    due_ms: dict[TopicId, int] = {}
    producers: list[LoadedProducer] = []
    for topic, record in list(found.items()):
        if isinstance(record, TopicRecord) and record.generation > 0:
            prefix = prefix_of(topic, record.generation)
            _load_holds_and_positions(store, found, below=prefix)
            producers += _producers(store, found, below=prefix)
            if not topic.belongs_to_topic:
                due_ms |= _next_due_ms(store, {topic: record}, below=prefix)
    return LoadedTopics(
        records={**dict.fromkeys(units), **found},
        due_ms=due_ms,
        index=[entry for entry in load_index(store) if entry.topic.unit in units],
        producers=producers,
    )


def read_last_batch(store: Store) -> LastBatch:
    """How far the store was written. Raises: StoreError."""
    value = store.get(LAST_BATCH_KEY)
    try:
        if value is not None:
            return LastBatch.from_bytes(LAST_BATCH_KEY, value)
        highest = _highest_offset(store)
        if highest == BEFORE_ALL:
            return LastBatch()
        log.warning("the last-batch row is missing; the highest row of the store is at %s", highest)
    except NewerRowError as error:
        # If it were reconstructed from the rows, the next batch would overwrite the newer row.
        raise _unreadable("the last-batch row of the store", error) from None
    except DamagedRowError as error:
        highest = _highest_offset(store)
        log.warning("the last-batch row is damaged (%s); using the highest row of the store", error)
    return LastBatch(last=highest)


def read_last_batch_again(
    store: Store, possible: Collection[LastBatch], *, is_shared: bool
) -> LastBatch:
    """How far a store was written that this server had open before. `is_shared`: by the servers of
    a cluster. Raises: StoreError: it is another store, or it has changed since."""
    found = (read_member_last_batch if is_shared else read_last_batch)(store)
    if found not in possible:
        numbers = " or ".join(str(number) for number in sorted({m.batch_number for m in possible}))
        raise StoreError(
            f"the store that is there now ends with batch {found.batch_number}, and the one that "
            f"this server wrote ends with batch {numbers}: put that one back; or restart the "
            "server, to continue with the one that is there"
        )
    return found


def _read_metadata(store: Store) -> StoreMetadata | None:
    value = store.get(METADATA_KEY)
    with _required(_METADATA_ROW):
        return None if value is None else StoreMetadata.from_bytes(METADATA_KEY, value)


def _require_empty(store: Store) -> None:
    # If it were accepted as a new store, missing transaction files would go unnoticed.
    with _required(_METADATA_ROW):
        if _first_key(store, min(ALL_TABLES), prefix_stop(TOPICS)) is not None:
            raise DamagedRowError("it is missing, and other rows are there")


@contextmanager
def _required(name: str) -> Iterator[None]:
    """Read a row without which the store can't be used safely. Raises: StoreError."""
    try:
        yield
    except DamagedRowError as error:
        raise _unreadable(name, error) from None


def _unreadable(name: str, error: DamagedRowError) -> StoreError:
    kind = StoreError if isinstance(error, NewerRowError) else StoreDamagedError
    return kind(f"{name} {error.finding}; {error.advice}")


def _topics(store: Store, start: bytes) -> Iterator[tuple[TopicId, TopicRecord | str]]:
    """The topics whose keys begin with these bytes."""
    for key, value in store.records(start, prefix_stop(start), corruption=Corruption.RAISE):
        with _whole_key("the topic row", key):
            topic = split_topic(key[1:])
        yield topic, _record(topic, key, value)


@contextmanager
def _whole_key(name: str, key: bytes) -> Iterator[None]:
    try:
        yield
    except ValueError as error:
        raise StoreDamagedError(
            f"{name} {key.hex()} is damaged in its key ({error}); use `tuff salvage`"
        ) from None


def _record(topic: TopicId, key: bytes, value: bytes) -> TopicRecord | str:
    try:
        return TopicRecord.from_bytes(key, value)
    except DamagedRowError as error:
        extra = event("damage_found", topic=topic)
        log.warning("the metadata of the topic %s %s", topic, error.finding, extra=extra)
        return f"{error.finding}; {error.advice}"


def _load_holds_and_positions(
    store: Store, topics: dict[TopicId, TopicRecord | str], *, below: bytes = b""
) -> None:
    """Give each topic's record its holds and positions. `below`: only those of this prefix."""
    holds: defaultdict[TopicId, dict[str, Hold]] = defaultdict(dict)
    positions: defaultdict[TopicId, dict[str, Position]] = defaultdict(dict)
    for table, topic, name, key, value in _named_rows(store, topics, below):
        try:
            if table == HOLDS:
                holds[topic][name] = Hold.from_bytes(key, value)
            else:
                positions[topic][name] = Position.from_bytes(key, value)
        except DamagedRowError as error:
            what = f"has {_KINDS[table]} {name!r}, which {error.finding}"
            log.warning("the topic %s %s", topic, what, extra=event("damage_found", topic=topic))
            if table == HOLDS or isinstance(error, NewerRowError):
                # Without the hold, messages that a reader still needs would expire. With a hold
                # that begins at another time, expired messages would come back.
                topics[topic] = f"{what}; {error.advice}"
    for topic in holds.keys() | positions.keys():
        record = topics[topic]
        if isinstance(record, TopicRecord):
            topics[topic] = replace(record, holds=holds[topic], positions=positions[topic])


def _named_rows(
    store: Store, topics: dict[TopicId, TopicRecord | str], below: bytes
) -> Iterator[tuple[bytes, TopicId, str, bytes, bytes]]:
    """Table, topic, name, key and value of each row of its topic's current generation."""
    for table in (HOLDS, POSITIONS):
        start = table + below
        for key, value in store.records(start, prefix_stop(start), corruption=Corruption.RAISE):
            with _whole_key("the row", key):
                topic, generation, name = split_named_row_key(key)
            record = topics.get(topic)
            if isinstance(record, TopicRecord) and record.generation == generation:
                yield table, topic, name, key, value


def _producers(
    store: Store, topics: Mapping[TopicId, TopicRecord | str], *, below: bytes = b""
) -> Iterator[LoadedProducer]:
    """The rows of producers of current generations. `below`: only those of this prefix."""
    start = PRODUCERS + below
    for key, value in store.records(start, prefix_stop(start), corruption=Corruption.RAISE):
        try:
            topic, generation, producer = split_producer_key(key)
        except ValueError as error:
            extra = event("damage_found", key=key.hex())
            log.warning("the row %s is damaged in its key: %s", key.hex(), error, extra=extra)
            continue
        record = topics.get(topic)
        if not isinstance(record, TopicRecord) or record.generation != generation:
            continue
        row: ProducerRow | GapRow | None = None
        try:
            row = (ProducerRow if producer else GapRow).from_bytes(key, value)
        except NewerRowError as error:
            raise _unreadable(f"the producer row {key.hex()}", error) from None
        except DamagedRowError as error:
            # Repetitions to this topic are refused, and nothing else depends on the row.
            extra = event("damage_found", topic=topic)
            log.warning("a producer row of the topic %s %s", topic, error.finding, extra=extra)
        yield LoadedProducer(topic, generation, key, row)


def _next_due_ms(
    store: Store, topics: Mapping[TopicId, TopicRecord | str], *, below: bytes = b""
) -> dict[TopicId, int]:
    """When the next delayed message of each topic is due. Reads one row of each topic that has any.
    `below`: only those of this prefix."""
    found: dict[TopicId, int] = {}
    start = DELAYED + below
    stop = delayed_stop(below) if below else prefix_stop(DELAYED)
    while (key := _first_key(store, start, stop)) is not None:
        prefix = row_prefix(key)
        try:
            topic, generation = split_prefix(prefix)
        except ValueError as error:
            extra = event("damage_found", key=key.hex())
            log.warning("the row %s is damaged in its key: %s", key.hex(), error, extra=extra)
            start = key + b"\x00"
            continue
        record = topics.get(topic)
        current = record.generation if isinstance(record, TopicRecord) else None
        if generation == current and not is_undecided(key):
            found[topic] = DelayedId.from_bytes(key).due_ms
        start = delayed_stop(prefix)
    return found


def _first_key(store: Store, start: bytes, stop: bytes) -> bytes | None:
    with closing(store.records(start, stop, corruption=Corruption.RAISE)) as rows:
        return next((key for key, _ in rows), None)


_KINDS = {HOLDS: "a hold", POSITIONS: "a position"}


def load_index(store: Store) -> list[IndexedRange]:
    """All rows of the pointer index. Raises: StoreError."""
    entries = []
    for key, value in store.records(INDEX, prefix_stop(INDEX), corruption=Corruption.RAISE):
        try:
            entries.append(IndexedRange.from_bytes(key, value))
        except DamagedRowError as error:
            # Without this row, message rows of an aborted transaction could stay as they are, and
            # become visible.
            raise _unreadable(f"the index row {key.hex()}", error) from None
    return entries


def _highest_offset(store: Store) -> Offset:
    highest = BEFORE_ALL
    for key, _ in store.scan(MESSAGES, ROWS_STOP):
        highest = max(highest, offset_in(key))
    return highest
