"""Coroutines that go on by callbacks, without a task of their own.

Whoever waits for a disk waits for one or two futures. A task around that costs as much as what it
does: it is registered, begins in the loop's next round, and is woken in a round of its own.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


class LightTask(Generic[T]):
    """Runs a coroutine until it waits for a future, and on when that is done.

    The coroutine may await futures, and whatever awaits them. It may not use `asyncio.timeout` or
    a task group, which need a task around them, and say so at once. When it ends, one of the two
    functions is called.
    """

    __slots__ = ("_failed", "_returned", "_work")

    def __init__(
        self,
        work: Coroutine[Any, Any, T],
        *,
        returned: Callable[[T], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._work: Coroutine[Any, Any, T] | None = work
        self._returned = returned
        self._failed = failed

    def go_on(self, _awaited: "asyncio.Future[Any] | None" = None) -> None:
        """Take the first step, at once; later ones take themselves."""
        if self._work is None:
            return
        try:
            awaited = self._work.send(None)
        except StopIteration as end:
            self._work = None
            self._returned(end.value)
        except BaseException as error:  # noqa: BLE001 - whoever is told decides
            self._work = None
            self._failed(error)
        else:
            if awaited is None:  # it only lets others go first
                asyncio.get_running_loop().call_soon(self.go_on)
            else:
                awaited.add_done_callback(self.go_on)

    def give_up(self) -> None:
        """Let the coroutine clean up where it stands, and call nobody."""
        work, self._work = self._work, None
        if work is not None:
            work.close()


class FutureTask(LightTask[T]):
    """Steps whose end is a future. Whoever waits for it may stop waiting; the steps go on.

    An exception that no caller waits for any more is logged: as a bug, unless it is one of the
    `refusals`, which callers can ask for again.
    """

    __slots__ = ("_refusals", "done")

    def __init__(self, work: Coroutine[Any, Any, T], *, refusals: type[Exception]) -> None:
        self._refusals = refusals
        self.done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        super().__init__(work, returned=self._return, failed=self._fail)

    def _return(self, result: T) -> None:
        # Somebody whose time was over, or who hung up, doesn't ask any more.
        if not self.done.done():
            self.done.set_result(result)

    def _fail(self, error: BaseException) -> None:
        if isinstance(error, asyncio.CancelledError):
            self.done.cancel()  # the server stops
        elif self.done.done():
            name = type(error).__name__
            if isinstance(error, self._refusals):
                log.debug("the caller has given up, and would be told %s: %s", name, error)
            else:
                log.error("the caller has given up, and %s was raised", name, exc_info=error)
        else:
            self.done.set_exception(error)


class SharedTimeout:
    """Ends waiting that takes too long: every future gets the same time, and then the error that
    `too_late` makes. One timer for all of them, since nearly all are done long before."""

    def __init__(self, seconds: float, *, too_late: Callable[[], Exception]) -> None:
        self._seconds = seconds
        self._too_late = too_late
        self._waiting: deque[tuple[float, asyncio.Future[Any]]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, future: "asyncio.Future[Any]") -> None:
        """Give this future its time, from now on."""
        loop = asyncio.get_running_loop()
        self._drop_done()
        self._waiting.append((loop.time() + self._seconds, future))
        if self._timer is None:
            self._timer = loop.call_later(self._seconds, self._look)

    def _drop_done(self) -> None:
        waiting = self._waiting
        while waiting and waiting[0][1].done():
            waiting.popleft()

    def _look(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        self._drop_done()
        while self._waiting and self._waiting[0][0] <= loop.time():
            self._waiting.popleft()[1].set_exception(self._too_late())
            self._drop_done()
        if self._waiting:
            self._timer = loop.call_at(self._waiting[0][0], self._look)
