"""What the message store does when a transaction ends: it settles the transaction's rows, or marks
them as rolled back, and wakes the readers that waited for the end (design §6).

Settling deletes only index rows, with the next batch. Marking inverts all message rows in the
pointer index. A mark that fails stays queued and is retried until it succeeds.

The rows of a prepared transaction that holds readers back for too long are *set aside* (decision
0045, section 2): they are marked, and stay in the index. If the transaction commits, they are
written again behind all others. If it aborts, they only leave the index.
"""

import asyncio
import logging
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

from messaging.retention.region_observers import RegionObservers
from messaging.storage.look_times import AT_ONCE
from messaging.storage.pointer_index import MESSAGE_ROWS, IndexedRange, PointerIndex
from messaging.storage.store_state import StoreState
from messaging.topics import Topic, ownership_moving
from messaging.write.group_commit import GroupCommitter, Write, WriteBatch
from messaging.write.publish import Publisher
from tuff.disk.event_loop import FutureTask
from tuff.log_events import event
from tuff.protocol.errors import TuffError, UnavailableError
from tuff.protocol.ids import GROUP_LOG, SHARE_LOG, Offset, TopicId
from tuff.protocol.transaction import POINTERS_PER_MS

log = logging.getLogger(__name__)

# Rows inverted by one batch, unless one publish has more; publishes behind it wait some tens of ms.
MARK_ROWS_MAX = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class CarriedPointer:
    """A pointer with rows whose index rows may be on disk. `first_publish_ms` None: it holds no
    reader back."""

    pointer: int
    topics: frozenset[TopicId]
    is_final: bool
    first_publish_ms: int | None


class TransactionRows:
    """The rows of transactions, as the transaction service asks for them (tx/message_rows.py has
    these methods as a protocol). Lives on the event loop.

    `observers` is None unless region servers do the work of retention.
    """

    def __init__(
        self,
        state: StoreState,
        committer: GroupCommitter,
        publisher: Publisher,
        observers: RegionObservers | None,
    ) -> None:
        self._state = state
        self._committer = committer
        self._observers = observers
        self._unmarked: set[int] = set()  # ended, and their rows are still to be marked
        self._returning: set[int] = set()  # committed, and rows that were set aside are to return
        self._returning_now: set[bytes] = set()  # index keys of the rows that a batch returns
        # The polls that read in the snapshot of a transaction, by its pointer.
        self._readers: dict[int, dict[asyncio.Event, None]] = {}
        self.check_entries = publisher.check_entries
        self.check_now = publisher.check_now
        self.publish_final = publisher.publish_final

    def settle(self, transaction_pointers: Collection[int]) -> None:
        """These pointers durably committed: the next batch deletes their index rows, and rows that
        were set aside return to their topics soon."""
        aside = self._state.index.settle(transaction_pointers)
        if aside:
            self._returning.update(aside)
            FutureTask(self._return_rows(aside), refusals=TuffError).go_on()

    async def set_aside(self, transaction_pointers: Collection[int]) -> None:
        """Let readers pass the message rows of these prepared pointers, durably. Idempotent.

        Raises:
            UnavailableError (its kinds): repeat it.
        """
        for pointer in transaction_pointers:
            ranges = self._state.index.message_ranges(pointer)
            for topic in sorted({entry.topic for entry in ranges}):
                if not _is_read_by_its_group(topic):
                    await self._submit(partial(self._set_aside, pointer, topic))

    async def mark_rolled_back(self, transaction_pointers: Collection[int]) -> None:
        """Invert all rows of these pointers durably, and delete their index rows. Idempotent.

        Raises:
            UnavailableError (its kinds): `retry_marks` will try again.
        """
        carried = [each for each in transaction_pointers if self._state.index.ranges(each)]
        self._unmarked.update(carried)
        if carried:
            await self._mark(carried)

    async def retry_marks(self) -> None:
        """Mark the rows that could not be marked before, and return those that were set aside;
        those that fail again stay queued."""
        if self._unmarked:
            try:
                await self._mark(sorted(self._unmarked))
            except UnavailableError:
                return
        if self._returning:
            # A batch that was lost may have put back rows that were settled meanwhile.
            self._state.index.settle(self._returning)
            await self._return_rows(sorted(self._returning))

    def wake_readers(self, transaction_pointers: Collection[int]) -> None:
        """These pointers durably ended: wake readers that their rows hold back, and those that read
        in these transactions."""
        for topic in sorted(self._state.index.ended_topics(transaction_pointers)):
            found = self._state.topics.maybe_find(topic)
            if found is not None:
                found.wake()
        if self._readers:
            for pointer in transaction_pointers:
                for waiter in self._readers.get(pointer, ()):
                    waiter.set()

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
        return sorted({str(topic.home) for topic in found})  # also of delayed messages

    def is_carried(self, pointer: int) -> bool:
        """Whether an unmarked message row or a stored payload of this pointer may exist."""
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
            for pointer in (*index.pointers(), *index.settling)
        ]

    def has_ended_in(self, pointer: int, topic: TopicId) -> bool:
        """Whether this server serves the topic, and no index row there or in a partition is left on
        disk that the pointer has: its rows are durably marked or settled."""
        if self._state.topics.is_foreign(topic):
            return False
        return topic not in _units(self._state.index.topics([pointer]))

    def is_cleared(self, pointer: int) -> bool:
        """Whether no row outside the index has this invalid pointer. False only until the region
        servers have rewritten such rows."""
        return self._observers is None or self._observers.has_cleared(pointer)

    def final_pointers(self) -> set[int]:
        """Pointers with final rows whose commit is not settled."""
        return self._state.index.final_pointers()

    def indexed_pointers(self) -> list[int]:
        """All pointers with rows that are neither settled nor marked: after a start, those whose
        outcome the transaction service must report."""
        return sorted(self._state.index.pointers())

    def published_by(self, at_ms: int) -> list[int]:
        """Pointers with undecided message rows whose first publish was not after this time."""
        published = self._state.index.published_by(at_ms)
        return [each for each in published if each not in self._unmarked]

    def note_reserved(self, highest_pointer: int) -> None:
        """Transactions durably reserved pointers up to this one; recorded with the next batch."""
        metadata = self._state.metadata
        highest = max(metadata.highest_pointer, highest_pointer)
        self._state.metadata = replace(metadata, highest_pointer=highest)

    def note_durable(self, lsn: int) -> None:
        """The edits of transactions up to this one are durable; recorded with the next batch."""
        self._state.seen_lsn = lsn

    async def _mark(self, pointers: Sequence[int]) -> None:
        index = self._state.index
        # Again, if a batch was lost meanwhile that had set rows aside: they are in their place.
        while entries := [entry for pointer in pointers for entry in index.ranges(pointer)]:
            await self._mark_ranges(entries)
        self._unmarked.difference_update(pointers)

    async def _mark_ranges(self, entries: Sequence[IndexedRange]) -> None:
        batches = list(_batches(entries)) or [[]]
        for ranges in batches[:-1]:
            await self._submit(partial(self._invert, ranges))
        await self._submit(partial(self._invert_last, batches[-1], entries))

    def _set_aside(self, pointer: int, topic: TopicId, batch: WriteBatch) -> None:
        index = self._state.index
        ranges = [each for each in index.message_ranges(pointer) if each.topic == topic]
        if pointer in self._unmarked or not ranges:
            return  # it has been aborted, or they are set aside
        self._require_own_topics(ranges)
        # After the asides are discarded: what is undone last is named first.
        batch.on_lost(partial(index.load, ranges, now_ms=batch.now_ms))
        for entry in ranges:
            runs = batch.invert(entry.pointer, entry.prefix, entry.first, entry.last)
            batch.delete(entry.key)
            batch.once_marked(partial(_put_aside, entry, runs, batch))
            # At once: the transaction may commit before the batch is durable.
            index.discard(entry)
            index.add(entry.set_aside)
            batch.on_lost(partial(index.discard, entry.set_aside))
            batch.on_durable(partial(_note_aside, entry, runs, index))
        self._touch(ranges, batch)
        batch.on_durable(
            partial(
                log.warning,
                "transaction %d is prepared, and held back the readers of %s too long; its "
                "messages there are set aside until it is resolved",
                pointer,
                topic,
                extra=event("messages_set_aside", transaction=pointer, topic=str(topic)),
            )
        )

    async def _return_rows(self, pointers: Collection[int]) -> None:
        try:
            for pointer in pointers:
                ranges = self._state.index.aside_ranges(pointer)
                for topic in sorted({entry.topic for entry in ranges}):
                    await self._submit(partial(self._return, pointer, topic))
                if not self._state.index.ranges(pointer):
                    self._returning.discard(pointer)
        except TuffError:
            return  # `retry_marks` tries again

    def _return(self, pointer: int, topic: TopicId, batch: WriteBatch) -> None:
        """Write the rows of a topic that were set aside again, behind all others."""
        index, topics = self._state.index, self._state.topics
        ranges = [
            each
            for each in index.aside_ranges(pointer)
            if each.topic == topic and each.key not in self._returning_now
        ]
        self._require_own_topics(ranges)
        found, home = topics.maybe_find(topic), topics.maybe_find(topic.home)
        for log in (found, home):
            if log is not None:
                log.require_readable()  # before the batch is changed
        for entry in ranges:
            batch.delete(entry.key)
            self._returning_now.add(entry.key)
            batch.on_durable(partial(index.discard, entry))
            batch.on_durable(partial(self._returning_now.discard, entry.key))
            batch.on_lost(partial(self._returning_now.discard, entry.key))
            if found is not None and found.has_generation(entry.generation) and home is not None:
                self._publish_again(found, home, entry, batch)

    def _publish_again(
        self, topic: Topic, home: Topic, entry: IndexedRange, batch: WriteBatch
    ) -> None:
        if not topic.id.is_delayed_log:
            # What has expired has no payloads any more, if a retention pass was here.
            first = max(entry.first, self._first_live(topic))
            if first > entry.last:
                return
            # Stored payloads stay as long as a message that references them.
            self._state.raise_longest_transaction(batch.now_ms - entry.pointer // POINTERS_PER_MS)
            at, _ = batch.next_offsets(entry.count)
            batch.publish_again(entry.pointer, entry.prefix, first, entry.last, at=at)
            batch.touch(topic)
            return
        prefix = home.prefix(home.require_decided().generation)
        batch.delay_again(entry.pointer, entry.prefix, entry.first, entry.last, prefix=prefix)
        batch.on_durable(partial(self._state.look_times.note, home.id, AT_ONCE))

    def _first_live(self, topic: Topic) -> Offset:
        record = topic.require_decided()
        live_from = topic.rule_of(record).live_from(now_ms=self._state.expiry_ms())
        return max(record.log_start.offset, live_from)

    async def _submit(self, build: "partial[None]") -> None:
        await self._committer.submit(Write(build, internal=True))

    def _invert(self, ranges: Sequence[IndexedRange], batch: WriteBatch) -> None:
        self._require_own_topics(ranges)
        for entry in ranges:
            batch.invert(entry.pointer, entry.prefix, entry.first, entry.last)
        self._touch(ranges, batch)

    def _touch(self, ranges: Sequence[IndexedRange], batch: WriteBatch) -> None:
        for entry in ranges:
            topic = self._state.topics.maybe_find(entry.topic)
            if topic is not None:
                batch.touch(topic)

    def _invert_last(
        self, ranges: Sequence[IndexedRange], entries: Sequence[IndexedRange], batch: WriteBatch
    ) -> None:
        self._require_own_topics(entries)
        self._invert(ranges, batch)
        for entry in entries:
            batch.delete(entry.key)
        batch.on_durable(partial(self._state.index.marked, entries))

    def _require_own_topics(self, entries: Iterable[IndexedRange]) -> None:
        # A topic may be given to another server since its ranges were listed. Nothing of it may be
        # written then. But if that fails, this server has to mark the rows: `retry_marks` lists
        # them again, and after the move there are none.
        for each in entries:
            if self._state.topics.is_foreign(each.topic):
                raise ownership_moving(each.topic)


def _batches(entries: Iterable[IndexedRange]) -> Iterator[list[IndexedRange]]:
    """The ranges of message rows for each batch. Rows of one publish are marked together: a reader
    in the snapshot of an ended transaction may still see them, and must not see a part."""
    gathered: list[IndexedRange] = []
    count = 0
    for entry in entries:
        if entry.kind != MESSAGE_ROWS:
            continue
        if gathered and count + entry.count > MARK_ROWS_MAX:
            yield gathered
            gathered, count = [], 0
        gathered.append(entry)
        count += entry.count
    if gathered:
        yield gathered


def _put_aside(
    entry: IndexedRange, runs: Sequence[tuple[Offset, Offset]], batch: WriteBatch
) -> None:
    for aside in _asides(entry, runs):
        batch.put(aside.key, aside.to_bytes(aside.key))


def _note_aside(
    entry: IndexedRange, runs: Sequence[tuple[Offset, Offset]], index: PointerIndex
) -> None:
    index.discard(entry.set_aside)
    for aside in _asides(entry, runs):
        index.add(aside)


def _asides(entry: IndexedRange, runs: Sequence[tuple[Offset, Offset]]) -> Iterator[IndexedRange]:
    """What was set aside of a range: all but rows that a rollback had marked before. Those do not
    return."""
    for first, last in runs:
        yield replace(entry.set_aside, first=first, last=last)


def _is_read_by_its_group(topic: TopicId) -> bool:
    """Whether this is the log of a consumer group or a share group. The group reads its own rows,
    and undecided ones don't hold it back."""
    return topic.name.endswith((GROUP_LOG, SHARE_LOG))


def _units(topics: Iterable[TopicId]) -> frozenset[TopicId]:
    """What has one owner in a cluster."""
    return frozenset(topic.unit for topic in topics)
