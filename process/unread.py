"""Replies that a client does not read are not kept for ever."""

import asyncio
import logging
import sys
from fcntl import ioctl
from termios import TIOCOUTQ

log = logging.getLogger(__name__)

UNREAD_S_MAX = 60.0  # seconds in which a client has to take something; as for a part of a backup
LOOK_EVERY_S = 15.0  # so much longer may it take


class Unread:
    """What of the replies on one connection has not reached its client. One that reads slowly takes
    something again and again, and is waited for; it is seen by the bytes that the other end has
    acknowledged, since the kernel takes more of them from here only now and then."""

    __slots__ = ("_left_bytes", "_since_s", "_timer", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._left_bytes = 0
        self._since_s = 0.0  # when the client last took something, by the loop's clock
        self._timer: asyncio.TimerHandle | None = None

    def watch(self) -> None:
        """From now on: abort the connection once its client takes nothing for too long."""
        if self._timer is None:
            self._note(self._count())
            self._look_again()

    def taken(self) -> None:
        """The client has nearly all. What is left of a connection that closes is watched on."""
        if not self._transport.is_closing():
            self.stop()

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look_again(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_EVERY_S, self.look)

    def look(self) -> None:
        """Decide, as it is done every `LOOK_EVERY_S`."""
        left_bytes = self._count()
        if left_bytes < self._left_bytes:
            self._note(left_bytes)
        elif asyncio.get_running_loop().time() - self._since_s >= UNREAD_S_MAX:
            self.stop()
            log.info("gave up a connection: nobody read its %d bytes", left_bytes)
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
