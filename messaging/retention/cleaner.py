"""The retention pass: applies the retention decision to rows, in bounded batches (design §5).

Each pass looks at rows that are certain to go: those of older generations, and those that the
topic's time to live has passed. In addition a patrol walks over all rows, a bounded range per pass,
for rows that can't be found by key: shorter times to live, payloads of ended transactions, invalid
pointers.

Where region observers do this work, a pass hands them the state to decide by, and reads no row.
"""

import logging
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial

from messaging.retention.decision import (
    Decision,
    RetainedRow,
    RetentionState,
    Table,
    TopicRule,
    decide,
)
from messaging.retention.region_observers import RegionObservers, RetentionInput
from messaging.storage.engine import Store, StoreDamagedError
from messaging.storage.packed_rows import is_packed, require_packed, row_count, scan_records
from messaging.storage.rows import (
    MESSAGES,
    OFFSET_SIZE,
    PAYLOADS,
    ROWS_STOP,
    DamagedRowError,
    MessageRow,
    PayloadRow,
    message_key,
    offset_after,
    offset_in,
    pack_offset,
    pointer_in,
    prefix_of,
    row_prefix,
    topic_bytes,
    topic_key,
)
from messaging.storage.store_state import OpenStore, StoreState
from messaging.topics import Topic, with_log_start
from messaging.write.group_commit import GroupCommitter, Write, WriteBatch
from messaging.write.settle_and_mark import TransactionRows
from tuff.protocol.errors import UnavailableError
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.protocol.visibility import VisibilityState

log = logging.getLogger(__name__)

CHUNK_ROWS_MAX = 10_000  # rows looked at in one go; keeps one batch of deletes to some tens of ms
PATROL_ROWS_MAX = 50_000  # rows of the patrol in one pass; a third of a second each minute


@dataclass(frozen=True, slots=True, kw_only=True)
class PassResult:
    """How many rows one retention pass dropped, inverted, and found damaged."""

    dropped_count: int
    inverted_count: int
    damaged_count: int


_Range = tuple[bytes, bytes]  # start <= key < stop


@dataclass(slots=True)
class _Rules:
    """What a chunk is judged by, as of the start of the retention pass. `may_delete` must hold all
    along: a sweep that left the references could not tell them from those whose payloads it may
    drop, and one that left older rows could tear a publish."""

    topics: Mapping[bytes, tuple[Topic, TopicRule]]
    state: RetentionState
    in_progress: frozenset[int]
    may_delete: bool


@dataclass(slots=True)
class _Chunk:
    """What one look at stretches of rows found; `left` are those it did not get to."""

    deletes: dict[bytes, int] = field(default_factory=dict)  # and how many rows go with each
    inversions: list[tuple[int, bytes, Offset]] = field(default_factory=list)
    log_starts: dict[Topic, tuple[int, Offset]] = field(default_factory=dict)  # with the generation
    damaged: list[bytes] = field(default_factory=list)
    left: list[_Range] = field(default_factory=list)


@dataclass(slots=True)
class _Beginning:
    """The first rows of a patrol may be in the middle of a publish whose older rows it passed when
    they were still alive. Older rows go first: should the clock go back, a publish that had lost
    others would be shown torn. `next_key` is where it would go on, None once it did not."""

    next_key: bytes | None = None

    def reaches(self, key: bytes) -> bool:
        """Whether the next row of the patrol, at this key, may be of that publish."""
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
        committer: GroupCommitter,
        transaction_rows: TransactionRows,
        observers: RegionObservers | None,
    ) -> None:
        self._store = store
        self._state = state
        self._committer = committer
        self._transaction_rows = transaction_rows
        self._observers = observers
        self._cursor = MESSAGES
        self._swept_generations: dict[TopicId, int] = {}

    async def run_pass(self) -> PassResult:
        """One pass. Nothing is deleted and no log start rises while `may_delete()` is False.

        Raises:
            UnavailableError (its kinds): the store can't be read or written now.
        """
        self._store.require_up()
        state = self._state.transactions.visibility_state()
        await self._mark_invalid(state)
        rules = self._rules(state)
        chunks = []
        if self._observers is None:
            chunks = [chunk async for chunk in self._swept(rules)]
        elif state is not None and rules.may_delete:
            await self._observers.hand_over(_retention_input(rules, state))
        await self._record(rules, state)
        damaged = [key for chunk in chunks for key in chunk.damaged]
        if damaged:
            log.warning("%d damaged rows, the first under %s", len(damaged), damaged[0].hex())
        return PassResult(
            dropped_count=sum(sum(chunk.deletes.values()) for chunk in chunks),
            inverted_count=sum(len(chunk.inversions) for chunk in chunks),
            damaged_count=len(damaged),
        )

    async def _mark_invalid(self, state: VisibilityState | None) -> None:
        if state is None:
            return
        invalid = [each for each in self._state.index.pointers() if each in state.invalid]
        try:
            await self._transaction_rows.mark_rolled_back(invalid)
        except UnavailableError as error:
            log.warning("%d invalid pointers are still to be marked: %s", len(invalid), error)

    def _rules(self, state: VisibilityState | None) -> _Rules:
        # A pointer leaves the index only when its end is durable; so what is in there counts as in
        # progress even while no transaction service can be asked.
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
            in_progress=in_progress,
            may_delete=self._state.may_delete(),
        )

    async def _swept(self, rules: _Rules) -> AsyncIterator[_Chunk]:
        async for chunk in self._walk([*self._older_rows(rules), *_expired_rows(rules)], rules):
            yield chunk
        if rules.may_delete and self._state.may_delete():
            for topic, rule in rules.topics.values():
                self._swept_generations[topic.id] = _first_kept(rule)
        passed = 0
        beginning = _Beginning(self._cursor)  # no row has the key at which a new lap begins
        async for chunk in self._walk([(self._cursor, ROWS_STOP)], rules, beginning):
            yield chunk
            passed += CHUNK_ROWS_MAX
            self._cursor = chunk.left[0][0] if chunk.left else MESSAGES
            if passed >= PATROL_ROWS_MAX:
                return

    async def _walk(
        self, ranges: list[_Range], rules: _Rules, beginning: _Beginning | None = None
    ) -> AsyncIterator[_Chunk]:
        look = partial(_look, rules=rules, beginning=beginning or _Beginning())
        while ranges:
            chunk = await self._store.read(partial(look, ranges=ranges))
            if chunk.deletes or chunk.inversions:
                await self._committer.submit(
                    Write(partial(self._apply, chunk, rules), internal=True)
                )
            ranges = chunk.left
            yield chunk

    def _older_rows(self, rules: _Rules) -> Iterator[_Range]:
        """The keys of every generation that was deleted, from the last one that was swept."""
        for topic, rule in rules.topics.values():
            first = self._swept_generations.get(topic.id, 0)
            stop = _first_kept(rule)
            if stop > max(first, 1):
                for table in (MESSAGES, PAYLOADS):
                    yield table + prefix_of(topic.id, first), table + prefix_of(topic.id, stop)

    def _apply(self, chunk: _Chunk, rules: _Rules, batch: WriteBatch) -> None:
        for pointer, prefix, offset in chunk.inversions:
            batch.invert(pointer, prefix, offset, offset)
        rules.may_delete = rules.may_delete and self._state.may_delete()
        if not rules.may_delete:
            chunk.deletes.clear()
            return
        for topic, (generation, log_start) in chunk.log_starts.items():
            record = topic.decided
            if record is not None and record.generation == generation:
                # With the rows goes the log start: a clock that is slewed back, or a longer time to
                # live, would otherwise show what is left around the holes.
                raised = with_log_start(record, MessageId(*log_start))
                batch.change_topic(topic, raised, key=topic_key(topic.id))
        for key in chunk.deletes:
            batch.delete(key)

    async def _record(self, rules: _Rules, state: VisibilityState | None) -> None:
        if state is not None:
            self._state.metadata = replace(
                self._state.metadata, swept_at_ms=rules.state.now_ms, swept_with=state.source
            )
            await self._committer.submit(Write(WriteBatch.force, internal=True))


def _retention_input(rules: _Rules, state: VisibilityState) -> RetentionInput:
    # A topic whose change is on its way to the disk is left out, and so kept: by the time of this
    # state a longer time to live may have saved messages that the durable one gives up.
    return RetentionInput(
        topics={
            name: rule.without_holds(now_ms=rules.state.now_ms)
            for name, (topic, rule) in rules.topics.items()
            if topic.decided is topic.durable
        },
        state=rules.state,
        in_progress=rules.in_progress,
        invalid=state.invalid,
    )


def _first_kept(rule: TopicRule) -> int:
    """The first generation whose rows are not all to be dropped."""
    return abs(rule.generation) + (rule.generation < 0)


def _expired_rows(rules: _Rules) -> Iterator[_Range]:
    """The keys of messages that the topic's time to live, or its log start, has passed."""
    for topic, rule in rules.topics.values():
        if rule.generation > 0:
            prefix = prefix_of(topic.id, rule.generation)
            live_from = rule.live_from(now_ms=rules.state.now_ms)
            yield MESSAGES + prefix, message_key(prefix, max(live_from, rule.log_start))


def _look(store: Store, *, ranges: list[_Range], rules: _Rules, beginning: _Beginning) -> _Chunk:
    """Judge the rows of stretches, up to so many rows. Blocks."""
    chunk = _Chunk()
    seen_count = 0
    for index, (start, stop) in enumerate(ranges):
        try:
            with closing(scan_records(store, start, stop)) as records:
                for key, value in records:
                    if seen_count >= CHUNK_ROWS_MAX:
                        chunk.left = [(key, stop), *ranges[index + 1 :]]
                        return chunk
                    seen_count += row_count(value)
                    _judge(chunk, key, value, rules, may_be_cut=beginning.reaches(key))
        except StoreDamagedError as error:
            log.warning("a sweep can't read on from %s: %s", start.hex(), error)
            chunk.damaged.append(start)
    return chunk


def _judge(
    chunk: _Chunk, key: bytes, value: bytes, rules: _Rules, *, may_be_cut: bool = False
) -> None:
    try:
        row = _retained(key, value)
    except DamagedRowError:
        # Kept: `tuff salvage` may still read a damaged row, and nothing a deleted one.
        chunk.damaged.append(key)
        return
    topic, rule = rules.topics.get(row_prefix(key)[:-4], (None, None))
    match decide(row, rule, rules.state):
        case Decision.DROP if may_be_cut and row.ttl_s is not None:
            pass  # the next patrol that begins before it drops all of its publish
        case Decision.DROP:
            chunk.deletes[key] = row_count(value)
            if topic is not None and rule is not None:
                _note_log_start(chunk, topic, rule, row, rules.state.now_ms)
        case Decision.INVERT:
            assert row.tx_pointer is not None
            chunk.inversions.append((row.tx_pointer, row_prefix(key), row.offset))
        case Decision.KEEP:
            pass


def _note_log_start(
    chunk: _Chunk, topic: Topic, rule: TopicRule, row: RetainedRow, now_ms: int
) -> None:
    # A payload that is dropped was stored so long ago that its offset is expired as well.
    is_current = row.generation == rule.generation
    live_from = rule.live_from(now_ms=now_ms)
    if is_current and row.offset < live_from:
        chunk.log_starts[topic] = rule.generation, live_from


def _retained(key: bytes, value: bytes) -> RetainedRow:
    is_payload = key.startswith(PAYLOADS)
    row = MessageRow()
    # One that can't be read is never dropped.
    if is_packed(value):
        # Of one millisecond and one generation: it ends with its last row, and as a whole.
        require_packed(key, value)
    elif is_payload:
        PayloadRow.from_bytes(key, value)
    else:
        row = MessageRow.from_bytes(key, value)
    return RetainedRow(
        table=Table.PAYLOAD if is_payload else Table.MESSAGE,
        generation=int.from_bytes(row_prefix(key)[-4:], "big"),
        offset=offset_in(key),
        tx_pointer=pointer_in(key) if is_payload else row.tx_pointer,
        ttl_s=row.ttl_s,
    )
