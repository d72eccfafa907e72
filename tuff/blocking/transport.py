"""Sends calls over HTTP, from any thread, over connections that are kept open.

It sends each call once: what was lost is reported as `ConnectionLostError`, never sent again here,
since what may be repeated is known to `tuff.retries` alone.
"""

import io
import os
import select
import socket
from collections.abc import Callable, Iterable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ssl import SSLContext, SSLError, SSLSocket, create_default_context
from threading import Lock
from time import perf_counter
from typing import TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

from tuff.address import Address
from tuff.calls import Call, Request, Response
from tuff.client_errors import ClientClosedError
from tuff.flows import Stop, wait_for


class BoundedSocket:
    """A socket that limits the time of a whole exchange. Belongs to one thread at a time.

    The timeout of a socket is for each read, so a server that sends a byte a second would be waited
    for without end. This has what `http.client` needs of a socket.
    """

    def __init__(self, sock: socket.socket, *, elapsed_s: Callable[[], float]) -> None:
        self._socket = sock
        self._elapsed_s = elapsed_s
        self._deadline_s = 0.0
        self._stop: Stop | None = None

    def begin(self, seconds: float, *, stop: Stop | None) -> None:
        """What is sent and received from now on has so many seconds in all.

        Every call after that raises TimeoutError, and StoppedError once `stop` is set.
        """
        self._deadline_s = self._elapsed_s() + seconds
        self._stop = stop

    def sendall(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            self._socket.settimeout(self._left_s())
            view = view[self._socket.send(view) :]

    def makefile(self, mode: str) -> io.BufferedReader:
        assert mode == "rb", "an answer is read, and it is bytes"
        raw = self._socket.makefile("rb", buffering=0)
        return io.BufferedReader(_Answer(raw, self._before_reading))

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def _before_reading(self) -> None:
        if self._stop is not None and not self._holds_bytes():
            wait_for(self.fileno(), self._stop, self._left_s())
        self._socket.settimeout(self._left_s())

    def _holds_bytes(self) -> bool:
        # What TLS has decrypted already is not seen by waiting for the descriptor.
        return isinstance(self._socket, SSLSocket) and self._socket.pending() > 0

    def _left_s(self) -> float:
        left_s = self._deadline_s - self._elapsed_s()
        if left_s <= 0:
            raise TimeoutError("timed out")
        return left_s


class _Answer(io.RawIOBase):
    """The reading side, which asks before each read how long it may take."""

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


T = TypeVar("T")

IDLE_COUNT_MAX = 32  # connections; more threads than this at once open and close their own


class Transport:
    """Connections to one server. Safe to share between threads: `_lock` guards `_idle`."""

    def __init__(self, address: Address) -> None:
        parts = urlsplit(address.url)
        self.url = address.url.rstrip("/")
        self._address = address
        # One for all connections: to make one is to read all authorities that the machine trusts.
        self._ssl = (address.ssl_context or _ssl_context()) if parts.scheme == "https" else None
        self._host, self._port = parts.hostname or "", parts.port
        self._prefix = parts.path.rstrip("/")
        self._lock = Lock()
        self._idle: list[HTTPConnection] = []
        self._closed = False
        _open.add(self)

    def send(self, call: Call[T], *, stop: Stop | None = None) -> T:
        """The answer to a call, which is sent once.

        Raises:
            ConnectionLostError: no answer came; it says whether the outcome is unknown.
            TuffError: its kind for what the server refused.
            StoppedError: `stop` was set, and the answer is not waited for any more.
        """
        connection = self._take()
        try:
            _bounded(connection).begin(self._address.answer_within_s(call.request), stop=stop)
            self._send(connection, call.request)
            response = self._receive(connection, call.request)
        except BaseException:
            # Half an answer may still be on its way, and must not be taken for the next one's.
            connection.close()
            raise
        self._give_back(connection)
        return self._address.answer(call, response)

    def close(self) -> None:
        """Close all connections; calling it again is harmless."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for connection in idle:
            connection.close()

    def leave_inherited(self) -> None:
        """In a process that was just forked: its parent goes on to use these connections, and the
        two would take each other's answers. Closing them here leaves the parent's open. The lock
        may have been held by a thread that is not here."""
        inherited, self._idle, self._lock = self._idle, [], Lock()
        for connection in inherited:
            connection.close()

    def _take(self) -> HTTPConnection:
        while True:
            with self._lock:
                if self._closed:
                    raise ClientClosedError
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect()
            if not _is_dropped(connection):
                return connection
            connection.close()

    def _connect(self) -> HTTPConnection:
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

    def _unconnected(self) -> HTTPConnection:
        timeout_s = self._address.connect_timeout_s
        if self._ssl is None:
            return HTTPConnection(self._host, self._port, timeout=timeout_s)
        return HTTPSConnection(self._host, self._port, timeout=timeout_s, context=self._ssl)

    def _send(self, connection: HTTPConnection, request: Request) -> None:
        headers = self._address.headers(request)
        try:
            connection.request(request.method, self._prefix + request.path, request.body, headers)
        except OSError as error:
            # No server carries out a request whose body is cut short of its Content-Length.
            raise self._address.lost(request, error, was_sent=False) from error

    def _receive(self, connection: HTTPConnection, request: Request) -> Response:
        try:
            # Closed here and not by its finalizer, in which Python drops an interrupt.
            with connection.getresponse() as reply:
                body = reply.read()
        except (OSError, HTTPException) as error:
            raise self._address.lost(request, error, was_sent=True) from error
        if reply.will_close:
            connection.close()
        return Response(reply.status, _lower(reply.getheaders()), body)

    def _give_back(self, connection: HTTPConnection) -> None:
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


_open: WeakSet[Transport] = WeakSet()


def _leave_inherited() -> None:
    for transport in list(_open):
        transport.leave_inherited()


os.register_at_fork(after_in_child=_leave_inherited)


def _ssl_context() -> SSLContext:
    context = create_default_context()
    context.set_alpn_protocols(["http/1.1"])  # as http.client does with a context of its own
    return context


def _lower(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


def _bounded(connection: HTTPConnection) -> BoundedSocket:
    assert isinstance(connection.sock, BoundedSocket), "it was connected here"
    return connection.sock


def _is_dropped(connection: HTTPConnection) -> bool:
    # A server closes connections that were idle for long. What becomes readable on one that waits
    # for no answer is its end, and sending on it would lose a call with an unknown outcome.
    poller = select.poll()
    poller.register(connection.sock, select.POLLIN)
    return bool(poller.poll(0))
