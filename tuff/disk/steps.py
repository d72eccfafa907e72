"""Coroutines that go on by callbacks, without a task of their own.

Whoever waits for a disk waits for one or two futures. A task around that costs as much as what it
does: it is registered, begins in the loop's next round, and is woken in a round of its own.
"""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Steps(Generic[T]):
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
