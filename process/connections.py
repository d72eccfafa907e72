"""Open connections: how many there are, how all are closed, and clients that do not read."""

import asyncio
import logging
import sys
from contextlib import suppress
from fcntl import ioctl
from termios import TIOCOUTQ
from typing import Protocol

log = logging.getLogger(__name__)

UNREAD_S_MAX = 60.0  # seconds in which a client must read something; as for a part of a backup
LOOK_EVERY_S = 15.0  # seconds between two looks; the time above is exceeded by so much at most


class Connection(Protocol):
    """What the server asks of a connection."""

    def close(self) -> None:
        """Close it, once the request under way is answered."""

    def abort(self) -> None:
        """Close it now, and give up the request under way."""


class Connections:
    """The open connections. Lives on one event loop."""

    def __init__(self) -> None:
        self._open: set[Connection] = set()
        self._is_empty = asyncio.Event()

    def __len__(self) -> int:
        return len(self._open)

    def add(self, connection: Connection) -> None:
        self._open.add(connection)

    def discard(self, connection: Connection) -> None:
        self._open.discard(connection)
        if not self._open:
            self._is_empty.set()

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


class SlowReader:
    """Aborts a connection whose client does not read its replies. A client that reads slowly is
    waited for: it acknowledges bytes again and again. The bytes that the other end has acknowledged
    are counted, since the kernel takes new bytes from this process only after megabytes."""

    __slots__ = ("_left_bytes", "_since_s", "_timer", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._left_bytes = 0
        self._since_s = 0.0  # when the client last took something, by the loop's clock
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """From now on, abort the connection when its client reads nothing for too long."""
        if self._timer is None:
            self._note(self._count())
            self._look_again()

    def taken(self) -> None:
        """The client has read nearly everything. A connection that closes is still watched."""
        if not self._transport.is_closing():
            self.stop()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self.look)

    def look(self) -> None:
        """Decide; called every `LOOK_EVERY_S`."""
        left_bytes = self._count()
        if left_bytes < self._left_bytes:
            self._note(left_bytes)
        elif asyncio.get_running_loop().time() - self._since_s >= UNREAD_S_MAX:
            self.stop()
            log.info("closed a connection: its client did not read %d bytes", left_bytes)
            self._transport.abort()
            return
        self._look_again()

    def _note(self, left_bytes: int) -> None:
        self._left_bytes = left_bytes
        self._since_s = asyncio.get_running_loop().time()

    def _count(self) -> int:
        descriptor = self._transport.get_extra_info("socket").fileno()
        sent = ioctl(descriptor, TIOCOUTQ, bytes(4))
        return self._transport.get_write_buffer_size() + int.from_bytes(sent, sys.byteorder)
