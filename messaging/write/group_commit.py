"""Group commit: all writes that wait become one atomic, durable write batch (design §5).

A batch is built on the event loop, which assigns offsets in the order of the writes and checks the
write permits again. Then a worker thread writes it. Until it is durable, no caller is answered and
no reader sees its rows, so its changes to memory can be undone.

If the write fails, it is unknown whether the batch is on the disk. The store is closed and opened
again, and its last-batch row answers the question. Only then is anything else written or answered.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from messaging.storage.engine import Store
from messaging.storage.loading import read_last_batch_again
from messaging.storage.packed_rows import Columns, NewRows, joined_neighbours, records_of
from messaging.storage.rows import (
    LAST_BATCH_KEY,
    METADATA_KEY,
    DamagedRowError,
    MessageRow,
    delayed_key,
    inline_values,
    message_key,
    message_keys,
    offset_after,
    offset_in,
    split_log_message,
    topic_key,
)
from messaging.storage.sequencer import Sequencer
from messaging.storage.store_state import OpenStore, StoreState
from messaging.topics import Topic, TopicRecord
from messaging.transactions_interface import WritePermit
from tuff.disk.event_loop import Arrivals, BatchLoop
from tuff.log_events import event
from tuff.protocol.errors import (
    OverloadedError,
    ShuttingDownError,
    StorageUnavailableError,
    TuffError,
)
from tuff.protocol.ids import DelayedId, Offset
from tuff.protocol.requests import Ack
from tuff.protocol.sentences import counted

log = logging.getLogger(__name__)
T = TypeVar("T")

BATCH_COUNT_MAX = 4_096  # writes; more would only add latency
BATCH_BYTES_MAX = 8 << 20  # bytes; ten times what a disk takes in the time of one sync
PENDING_COUNT_MAX = 20_000  # writes waiting or under way; as many as requests may be pending
PENDING_BYTES_MAX = 256 << 20  # bytes of waiting payloads; bounds memory behind a slow disk
WRITE_OVERHEAD_BYTES = 256  # bytes; what a small write costs besides its payload
SETTLED_PER_BATCH_MAX = 10_000  # index rows that a batch of publishes deletes besides
RUN_BYTES_MAX = 64 << 10  # bytes of payloads; the tail cache keeps or drops a run as a whole
LOST_LOGGED_EVERY_S = 10.0  # seconds between two log lines about writes that were answered early


class Inversion(NamedTuple):
    """Rows to mark as rolled back: those of this pointer in this range of keys. `runs` gets the
    first and the last of those that follow each other, without one that was marked before."""

    pointer: int
    start: bytes
    stop: bytes
    runs: list[tuple[Offset, Offset]]


class Renewal(NamedTuple):
    """Rows that were marked as rolled back, to write again: those of this pointer in this range of
    keys. In a topic they get offsets from `first` on. `first` None: they are messages of a delayed
    log, and become delayed rows."""

    pointer: int
    prefix: bytes
    start: bytes
    stop: bytes
    first: Offset | None


@dataclass(slots=True)
class _Run:
    """Plain messages of one topic with neighbouring offsets, of any number of publishes."""

    prefix: bytes
    first: Offset
    last: Offset
    payloads: list[bytes]
    size_bytes: int


class WriteBatch:
    """Rows that are written together, and callbacks for when they are durable or lost.

    Lives on the event loop while it is built; then a worker thread calls `write`, and nothing else
    uses it meanwhile. Rows to invert are read in that thread. There is only one such thread, so no
    row can be removed between the read and the write, and a row that is gone is not written again.
    """

    def __init__(self, *, number: int, now_ms: int, sequencer: Sequencer) -> None:
        self.number = number
        self.now_ms = now_ms
        self.puts: dict[bytes, bytes | None] = {}
        self.new_rows: list[NewRows] = []  # in the order of their offsets
        self._run: _Run | None = None  # behind them
        # Rows of the Payload Table, which are new, and which readers don't see yet.
        self.stored: list[Columns] = []
        self.inversions: list[Inversion] = []
        self.renewals: list[Renewal] = []
        # Rows of delayed messages, None if deleted. No reader of messages sees them.
        self.delayed: list[tuple[bytes, bytes | None]] = []
        # Topics whose long polls wake, with the messages published to them and their bytes.
        self._touched: dict[Topic, tuple[int, int]] = {}
        self._sequencer = sequencer
        self._once_marked: list[Callable[[], None]] = []
        self._when_durable: list[Callable[[], None]] = []
        self._when_lost: list[Callable[[], None]] = []
        self._forced = False

    @property
    def last(self) -> Offset:
        """The highest offset assigned so far."""
        return self._sequencer.last

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to write."""
        return not (
            self.puts
            or self.new_rows
            or self._run
            or self.stored
            or self.delayed
            or self.inversions
            or self.renewals
            or self._forced
        )

    def next_offsets(self, count: int) -> tuple[Offset, Offset]:
        """The first and the last offset of `count` neighbouring rows, at least one. Rows built one
        after the other are neighbours."""
        return self._sequencer.next_run(count, now_ms=self.now_ms)

    def put_plain(self, prefix: bytes, payloads: Sequence[bytes]) -> tuple[Offset, Offset]:
        """Add messages that have nothing besides their payloads, at least one; their first and
        their last offset. Those of neighbouring publishes to one topic become rows together, since
        a call for each publish takes longer than all the rest of its row."""
        run, before = self._run, self._sequencer.last
        first, last = self._sequencer.next_run(len(payloads), now_ms=self.now_ms)
        size_bytes = len(payloads[0]) if len(payloads) == 1 else sum(map(len, payloads))
        if run is None or run.prefix != prefix or run.last != before:
            self.finish_rows()
            self._run = _Run(prefix, first, last, list(payloads), size_bytes)
            return first, last
        run.payloads += payloads
        run.last = last
        run.size_bytes += size_bytes
        if run.size_bytes >= RUN_BYTES_MAX:
            self.finish_rows()
        return first, last

    def put_rows(self, rows: NewRows) -> None:
        """Add rows that are behind all of this batch."""
        self.finish_rows()
        self.new_rows.append(rows)

    def finish_rows(self) -> None:
        """Make the rows of all messages. Called on the event loop before the batch is written: the
        worker thread would take the interpreter from it for that."""
        run, self._run = self._run, None
        if run is not None:
            keys = message_keys(run.prefix, run.first, len(run.payloads))
            values = inline_values(keys, run.payloads, pointer=None)
            self.new_rows.append(NewRows(run.prefix, keys, values, is_plain=True))

    def put(self, key: bytes, value: bytes) -> None:
        self.puts[key] = value

    def delete(self, key: bytes) -> None:
        self.puts[key] = None

    def invert(
        self, pointer: int, prefix: bytes, first: Offset, last: Offset
    ) -> Sequence[tuple[Offset, Offset]]:
        """Mark the rows of a pointer as rolled back, from `first` to `last` inclusive. Once they
        are, the result has the first and the last row of each run that was not marked before."""
        start, stop = message_key(prefix, first), message_key(prefix, offset_after(last))
        self.inversions.append(Inversion(pointer, start, stop, []))
        return self.inversions[-1].runs

    def once_marked(self, then: Callable[[], None]) -> None:
        """Call this in the writing thread, between the marks and the write."""
        self._once_marked.append(then)

    def publish_again(
        self, pointer: int, prefix: bytes, first: Offset, last: Offset, *, at: Offset
    ) -> None:
        """Write the rows of a pointer that are marked as rolled back, from `first` to `last`
        inclusive, once more behind all others: unmarked, and from this offset on."""
        start, stop = message_key(prefix, first), message_key(prefix, offset_after(last))
        self.renewals.append(Renewal(pointer, prefix, start, stop, at))

    def delay_again(
        self, pointer: int, log_prefix: bytes, first: Offset, last: Offset, *, prefix: bytes
    ) -> None:
        """Write the delayed rows of the topic with this prefix, for those messages of its delayed
        log that have this pointer and are marked as rolled back."""
        start, stop = message_key(log_prefix, first), message_key(log_prefix, offset_after(last))
        self.renewals.append(Renewal(pointer, prefix, start, stop, None))

    def change_topic(self, topic: Topic, record: TopicRecord) -> None:
        """Write a topic's row. Later writes are decided by it at once; readers see it once it is
        durable."""
        key = topic_key(topic.id)
        self.put(key, record.to_bytes(key))
        self.change_record(topic, record)

    def change_record(self, topic: Topic, record: TopicRecord) -> None:
        """The same for holds and positions, whose own rows the caller writes."""
        before, topic.decided = topic.decided, record

        def show() -> None:
            topic.durable = record

        def undo() -> None:
            topic.decided = before
            # A long poll may be blocked by a message that only this change kept: it expires now.
            topic.wake()

        self.on_durable(show)
        self.on_lost(undo)

    def force(self) -> None:
        """Write the batch even if it contains only the last-batch row."""
        self._forced = True

    def published(self, topic: Topic, *, count: int, size_bytes: int) -> None:
        """Count messages of a topic once the batch is durable, and wake its long polls."""
        before = self._touched.get(topic, (0, 0))
        self._touched[topic] = (before[0] + count, before[1] + size_bytes)

    def touch(self, topic: Topic) -> None:
        """Wake the long polls of the topic once the batch is durable."""
        self._touched.setdefault(topic, (0, 0))

    def on_durable(self, then: Callable[[], None]) -> None:
        """Call this on the event loop once the batch is durable."""
        self._when_durable.append(then)

    def on_lost(self, undo: Callable[[], None]) -> None:
        """Call this, to undo a change in memory, if the batch is proven not to be on the disk."""
        self._when_lost.append(undo)

    def confirm(self) -> None:
        """Run the callbacks of a durable batch, and count its messages."""
        for then in self._when_durable:
            then()
        for topic, (count, size_bytes) in self._touched.items():
            topic.messages_published += count
            topic.bytes_published += size_bytes

    def wake_readers(self) -> None:
        """Wake the long polls of all topics that the batch changed."""
        for topic in self._touched:
            topic.wake()

    def undo(self) -> None:
        """Undo the changes in memory, the last first."""
        for each in reversed(self._when_lost):
            each()

    def write(self, store: Store) -> None:
        """Write it, atomically and durably; on a worker thread. Raises: StoreError."""
        for inversion in self.inversions:
            self._mark(store, inversion)
        for then in self._once_marked:
            then()
        for renewal in self.renewals:
            self._renew(store, renewal)
        records = [*self.puts.items(), *self.delayed]
        for keys, values in (*joined_neighbours(self.new_rows), *self.stored):
            records += records_of(store, keys, values)
        store.write(records)

    def _mark(self, store: Store, inversion: Inversion) -> None:
        is_in_run = False
        for key, value in store.scan(inversion.start, inversion.stop):
            # A row that this batch deletes stays deleted.
            inverted = None if key in self.puts else _inverted(key, value, inversion.pointer)
            if inverted is not None:
                self.puts[key] = inverted
                offset = offset_in(key)
                first = inversion.runs.pop()[0] if is_in_run else offset
                inversion.runs.append((first, offset))
            is_in_run = inverted is not None

    def _renew(self, store: Store, renewal: Renewal) -> None:
        offset = renewal.first
        for key, stored in store.scan(renewal.start, renewal.stop):
            value = self.puts.get(key, stored)  # this batch may have marked it, or delete it
            row = None if value is None else _row_of(key, value, -renewal.pointer)
            if row is None:
                continue
            if offset is None:
                due_ms, delayed = split_log_message(row.payload)
                delayed_id = DelayedId(due_ms, offset_in(key))
                self.delayed.append((delayed_key(renewal.prefix, delayed_id), delayed))
            else:
                new_key = message_key(renewal.prefix, offset)
                self.puts[new_key] = replace(row, tx_pointer=renewal.pointer).to_bytes(new_key)
                offset = offset_after(offset)


class Write(Generic[T]):
    """One write: `build` decides and adds its rows to a batch, or raises and adds none.

    The committer releases the permit when the write is durable or proven not to be on the disk,
    even if the caller was cancelled. An `internal` write is never refused for overload: other
    writes wait for its effect. It is of one request, or of several that are answered together.
    `ack` says when the caller is answered, with `NONE` by itself.
    """

    __slots__ = (
        "ack", "build", "error", "future", "internal", "permit", "requests_count", "size_bytes",
        "value",
    )  # fmt: skip

    def __init__(  # by hand: one is made for each publish, and a dataclass takes twice as long
        self,
        build: Callable[[WriteBatch], T],
        *,
        size_bytes: int = WRITE_OVERHEAD_BYTES,
        permit: WritePermit | None = None,
        internal: bool = False,
        ack: Ack = Ack.DURABLE,
        requests_count: int = 1,
    ) -> None:
        self.build = build
        self.size_bytes = size_bytes
        self.permit = permit
        self.internal = internal
        self.ack = ack
        self.requests_count = requests_count
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        # The answer for the caller once the batch is written: one or the other.
        self.value: T | None = None
        self.error: TuffError | None = None

    @property
    def was_answered_early(self) -> bool:
        """Whether the caller was answered before the batch is durable."""
        return self.ack is Ack.NONE or (self.ack is Ack.RECEIVED and self.value is not None)


class GroupCommitter:
    """Collects writes into batches and commits them. Lives on the event loop; only `run` writes."""

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        *,
        arrivals: Arrivals,
        observe: Callable[[str, float], None],
        elapsed_s: Callable[[], float],
    ) -> None:
        self._store = store
        self._state = state
        self._observe = observe
        self._elapsed_s = elapsed_s
        self._group: BatchLoop[Write[Any]] = BatchLoop(
            self._write_all, batch_count_max=BATCH_COUNT_MAX, arrivals=arrivals
        )
        self._pending_count = 0
        self._pending_bytes = 0
        self._closing = False
        self._recovering = False
        self._stopped = asyncio.Event()
        self._stopped.set()
        self._in_doubt: tuple[WriteBatch, list[Write[Any]]] | None = None
        # Why only internal writes are accepted: the disk is nearly full. None if there is space.
        self.lack_of_space: str | None = None
        # Writes whose callers were answered early, and that were not written then.
        self.lost_count = 0
        self._lost_logged_at_s = -LOST_LOGGED_EVERY_S

    async def run(self) -> None:
        """Write batch after batch until `close`."""
        self._stopped.clear()
        try:
            await self._group.run()
        finally:
            self._stopped.set()

    @property
    def is_running(self) -> bool:
        """Whether `run` writes what is submitted."""
        return not self._stopped.is_set()

    async def close(self) -> None:
        """Accept no more writes, and wait until `run` has written those that wait."""
        self._closing = True
        self._group.close()
        await self._stopped.wait()

    def require_ready(self) -> None:
        """Raises: ShuttingDownError, StorageUnavailableError."""
        if self._closing:
            raise ShuttingDownError("the server is stopping and takes no more writes")
        self._store.require_up()

    def require_capacity(self) -> None:
        """Raises: OverloadedError: too many writes wait for the disk; StorageUnavailableError: the
        disk is nearly full."""
        if self.lack_of_space is not None:
            raise StorageUnavailableError(
                f"nothing was written: {self.lack_of_space}; try again later"
            )
        if self._pending_count >= PENDING_COUNT_MAX or self._pending_bytes >= PENDING_BYTES_MAX:
            raise OverloadedError(
                f"{self._pending_count} writes of {self._pending_bytes} bytes are waiting for the "
                "disk, which is the most; try again later"
            )

    def submit(self, write: Write[T]) -> "asyncio.Future[T]":
        """Add a write to the next batch. The future has what `build` returned, once that is
        durable, or with the ack `RECEIVED` once the batch is built.

        The write continues if the caller is cancelled.

        Raises: what `enqueue` raises. The future: what `build` raises; StorageUnavailableError: the
            batch failed, and may or may not be stored.
        """
        self.enqueue(write)
        return write.future

    def enqueue(self, write: Write[Any]) -> None:
        """Add a write to the next batch.

        Raises: what `require_ready` and `require_capacity` raise.
        """
        try:
            self.require_ready()
            if not write.internal:
                self.require_capacity()
        except TuffError:
            _release(write)
            raise
        self._pending_count += write.requests_count
        self._pending_bytes += write.size_bytes
        self._group.put(write)

    async def recover(self) -> None:
        """Open a store that failed again, resolve the batch in doubt, and continue; or stay
        down."""
        if self._store.is_up or self._recovering:
            return
        self._recovering = True
        try:
            # Acknowledged messages are in that store: memory must not be used with another one.
            read = partial(
                read_last_batch_again,
                possible=self._state.possible_last_batches,
                is_shared=self._state.topics.is_shared,
            )
            last_batch = await self._store.open(read)
        # Any failure to open it (the engine, the directory, its lock) is the reason why it is down,
        # and it is tried again.
        except Exception as error:  # noqa: BLE001 - callers get the reason
            self._store.reason = str(error)
            return
        finally:
            self._recovering = False
        self._state.reopened(last_batch)
        doubt, self._in_doubt = self._in_doubt, None
        if doubt is not None:
            batch, writes = doubt
            is_there = last_batch.batch_number >= batch.number
            log.warning(
                "the message store was opened again and %s batch %d",
                "contains" if is_there else "does not contain",
                batch.number,
                extra=event("store_opened_again", batch=batch.number, is_there=is_there),
            )
            if is_there:
                self._complete(batch, writes)
            else:
                batch.undo()
                self._refuse(writes, "the write failed, and is proven not to be there")

    async def _write_all(self, writes: list[Write[Any]]) -> None:
        start = 0
        while start < len(writes):
            stop, size_bytes = start, 0
            while stop < len(writes) and (stop == start or size_bytes < BATCH_BYTES_MAX):
                size_bytes += writes[stop].size_bytes
                stop += 1
            await self._write_batch(writes[start:stop])
            start = stop

    async def _write_batch(self, writes: list[Write[Any]]) -> None:
        if not self._store.is_up:
            self._refuse(writes, self._store.reason)
            return
        state = self._state
        batch = WriteBatch(
            number=state.next_batch_number(), now_ms=state.now_ms(), sequencer=state.sequencer
        )
        for write in writes:
            _build(write, batch)
        if batch.is_empty:
            self._answer(writes)
            return
        self._finish(batch)
        started_s = self._elapsed_s()
        try:
            await self._store.write(batch.write)
        # After any failure it is unknown whether the batch is stored, and that must be found out.
        except Exception as error:
            extra = event("store_write_failed", batch=batch.number, writes=len(writes))
            size = counted(len(writes), "write")
            log.exception("batch %d of %s failed", batch.number, size, extra=extra)
            await self._resolve(batch, writes, f"a write failed: {error}")
            return
        self._observe("store_fsync_seconds", self._elapsed_s() - started_s)
        self._observe("store_batch_requests", sum(write.requests_count for write in writes))
        self._complete(batch, writes)

    def _finish(self, batch: WriteBatch) -> None:
        """Add what every batch contains: the last-batch row, metadata that changed, and the
        deletion of settled index rows."""
        batch.finish_rows()
        state = self._state
        if state.index.settling:
            settled = state.index.next_settling(count_max=SETTLED_PER_BATCH_MAX)
            for _, keys in settled:
                for key in keys:
                    batch.delete(key)
            batch.on_durable(partial(state.index.settled, [pointer for pointer, _ in settled]))
        if state.metadata != state.durable_metadata:
            batch.put(METADATA_KEY, state.metadata.to_bytes(METADATA_KEY))
        last_batch = state.next_last_batch(batch.number)
        batch.put(LAST_BATCH_KEY, last_batch.to_bytes(LAST_BATCH_KEY))
        batch.on_durable(
            partial(
                state.batch_is_durable,
                last_batch,
                state.metadata,
                since_ms=batch.now_ms,
                puts=batch.puts,
                new_rows=batch.new_rows,
            )
        )

    async def _resolve(self, batch: WriteBatch, writes: list[Write[Any]], reason: str) -> None:
        self._in_doubt = (batch, writes)
        try:
            await self._store.close(reason)
        # A store that can't be closed is opened again below, or stays down.
        except Exception:
            log.exception("the failed store could not be closed")
        await self.recover()
        if not self._store.is_up:
            # Callers are answered, as the disk may never come back. The permits are kept: the
            # transaction must not end while these rows may still be found.
            self._answer_unknown(writes)

    def _complete(self, batch: WriteBatch, writes: list[Write[Any]]) -> None:
        batch.confirm()
        self._answer(writes)
        batch.wake_readers()

    def _answer(self, writes: list[Write[Any]]) -> None:
        for write in writes:
            _release(write)
            self._pending_count -= write.requests_count
            self._pending_bytes -= write.size_bytes
            if write.error is not None:
                self._fail(write, write.error)
            elif not write.future.done():
                write.future.set_result(write.value)

    def _fail(self, write: Write[Any], error: TuffError) -> None:
        if not write.was_answered_early:
            if not write.future.done():
                write.future.set_exception(error)
            return
        self.lost_count += 1
        now_s = self._elapsed_s()
        if now_s - self._lost_logged_at_s >= LOST_LOGGED_EVERY_S:
            self._lost_logged_at_s = now_s
            log.warning(
                "a publish that was answered before it was durable is lost: %s; %d such publishes "
                "since the start",
                error,
                self.lost_count,
                extra=event("publish_lost", lost=self.lost_count),
            )

    def _refuse(self, writes: list[Write[Any]], reason: str) -> None:
        for write in writes:
            write.error = StorageUnavailableError(f"nothing was written: {reason}; try again")
        self._answer(writes)

    def _answer_unknown(self, writes: list[Write[Any]]) -> None:
        # A publish that was answered early counts as lost once that is known.
        for write in writes:
            if not (write.future.done() or write.was_answered_early):
                write.future.set_exception(
                    StorageUnavailableError(
                        "the message store failed during the write, which may or may not be there: "
                        f"{self._store.reason}"
                    )
                )


def _build(write: Write[Any], batch: WriteBatch) -> None:
    try:
        if write.permit is not None:
            write.permit.require_open()
        write.value = write.build(batch)
        if write.ack is Ack.RECEIVED and not write.future.done():
            write.future.set_result(write.value)
    except TuffError as error:
        # Answered after the batch: a refusal may rest on a change that this batch makes durable.
        write.error = error


def _release(write: Write[Any]) -> None:
    if write.permit is not None:
        write.permit.leave()


def _inverted(key: bytes, value: bytes, pointer: int) -> bytes | None:
    row = _row_of(key, value, pointer)
    return None if row is None else replace(row, tx_pointer=-pointer).to_bytes(key)


def _row_of(key: bytes, value: bytes, pointer: int) -> MessageRow | None:
    """The row, if it has this pointer."""
    try:
        row = MessageRow.from_bytes(key, value)
    except DamagedRowError:
        return None  # never shown to a reader, and reported where it is read
    return row if row.tx_pointer == pointer else None
