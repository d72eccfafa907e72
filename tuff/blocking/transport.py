"""Sends calls from any thread, over a session or over HTTP, on connections that are kept open.

It sends each call once, and reports a lost connection as `ConnectionLostError`. `tuff.retries`
decides which calls are repeated.
"""

import os
import select
from collections.abc import Iterable, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from ssl import SSLContext, SSLError, create_default_context
from threading import Lock
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit
from weakref import WeakSet

from tuff.address import Address
from tuff.blocking.bounded_socket import BoundedSocket, bounded
from tuff.calls import Call, Request, Response
from tuff.client_errors import ClientClosedError, ServerUnreachableError
from tuff.flows import Stop
from tuff.protocol.errors import TuffError
from tuff.servers import Servers, subject_of, with_owner

if TYPE_CHECKING:
    from tuff.blocking.session import Session, Sessions

T = TypeVar("T")

IDLE_COUNT_MAX = 32  # connections; more threads than this at once open and close their own


def transport_of(addresses: Sequence[Address]) -> "Transport | ClusterTransport":
    """The transport of a client that has these addresses, at least one."""
    transports = [Transport(address) for address in addresses]
    return transports[0] if len(transports) == 1 else ClusterTransport(transports)


class ClusterTransport:
    """Connections to several servers of a cluster, any of which takes any call. Safe to share
    between threads."""

    def __init__(self, transports: Sequence["Transport"]) -> None:
        self._transports = transports
        self._servers = Servers([transport.url for transport in transports])

    @property
    def url(self) -> str:
        """The address of the server in use."""
        return self._transports[self._servers.current].url

    def send(self, call: Call[T], *, stop: Stop | None = None) -> T:
        """As `Transport.send`; a call that reaches no server at one address goes to the others at
        once, in turn. Any other failure is raised, and the next call goes to the next server.

        Raises:
            ServerUnreachableError: no server could be reached.
        """
        subject = subject_of(call.request.path)
        tried: list[str] = []
        for server in self._servers.in_order(subject):
            try:
                reply = self._transports[server].send(with_owner(call), stop=stop)
            except TuffError as error:
                self._servers.failed(server, subject, error)
                if not isinstance(error, ServerUnreachableError):
                    raise
                tried.extend(error.tried)
            else:
                self._servers.answered(subject, reply.owner_url)
                return reply.value
        raise ServerUnreachableError(*tried)

    def close(self) -> None:
        """Close all connections; calling it again is harmless."""
        for transport in self._transports:
            transport.close()


class Transport:
    """Connections to one server. Safe to share between threads: `_lock` guards `_idle`."""

    def __init__(self, address: Address) -> None:
        parts = urlsplit(address.url)
        self.url = address.url.rstrip("/")
        self._address = address
        # One for all connections, since making one reads all authorities that the machine trusts.
        self._ssl = (address.ssl_context or _ssl_context()) if parts.scheme == "https" else None
        self._host, self._port = parts.hostname or "", parts.port
        self._prefix = parts.path.rstrip("/")
        self._lock = Lock()
        self._idle: list[HTTPConnection] = []
        self._closed = False
        self._was_answered = False
        self._sessions: Sessions | None = None
        _open.add(self)

    def send(self, call: Call[T], *, stop: Stop | None = None) -> T:
        """Send a call once; returns the value of the response.

        Raises:
            ConnectionLostError: no response came; it says whether the outcome is unknown.
            TuffError: the class of the server's refusal.
            StoppedError: `stop` was set before the response came.
        """
        if self._closed:
            raise ClientClosedError
        sessions, request = self._used_sessions(), call.request
        response = None if sessions is None else sessions.response(request, stop)
        if response is None:
            response = self._response_over_http(request, stop)
        self._was_answered = True
        return self._address.answer(call, response)

    def _response_over_http(self, request: Request, stop: Stop | None) -> Response:
        connection = self._take()
        try:
            bounded(connection).begin(self._address.answer_within_s(request), stop=stop)
            self._send(connection, request)
            response = self._receive(connection, request)
        except BaseException:
            # The rest of a response may still come, and must not be read as that of the next call.
            connection.close()
            raise
        self._give_back(connection)
        return response

    def close(self) -> None:
        """Close all connections; calling it again is harmless."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for connection in idle:
            connection.close()
        if self._sessions is not None:
            self._sessions.close()

    def leave_inherited(self) -> None:
        """In a process that was just forked: close the inherited connections, which stay open in
        the parent. Otherwise the two would read each other's responses. The lock is replaced, since
        a thread that does not exist here may have held it."""
        inherited, self._idle, self._lock = self._idle, [], Lock()
        for connection in inherited:
            connection.close()
        if self._sessions is not None:
            self._sessions.leave_inherited()

    def _used_sessions(self) -> "Sessions | None":
        if self._sessions is None and self._address.with_sessions:
            from tuff.blocking.session import Sessions  # it loads msgpack; HTTP does not need it

            made = Sessions(self._address, self._open_session)
            with self._lock:
                if self._sessions is None:
                    self._sessions = made
        return self._sessions

    def _open_session(self) -> "Session":
        """A new session. A connection whose server offers none is kept for HTTP.

        Raises:
            NoSessionError: the server offers none.
            ServerUnreachableError, ServerNotTrustedError: there is no connection.
        """
        from tuff.blocking.session import begin_session

        connection = self._connect()
        try:
            return begin_session(connection, self._address, prefix=self._prefix)
        finally:
            self._give_back(connection)

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
            connection.request(
                request.method, self._prefix + request.path, request.content, headers
            )
        except OSError as error:
            # No server carries out a request whose body is cut short of its Content-Length.
            raise self._address.lost(request, error, was_sent=False) from error

    def _receive(self, connection: HTTPConnection, request: Request) -> Response:
        try:
            # Closed here and not by its finalizer, in which Python drops an interrupt.
            with connection.getresponse() as reply:
                body = reply.read()
        except (OSError, HTTPException) as error:
            raise self._address.lost(
                request, error, was_sent=True, never_answered=not self._was_answered
            ) from error
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


def _is_dropped(connection: HTTPConnection) -> bool:
    # A server closes connections that were idle for long. An idle connection that is readable has
    # ended, and a call that is sent on it would be lost with an unknown outcome.
    poller = select.poll()
    poller.register(connection.sock, select.POLLIN)
    return bool(poller.poll(0))
