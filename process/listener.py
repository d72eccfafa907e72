"""The listening socket: which connections are taken, and how all are closed (protocol §1, §8)."""

import asyncio
import errno
import socket

from process.http_connection import HttpConnection, HttpService, ReplyBytes
from process.tls import HANDSHAKE_S_MAX, ServerTls
from tuff.protocol.errors import OverloadedError
from tuff.protocol.exchange import RETRY_AFTER_S, problem_reply

LISTEN_BACKLOG = 1024  # connections the kernel holds until they are accepted
CLOSE_S_MIN = 1.0  # seconds; idle connections are closed at once, others get this long at least


class Listener:
    """The listening socket, with a bound on open connections. `tls` None: it speaks HTTP only."""

    def __init__(
        self, service: HttpService, *, connections_max: int, tls: ServerTls | None = None
    ) -> None:
        self._service = service
        self._connections_max = connections_max
        self._tls = tls
        # Connections whose handshake may be under way: they are not among those of the service.
        self._in_handshake: set[HttpConnection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; returns the port. Raises: OSError: it can't be had."""
        self._server = await asyncio.get_running_loop().create_server(
            self._accept,
            host,
            port,
            backlog=LISTEN_BACKLOG,
            reuse_address=True,
            start_serving=False,  # before it is known which hosts are the server's
            ssl=None if self._tls is None else self._tls.context,
            ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S_MAX,
        )
        addresses = [each.getsockname() for each in self._server.sockets]
        self._service.hosts.bind(host, [address for address, *_ in addresses])
        await self._server.start_serving()
        return int(addresses[0][1])

    def _accept(self) -> asyncio.BaseProtocol:
        if len(self._service.connections) + len(self._in_handshake) >= self._connections_max:
            return _Refusal(self._connections_max, self._service.replies)
        if self._tls is None:
            return HttpConnection(self._service)
        connection = HttpConnection(self._service, opened=self._in_handshake.discard)
        self._in_handshake.add(connection)
        # A handshake that fails calls nothing.
        asyncio.get_running_loop().call_later(
            HANDSHAKE_S_MAX, self._in_handshake.discard, connection
        )
        return connection

    def end_with_replies(self) -> None:
        """End each connection with its next reply."""
        self._service.connections.end_with_replies()

    async def close(self, *, within_s: float) -> None:
        """Close the socket and every connection: idle ones at once, others when the client has its
        reply, or after so many seconds, but not before `CLOSE_S_MIN`."""
        if self._server is not None:
            self._server.close()
        await self._service.connections.close(max(within_s, CLOSE_S_MIN))


class _Refusal(asyncio.Protocol):
    """Refuses a connection above the limit with 429, and closes it."""

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
        transport.write(self._replies.head(closing) + closing.body)
        # A reset would take the answer away from a client that is still sending its request.
        if transport.can_write_eof():  # TLS can't
            transport.write_eof()
        asyncio.get_running_loop().call_later(RETRY_AFTER_S, transport.close)


def listen_failure(error: OSError, *, host: str, port: int) -> str:
    """Why the socket can't be opened, as one sentence."""
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; give another with --port, or --port 0 for any"
    if isinstance(error, socket.gaierror):
        return f"there is no address for the host {host}"
    return f"can't listen on {host}:{port}: {error.strerror}"
