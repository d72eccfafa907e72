"""The retention pass: applies the retention decision to rows, in bounded batches (design §5).

Each pass scans the key ranges in which rows have expired: older generations, and messages older
than the topic's time to live. In addition a patrol scans all rows, a bounded range per pass. It
finds rows that can't be found by key: those with a shorter time to live of their own, payloads of
ended transactions, and rows of invalid pointers. In a cluster, a pass reads rows of those topics
only that this server owns.

If region observers do this work, a pass gives them the state by which they decide, and reads no
row but delayed ones, which they do not see.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

from kernel.log_events import event
from messaging.engines.engine_interface import StoreDamagedError
from messaging.engines.row_store import Store
from messaging.log.region_observers import RegionObservers
from messaging.log.state_in_memory import OpenStore, StoreState
from messaging.log.topics import Topic, with_log_start
from messaging.model.expiry import (
    Decision,
    RetainedRow,
    RetentionState,
    Table,
    TopicRule,
    decide,
)
from messaging.model.packed_rows import is_packed, require_packed, row_count
from messaging.model.row_format import (
    DELAYED,
    MESSAGES,
    OFFSET_SIZE,
    PAYLOADS,
    ROWS_STOP,
    DamagedRowError,
    MessageRow,
    message_key,
    offset_after,
    offset_in,
    pack_offset,
    pointer_in,
    prefix_of,
    prefix_stop,
    row_prefix,
    topic_bytes,
)
from messaging.retention.compaction import Compaction, Freed
from messaging.topic_changes import TopicChanges
from messaging.write.transaction_rows import TransactionRows
from messaging.write.write_batch import WriteBatch
from messaging.write.write_queue import Write, WriteQueue
from tuff.protocol.errors import UnavailableError
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.protocol.pointer_list import VisibilityState
from tuff.protocol.sentences import counted

log = logging.getLogger(__name__)

CHUNK_ROWS_MAX = 10_000  # rows of one chunk; its batch of deletes takes some tens of ms
PATROL_ROWS_MAX = 50_000  # rows of the patrol in one pass; a third of a second each minute
PATROL_SCANS_MAX = 1_000  # of one pass in a cluster: each topic takes two, some ms each in HBase


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """How many rows one retention pass dropped, inverted, and found damaged."""

    dropped_count: int
    inverted_count: int
    damaged_count: int


_KeyRange = tuple[bytes, bytes]  # start <= key < stop


@dataclass(slots=True)
class _Rules:
    """The rules for all chunks of a pass, as of its start. `may_delete` must be true during the
    complete pass. A pass that left references in place could later drop their payloads, and one
    that left older rows in place could drop only a part of a publish."""

    topics: Mapping[bytes, tuple[Topic, TopicRule]]
    state: RetentionState
    may_delete: bool


@dataclass(slots=True)
class _Chunk:
    """The result of one scan of ranges of rows; `left` are the ranges that it did not reach."""

    deletes: dict[bytes, int] = field(default_factory=dict)  # with the count of rows in each
    inversions: list[tuple[int, bytes, Offset]] = field(default_factory=list)
    log_starts: dict[Topic, tuple[int, Offset]] = field(default_factory=dict)  # with the generation
    damaged: list[bytes] = field(default_factory=list)
    left: list[_KeyRange] = field(default_factory=list)


@dataclass(slots=True)
class _PatrolStart:
    """The start of a patrol's range, which may be in the middle of a publish. The earlier rows of
    that publish were live when the last patrol passed them. They must be dropped first: otherwise,
    if the clock went back, readers would see the publish without its later rows. `next_key` is the
    key at which the publish would continue, None once another row came."""

    next_key: bytes | None = None

    def reaches(self, key: bytes) -> bool:
        """Whether the next row of the patrol, which has this key, may belong to that publish."""
        if key != self.next_key:
            self.next_key = None
            return False
        offset = offset_after(offset_in(key))
        self.next_key = key[:-OFFSET_SIZE] + pack_offset(*offset)
        return True


class RetentionCleaner:
    """Runs retention passes. Lives on the event loop; rows are read in threads."""

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        committer: WriteQueue,
        transaction_rows: TransactionRows,
        topics: TopicChanges,
        observers: RegionObservers | None,
        compaction: Compaction,
        before_deletion: Callable[[], Awaitable[None]],
    ) -> None:
        """`before_deletion` is awaited by each pass that may delete, before its first deletion."""
        self._store = store
        self._state = state
        self._committer = committer
        self._transaction_rows = transaction_rows
        self._topics = topics
        self._observers = observers
        self._compaction = compaction
        self._before_deletion = before_deletion
        self._cursor = MESSAGES
        # Topics in which rows were deleted since their tables were compacted; None: all.
        self._to_compact: set[bytes] | None = None
        self._freed = Freed(0, is_complete=True)  # by the last pass
        self._one_pass = asyncio.Lock()  # a requested pass waits for the one under way
        self._swept_generations: dict[TopicId, int] = {}

    async def run_pass(self) -> PassResult:
        """One pass. Nothing is deleted and no log start rises while `may_delete()` is False.

        Raises:
            UnavailableError (its kinds): the store can't be read or written now.
        """
        async with self._one_pass:
            return await self._run_pass(is_urgent=self._committer.lack_of_space is not None)

    async def run_requested_pass(self) -> Freed:
        """One pass that looks at all that was ever deleted, and compacts small ranges, too; what it
        freed. Raises: as `run_pass`."""
        async with self._one_pass:
            self._to_compact = None
            self._freed = Freed(0, is_complete=False)
            await self._run_pass(is_urgent=True)
            return self._freed

    async def _run_pass(self, *, is_urgent: bool) -> PassResult:
        self._store.require_up()
        await self._committer.require_space_to_delete()
        state = await self._state.transactions.visibility_state()
        await self._roll_back_invalid(state)
        rules = self._rules(state)
        if rules.may_delete:
            await self._before_deletion()
        chunks = []
        if self._observers is None:
            chunks = [chunk async for chunk in self._run_chunks(rules)]
        else:
            chunks = [chunk async for chunk in self._run_older(rules, [DELAYED])]
            if state is not None and rules.may_delete:
                await self._observers.publish_state(_observed_topics(rules), rules.state)
        await self._record(rules, state)
        if rules.may_delete and self._state.may_delete():
            await self._topics.delete_emptied()
            await self._compact(rules, chunks, is_urgent=is_urgent)
        damaged = [key for chunk in chunks for key in chunk.damaged]
        if damaged:
            first = damaged[0].hex()
            extra = event("damage_found", count=len(damaged), key=first)
            log.warning(
                "%s, the first under %s", counted(len(damaged), "damaged row"), first, extra=extra
            )
        return PassResult(
            dropped_count=sum(sum(chunk.deletes.values()) for chunk in chunks),
            inverted_count=sum(len(chunk.inversions) for chunk in chunks),
            damaged_count=len(damaged),
        )

    async def _compact(self, rules: _Rules, chunks: Sequence[_Chunk], *, is_urgent: bool) -> None:
        """Free the space of rows that this pass and those before it deleted."""
        if self._to_compact is not None:
            self._to_compact |= {row_prefix(key)[:-4] for chunk in chunks for key in chunk.deletes}
        ranges = [
            each
            for name, (topic, rule) in rules.topics.items()
            if self._to_compact is None or name in self._to_compact
            for each in _deleted_ranges(topic, rule, now_ms=rules.state.now_ms)
        ]
        self._freed = await self._compaction.free(ranges, is_urgent=is_urgent)
        if self._freed.is_complete:
            self._to_compact = set()

    async def _roll_back_invalid(self, state: VisibilityState | None) -> None:
        if state is None:
            return
        invalid = [each for each in self._state.index.pointers() if each in state.invalid]
        try:
            await self._transaction_rows.roll_back(invalid)
        except UnavailableError as error:
            log.warning(
                "%s still to be rolled back: %s", counted(len(invalid), "invalid pointer"), error
            )

    def _rules(self, state: VisibilityState | None) -> _Rules:
        # A pointer leaves the index only when its end is durable. So those in the index count as in
        # progress even while the transaction service is down.
        in_progress = frozenset(
            (*self._state.index.pointers(), *(state.in_progress if state else ()))
        )
        return _Rules(
            topics={
                topic_bytes(topic.id): (topic, topic.rule_of(topic.durable))
                for topic in self._state.topics
                if topic.durable is not None
            },
            state=RetentionState(
                now_ms=self._state.expiry_ms(),
                longest_transaction_ms=self._state.metadata.longest_transaction_ms,
                in_progress=in_progress,
                invalid=state.invalid if state is not None else (),
            ),
            may_delete=self._state.may_delete(),
        )

    async def _run_chunks(self, rules: _Rules) -> AsyncIterator[_Chunk]:
        async for chunk in self._run_older(rules, [DELAYED, MESSAGES, PAYLOADS]):
            yield chunk
        async for chunk in self._chunks_of(list(_expired_rows(rules)), rules):
            yield chunk
        passed = 0
        patrol_start = _PatrolStart(self._cursor)  # no row has the key at which a new lap begins
        ranges, behind = self._patrol_ranges(rules)
        self._cursor = behind  # unless there are more rows than one pass reads
        async for chunk in self._chunks_of(ranges, rules, patrol_start):
            yield chunk
            passed += CHUNK_ROWS_MAX
            self._cursor = chunk.left[0][0] if chunk.left else behind
            if passed >= PATROL_ROWS_MAX:
                return

    async def _run_older(self, rules: _Rules, tables: Sequence[bytes]) -> AsyncIterator[_Chunk]:
        async for chunk in self._chunks_of(list(self._older_rows(rules, tables)), rules):
            yield chunk
        if rules.may_delete and self._state.may_delete():
            for topic, rule in rules.topics.values():
                self._swept_generations[topic.id] = _first_kept(rule)

    def _patrol_ranges(self, rules: _Rules) -> tuple[list[_KeyRange], bytes]:
        """The keys that the patrol reads from the cursor on, and where it continues behind them."""
        if not self._state.topics.is_shared:
            return [(self._cursor, ROWS_STOP)], MESSAGES
        # A topic that another server gave away, and that the cursor has passed, is read in the next
        # lap.
        starts = (table + name for table in (MESSAGES, PAYLOADS) for name in sorted(rules.topics))
        ranges = [
            (max(start, self._cursor), prefix_stop(start))
            for start in starts
            if prefix_stop(start) > self._cursor
        ]
        behind = ranges[PATROL_SCANS_MAX][0] if len(ranges) > PATROL_SCANS_MAX else MESSAGES
        return ranges[:PATROL_SCANS_MAX], behind

    async def _chunks_of(
        self, ranges: list[_KeyRange], rules: _Rules, patrol_start: _PatrolStart | None = None
    ) -> AsyncIterator[_Chunk]:
        look = partial(_scan_chunk, rules=rules, patrol_start=patrol_start or _PatrolStart())
        while ranges:
            chunk = await self._store.read(partial(look, ranges=ranges))
            if chunk.deletes or chunk.inversions:
                await self._committer.submit(
                    Write(partial(self._apply, chunk, rules), internal=True)
                )
            ranges = chunk.left
            yield chunk

    def _older_rows(self, rules: _Rules, tables: Sequence[bytes]) -> Iterator[_KeyRange]:
        """The keys of all deleted generations that were not swept yet."""
        for topic, rule in rules.topics.values():
            first = self._swept_generations.get(topic.id, 0)
            stop = _first_kept(rule)
            if stop > max(first, 1):
                for table in tables:
                    yield table + prefix_of(topic.id, first), table + prefix_of(topic.id, stop)

    def _apply(self, chunk: _Chunk, rules: _Rules, batch: WriteBatch) -> None:
        _leave_out_moved(chunk, rules)
        for pointer, prefix, offset in chunk.inversions:
            batch.invert(pointer, prefix, offset, offset)
        rules.may_delete = rules.may_delete and self._state.may_delete()
        if not rules.may_delete:
            chunk.deletes.clear()
            return
        for topic, (generation, log_start) in chunk.log_starts.items():
            record = topic.decided
            if record is not None and record.generation == generation:
                # The log start rises with the deletion. Otherwise a clock that is slewed back, or a
                # longer time to live, would show the rows that remain between deleted ones.
                raised = with_log_start(record, MessageId(*log_start))
                batch.change_topic(topic, raised)
        for key in chunk.deletes:
            batch.delete(key)

    async def _record(self, rules: _Rules, state: VisibilityState | None) -> None:
        if state is not None:
            self._state.metadata = replace(
                self._state.metadata, swept_at_ms=rules.state.now_ms, swept_with=state.source
            )
            await self._committer.submit(Write(WriteBatch.force, internal=True))


def _observed_topics(rules: _Rules) -> dict[bytes, TopicRule]:
    """The rules for region observers, by the prefix of the topics' keys."""
    # A topic with a change that is still being written is left out, and so its messages are kept: a
    # longer time to live may keep messages that have expired by the durable one.
    return {
        name: rule.without_holds(now_ms=rules.state.now_ms)
        for name, (topic, rule) in rules.topics.items()
        if topic.decided is topic.durable
    }


def _leave_out_moved(chunk: _Chunk, rules: _Rules) -> None:
    """In a cluster, a topic may have moved to another server since its rows were read. Nothing of
    it may be written here any more."""
    moved = {name for name, (topic, _) in rules.topics.items() if topic.is_released}
    if moved:
        chunk.deletes = {
            key: count for key, count in chunk.deletes.items() if row_prefix(key)[:-4] not in moved
        }
        chunk.inversions = [each for each in chunk.inversions if each[1][:-4] not in moved]
        for topic in [each for each in chunk.log_starts if each.is_released]:
            del chunk.log_starts[topic]


def _first_kept(rule: TopicRule) -> int:
    """The first generation that is not deleted."""
    return abs(rule.generation) + (rule.generation < 0)


def _expired_rows(rules: _Rules) -> Iterator[_KeyRange]:
    """The keys of messages that have expired by the topic's time to live, or are before its log
    start."""
    for topic, rule in rules.topics.values():
        if rule.generation > 0:
            prefix = prefix_of(topic.id, rule.generation)
            live_from = rule.live_from(now_ms=rules.state.now_ms)
            yield MESSAGES + prefix, message_key(prefix, max(live_from, rule.log_start))


def _deleted_ranges(topic: Topic, rule: TopicRule, *, now_ms: int) -> Iterator[_KeyRange]:
    """The keys of deleted generations, and of messages that have expired or are before the log
    start."""
    for table in (DELAYED, MESSAGES, PAYLOADS):
        yield table + prefix_of(topic.id, 0), table + prefix_of(topic.id, _first_kept(rule))
    if rule.generation > 0:
        prefix = prefix_of(topic.id, rule.generation)
        first = max(rule.live_from(now_ms=now_ms), rule.log_start)
        yield MESSAGES + prefix, message_key(prefix, first)


def _scan_chunk(
    store: Store, *, ranges: list[_KeyRange], rules: _Rules, patrol_start: _PatrolStart
) -> _Chunk:
    """Decide about the rows in these ranges, up to `CHUNK_ROWS_MAX`. Blocks."""
    chunk = _Chunk()
    seen_count = 0
    for index, (start, stop) in enumerate(ranges):
        try:
            with closing(store.records(start, stop)) as records:
                for key, value in records:
                    if seen_count >= CHUNK_ROWS_MAX:
                        chunk.left = [(key, stop), *ranges[index + 1 :]]
                        return chunk
                    seen_count += row_count(value)
                    _decide_row(chunk, key, value, rules, may_be_cut=patrol_start.reaches(key))
        except StoreDamagedError as error:
            log.warning("the retention pass can't read rows from %s on: %s", start.hex(), error)
            chunk.damaged.append(start)
    return chunk


def _decide_row(
    chunk: _Chunk, key: bytes, value: bytes, rules: _Rules, *, may_be_cut: bool = False
) -> None:
    try:
        row = _retained(key, value)
    except DamagedRowError:
        # Kept: `tuff salvage` may still read a damaged row, and can't read a deleted one.
        chunk.damaged.append(key)
        return
    topic, rule = rules.topics.get(row_prefix(key)[:-4], (None, None))
    match decide(row, rule, rules.state):
        case Decision.DROP if may_be_cut and row.ttl_s is not None:
            pass  # the next patrol that begins before this publish drops all of it
        case Decision.DROP:
            chunk.deletes[key] = row_count(value)
            if topic is not None and rule is not None:
                _raise_log_start(chunk, topic, rule, row, rules.state.now_ms)
        case Decision.INVERT:
            assert row.tx_pointer is not None
            chunk.inversions.append((row.tx_pointer, row_prefix(key), row.offset))
        case Decision.KEEP:
            pass


def _raise_log_start(
    chunk: _Chunk, topic: Topic, rule: TopicRule, row: RetainedRow, now_ms: int
) -> None:
    # A dropped payload was stored so long ago that its offset has expired, too.
    is_current = row.generation == rule.generation
    live_from = rule.live_from(now_ms=now_ms)
    if is_current and row.offset < live_from:
        chunk.log_starts[topic] = rule.generation, live_from


def _retained(key: bytes, value: bytes) -> RetainedRow:
    is_payload = key.startswith(PAYLOADS)
    row = MessageRow()
    # A row that can't be read is never dropped.
    if is_packed(value):
        # Its rows have one generation and one millisecond, so all of them expire together.
        require_packed(key, value)
    elif is_payload:
        MessageRow.from_bytes(key, value)
    else:
        row = MessageRow.from_bytes(key, value)
    return RetainedRow(
        table=Table.PAYLOAD if is_payload else Table.MESSAGE,
        generation=int.from_bytes(row_prefix(key)[-4:], "big"),
        offset=offset_in(key),
        tx_pointer=pointer_in(key) if is_payload else row.tx_pointer,
        ttl_s=row.ttl_s,
    )
