"""The listening socket: which connections are taken, and how all are closed (protocol §1, §8)."""

import asyncio
import errno
import os
import socket
import stat
from contextlib import suppress
from weakref import ReferenceType, ref

from kernel.requests_and_replies import RETRY_AFTER_S, problem_reply
from process.http_connection import HttpConnection, HttpService, ReplyEncoder, closing
from process.tls import HANDSHAKE_S_MAX, ServerTls
from tuff.protocol.errors import OverloadedError

LISTEN_BACKLOG = 1024  # connections the kernel holds until they are accepted
CLOSE_S_MIN = 1.0  # seconds; a connection with a request gets this long at least


class Listener:
    """The listening sockets, with a bound on open connections. `tls` None: it speaks HTTP only."""

    def __init__(
        self,
        service: HttpService,
        *,
        connections_max: int,
        tls: ServerTls | None = None,
        unix_socket: str = "",
    ) -> None:
        self._service = service
        self._connections_max = connections_max
        self._tls = tls
        # Connections whose handshake may be under way: they are not among those of the service. One
        # whose handshake fails is not told, but freed.
        self._in_handshake: set[ReferenceType[HttpConnection]] = set()
        self._unix_socket = unix_socket
        self._servers: list[asyncio.Server] = []

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; returns the port. Raises: OSError: it, or the Unix socket, can't be
        had."""
        server = await asyncio.get_running_loop().create_server(
            self._accept,
            host,
            port,
            backlog=LISTEN_BACKLOG,
            reuse_address=True,
            start_serving=False,  # before it is known which hosts are the server's
            ssl=None if self._tls is None else self._tls.context,
            ssl_handshake_timeout=None if self._tls is None else HANDSHAKE_S_MAX,
        )
        self._servers.append(server)
        addresses = [each.getsockname() for each in server.sockets]
        if self._unix_socket:
            await self._listen_locally(self._unix_socket)
        self._service.hosts.bind(host, [address for address, *_ in addresses])
        for each in self._servers:
            await each.start_serving()
        return int(addresses[0][1])

    async def _listen_locally(self, path: str) -> None:
        """Raises: OSError: the Unix socket can't be had."""
        listening = _local_socket(path)
        server = await asyncio.get_running_loop().create_unix_server(
            self._accept, sock=listening, backlog=LISTEN_BACKLOG, start_serving=False
        )
        self._servers.append(server)

    def _accept(self) -> asyncio.BaseProtocol:
        open_count = len(self._service.connections) + len(self._in_handshake)
        if open_count >= self._connections_max:
            return _Refusal(self._connections_max, self._service.replies)
        if self._tls is None:
            return HttpConnection(self._service)
        forget = self._in_handshake.discard
        connection = HttpConnection(self._service, opened=lambda opened: forget(ref(opened)))
        reference = ref(connection, forget)
        self._in_handshake.add(reference)
        # By then it has ended in any case, also where what has failed is freed later.
        asyncio.get_running_loop().call_later(HANDSHAKE_S_MAX, forget, reference)
        return connection

    def end_with_replies(self) -> None:
        """End each connection with its next reply."""
        self._service.connections.end_with_replies()

    async def close(self, *, within_s: float) -> None:
        """Close the socket and every connection: idle ones soon (process/open_connections.py),
        others when the client has its reply, or after so many seconds, but not before
        `CLOSE_S_MIN`."""
        connections, now_s = self._service.connections, asyncio.get_running_loop().time
        until_s = now_s() + max(within_s, CLOSE_S_MIN)
        connections.end_with_replies()
        await connections.last_requests()
        for server in self._servers:
            server.close()
        if self._unix_socket and self._servers:
            with suppress(FileNotFoundError):
                os.unlink(self._unix_socket)
        await connections.close(until_s - now_s())


class _Refusal(asyncio.Protocol):
    """Refuses a connection above the limit with 429, and closes it."""

    def __init__(self, connections_max: int, replies: ReplyEncoder) -> None:
        self._connections_max = connections_max
        self._replies = replies

    def connection_made(  # type: ignore[override]  # a stream's, in uvloop not by its class
        self, transport: asyncio.Transport
    ) -> None:
        error = OverloadedError(
            f"server.max_connections={self._connections_max} connections are open; try again"
        )
        reply = closing(problem_reply(error))
        transport.write(self._replies.head(reply) + reply.body)
        # A reset would take the answer away from a client that is still sending its request.
        if transport.can_write_eof():  # TLS can't
            transport.write_eof()
        asyncio.get_running_loop().call_later(RETRY_AFTER_S, transport.close)


def _local_socket(path: str) -> socket.socket:
    """A Unix socket at this path, which only this user may open. One of a server that was killed is
    replaced. Raises: OSError."""
    found = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        if os.path.lexists(path):
            _remove_unused(path)
        found.bind(path)
        os.chmod(path, 0o600)  # before there is a connection: nothing listens yet
    except OSError as error:
        found.close()
        raise OSError(error.errno, error.strerror or str(error), path) from None
    return found


def _remove_unused(path: str) -> None:
    if not stat.S_ISSOCK(os.lstat(path).st_mode):
        raise OSError(errno.EEXIST, "there is another file at this path", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        if probe.connect_ex(path) == 0:
            raise OSError(errno.EADDRINUSE, "another server listens there", path)
    os.unlink(path)


def listen_failure(error: OSError, *, host: str, port: int) -> str:
    """Why the socket can't be opened, as one sentence."""
    if error.filename is not None:
        return f"can't listen on the Unix socket {error.filename}: {error.strerror}"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; give another with --port, or --port 0 for any"
    if isinstance(error, socket.gaierror):
        return f"there is no address for the host {host}"
    # The event loop's own sentence repeats the address.
    reason = error.strerror if error.errno is None else os.strerror(error.errno)
    return f"can't listen on {host}:{port}: {reason}"
