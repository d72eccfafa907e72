"""Sends calls over HTTP, from any thread, over connections that are kept open.

It sends each call once: what was lost is reported as `ConnectionLostError`, never sent again, since
only the caller knows whether that is safe.
"""

import select
from collections.abc import Iterable
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from threading import Lock
from typing import TypeVar
from urllib.parse import urlsplit

from tuff.calls import Call, Request, Response
from tuff.protocol.errors import BadRequestError, TuffError

T = TypeVar("T")

IDLE_COUNT_MAX = 32  # connections; more threads than this at once open and close their own


class ConnectionLostError(TuffError):
    """The server can't be reached, or the connection was lost before its answer came.

    `outcome_unknown`: the server may have done what it was asked.
    """

    code = "connection_lost"

    def __init__(self, detail: str, *, outcome_unknown: bool) -> None:
        super().__init__(detail)
        self.outcome_unknown = outcome_unknown
        self.retry_safe = not outcome_unknown


class Transport:
    """Connections to one server. Safe to share between threads: `_lock` guards `_idle`."""

    def __init__(self, url: str, *, timeout_s: float, connect_timeout_s: float) -> None:
        parts = urlsplit(url)
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise BadRequestError(
                f"{url!r} is no address of a server; use one like http://127.0.0.1:7411"
            )
        self.url = url.rstrip("/")
        self._kind = HTTPSConnection if parts.scheme == "https" else HTTPConnection
        self._host, self._port = parts.hostname, parts.port
        self._prefix = parts.path.rstrip("/")
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._lock = Lock()
        self._idle: list[HTTPConnection] = []
        self._closed = False

    def send(self, call: Call[T]) -> T:
        """The answer to a call, which is sent once.

        Raises:
            ConnectionLostError: nobody answered; it says whether the outcome is unknown.
            TuffError: its kind for what the server refused.
        """
        connection = self._take()
        try:
            response = self._exchange(connection, call.request)
        except (OSError, HTTPException) as error:
            connection.close()
            raise self._lost(call.request, error) from error
        except BaseException:
            # Half an answer may still be on its way, and must not be taken for the next one's.
            connection.close()
            raise
        self._give_back(connection)
        return call.answer(response)

    def close(self) -> None:
        """Close all connections; calling it again is harmless."""
        with self._lock:
            idle, self._idle, self._closed = self._idle, [], True
        for connection in idle:
            connection.close()

    def _take(self) -> HTTPConnection:
        while True:
            with self._lock:
                if self._closed:
                    raise ConnectionLostError("the client is closed", outcome_unknown=False)
                connection = self._idle.pop() if self._idle else None
            if connection is None:
                return self._connect()
            if not _is_dropped(connection):
                return connection
            connection.close()

    def _connect(self) -> HTTPConnection:
        connection = self._kind(self._host, self._port, timeout=self._connect_timeout_s)
        try:
            connection.connect()
        except OSError as error:
            connection.close()
            raise ConnectionLostError(
                f"no server answers at {self.url} ({error}); start one with `tuff serve`, or give "
                "another address",
                outcome_unknown=False,
            ) from error
        return connection

    def _exchange(self, connection: HTTPConnection, request: Request) -> Response:
        connection.sock.settimeout(self._timeout_s + request.wait_s)
        headers = {} if request.body is None else {"Content-Type": "application/json"}
        connection.request(request.method, self._prefix + request.path, request.body, headers)
        reply = connection.getresponse()
        body = reply.read()
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

    def _lost(self, request: Request, error: Exception) -> ConnectionLostError:
        what = f"{request.method} {request.path.partition('?')[0]}"
        reason = f"{type(error).__name__}: {error}".rstrip(": ")
        if request.is_read:
            return ConnectionLostError(
                f"{self.url} was lost before it answered {what} ({reason}); ask again",
                outcome_unknown=False,
            )
        return ConnectionLostError(
            f"{self.url} was lost before it answered {what} ({reason}), so whether it was done is "
            "unknown; look before you repeat it",
            outcome_unknown=True,
        )


def _lower(headers: Iterable[tuple[str, str]]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers}


def _is_dropped(connection: HTTPConnection) -> bool:
    # A server closes connections that were idle for long. What becomes readable on one that waits
    # for no answer is its end, and sending on it would lose a call whose outcome nobody knows.
    poller = select.poll()
    poller.register(connection.sock, select.POLLIN)
    return bool(poller.poll(0))
