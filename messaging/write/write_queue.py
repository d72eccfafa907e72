"""Group commit: all writes that wait become one atomic, durable write batch (design §5).

A batch is built on the event loop, which assigns offsets in the order of the writes and checks the
write permits again. Then a thread writes it. Until it is durable, no caller is answered and
no reader sees its rows, so its changes to memory can be undone.

If the write fails, it is unknown whether the batch is on the disk. The store is closed and opened
again, and its last-batch row answers the question. Only then is anything else written or answered.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from operator import attrgetter
from typing import Any, Generic, NamedTuple, TypeVar

from kernel.event_loop import Arrivals, BatchLoop, settle
from kernel.log_events import event
from messaging.log.loading import read_last_batch_again
from messaging.log.state_in_memory import OpenStore, StoreState
from messaging.model.row_format import LAST_BATCH_KEY, METADATA_KEY
from messaging.transactions_interface import WritePermit
from messaging.write.failed_writes import FailedWrites
from messaging.write.write_batch import (
    WriteBatch,
    WrittenRows,
    apply_durable,
    apply_lost,
    write_batch,
)
from tuff.protocol.errors import (
    OverloadedError,
    ShuttingDownError,
    StorageOutcomeUnknownError,
    StorageUnavailableError,
    TuffError,
)
from tuff.protocol.requests import Ack
from tuff.protocol.sentences import counted

log = logging.getLogger(__name__)
T = TypeVar("T")

_REQUESTS_COUNT = attrgetter("requests_count")

BATCH_COUNT_MAX = 4_096  # writes; more would only add latency
BATCH_BYTES_MAX = 8 << 20  # bytes; ten times what a disk takes in the time of one sync
PENDING_COUNT_MAX = 20_000  # writes waiting or under way; as many as requests may be pending
PENDING_BYTES_MAX = 256 << 20  # bytes of waiting payloads; bounds memory behind a slow disk
WRITE_OVERHEAD_BYTES = 256  # bytes; what a small write costs besides its payload
ENDED_PER_BATCH_MAX = 10_000  # index rows that a batch of publishes deletes besides
LOST_LOGGED_EVERY_S = 10.0  # seconds between two log lines about writes that were answered early


class Write(Generic[T]):
    """One write: `build` decides and adds its rows to a batch, or raises and adds none.

    The committer releases the permit when the write is durable or proven not to be on the disk,
    even if the caller was cancelled. An `internal` write is never refused for overload: other
    writes wait for its effect. One that `makes_room` deletes messages, or lets them expire, and is
    accepted on a disk that is too full for others. It is of one request, or of several that are
    answered together. `ack` says when the caller is answered, with `NONE` by itself.
    """

    __slots__ = (
        "ack", "answer", "build", "error", "internal", "makes_room", "permit", "requests_count",
        "size_bytes", "value",
    )  # fmt: skip

    def __init__(  # by hand: one is made for each publish, and a dataclass takes twice as long
        self,
        build: Callable[[WriteBatch], T],
        *,
        size_bytes: int = WRITE_OVERHEAD_BYTES,
        permit: WritePermit | None = None,
        internal: bool = False,
        makes_room: bool = False,
        ack: Ack = Ack.DURABLE,
        requests_count: int = 1,
    ) -> None:
        self.build = build
        self.size_bytes = size_bytes
        self.permit = permit
        self.internal = internal
        self.makes_room = makes_room
        self.ack = ack
        self.requests_count = requests_count
        # Gets the value or the error, once; None when the caller is answered, or wants no answer.
        self.answer: Callable[[T | Exception], None] | None = None
        self.value: T | None = None
        self.error: TuffError | None = None

    def settle(self, result: T | Exception) -> None:
        """Answer the caller, unless it is answered."""
        answer, self.answer = self.answer, None
        if answer is not None:
            answer(result)

    @property
    def was_answered_early(self) -> bool:
        """Whether the caller was answered before the batch is durable."""
        return self.ack is Ack.NONE or (self.ack is Ack.RECEIVED and self.value is not None)


class _Attempt(NamedTuple):
    """A batch whose write has begun, and what it answers."""

    batch: WriteBatch
    written: WrittenRows
    writes: list[Write[Any]]


class WriteQueue:
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
        self.failed_writes = FailedWrites(elapsed_s)
        self._pending_count = 0
        self._pending_bytes = 0
        self._closing = False
        self._recovering = False
        self._stopped = asyncio.Event()
        self._stopped.set()
        self._in_doubt: _Attempt | None = None
        # Why only internal writes and those that make room are accepted: the disk is nearly full.
        # None if there is space.
        self.lack_of_space: str | None = None
        self.lack_of_last_space: str | None = None  # why not even writes that make room are
        # Frees the space that is kept for writes that make room, if they need it.
        self.make_room: Callable[[], Awaitable[None]] = _nothing_to_free
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
        if not self._store.is_up:
            self._store.require_up()

    def require_capacity(self, *, makes_room: bool = False) -> None:
        """Raises: OverloadedError: too many writes wait for the disk; StorageUnavailableError: the
        disk is too full for this kind of write."""
        lack = self.lack_of_last_space if makes_room else self.lack_of_space
        if lack is not None:
            raise StorageUnavailableError(f"nothing was written: {lack}")
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
            batch failed, and is not stored; StorageOutcomeUnknownError: it may be.
        """
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.enqueue(write, partial(settle, future))
        return future

    def enqueue(
        self, write: Write[T], answer: Callable[[T | Exception], None] | None = None
    ) -> None:
        """Add a write to the next batch. `answer` gets what the future of `submit` has.

        Raises: what `require_ready` and `require_capacity` raise.
        """
        try:
            self.require_ready()
            if not write.internal:
                self.require_capacity(makes_room=write.makes_room)
        except TuffError:
            if write.permit is not None:
                write.permit.leave()
            raise
        write.answer = answer
        self._pending_count += write.requests_count
        self._pending_bytes += write.size_bytes
        self._group.put(write)

    async def submit_making_room(self, build: Callable[[WriteBatch], T]) -> T:
        """Write what deletes messages or lets them expire, also on a disk that is nearly full.

        Raises: as `submit` and its future.
        """
        await self.require_space_to_delete()
        return await self.submit(Write(build, makes_room=True))

    async def require_space_to_delete(self) -> None:
        """Raises: StorageUnavailableError: the disk is too full to delete messages."""
        await self.make_room()
        if self.lack_of_last_space is not None:
            raise StorageUnavailableError(f"nothing was written: {self.lack_of_last_space}")

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
            number = doubt.batch.number
            is_there = last_batch.batch_number >= number
            log.log(
                logging.DEBUG if self.failed_writes.reason else logging.WARNING,
                "the message store was opened again and %s batch %d",
                "contains" if is_there else "does not contain",
                number,
                extra=event("store_opened_again", batch=number, is_there=is_there),
            )
            if is_there:
                self._complete(doubt)
            else:
                apply_lost(doubt.batch, self._state)
                failure = self.failed_writes.reason or "try again"
                sentence = f"the write failed, and is proven not to be there; {failure}"
                self._refuse(doubt.writes, sentence)

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
            self._refuse(writes, f"{self._store.reason}; try again")
            return
        failing = self.failed_writes
        if failing.count and (refusal := failing.refusal) is not None:
            self._refuse(writes, refusal)
            return
        state = self._state
        batch = WriteBatch(now_ms=state.now_ms(), sequencer=state.sequencer)
        for write in writes:
            _build(write, batch)
        if batch.is_empty:
            self._answer(writes)
            return
        self._finish(batch)
        attempt = _Attempt(batch, WrittenRows(), writes)
        started_s = self._elapsed_s()
        try:
            to_store = partial(write_batch, batch, attempt.written)
            await self._store.write(to_store)
        # After any failure it is unknown whether the batch is stored, and that must be found out.
        except Exception as error:
            if failing.failed(error):
                extra = event("store_write_failed", batch=batch.number, writes=len(writes))
                size = counted(len(writes), "write")
                log.exception("batch %d of %s failed", batch.number, size, extra=extra)
            await self._resolve(attempt, f"a write failed: {error}")
            return
        if failing.count:
            failing.succeeded()
        self._observe("store_fsync_seconds", self._elapsed_s() - started_s)
        self._observe("store_batch_requests", sum(map(_REQUESTS_COUNT, writes)))
        self._complete(attempt)

    def _finish(self, batch: WriteBatch) -> None:
        """Add what every batch contains: the rows of its producers, the last-batch row, metadata
        that changed, and the deletion of index rows of ended transactions."""
        batch.finish_rows()
        state = self._state
        if batch.producers.added:
            state.producers.finish(batch)
        if state.index.ending:
            batch.ended, keys = state.index.next_ending(count_max=ENDED_PER_BATCH_MAX)
            batch.puts.update(dict.fromkeys(keys))
        if state.metadata != state.durable_metadata:
            batch.put(METADATA_KEY, state.metadata.to_bytes(METADATA_KEY))
        batch.metadata = state.metadata
        batch.last_batch = state.next_last_batch()
        batch.puts[LAST_BATCH_KEY] = batch.last_batch.to_bytes(LAST_BATCH_KEY)

    async def _resolve(self, attempt: _Attempt, reason: str) -> None:
        self._in_doubt = attempt
        try:
            await self._store.close(reason)
        # A store that can't be closed is opened again below, or stays down.
        except Exception:
            log.exception("the failed store could not be closed")
        await self.recover()
        if not self._store.is_up:
            # Callers are answered, as the disk may never come back. The permits are kept: the
            # transaction must not end while these rows may still be found.
            self._answer_unknown(attempt.writes)

    def _complete(self, attempt: _Attempt) -> None:
        apply_durable(attempt.batch, attempt.written, self._state)
        self._answer(attempt.writes)
        for topic in attempt.batch.touched:
            if topic.waiters:
                topic.wake()

    def _answer(self, writes: list[Write[Any]]) -> None:
        for write in writes:
            if write.permit is not None:
                write.permit.leave()
            self._pending_count -= write.requests_count
            self._pending_bytes -= write.size_bytes
            if write.error is not None and write.was_answered_early:
                self._count_lost(write.error)
            else:
                write.settle(write.value if write.error is None else write.error)

    def _count_lost(self, error: TuffError) -> None:
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
            write.error = StorageUnavailableError(f"nothing was written: {reason}")
        self._answer(writes)

    def _answer_unknown(self, writes: list[Write[Any]]) -> None:
        # A publish that was answered early counts as lost once that is known.
        for write in writes:
            write.settle(
                StorageOutcomeUnknownError(
                    "the message store failed during the write, which may or may not be there: "
                    f"{self._store.reason}"
                )
            )


async def _nothing_to_free() -> None:
    pass


def _build(write: Write[Any], batch: WriteBatch) -> None:
    try:
        if write.permit is not None:
            write.permit.require_open()
        write.value = write.build(batch)
        if write.ack is Ack.RECEIVED:
            write.settle(write.value)
    except TuffError as error:
        # Answered after the batch: a refusal may rest on a change that this batch makes durable.
        write.error = error
