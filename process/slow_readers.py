"""Aborts connections whose clients do not read their replies (protocol §1)."""

import asyncio
import logging
import sys
from fcntl import ioctl
from termios import TIOCOUTQ

from kernel.log_events import event

log = logging.getLogger(__name__)

UNREAD_S_MAX = 60.0  # seconds in which a client must read something; as for a part of a backup
CHECK_INTERVAL_S = 15.0  # seconds between two checks; the limit above may be exceeded by so much


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
            self._schedule()

    def caught_up(self) -> None:
        """The client has read nearly everything. A connection that closes is still watched."""
        if not self._transport.is_closing():
            self.stop()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(CHECK_INTERVAL_S, self.check)

    def check(self) -> None:
        """Decide; called every `CHECK_INTERVAL_S`."""
        left_bytes = self._count()
        if left_bytes < self._left_bytes:
            self._note(left_bytes)
        elif asyncio.get_running_loop().time() - self._since_s >= UNREAD_S_MAX:
            self.stop()
            log.info(
                "closed a connection: its client did not read %d bytes",
                left_bytes,
                extra=event("slow_client_closed", bytes=left_bytes),
            )
            self._transport.abort()
            return
        self._schedule()

    def _note(self, left_bytes: int) -> None:
        self._left_bytes = left_bytes
        self._since_s = asyncio.get_running_loop().time()

    def _count(self) -> int:
        connected = self._transport.get_extra_info("socket")
        if connected is None:  # with TLS: it is closed, and the protocol is told so next
            return 0
        sent = ioctl(connected.fileno(), TIOCOUTQ, bytes(4))
        return self._transport.get_write_buffer_size() + int.from_bytes(sent, sys.byteorder)
