"""The listening socket: who is let in, and how a connection is served (protocol §1, §8)."""

import asyncio
import errno
import socket
from collections.abc import Callable, Iterable

from aiohttp import web

from process.application import SERVER_NAME
from process.connections import Connections
from process.front import Front
from process.heads import ReplyBytes
from process.hosts import Hosts
from process.lane import KEEP_ALIVE_S, Lane, Lanes
from process.routing import RouteTree
from tuff.protocol.errors import OverloadedError
from tuff.protocol.exchange import RETRY_AFTER_S, Route, problem_reply

LISTEN_BACKLOG = 1024  # connections the kernel holds until they are accepted
CLOSE_S_MIN = 1.0  # seconds; idle connections are closed at once, others get this long at least
# Seconds that a handler is waited for whose connection is closed; the library takes 0 for ever.
_ORPHAN_S_MAX = 0.1


class Listener:
    """The listening socket, with a bound on open connections. Every connection begins in the lane;
    `app` has those that leave it, and refuses by the same `hosts`."""

    def __init__(
        self,
        app: web.Application,
        routes: Iterable[Route],
        front: Front,
        hosts: Hosts,
        *,
        connections_max: int,
        max_request_bytes: int,
        now_ms: Callable[[], int],
    ) -> None:
        self._runner = web.AppRunner(
            app,
            handle_signals=False,
            shutdown_timeout=_ORPHAN_S_MAX,
        )
        self._connections = Connections(front, keep_alive_s=KEEP_ALIVE_S)
        loop = asyncio.get_running_loop()
        self._lanes = Lanes(
            RouteTree(routes),
            front,
            hosts,
            general=self._general,
            replies=ReplyBytes(server=SERVER_NAME, now_ms=now_ms, elapsed_s=loop.time),
            max_request_bytes=max_request_bytes,
        )
        self._connections_max = connections_max
        self._hosts = hosts
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; returns the port. Raises: OSError: it can't be had."""
        await self._runner.setup()
        self._server = await asyncio.get_running_loop().create_server(
            self._accept,
            host,
            port,
            backlog=LISTEN_BACKLOG,
            reuse_address=True,
            start_serving=False,  # before it is known which hosts are the server's
        )
        addresses = [each.getsockname() for each in self._server.sockets]
        self._hosts.bind(host, [address for address, *_ in addresses])
        await self._server.start_serving()
        return int(addresses[0][1])

    def _general(self) -> asyncio.Protocol:
        server = self._runner.server
        assert server is not None
        return self._connections.make(server)

    def _accept(self) -> asyncio.BaseProtocol:
        if self._lanes.count + self._connections.count >= self._connections_max:
            return _Refusal(self._connections_max, self._lanes.replies)
        return Lane(self._lanes)

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self, *, within_s: float) -> None:
        """Close every connection: idle ones at once, others when the client has its reply, or after
        so many seconds, of which there are `CLOSE_S_MIN` in any case."""
        self.stop_accepting()
        within_s = max(within_s, CLOSE_S_MIN)
        await asyncio.gather(self._lanes.close(within_s), self._connections.close(within_s))
        await self._runner.cleanup()


class _Refusal(asyncio.Protocol):
    """Answers a connection that is one too many, and closes it."""

    def __init__(self, connections_max: int, replies: ReplyBytes) -> None:
        self._connections_max = connections_max
        self._replies = replies

    def connection_made(  # type: ignore[override]  # a stream's, in uvloop not by its class
        self, transport: asyncio.Transport
    ) -> None:
        error = OverloadedError(
            f"server.max_connections={self._connections_max} connections are open; try again"
        )
        reply = problem_reply(error)
        closing = reply._replace(headers=(*reply.headers, ("Connection", "close")))
        transport.write(self._replies.pack(closing))
        # A reset would take the answer away from a client that is still sending its request.
        transport.write_eof()
        asyncio.get_running_loop().call_later(RETRY_AFTER_S, transport.close)


def explain(error: OSError, *, host: str, port: int) -> str:
    """Why the socket can't be had, as one sentence."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; give another with --port, or --port 0 for any"
    if isinstance(error, socket.gaierror):
        return f"there is no address for the host {host}"
    return f"can't listen on {host}:{port}: {error.strerror}"
