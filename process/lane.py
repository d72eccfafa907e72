"""The lane: plain requests served past the HTTP library, which serves all others.

A connection begins in the lane. As long as its requests are plain (`process.heads`) and have a
route, the lane reads each one out of the bytes, asks the handler, and writes the reply as one piece
of bytes. The first request that is anything else takes the connection out of the lane for good: the
library is given the connection and every byte that was not served yet, and never notices that there
was a lane. So there is no state that the two share, and nothing here that an odd request could
reach: who is not plain is not parsed by two.

Requests of one connection are served one after the other, as HTTP wants the replies in order. What
arrives meanwhile is held, up to a bound, and then the connection is not read any further.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any

from process.front import Front, is_given_up
from process.heads import Head, Heads, ReplyBytes
from process.hosts import Hosts
from process.lines import Lines
from process.routing import RouteTree
from process.unread import Unread
from tuff.disk.steps import Steps
from tuff.protocol.exchange import Reply, Request

BODY_BYTES_MAX = 1 << 20  # bytes; beyond, the library's stream costs nothing in comparison
JOINED_BYTES_MAX = 1 << 16  # bytes of a body; a larger one is not copied behind its head
HELD_BYTES_MAX = 1 << 18  # bytes that wait behind a request under way; then reading pauses
KEEP_ALIVE_S = 75.0  # seconds an idle connection is kept

Work = Coroutine[Any, Any, Reply]


class Lanes:
    """Every connection that is in the lane, and what they share. Lives on one event loop.

    `general` makes what the library has for one connection.
    """

    def __init__(
        self,
        tree: RouteTree,
        front: Front,
        hosts: Hosts,
        *,
        general: Callable[[], asyncio.Protocol],
        replies: ReplyBytes,
        max_request_bytes: int,
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self.general = general
        self.heads = Heads(Lines(tree), hosts, self.loop)
        self.replies = replies
        self.body_bytes_max = min(max_request_bytes, BODY_BYTES_MAX)
        self._open: set[Lane] = set()
        self._is_empty = asyncio.Event()
        self._front = front

    @property
    def count(self) -> int:
        """How many connections are in the lane."""
        return len(self._open)

    def add(self, lane: "Lane") -> None:
        self._open.add(lane)

    def discard(self, lane: "Lane") -> None:
        self._open.discard(lane)
        if not self._open:
            self._is_empty.set()

    async def close(self, within_s: float) -> None:
        """Close every connection; a request under way gets so many seconds to be answered."""
        for lane in tuple(self._open):
            lane.close()
        if self._open:
            self._is_empty.clear()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._is_empty.wait(), within_s)
        for lane in tuple(self._open):
            lane.abort()

    def work_for(self, head: Head, body: bytes) -> Work:
        """What answers this request, not begun yet."""
        (operation, handler, parameters, query), (_, content_type, accept), _ = head
        request = Request(parameters, query, content_type, accept, body)
        return self._front.answer(operation, handler, request)


class Lane(asyncio.Protocol):
    """One connection, until it closes or leaves the lane."""

    __slots__ = ("_held", "_is_closing", "_is_paused", "_lanes", "_needed", "_operation",
                 "_quiet_s", "_timer", "_transport", "_unread", "_work")  # fmt: skip

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._transport: asyncio.Transport | None = None
        self._held = bytearray()  # what waits: for its rest, or for the request under way
        self._needed = 0  # bytes that must be held before it is worth to look at them
        self._work: Steps[Reply] | None = None  # the request under way
        self._operation = ""  # that one's, or the last one's
        self._is_paused = False  # the client does not read its replies
        self._is_closing = False
        self._quiet_s = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._unread: Unread | None = None  # once there was more than the transport likes to keep

    def connection_made(  # type: ignore[override]  # a stream's, in uvloop not by its class
        self, transport: asyncio.Transport
    ) -> None:
        self._transport = transport
        self._lanes.add(self)
        transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._rest()

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._forget()
        if is_given_up(self._operation):
            self._give_up()

    def data_received(self, data: bytes) -> None:
        if self._held or self._work is not None or self._is_paused:
            self._held += data
            self._go_on()
        else:
            self._take(data)

    def pause_writing(self) -> None:
        self._is_paused = True
        self._watch()

    def resume_writing(self) -> None:
        self._is_paused = False
        if self._unread is not None:
            self._unread.taken()
        self._go_on()

    def _watch(self) -> None:
        if self._unread is None and self._transport is not None:
            self._unread = Unread(self._transport)
        if self._unread is not None:
            self._unread.watch()

    def close(self) -> None:
        """Close the connection, once the request under way is answered."""
        self._is_closing = True
        if self._work is None and self._transport is not None:
            self._transport.close()
            self._watch()

    def abort(self) -> None:
        """Close the connection now, and give up the request under way."""
        self._give_up()
        if self._transport is not None:
            self._transport.abort()

    def _give_up(self) -> None:
        work, self._work = self._work, None
        if work is not None:
            work.give_up()

    def _go_on(self) -> None:
        if self._transport is None or self._is_closing:
            return
        if self._work is not None or self._is_paused:
            if len(self._held) > HELD_BYTES_MAX:
                self._transport.pause_reading()
            return
        if not self._held or len(self._held) < self._needed:
            return
        data = bytes(self._held)
        self._held.clear()
        self._needed = 0
        self._transport.resume_reading()
        self._take(data)

    def _take(self, data: bytes) -> None:
        """Serve the request that the bytes begin with, or hold them until it is whole."""
        head = self._lanes.heads.read(data)
        if head is None or head.fields.content_length > self._lanes.body_bytes_max:
            self._leave(data)
            return
        stop = head.size + head.fields.content_length
        if len(data) < stop:
            self._held += data
            self._needed = stop
            return
        work = self._lanes.work_for(head, data[head.size : stop])
        if len(data) > stop:
            self._held += data[stop:]
        self._operation = head.asked.operation
        self._work = Steps(work, returned=self._answer, failed=self._fail)
        self._work.go_on()

    def _answer(self, reply: Reply) -> None:
        self._work = None
        if self._transport is None:
            return
        if len(reply.body) < JOINED_BYTES_MAX:
            self._transport.write(self._lanes.replies.pack(reply))
        else:
            self._transport.writelines((self._lanes.replies.head(reply), reply.body))
        if self._is_closing:
            self._transport.close()
            return
        self._quiet_s = self._lanes.loop.time()
        if self._held:
            # Not from here: a thousand requests in one segment would nest as deep.
            self._lanes.loop.call_soon(self._go_on)

    def _fail(self, error: BaseException) -> None:
        self._work = None
        self.abort()
        if not isinstance(error, ConnectionError | asyncio.CancelledError):
            raise error

    def _leave(self, data: bytes) -> None:
        """Hand the connection over to the library, with every byte that was not served."""
        transport = self._transport
        assert transport is not None
        self._forget()
        self._transport = None
        general = self._lanes.general()
        general.connection_made(transport)
        transport.set_protocol(general)
        general.data_received(data)

    def _forget(self) -> None:
        self._lanes.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._unread is not None:
            self._unread.stop()

    def _rest(self) -> None:
        """See to it that somebody who says nothing does not keep the connection for ever."""
        loop = self._lanes.loop
        is_new = self._quiet_s == 0.0
        if is_new or self._work is not None:
            self._quiet_s = loop.time()
        elif loop.time() - self._quiet_s >= KEEP_ALIVE_S:
            self.close()
            return
        self._timer = loop.call_at(self._quiet_s + KEEP_ALIVE_S, self._rest)
