"""Group commit: all writes that wait become one durable batch (design §5).

Offsets are assigned in the order of writing, and the write permit is checked again at that moment.
If a batch fails, it is unknown whether it is on the disk: the store is closed and opened again, the
last-batch row tells, and only then is anything written or answered again.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from messaging.storage.loading import read_last_batch_again
from messaging.storage.open_store import OpenStore
from messaging.storage.store_state import StoreState
from messaging.transactions_interface import WritePermit
from messaging.write.write_batch import WriteBatch
from tuff.disk.event_loop import Arrivals, BatchLoop
from tuff.protocol.errors import (
    OverloadedError,
    ShuttingDownError,
    StorageUnavailableError,
    TuffError,
)

log = logging.getLogger(__name__)
T = TypeVar("T")

BATCH_COUNT_MAX = 4_096  # writes; more only adds to everyone's latency
BATCH_BYTES_MAX = 8 << 20  # bytes; about what a disk takes in the time of one sync, ten times over
PENDING_COUNT_MAX = 20_000  # writes waiting or under way; as many as requests may be pending
PENDING_BYTES_MAX = 256 << 20  # bytes of waiting payloads; bounds memory behind a slow disk
WRITE_OVERHEAD_BYTES = 256  # bytes; what a small write costs besides its payload


@dataclass(slots=True, eq=False)
class Write(Generic[T]):
    """One thing to write: `build` decides and adds its rows, or raises and adds none.

    The permit is left by the writer, when the write is durable or proven not to be, whatever became
    of the caller. An `internal` write is never refused for being one too many, since others wait
    for it to make room.
    """

    build: Callable[[WriteBatch], T]
    size_bytes: int = WRITE_OVERHEAD_BYTES
    permit: WritePermit | None = None
    internal: bool = False
    future: "asyncio.Future[T]" = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    # The answer for the caller once the batch is written: one or the other.
    value: T | None = field(default=None, init=False)
    error: TuffError | None = field(default=None, init=False)


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
        self._doubt: tuple[WriteBatch, list[Write[Any]]] | None = None
        # Why the disk should take nothing but what is internal; None while there is room.
        self.lack: str | None = None

    async def run(self) -> None:
        """Write batch after batch until `close`."""
        await self._group.run()

    def close(self) -> None:
        """Take nothing more; `run` returns once what waits is written."""
        if not self._closing:
            self._closing = True
            self._group.close()

    def require_ready(self) -> None:
        """Raises: ShuttingDownError, StorageUnavailableError."""
        if self._closing:
            raise ShuttingDownError("the server is stopping and takes no more writes")
        self._store.require_up()

    def require_room(self) -> None:
        """Raises: OverloadedError: so much waits for the disk already that no more is taken;
        StorageUnavailableError: the disk is nearly full."""
        if self.lack is not None:
            raise StorageUnavailableError(f"nothing was written: {self.lack}; try again later")
        if self._pending_count >= PENDING_COUNT_MAX or self._pending_bytes >= PENDING_BYTES_MAX:
            raise OverloadedError(
                f"{self._pending_count} writes of {self._pending_bytes} bytes are waiting for the "
                "disk, which is the most; try again later"
            )

    async def submit(self, write: Write[T]) -> T:
        """Let it go out with the next batch, and give its answer once that is durable.

        The write goes on if the caller is cancelled.

        Raises: what `require_ready`, `require_room` and `build` raise; StorageUnavailableError: the
        batch failed, and may or may not be there.
        """
        try:
            self.require_ready()
            if not write.internal:
                self.require_room()
        except TuffError:
            _leave(write)
            raise
        self._pending_count += 1
        self._pending_bytes += write.size_bytes
        self._group.put(write)
        return await write.future

    async def recover(self) -> None:
        """Open a store that failed again, resolve the batch in doubt, and go on; or stay down."""
        if self._store.is_up or self._recovering:
            return
        self._recovering = True
        try:
            # What was acknowledged rests on it: memory must not go on over another store.
            possible = self._state.possible_last_batches
            last_batch = await self._store.open(partial(read_last_batch_again, possible=possible))
        # Whatever keeps it from opening (the engine, the directory, its lock), it is down for that
        # reason, and tried again.
        except Exception as error:  # noqa: BLE001 - callers get the reason
            self._store.reason = str(error)
            return
        finally:
            self._recovering = False
        self._state.reopened(last_batch)
        doubt, self._doubt = self._doubt, None
        if doubt is not None:
            batch, writes = doubt
            is_there = last_batch.batch_number >= batch.number
            log.warning(
                "opened again; batch %d is %s", batch.number, "there" if is_there else "not"
            )
            if is_there:
                self._complete(batch, writes)
            else:
                batch.is_lost()
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
        batch = self._state.new_batch()
        for write in writes:
            _build(write, batch)
        if batch.is_empty:
            self._answer(writes)
            return
        self._state.finish(batch)
        started_s = self._elapsed_s()
        try:
            await self._store.write(batch.write)
        # A batch that failed in any way has an unknown fate, and that must be found out.
        except Exception as error:
            log.exception("batch %d of %d writes failed", batch.number, len(writes))
            await self._resolve(batch, writes, f"a write failed: {error}")
            return
        self._observe("store_fsync_seconds", self._elapsed_s() - started_s)
        self._observe("store_batch_requests", len(writes))
        self._complete(batch, writes)

    async def _resolve(self, batch: WriteBatch, writes: list[Write[Any]], reason: str) -> None:
        self._doubt = (batch, writes)
        try:
            await self._store.close(reason)
        except (
            Exception
        ):  # an engine that can't even be closed is opened again below, or stays down
            log.exception("the failed store could not be closed")
        await self.recover()
        if not self._store.is_up:
            # No caller waits for a disk that may never come back. The permits are kept: the
            # transaction must not end while these rows may still be found.
            self._tell_unknown(writes)

    def _complete(self, batch: WriteBatch, writes: list[Write[Any]]) -> None:
        batch.is_durable()
        self._answer(writes)
        for topic in batch.touched:
            topic.wake()

    def _answer(self, writes: list[Write[Any]]) -> None:
        for write in writes:
            _leave(write)
            self._pending_count -= 1
            self._pending_bytes -= write.size_bytes
            if not write.future.done():
                if write.error is None:
                    write.future.set_result(write.value)
                else:
                    write.future.set_exception(write.error)

    def _refuse(self, writes: list[Write[Any]], reason: str) -> None:
        for write in writes:
            write.error = StorageUnavailableError(f"nothing was written: {reason}; try again")
        self._answer(writes)

    def _tell_unknown(self, writes: list[Write[Any]]) -> None:
        for write in writes:
            if not write.future.done():
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
    except TuffError as error:
        # Answered after the batch: a refusal may rest on something that is only durable with it.
        write.error = error


def _leave(write: Write[Any]) -> None:
    if write.permit is not None:
        write.permit.leave()
