"""Whether this server still holds a store that another server can take over (decision 0038).

Writes need no lease: a store that was taken over refuses them. But reads are answered from memory,
or up to a high-water mark in memory, and would miss the writes of a new holder. So a read is only
answered within `READ_LEASE_MS` of the start of a successful check, or after a check that started
after the read.
"""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress

from kernel.event_loop import InThread
from kernel.requests_and_replies import Reply, Request, Route
from messaging.engines.engine_interface import CanBeTakenOver, StoreError, TakenOverError
from messaging.log.state_in_memory import OpenStore
from tuff.protocol.errors import StorageUnavailableError, TuffError

log = logging.getLogger(__name__)

CHECK_S = 1.0  # seconds between two checks; each reads one row of the store
READ_LEASE_MS = 5_000  # ms; reads miss the writes of a new holder for this long at most
WAIT_S_MAX = 5.0  # seconds that a read waits for a check; a gateway may hang for much longer

_STATUSES_THAT_DEPEND_ON_A_READ = (404, 409)


class StoreHolderCheck:
    """Lives on the event loop; a separate thread asks the store. `now_ms` must also count the time
    in which the process or the machine is suspended."""

    def __init__(self, store: OpenStore, *, now_ms: Callable[[], int], in_thread: InThread) -> None:
        self._store = store
        self._now_ms = now_ms
        self._in_thread = in_thread
        self._proven_ms: int | None = None  # start of the newest successful check
        self._doubt = "the holder_check was not checked yet"
        self._waiting: list[asyncio.Future[str | None]] = []
        self._wanted = asyncio.Event()
        self._is_closed = False

    @property
    def lapse(self) -> str | None:
        """Why it is unknown whether this server still holds the store, in a sentence; None while it
        is known to."""
        if self._proven_ms is not None and self._now_ms() - self._proven_ms < READ_LEASE_MS:
            return None
        return f"another server may have taken the message store over: {self._doubt}"

    async def require(self) -> None:
        """Return when reads made before this call are no older than the lease allows.

        Raises: StorageUnavailableError: the store has another holder, or it is unknown.
        """
        if self.lapse is None:
            return
        answer: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(answer)
        self._wanted.set()
        late = "the store did not answer in time"
        alarm = asyncio.get_running_loop().call_later(WAIT_S_MAX, _answer, answer, late)
        try:
            reason = await answer
        finally:
            alarm.cancel()
        if reason is not None:
            raise StorageUnavailableError(
                f"nothing was read: another server may have taken the message store over: {reason}"
            )

    async def run(self) -> None:
        """Check periodically, and at once when a read waits for a check, until `close`."""
        while not self._is_closed:
            self._wanted.clear()
            try:
                await self.check()
            except Exception:  # without further checks, all reads would be refused
                log.exception("the check whether the store is ours failed")
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), CHECK_S)

    async def check(self) -> None:
        """Ask the store once. If it has another holder, close it."""
        waiting, self._waiting = self._waiting, []
        began_ms = self._now_ms()
        reason: str | None = "the check failed"
        try:
            reason = await self._find_doubt()
        finally:
            if reason is None:
                self._proven_ms = began_ms
            else:
                self._doubt = reason
            for answer in waiting:
                _answer(answer, reason)

    def close(self) -> None:
        """End `run`."""
        self._is_closed = True
        self._wanted.set()

    async def _find_doubt(self) -> str | None:
        if not self._store.is_up:
            return self._store.reason
        store = self._store.require_up()
        engine = store.engine
        if not isinstance(engine, CanBeTakenOver):
            return None
        try:
            await self._in_thread(engine.require_owned)
        except TakenOverError as error:
            # If the store failed meanwhile and was opened again, the answer is about the old one.
            if self._store.is_current(store):
                log.error("%s; this one answers no more reads", error)  # noqa: TRY400 - no bug here
                await self._store.close(str(error))
            return str(error)
        except StoreError as error:
            return str(error)
        return None


def require_holder(route: Route, holder_check: StoreHolderCheck) -> Route:
    """A route of a store that another server can take over. A read, and a refusal that
    depends on a read, is answered only while this server owns the store. Writes need no check: a
    store that was taken over refuses them."""
    leaves_doubt = route.operation.leaves_doubt

    async def handler(request: Request) -> Reply:
        try:
            reply = await route.handler(request)
        except TuffError as error:
            if error.status in _STATUSES_THAT_DEPEND_ON_A_READ:
                await holder_check.require()
            raise
        if not leaves_doubt:
            await holder_check.require()
        return reply

    return route.wrapped(handler)


def _answer(waiting: "asyncio.Future[str | None]", reason: str | None) -> None:
    if not waiting.done():
        waiting.set_result(reason)
