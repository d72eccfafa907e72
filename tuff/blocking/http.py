"""HTTP from threads, on connections that are kept open."""

import io
import select
import socket
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import partial
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ssl import SSLContext, SSLError, SSLSocket, create_default_context
from threading import Lock
from time import perf_counter
from typing import TypeVar
from urllib.parse import urlsplit

from tuff.address import Address
from tuff.errors import ClientClosedError, ServerUnreachableError
from tuff.flows_and_repeated_calls import Call
from tuff.requests_and_responses import Request, Response
from tuff.stop_signals import Stop, wait_for

T = TypeVar("T")

IDLE_COUNT_MAX = 32  # connections; more threads than this at once open and close their own


class HttpConnections:
    """HTTP connections to one server. Safe to share between threads: `_lock` guards `_idle`."""

    def __init__(self, address: Address) -> None:
        parts = urlsplit(address.url)
        self._address = address
        # One for all connections, since making one reads all authorities that the machine trusts.
        self._ssl = (address.ssl_context or _ssl_context()) if parts.scheme == "https" else None
        self._host, self._port = parts.hostname or "", parts.port
        self.prefix = parts.path.rstrip("/")
        self._lock = Lock()
        self._idle: list[HTTPConnection] = []
        self._closed = False
        self.was_answered = False

    def response(self, request: Request, stop: Stop | None) -> Response:
        """The response to a request, which is sent once. Raises: as `Transport.send`."""
        connection = self._take()
        try:
            bounded(connection).begin(self._address.timeout_s + request.wait_s, stop=stop)
            self._send(connection, request)
            response = self._receive(connection, request)
        except BaseException:
            # The rest of a response may still come, and must not be read as that of the next call.
            connection.close()
            raise
        self.give_back(connection)
        return response

    def pieces(self, call: Call[None], *, size_bytes: int) -> Iterator[bytes]:
        """The body of a large reply as it comes, in pieces of at most `size_bytes`, over a
        connection of its own. Each piece may take as long as a reply.

        Raises:
            ConnectionLostError: the server can't be reached, or was lost on the way.
            TuffError: the class of the server's refusal.
        """
        request, within_s = call.request, self._address.timeout_s + call.request.wait_s
        with closing(self.connect()) as connection:
            bounded(connection).begin(within_s, stop=None)
            self._send(connection, request)
            reply = self._part(request, connection.getresponse)
            if reply.status != HTTPStatus.OK:
                body = self._part(request, reply.read)
                response = Response(reply.status, _lower(reply.getheaders()), body)
                self._address.require_no_proxy(call, response)
                call.answer(response)
            while piece := self._part(request, partial(reply.read1, size_bytes)):
                yield piece
                bounded(connection).begin(within_s, stop=None)

    def close(self) -> None:
        """Close all connections; calling it again is harmless."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for connection in idle:
            connection.close()

    def leave_inherited(self) -> None:
        """In a process that was just forked: close the inherited connections, which stay open in
        the parent. Otherwise the two would read each other's responses. The lock is replaced, since
        a thread that does not exist here may have held it."""
        inherited, self._idle, self._lock = self._idle, [], Lock()
        for connection in inherited:
            connection.close()

    def connect(self) -> HTTPConnection:
        """A new connection. Raises: ServerUnreachableError, ServerNotTrustedError."""
        connection = self._unconnected()
        try:
            connection.connect()
        except SSLError as error:
            connection.close()
            raise self._address.not_trusted(error) from error
        except OSError as error:
            connection.close()
            raise self._address.unreachable(error) from error
        connection.sock = BoundedSocket(connection.sock, elapsed_s=perf_counter)
        return connection

    def give_back(self, connection: HTTPConnection) -> None:
        """Keep a connection for the next request, unless it is closed."""
        with self._lock:
            keep = (
                connection.sock is not None
                and not self._closed
                and len(self._idle) < IDLE_COUNT_MAX
            )
            if keep:
                self._idle.append(connection)
        if not keep:
            connection.close()

    def _take(self) -> HTTPConnection:
        while True:
            with self._lock:
                if self._closed:
                    raise ClientClosedError
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self.connect()
            if not _is_dropped(connection):
                return connection
            connection.close()

    def _unconnected(self) -> HTTPConnection:
        timeout_s = self._address.connect_timeout_s
        if self._ssl is None:
            return HTTPConnection(self._host, self._port, timeout=timeout_s)
        return HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._ssl)

    def _send(self, connection: HTTPConnection, request: Request) -> None:
        headers = self._address.headers(request)
        try:
            connection.request(
                request.operation.method, self.prefix + request.path, request.content, headers
            )
        except OSError as error:
            # No server carries out a request whose body is cut short of its Content-Length.
            raise self._address.lost(request, error, was_sent=False) from error

    def _receive(self, connection: HTTPConnection, request: Request) -> Response:
        # Closed here and not by its finalizer, in which Python drops an interrupt.
        with self._part(request, connection.getresponse) as reply:
            body = self._part(request, reply.read)
        if reply.will_close:
            connection.close()
        return Response(reply.status, _lower(reply.getheaders()), body)

    def _part(self, request: Request, read: Callable[[], T]) -> T:
        """A part of a reply. Raises: ConnectionLostError: it did not come."""
        try:
            return read()
        except (OSError, HTTPException) as error:
            raise self._address.lost(
                request, error, was_sent=True, never_answered=not self.was_answered
            ) from error


def pieces(addresses: Sequence[Address], call: Call[None], *, size_bytes: int) -> Iterator[bytes]:
    """What the first of these servers that can be reached answers; see `HttpConnections.pieces`."""
    tried: list[str] = []
    for address in addresses:
        try:
            yield from HttpConnections(address).pieces(call, size_bytes=size_bytes)
        except ServerUnreachableError as error:
            tried.extend(error.tried)
        else:
            return
    raise ServerUnreachableError(*tried)


class BoundedSocket:
    """A socket that limits the time of a whole exchange. Belongs to one thread at a time.

    The timeout of a plain socket is for each read, so a server that sends one byte a second would
    never exceed it. This class has the methods that `http.client` uses.
    """

    def __init__(self, sock: socket.socket, *, elapsed_s: Callable[[], float]) -> None:
        self._socket = sock
        self._elapsed_s = elapsed_s
        self._deadline_s = 0.0
        self._stop: Stop | None = None

    def begin(self, seconds: float, *, stop: Stop | None) -> None:
        """Give the next exchange so many seconds in all.

        After that every call raises TimeoutError, and once `stop` is set StoppedError.
        """
        self._deadline_s = self._elapsed_s() + seconds
        self._stop = stop

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._socket.settimeout(self._left_s())
            view = view[self._socket.send(view) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb", "a response is read as bytes"
        raw = self._socket.makefile("rb", buffering=0)
        return io.BufferedReader(_ResponseReader(raw, self._before_reading))

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unbounded(self) -> socket.socket:
        """The socket itself."""
        return self._socket

    def close(self) -> None:
        self._socket.close()

    def _before_reading(self) -> None:
        if self._stop is not None and not self._holds_bytes():
            wait_for(self.fileno(), self._stop, self._left_s())
        self._socket.settimeout(self._left_s())

    def _holds_bytes(self) -> bool:
        # Bytes that TLS has decrypted already don't make the descriptor readable.
        return isinstance(self._socket, SSLSocket) and self._socket.pending() > 0

    def _left_s(self) -> float:
        left_s = self._deadline_s - self._elapsed_s()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s


class _ResponseReader(io.RawIOBase):
    """The reading side: before each read it sets the time that is left."""

    def __init__(self, raw: socket.SocketIO, before_reading: Callable[[], None]) -> None:
        super().__init__()
        self._raw = raw
        self._before_reading = before_reading

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview | bytearray") -> int | None:  # type: ignore[override]  # of all buffers, those it is given
        self._before_reading()
        return self._raw.readinto(buffer)

    def close(self) -> None:
        self._raw.close()
        super().close()


def bounded(connection: HTTPConnection) -> BoundedSocket:
    """The socket of a connection that was made with one."""
    assert isinstance(connection.sock, BoundedSocket), "it was connected with one"
    return connection.sock


def _ssl_context() -> SSLContext:
    context = create_default_context()
    context.set_alpn_protocols(["http/1.1"])  # as http.client does with a context of its own
    return context


def _lower(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


def _is_dropped(connection: HTTPConnection) -> bool:
    # A server closes connections that were idle for long. An idle connection that is readable has
    # ended, and a call that is sent on it would be lost with an unknown outcome.
    poller = select.poll()
    poller.register(connection.sock, select.POLLIN)
    return bool(poller.poll(0))
