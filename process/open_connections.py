"""The open connections of the server, and how all of them are closed."""

import asyncio
from contextlib import suppress
from typing import Protocol

# Seconds from the announcement that replies end their connections until idle ones are closed, and
# no more are accepted. A client that makes one call after another sends the next one within this
# time, and its reply ends the connection. What is sent later may be lost, with an unknown outcome.
IDLE_S_AT_END = 0.2


class Connection(Protocol):
    """One open connection, whatever it speaks."""

    def end_with_reply(self) -> None:
        """End the connection with the next reply, which says so."""

    def close(self) -> None:
        """Close the connection, once what has arrived is answered."""

    def abort(self) -> None:
        """Close the connection now, and give up what is under way."""


class Connections:
    """The open connections. Lives on one event loop. `is_ending`: each reply says that it is the
    last one of its connection."""

    def __init__(self) -> None:
        self.is_ending = False
        self._open: set[Connection] = set()
        self._is_empty = asyncio.Event()
        self._last_requests_until_s = 0.0  # by the loop's clock

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        self._open.add(connection)

    def discard(self, connection: Connection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._is_empty.set()

    def end_with_replies(self) -> None:
        """End each connection, also later ones, with the next reply. A client that is told so loses
        no request to a connection that is closed while the request is on its way."""
        if self._open and not self.is_ending:
            self._last_requests_until_s = asyncio.get_running_loop().time() + IDLE_S_AT_END
        self.is_ending = True
        for connection in self._open:
            connection.end_with_reply()

    async def last_requests(self) -> None:
        """Wait until idle connections may be closed: if any was open when the end was announced,
        `IDLE_S_AT_END` after that."""
        await asyncio.sleep(self._last_requests_until_s - asyncio.get_running_loop().time())

    async def close(self, within_s: float) -> None:
        """Close every connection; a request that has arrived gets so many seconds to be answered,
        and its client to read that."""
        for connection in tuple(self._open):
            connection.close()
        if self._open:
            self._is_empty.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_empty.wait(), within_s)
        for connection in tuple(self._open):
            connection.abort()
