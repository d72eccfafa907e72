"""The reads of one client in threads take turns, so that others have theirs (decision 0064)."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeVar

from kernel.event_loop import FutureTask
from tuff.protocol.errors import TuffError

T = TypeVar("T")

# Reads of a client in threads; more of them wait. Others find half of the threads free, and the
# replies that are read and not yet sent take the memory of so many.
READS_OF_CLIENT_MAX = 2


class ReadTurns:
    """Begins reads, of each client `READS_OF_CLIENT_MAX` at a time, in the order in which they were
    asked for. Lives on the event loop."""

    def __init__(self) -> None:
        self._of: dict[object, _Turns] = {}

    async def take(self, client: object, read: Callable[[], Awaitable[T]]) -> T:
        """What the read returns or raises. `client` None: it waits for no other one."""
        if client is None:
            return await read()
        turns = self._of.setdefault(client, _Turns())
        if turns.under_way < READS_OF_CLIENT_MAX:
            turns.under_way += 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            turns.waiting.append(turn)
            try:
                await turn
            except BaseException:  # the client has gone, or takes its poll back
                if turn in turns.waiting:
                    turns.waiting.remove(turn)
                elif not turn.cancelled():  # it had got its turn
                    self._end(client)
                raise
        # A thread that has begun can't be stopped: its turn ends with it, also when the client is
        # gone. So a client that asks and takes back has no more threads than another one.
        task = FutureTask(self._in_turn(client, read), refusals=TuffError)
        task.go_on()
        return await task.done

    async def _in_turn(self, client: object, read: Callable[[], Awaitable[T]]) -> T:
        try:
            return await read()
        finally:
            self._end(client)

    def _end(self, client: object) -> None:
        turns = self._of[client]
        while turns.waiting:
            turn = turns.waiting.popleft()
            if not turn.done():  # else its task was cancelled, and has not run since
                turn.set_result(None)
                return
        turns.under_way -= 1
        if not turns.under_way:
            del self._of[client]


class _Turns:
    __slots__ = ("under_way", "waiting")

    def __init__(self) -> None:
        self.under_way = 0
        self.waiting: deque[asyncio.Future[None]] = deque()
