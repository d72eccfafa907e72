"""The rows of transactions. When a transaction commits, its index rows are deleted; when it ends in
another way, its rows are rolled back. Both wake the readers that waited for the end (design §6).

Index rows are deleted with the next batch. A rollback inverts all message rows in the pointer
index, and deletes the undecided rows of delayed messages. It goes in steps (decision 0064): readers
see no part of it, since the transaction has durably ended before, and reads in its own snapshot
pass over its rows from the first step on. A rollback that fails stays queued and is retried until
it succeeds.

A commit lets its delayed messages wait for their due times (decision 0043, section 5): a batch
replaces their undecided rows by delayed rows, and deletes the index row. A crash before that batch
leaves the index row, and the next start ends the transaction's rows again.

The rows of a prepared transaction that blocks readers for too long are *set aside* (decision
0045, section 2): they are rolled back, and stay in the index. If the transaction commits, they are
written again behind all others. If it aborts, they only leave the index.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial

from kernel.event_loop import FutureTask
from kernel.log_events import event
from messaging.engines.engine_interface import Corruption
from messaging.engines.row_store import Store
from messaging.log.region_observers import RegionObservers
from messaging.log.rows_by_transaction import (
    ASIDE_ROWS,
    DELAYED_ROWS,
    IndexedRange,
)
from messaging.log.state_in_memory import OpenStore, StoreState
from messaging.log.topics import Topic, ownership_moving
from messaging.model.row_format import (
    DamagedRowError,
    delayed_key,
    offset_after,
    split_undecided,
    undecided_key,
)
from messaging.write.publish import Publisher
from messaging.write.write_batch import RollbackStep, WriteBatch
from messaging.write.write_queue import WRITE_OVERHEAD_BYTES, Write, WriteQueue
from tuff.protocol.errors import OwnershipMovingError, TuffError, UnavailableError
from tuff.protocol.ids import Offset, TopicId
from tuff.protocol.transaction import POINTERS_PER_MS

log = logging.getLogger(__name__)

ROLLBACK_RANGES_MAX = 1_000  # of a step; each has a row at least, so more are too many for a batch
HOME_NAMES_MAX = 1_024  # names of topics that are remembered: each commit records those of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedPointer:
    """A pointer with rows whose index rows may be on disk. `first_publish_ms` None: it holds no
    reader back."""

    pointer: int
    topics: frozenset[TopicId]
    is_final: bool
    first_publish_ms: int | None


@dataclass(slots=True)
class _Undecided:
    """The undecided rows of one range, as delayed rows, and the keys of damaged ones."""

    keys: list[bytes] = field(default_factory=list)
    delayed: list[tuple[bytes, bytes]] = field(default_factory=list)
    due_ms: list[int] = field(default_factory=list)
    damaged: list[bytes] = field(default_factory=list)
    size_bytes: int = WRITE_OVERHEAD_BYTES


class TransactionRows:
    """The rows of transactions, as the transaction service asks for them
    (tx/messaging_interface.py has these methods as a protocol). Lives on the event loop.

    `observers` is None unless region servers do the work of retention.
    """

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        committer: WriteQueue,
        publisher: Publisher,
        observers: RegionObservers | None,
    ) -> None:
        self._store = store
        self._state = state
        self._committer = committer
        self._observers = observers
        self._moving: set[int] = set()  # committed, and some of their rows are still to be moved
        self._reported: set[bytes] = set()  # index keys of rows that wait; it was logged once
        # The polls that read in the snapshot of a transaction, by its pointer.
        self._readers: dict[int, dict[asyncio.Event, None]] = {}
        self._home_name = lru_cache(HOME_NAMES_MAX)(_home_name)
        self.check_entries = publisher.check_entries
        self.check_now = publisher.check_now
        self.has_rows_to_move = state.index.has_rows_to_move
        self.publish_final = publisher.publish_final

    def end_committed(self, transaction_pointers: Collection[int]) -> None:
        """These pointers durably committed: the next batch deletes their index rows, and batches
        soon after let their delayed messages wait, and return what was set aside."""
        moving = self._state.index.end_committed(transaction_pointers)
        if moving:
            self._moving.update(moving)
            FutureTask(self._move_rows(moving), refusals=TuffError).go_on()

    async def set_aside(self, transaction_pointers: Collection[int]) -> None:
        """Let readers pass the message rows of these prepared pointers, durably. Idempotent.

        Raises:
            UnavailableError (its kinds): repeat it.
        """
        for pointer in transaction_pointers:
            ranges = self._state.index.message_ranges(pointer)
            for topic in sorted({entry.topic for entry in ranges if entry.blocks_readers}):
                if not await self._committer.submit(
                    Write(partial(self._set_aside, pointer, topic), internal=True)
                ):
                    continue
                sentence = (
                    "transaction %d is prepared, and blocked the readers of %s too long; its "
                    "messages there are set aside until it is resolved"
                )
                extra = event("messages_set_aside", transaction=pointer, topic=str(topic))
                log.warning(sentence, pointer, topic, extra=extra)

    async def roll_back(self, transaction_pointers: Collection[int]) -> None:
        """Invert all rows of these pointers durably, or delete them if they are undecided rows, and
        delete their index rows. Idempotent.

        Raises:
            UnavailableError (its kinds): `retry_rollbacks` will try again.
        """
        carried = [each for each in transaction_pointers if self._state.index.ranges(each)]
        self._state.index.rolling_back.update(carried)
        # Before the first row changes: a read in these transactions that may have missed a row
        # looks again at what it reads in.
        self._wake_readers_in(transaction_pointers)
        if carried:
            await self._roll_back(carried)

    async def retry_rollbacks(self) -> None:
        """Roll back and move the rows for which it failed before; rows that fail again stay
        queued."""
        if self._state.index.rolling_back:
            try:
                await self._roll_back(sorted(self._state.index.rolling_back))
            except UnavailableError:
                return
        if self._moving:
            # A batch that was lost may have put back index rows of transactions that ended
            # meanwhile.
            self._state.index.end_committed(self._moving)
            await self._move_rows(sorted(self._moving))

    def wake_readers(self, transaction_pointers: Collection[int]) -> None:
        """These pointers durably ended: wake readers that their rows block, and those that read
        in these transactions."""
        for topic in sorted(self._state.index.ended_topics(transaction_pointers)):
            found = self._state.topics.maybe_find(topic)
            if found is not None:
                found.wake()
        self._wake_readers_in(transaction_pointers)

    @contextmanager
    def reading_in(self, pointer: int, waiter: asyncio.Event) -> Iterator[None]:
        """Register a poll that reads in this transaction's snapshot, for as long as it reads."""
        waiters = self._readers.setdefault(pointer, {})
        waiters[waiter] = None
        try:
            yield
        finally:
            del waiters[waiter]
            if not waiters:
                del self._readers[pointer]

    def reading_pointers(self) -> Collection[int]:
        """The pointers in whose snapshots polls read now."""
        return self._readers.keys()

    def topics(self, transaction_pointers: Collection[int]) -> list[str]:
        """`ns:topic` of every topic these pointers published to or stored for, sorted."""
        found = self._state.index.topics(transaction_pointers)
        return sorted(set(map(self._home_name, found))) if found else []

    def is_carried(self, pointer: int) -> bool:
        """Whether a message row or a stored payload of this pointer may exist."""
        return self._state.index.may_be_on_disk(pointer)

    def carried(self) -> list[CarriedPointer]:
        """What the leader of transactions in a cluster must know of the pointer index."""
        index = self._state.index
        finals = index.final_pointers()
        return [
            CarriedPointer(
                pointer=pointer,
                topics=_units(index.topics([pointer])),
                is_final=pointer in finals,
                first_publish_ms=index.first_publish_ms(pointer),
            )
            for pointer in (*index.pointers(), *index.ending)
        ]

    def has_ended_in(self, pointer: int, topic: TopicId) -> bool:
        """Whether this server serves the topic, and no index row there or in a partition is left on
        disk that the pointer has: its rows are durably rolled back or ended."""
        if self._state.topics.is_foreign(topic):
            return False
        return topic not in _units(self._state.index.topics([pointer]))

    def is_cleared(self, pointer: int) -> bool:
        """Whether no row outside the index has this invalid pointer. False only until the region
        servers have rewritten such rows."""
        return self._observers is None or self._observers.has_cleared(pointer)

    def final_pointers(self) -> set[int]:
        """Pointers with final rows whose commit has not ended."""
        return self._state.index.final_pointers()

    def indexed_pointers(self) -> list[int]:
        """All pointers with rows that are neither ended nor rolled back: after a start, those whose
        outcome the transaction service must report."""
        return sorted(self._state.index.pointers())

    def published_by(self, at_ms: int) -> list[int]:
        """Pointers with undecided message rows whose first publish was not after this time."""
        published = self._state.index.published_by(at_ms)
        return [each for each in published if each not in self._state.index.rolling_back]

    def note_reserved(self, highest_pointer: int) -> None:
        """Transactions durably reserved pointers up to this one; recorded with the next batch."""
        metadata = self._state.metadata
        highest = max(metadata.highest_pointer, highest_pointer)
        self._state.metadata = replace(metadata, highest_pointer=highest)

    def note_durable(self, lsn: int) -> None:
        """The edits of transactions up to this one are durable; recorded with the next batch."""
        self._state.seen_lsn = lsn

    def _wake_readers_in(self, transaction_pointers: Collection[int]) -> None:
        if self._readers:
            for pointer in transaction_pointers:
                for waiter in self._readers.get(pointer, ()):
                    waiter.set()

    async def _roll_back(self, pointers: Sequence[int]) -> None:
        """Roll back the rows in steps, between which other writes have their turn."""
        index, reached = self._state.index, None
        while entries := index.first_ranges(pointers, ROLLBACK_RANGES_MAX):
            step = RollbackStep(entries, reached)
            await self._submit(partial(self._roll_back_step, step))
            reached = step.reached
            for topic in {entry.topic for entry in step.ended}:
                found = self._state.topics.maybe_find(topic)
                if found is not None:
                    found.wake()
        self._state.index.rolling_back.difference_update(pointers)

    def _roll_back_step(self, step: RollbackStep, batch: WriteBatch) -> None:
        self._require_own_topics(step.entries)
        batch.rollbacks.append(step)

    def _set_aside(self, pointer: int, topic: TopicId, batch: WriteBatch) -> bool:
        """Whether there was something to set aside."""
        index = self._state.index
        ranges = [each for each in index.message_ranges(pointer) if each.topic == topic]
        if pointer in self._state.index.rolling_back or not ranges:
            return False  # it has been aborted, or they are set aside
        self._require_own_topics(ranges)
        for entry in ranges:
            aside = entry.set_aside
            batch.invert(entry.pointer, entry.prefix, entry.first, entry.last, aside=aside)
            batch.delete(entry.key)
            batch.unindexed.append(entry)
            # At once: the transaction may commit before the batch is durable.
            index.discard(entry)
            index.add(aside)
        self._touch(ranges, batch)
        return True

    async def _move_rows(self, pointers: Collection[int]) -> None:
        """Move the rows of committed transactions, in batches that they share."""
        await asyncio.gather(*map(self._move_rows_of, pointers))

    async def _move_rows_of(self, pointer: int) -> None:
        ranges = self._state.index.moved_ranges(pointer)
        aside = sorted({entry.topic for entry in ranges if entry.kind == ASIDE_ROWS})
        moves = [self._submit(partial(self._return, pointer, topic)) for topic in aside]
        moves += [self._delay(entry) for entry in ranges if entry.kind == DELAYED_ROWS]
        try:
            await asyncio.gather(*moves)
        except TuffError:
            return  # `retry_rollbacks` tries again
        if not self._state.index.ranges(pointer):
            self._moving.discard(pointer)

    async def _delay(self, entry: IndexedRange) -> None:
        """Let the delayed messages of a committed transaction wait for their due times."""
        try:
            rows = await self._store.read(partial(_undecided, entry=entry))
            put = partial(self._put_delayed, entry, rows)
            await self._committer.submit(Write(put, size_bytes=rows.size_bytes, internal=True))
            self._reported.discard(entry.key)
        except OwnershipMovingError:
            raise  # the next owner does it
        except TuffError as error:
            if self._store.is_up and entry.key not in self._reported:
                self._reported.add(entry.key)
                sentence = "delayed messages of %s, of the committed transaction %d, wait: %s"
                extra = event("delayed_wait", topic=entry.topic, transaction=entry.pointer)
                log.warning(sentence, entry.topic, entry.pointer, error, extra=extra)
            raise

    def _put_delayed(self, entry: IndexedRange, rows: _Undecided, batch: WriteBatch) -> None:
        if entry.key in batch.puts or not self._state.index.has(entry):
            return  # another write of this batch moves them, or another batch has
        self._require_own_topics([entry])
        topic = self._state.topics.maybe_find(entry.topic)
        if topic is not None:
            topic.require_readable()  # before the batch is changed
        self._move(entry, batch)
        if topic is None or not topic.has_generation(entry.generation):
            return  # it was deleted, and retention drops the rows
        batch.delayed += [(key, None) for key in rows.keys]
        batch.delayed += rows.delayed
        if rows.due_ms:
            batch.look_times_ms.append((topic.id, min(rows.due_ms)))
        for key in rows.damaged:
            sentence = "a delayed message of %s is damaged, and never enters: row %s; %s"
            extra = event("damage_found", topic=topic.id, key=key.hex())
            log.warning(sentence, topic.id, key.hex(), DamagedRowError.advice, extra=extra)

    def _move(self, entry: IndexedRange, batch: WriteBatch) -> None:
        """Delete the index row of rows that this batch moves."""
        batch.delete(entry.key)
        batch.moved.append(entry)

    def _return(self, pointer: int, topic: TopicId, batch: WriteBatch) -> None:
        """Write the rows of a topic that were set aside again, behind all others."""
        index, topics = self._state.index, self._state.topics
        ranges = [
            each
            for each in index.moved_ranges(pointer)
            if each.kind == ASIDE_ROWS and each.topic == topic and each.key not in batch.puts
        ]
        self._require_own_topics(ranges)
        found = topics.maybe_find(topic)
        if found is not None:
            found.require_readable()  # before the batch is changed
        for entry in ranges:
            self._move(entry, batch)
            if found is not None and found.has_generation(entry.generation):
                self._publish_again(found, entry, batch)

    def _publish_again(self, topic: Topic, entry: IndexedRange, batch: WriteBatch) -> None:
        # What has expired has no payloads any more, if a retention pass was here.
        first = max(entry.first, self._first_live(topic))
        if first > entry.last:
            return
        # Stored payloads stay as long as a message that references them.
        self._state.raise_longest_transaction(batch.now_ms - entry.pointer // POINTERS_PER_MS)
        at, _ = batch.next_offsets(entry.count)
        batch.publish_again(entry.pointer, entry.prefix, first, entry.last, at=at)
        batch.touch(topic)

    def _first_live(self, topic: Topic) -> Offset:
        record = topic.require_decided()
        live_from = topic.rule_of(record).live_from(now_ms=self._state.expiry_ms())
        return max(record.log_start.offset, live_from)

    async def _submit(self, build: "partial[None]") -> None:
        await self._committer.submit(Write(build, internal=True))

    def _touch(self, ranges: Sequence[IndexedRange], batch: WriteBatch) -> None:
        for entry in ranges:
            topic = self._state.topics.maybe_find(entry.topic)
            if topic is not None:
                batch.touch(topic)

    def _require_own_topics(self, entries: Iterable[IndexedRange]) -> None:
        # A topic may be given to another server since its ranges were listed. Nothing of it may be
        # written then. But if that fails, this server has to roll them back: `retry_rollbacks`
        # lists them again, and after the move there are none.
        for each in entries:
            if self._state.topics.is_foreign(each.topic):
                raise ownership_moving(each.topic)


def _home_name(topic: TopicId) -> str:
    return str(topic.home)


def _undecided(store: Store, *, entry: IndexedRange) -> _Undecided:
    """The undecided rows of a range. Blocks. Raises: StoreError."""
    start = undecided_key(entry.prefix, entry.first)
    stop = undecided_key(entry.prefix, offset_after(entry.last))
    found = _Undecided()
    for key, stored in store.records(start, stop, corruption=Corruption.RAISE):
        try:
            _, delayed_id, value = split_undecided(key, stored)
        except DamagedRowError:
            found.damaged.append(key)  # it stays, for `tuff salvage`
            continue
        found.keys.append(key)
        found.delayed.append((delayed_key(entry.prefix, delayed_id), value))
        found.due_ms.append(delayed_id.due_ms)
        found.size_bytes += len(value)
    return found


def _units(topics: Iterable[TopicId]) -> frozenset[TopicId]:
    """What has one owner in a cluster."""
    return frozenset(topic.unit for topic in topics)
