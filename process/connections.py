"""The open connections of a process, and how all of them are closed."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol


class Connection(Protocol):
    """One open connection, whatever it speaks."""

    def end_with_reply(self) -> None:
        """End the connection with the next reply, which says so."""

    def close(self) -> None:
        """Close the connection, once what is under way is answered."""

    def abort(self) -> None:
        """Close the connection now, and give up what is under way."""


class Connections:
    """The open connections. Lives on one event loop. `is_ending`: each reply says that it is the
    last one of its connection. `changed` is called with the number of connections."""

    def __init__(self, changed: Callable[[int], None] = lambda _count: None) -> None:
        self.is_ending = False
        self._changed = changed
        self._open: set[Connection] = set()
        self._is_empty = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def __contains__(self, connection: object) -> bool:
        return connection in self._open

    def add(self, connection: Connection) -> None:
        self._open.add(connection)
        self._changed(len(self._open))

    def discard(self, connection: Connection) -> None:
        self._open.discard(connection)
        self._changed(len(self._open))
        if not self._open:
            self._is_empty.set()

    def end_with_replies(self) -> None:
        """End each connection, also later ones, with the next reply. A client that is told so loses
        no request to a connection that is closed while the request is on its way."""
        self.is_ending = True
        for connection in self._open:
            connection.end_with_reply()

    async def close(self, within_s: float) -> None:
        """Close every connection; a request under way gets so many seconds to be answered, and its
        client to read that."""
        for connection in tuple(self._open):
            connection.close()
        if self._open:
            self._is_empty.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_empty.wait(), within_s)
        for connection in tuple(self._open):
            connection.abort()
