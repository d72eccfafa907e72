"""Sessions through a worker: it passes their bytes on, and the main process serves them.

The worker makes a socket pair for each session, and sends one end of it to the main process, with
what the request said about the client. No other process can send a session: the socket for that has
no address.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import suppress

from process.connections import Connections
from process.slow_readers import SlowReader
from tuff.protocol.exchange import Request
from workers.link_frames import Frames, pack

HEAD_BYTES_MAX = 1 << 16  # of what a request says about its client: two of its longest fields

Spawn = Callable[..., object]
BeginSession = Callable[[asyncio.Transport, Request], None]


class Relay:
    """The bytes of one session, in both directions."""

    def __init__(self, client: asyncio.Transport, connections: Connections) -> None:
        self._client = client
        self._connections = connections
        self._main: asyncio.Transport | None = None
        self._slow_reader = SlowReader(client)
        connections.add(self)
        client.pause_reading()  # until there is where the bytes go
        # A client that makes no more calls gets the replies to those under way; TLS can't do that.
        # The main process closes a session as a whole.
        half_closes = client.can_write_eof()
        client.set_protocol(_Side(self._of_main, self._client_lost, half_closes=half_closes))

    def connected(self) -> asyncio.Protocol:
        """The protocol of the main process's side, once it is connected."""
        return _Side(lambda: self._client, self._main_lost, made=self._main_made)

    def end_with_reply(self) -> None:
        """Nothing: the main process ends its sessions."""

    def close(self) -> None:
        """As `end_with_reply`."""

    def abort(self) -> None:
        """Close both sides now."""
        self._client.abort()
        if self._main is not None:
            self._main.abort()

    def _of_main(self) -> asyncio.Transport | None:
        return self._main

    def _main_made(self, transport: asyncio.Transport) -> None:
        self._main = transport
        if self._client.is_closing():
            transport.close()
        else:
            self._client.resume_reading()

    def _client_lost(self) -> None:
        self._slow_reader.stop()
        self._connections.discard(self)
        if self._main is not None:
            self._main.close()

    def _main_lost(self) -> None:
        self._client.close()
        if self in self._connections:  # until it has read the rest
            self._slow_reader.watch()


class _Side(asyncio.Protocol):
    """What one side sends goes to the other one."""

    def __init__(
        self,
        other: Callable[[], asyncio.Transport | None],
        lost: Callable[[], None],
        *,
        made: Callable[[asyncio.Transport], None] | None = None,
        half_closes: bool = False,
    ) -> None:
        self._other = other
        self._lost = lost
        self._made = made
        self._half_closes = half_closes

    def connection_made(  # type: ignore[override]  # a stream's, in uvloop not by its class
        self, transport: asyncio.Transport
    ) -> None:
        if self._made is not None:
            self._made(transport)

    def data_received(self, data: bytes) -> None:
        if (other := self._other()) is not None:
            other.write(data)

    def eof_received(self) -> bool:
        other = self._other()
        if not self._half_closes or other is None:
            return False
        other.write_eof()
        return True

    def pause_writing(self) -> None:
        if (other := self._other()) is not None:
            other.pause_reading()

    def resume_writing(self) -> None:
        other = self._other()
        if other is not None and not other.is_closing():
            other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()


class Handover:
    """Sends sessions to the main process. `spawn` starts a task."""

    def __init__(self, sending: socket.socket, connections: Connections, *, spawn: Spawn) -> None:
        self._sending = sending
        self._connections = connections
        self._spawn = spawn

    def begin(self, transport: asyncio.Transport, head: Request) -> None:
        """Continue a connection as a session; `head` is the request that asked for it."""
        relay = Relay(transport, self._connections)
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                said = pack((head.authorization, head.certificate, head.address))
                socket.send_fds(self._sending, [said], [theirs.fileno()])
            except OSError:  # the main process takes no more
                ours.close()
                relay.abort()
                return
        ours.settimeout(0)
        self._spawn(_connect(ours, relay))


async def _connect(ours: socket.socket, relay: Relay) -> None:
    await asyncio.get_running_loop().connect_accepted_socket(relay.connected, ours)


class Arriving(asyncio.Protocol):
    """A session that a worker has sent; `begin` continues it."""

    def __init__(self, begin: BeginSession, head: Request) -> None:
        self._begin = begin
        self._head = head

    def connection_made(  # type: ignore[override]  # a stream's, in uvloop not by its class
        self, transport: asyncio.Transport
    ) -> None:
        self._begin(transport, self._head)


def receive(receiving: socket.socket) -> tuple[socket.socket, Request] | None:
    """The next session of a worker; None where there is none now."""
    with suppress(BlockingIOError):
        said, descriptors, _, _ = socket.recv_fds(receiving, HEAD_BYTES_MAX, 1)
        if said and descriptors:
            ((authorization, certificate, address),) = Frames().feed(said)
            arrived = socket.socket(fileno=descriptors[0])
            arrived.settimeout(0)
            head = Request(
                {}, (), None, None, b"", authorization=authorization,
                certificate=tuple(certificate), address=address,
            )  # fmt: skip
            return arrived, head
    return None
