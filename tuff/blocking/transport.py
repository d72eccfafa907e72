"""Sends calls from threads: over a session, many at once on one connection (docs/session.md),
or over HTTP, where the server offers no session or it does not carry the call.

It sends each call once, and reports a lost connection as `ConnectionLostError`. `Retries` decides
which calls are repeated.

A thread that waits for its reply reads for all that wait, one thread at a time: the leader. When it
has its own reply, it wakes another one, which leads from then on. So a client needs no thread of
its own, and a single thread waits for its reply as over HTTP.
"""

import logging
import os
import select
import socket
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from itertools import count
from ssl import SSLSocket, SSLWantReadError, SSLWantWriteError
from threading import Lock
from time import perf_counter
from typing import Any, TypeVar
from weakref import WeakSet

from tuff.address import Address
from tuff.blocking.http import HttpConnections, bounded
from tuff.errors import ClientClosedError, ServerUnreachableError
from tuff.flows_and_repeated_calls import Call
from tuff.protocol.errors import BadRequestError, TuffError
from tuff.protocol.session_frames import (
    PATH,
    POLLS,
    FrameReader,
    Greeting,
    Kind,
    call_frame,
    frame,
    greeting_of,
    reply_of,
)
from tuff.requests_and_responses import Request, Response
from tuff.server_choice import OWNER_HEADER, Servers, subject_of
from tuff.session_offers import REPLY_BYTES_MAX, NoSessionError, Offers, upgrade_fields
from tuff.stop_signals import Stop, wait_for

log = logging.getLogger(__name__)

T = TypeVar("T")

READ_BYTES = 1 << 16  # bytes of one read
CANCEL_WITHIN_S = 1.0  # seconds to send a cancellation; without it the session ends


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
        """Send a call; if it reaches no server at one address it goes to the others at
        once, in turn. Any other failure is raised, and the next call goes to the next server.

        Raises:
            ServerUnreachableError: no server could be reached.
        """
        subject = subject_of(call.request)
        tried: list[str] = []
        for server in self._servers.in_order(subject):
            try:
                response = self._transports[server].response(call, stop=stop)
                value = call.answer(response)
            except TuffError as error:
                self._servers.failed(server, subject, error)
                if not isinstance(error, ServerUnreachableError):
                    raise
                tried.extend(error.tried)
            else:
                self._servers.answered(subject, response.headers.get(OWNER_HEADER))
                return value
        raise ServerUnreachableError(*tried)

    def close(self) -> None:
        """Close all connections; calling it again is harmless."""
        for transport in self._transports:
            transport.close()


class Transport:
    """Connections to one server. Safe to share between threads: `_opening` lets one of them open
    the session, with the first call that a session carries, and again after its end."""

    def __init__(self, address: Address) -> None:
        self.url = address.url.rstrip("/")
        self._address = address
        self._http = HttpConnections(address)
        self._opening = Lock()
        self._attempts = 0  # to open a session, that have ended
        self._session: Session | None = None
        self._offers = Offers()
        self._is_closed = False
        _open.add(self)

    def send(self, call: Call[T], *, stop: Stop | None = None) -> T:
        """Send a call once; returns the value of the response.

        Raises:
            ConnectionLostError: no response came; it says whether the outcome is unknown.
            TuffError: the class of the server's refusal.
            StoppedError: `stop` was set before the response came.
        """
        return call.answer(self.response(call, stop=stop))

    def response(self, call: Call[Any], *, stop: Stop | None) -> Response:
        """The response of the server to a call, which is sent once. Raises: as `send`."""
        if self._is_closed:
            raise ClientClosedError
        response = self._response_of_session(call.request, stop)
        if response is None:
            response = self._http.response(call.request, stop)
        self._http.was_answered = True
        if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._address.require_no_proxy(call, response)
        return response

    def close(self) -> None:
        """Close all connections; calling it again is harmless."""
        self._is_closed = True
        self._http.close()
        with self._opening:
            if self._session is not None:
                self._session.abort()

    def leave_inherited(self) -> None:
        """In a process that was just forked: use no connection of the parent. The lock is replaced,
        since a thread that does not exist here may have held it."""
        self._http.leave_inherited()
        inherited, self._session, self._opening = self._session, None, Lock()
        if inherited is not None:
            inherited.leave_to_parent()

    def _response_of_session(self, request: Request, stop: Stop | None) -> Response | None:
        """None if it has to be sent over HTTP: a session does not carry the operation, or the
        trace context, which is a field of HTTP; or there is no session."""
        if request.operation.number is None or request.trace_headers:
            return None
        session = self._usable_session()
        if session is None:
            return None
        within_s = self._address.timeout_s + request.wait_s
        try:
            return session.exchange(request, within_s=within_s, stop=stop)
        except OSError as error:  # and with it TimeoutError
            raise self._address.lost(request, error, was_sent=True) from error

    def _usable_session(self) -> "Session | None":
        session = self._session
        if session is not None and session.is_usable():
            return session
        if not (self._address.with_sessions and self._offers.is_worth_asking(perf_counter())):
            return None
        attempts = self._attempts
        with self._opening:
            if self._session is not session:
                return self._session  # another thread has opened it meanwhile
            if self._attempts != attempts:
                return None  # another thread has failed; in turns, all would wait for long
            try:
                return self._opened()
            finally:
                self._attempts += 1

    def _opened(self) -> "Session | None":
        if self._is_closed:
            raise ClientClosedError
        if not self._offers.is_worth_asking(perf_counter()):
            return None
        try:
            self._session = self._begin_session()
        except NoSessionError as error:
            for_s = self._offers.refused(error, perf_counter())
            log.debug(
                "%s offers no session (%s); HTTP is used for %g s", self._address.url, error, for_s
            )
            return None
        return self._session

    def _begin_session(self) -> "Session":
        """A new session. A connection whose server offers none is kept for HTTP.

        Raises:
            NoSessionError: the server offers none.
            ServerUnreachableError, ServerNotTrustedError: there is no connection.
        """
        connection = self._http.connect()
        try:
            return begin_session(connection, self._address, prefix=self._http.prefix)
        finally:
            self._http.give_back(connection)


_open: WeakSet[Transport] = WeakSet()


def _leave_inherited() -> None:
    for transport in list(_open):
        transport.leave_inherited()


os.register_at_fork(after_in_child=_leave_inherited)


class _Waiter:
    """One call that waits: the response, or why there is none. All but `wait` is guarded by the
    lock of its session."""

    __slots__ = ("_asleep", "is_sent", "outcome")

    def __init__(self) -> None:
        self.outcome: Response | OSError | None = None
        self.is_sent = False
        self._asleep = Lock()
        self._asleep.acquire()

    def wake(self) -> None:
        """End this wait, or the next one."""
        if self._asleep.locked():
            self._asleep.release()

    def wait(self, seconds: float) -> None:
        """Raises: TimeoutError."""
        if seconds <= 0 or not self._asleep.acquire(timeout=seconds):
            raise TimeoutError("timed out")

    def wait_readable(self, sock: socket.socket, seconds: float) -> None:
        """Raises: TimeoutError."""
        poller = select.poll()
        poller.register(sock, select.POLLIN)
        if seconds <= 0 or not poller.poll(seconds * 1000):
            raise TimeoutError("timed out")


class _StoppableWaiter(_Waiter):
    """A call whose wait ends with StoppedError once `stop` is set."""

    __slots__ = ("_stop", "_woken")

    def __init__(self, stop: Stop) -> None:
        super().__init__()
        self._stop = stop
        self._woken = Stop()

    def wake(self) -> None:
        self._woken.set()

    def wait(self, seconds: float) -> None:
        if seconds <= 0 or not wait_for(self._woken.fileno(), self._stop, seconds):
            raise TimeoutError("timed out")
        self._woken.clear()

    def wait_readable(self, sock: socket.socket, seconds: float) -> None:
        if seconds <= 0 or not wait_for(sock.fileno(), self._stop, seconds):
            raise TimeoutError("timed out")


class Session:
    """One session, from its greeting to its end. Safe to share between threads.

    `_lock` guards the calls that wait, the leader and the end; only the leader uses the reader of
    frames. `_sending` keeps frames whole. `_touching` lets one thread at a time use the socket,
    which never blocks, since TLS can't read and write at once.
    """

    def __init__(self, sock: socket.socket, received: bytes, *, within_s: float) -> None:
        """`received`: what came behind the answer to the upgrade.

        Raises:
            OSError: the connection broke, or no greeting came within `within_s` seconds.
            TuffError: what came does not follow the protocol.
        """
        sock.settimeout(0)
        self._socket = sock
        self._lock = Lock()
        self._sending = Lock()
        self._touching = Lock()
        self._reader = FrameReader(frame_bytes_max=REPLY_BYTES_MAX)
        self._waiting: dict[int, _Waiter] = {}
        self._polls = 0  # of them
        self._leader: _Waiter | None = None
        self._ids = count(1)
        self._heard_s = perf_counter()  # when bytes last arrived
        self._is_ended = False  # it takes no more calls
        self._limits = self._greeting(received, perf_counter() + within_s)
        self._step_down(_Waiter())  # a server that stops ends it at once

    def is_usable(self) -> bool:
        """Whether it takes calls. It reads what came while no call waited, such as its end: a call
        that is sent on a connection that has ended would be lost with an unknown outcome."""
        if not self._is_ended and not self._waiting:
            self._catch_up()
        return not self._is_ended

    def exchange(self, request: Request, *, within_s: float, stop: Stop | None) -> Response | None:
        """The response to a call; None if the session can't carry it now: it has ended, as many
        calls are under way as it may have, or the call is too large. Then nothing was sent.

        Raises:
            OSError: the connection broke, or no reply came in time; it may have been executed.
            StoppedError: `stop` was set before the reply came. A poll is cancelled at the server.
        """
        call_id, number = next(self._ids), request.operation.number
        assert number is not None, "a session carries the operation"
        data = call_frame(
            call_id,
            number,
            request.parameters,
            request.query,
            request.body,
            request.content_type,
            request.accept,
        )
        if data is None or len(data) > self._limits.frame_bytes_max:
            return None
        waiter = _Waiter() if stop is None else _StoppableWaiter(stop)
        sent_s = perf_counter()
        try:
            if not self._join(call_id, waiter, request):
                return None
            self._send(data, sent_s + within_s)
            waiter.is_sent = True
            response = self._response(waiter, sent_s + within_s)
            self._leave(call_id, waiter, request)
        except BaseException as error:
            if isinstance(error, TimeoutError) and self._heard_s < sent_s:
                self.abort()  # the other end is gone: the next call gets another session
            self._leave(call_id, waiter, request)  # an interrupt may have come instead of the first
            raise
        return response

    def abort(self) -> None:
        """Close the connection now; the calls that wait are lost."""
        self._lose(ConnectionResetError("the session has ended"))

    def leave_to_parent(self) -> None:
        """In a process that was just forked: close this end, which stays open in the parent."""
        self._socket.close()

    # The calls that wait.

    def _join(self, call_id: int, waiter: _Waiter, request: Request) -> bool:
        with self._lock:
            if (
                self._is_ended
                or len(self._waiting) >= self._limits.calls_max
                or (_is_poll(request) and self._polls >= self._limits.polls_max)
            ):
                return False
            self._polls += _is_poll(request)
            self._waiting[call_id] = waiter
        return True

    def _leave(self, call_id: int, waiter: _Waiter, request: Request) -> None:
        with self._lock:
            has_joined = self._waiting.pop(call_id, None) is not None
            self._polls -= has_joined and _is_poll(request)
        self._step_down(waiter)
        if _is_poll(request) and waiter.is_sent and waiter.outcome is None and not self._is_ended:
            self._cancel(call_id)

    def _step_down(self, leader: _Waiter) -> None:
        """Let another call that waits lead, if this one did; close the connection after its end."""
        with self._lock:
            if self._leader not in (None, leader):
                return
            # One that is still being sent would not read.
            others = (other for other in self._waiting.values() if other.is_sent)
            self._leader = next(others, None)
            if self._leader is not None:
                self._leader.wake()
            is_over = self._is_ended and not self._waiting
        if is_over:
            with self._touching:
                self._socket.close()

    def _cancel(self, call_id: int) -> None:
        with suppress(OSError):  # the session has ended
            self._send(frame(int(Kind.CANCEL), call_id), perf_counter() + CANCEL_WITHIN_S)

    def _response(self, waiter: _Waiter, deadline_s: float) -> Response:
        while waiter.outcome is None:
            with self._lock:
                if self._leader is None:
                    self._leader = waiter
            if self._leader is waiter:
                self._lead(waiter, deadline_s)
            else:
                waiter.wait(deadline_s - perf_counter())
        if isinstance(waiter.outcome, OSError):
            raise waiter.outcome
        return waiter.outcome

    # The connection.

    def _lead(self, waiter: _Waiter, deadline_s: float) -> None:
        while waiter.outcome is None:
            waiter.wait_readable(self._socket, deadline_s - perf_counter())
            self._read()

    def _catch_up(self) -> None:
        """Read what is there, unless another thread reads."""
        reading = _Waiter()
        try:
            with self._lock:
                if self._leader is not None or self._is_ended:
                    return
                self._leader = reading
            if _is_ready(self._socket, select.POLLIN, 0):
                self._read()
            self._step_down(reading)
        except BaseException:
            self._step_down(reading)  # an interrupt may have come instead of the first
            raise

    def _read(self) -> None:
        """Take all frames that are there. Only the leader may."""
        try:
            data = self._received()
            self._heard_s = perf_counter()
            frames, error = self._reader.feed(data)
            with self._lock:
                for _, elements in frames:
                    self._take(elements)
        except (OSError, BadRequestError) as failure:
            self._lose(failure if isinstance(failure, OSError) else ConnectionError(str(failure)))
            return
        except BaseException:  # an interrupt may have lost a part of a frame
            self.abort()
            raise
        if error is not None:
            self._lose(ConnectionError(str(error)))

    def _received(self) -> bytes:
        """The bytes that are there. Raises: OSError: the connection has ended."""
        data = bytearray()
        try:
            with self._touching:
                while True:
                    part = self._socket.recv(READ_BYTES)
                    data += part
                    # Bytes that TLS has decrypted don't make the socket readable.
                    if not (isinstance(self._socket, SSLSocket) and self._socket.pending()):
                        break
        except (BlockingIOError, SSLWantReadError, SSLWantWriteError):
            return bytes(data)
        if not data:
            raise ConnectionResetError("the session has ended")
        return bytes(data)

    def _take(self, elements: list[object]) -> None:
        """Raises: BadRequestError: the frame does not follow the protocol."""
        if elements[0] == Kind.REPLY:
            call_id, status, headers, body, form = reply_of(elements)
            waiter = self._waiting.get(call_id)
            if waiter is not None and waiter.outcome is None:
                waiter.outcome = Response(status, headers, body, form)
                waiter.wake()
        elif elements[0] == Kind.END:
            self._is_ended = True

    def _lose(self, error: OSError) -> None:
        with self._lock:
            self._is_ended = True
            for waiter in self._waiting.values():
                if waiter.outcome is None:
                    waiter.outcome = error
                    waiter.wake()
        with self._touching, suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # which ends the wait of the leader
        self._step_down(_Waiter())

    def _send(self, data: bytes, deadline_s: float) -> None:
        """Raises: OSError: it was not sent, or not whole."""
        view = memoryview(data)
        try:
            with self._sending:
                while view:
                    view = view[self._sent(view, deadline_s) :]
        except BaseException:
            self.abort()  # it may have sent a part of a frame
            raise

    def _sent(self, view: memoryview, deadline_s: float) -> int:
        """How many bytes could be sent."""
        wanted = select.POLLOUT
        try:
            with self._touching:
                return self._socket.send(view)
        except SSLWantReadError:
            wanted = select.POLLIN
        except (BlockingIOError, SSLWantWriteError):
            pass
        # The server reads no more while replies to it are unread, and perhaps no thread reads.
        is_read = self._leader is not None
        wanted |= 0 if is_read else select.POLLIN
        if not _is_ready(self._socket, wanted, deadline_s - perf_counter()):
            raise TimeoutError("timed out")
        if not is_read:
            self._catch_up()
        return 0

    def _greeting(self, received: bytes, deadline_s: float) -> Greeting:
        frames, error = self._reader.feed(received)
        while not frames and error is None:
            if not _is_ready(self._socket, select.POLLIN, deadline_s - perf_counter()):
                raise TimeoutError("timed out")
            frames, error = self._reader.feed(self._received())
        if error is not None:
            raise error
        for _, elements in frames[1:]:
            self._take(elements)
        return greeting_of(frames[0][1])


def begin_session(connection: HTTPConnection, address: Address, *, prefix: str) -> Session:
    """Ask for a session over a connection, which is the session's from then on.

    Raises:
        NoSessionError: the server offers none; the connection can still be used for HTTP, unless
            it is closed.
    """
    within_s = address.connect_timeout_s
    try:
        bounded(connection).begin(within_s, stop=None)
        connection.request("GET", prefix + PATH, headers=upgrade_fields(address))
        with connection.getresponse() as reply:
            if reply.status == HTTPStatus.SWITCHING_PROTOCOLS:
                sock = bounded(connection).unbounded
                session = Session(sock, reply.peek(), within_s=within_s)
                connection.sock = None
                return session
            reply.read()
    except (OSError, HTTPException, TuffError) as error:
        connection.close()
        raise NoSessionError(None, f"{type(error).__name__}: {error}") from error
    except BaseException:
        connection.close()
        raise
    if reply.will_close:
        connection.close()
    raise NoSessionError(reply.status, f"it answered {reply.status}")


def _is_ready(sock: socket.socket, wanted: int, seconds: float) -> bool:
    """Whether the socket is ready for reading or writing within so many seconds.

    Raises: ConnectionResetError: it was closed.
    """
    descriptor = sock.fileno()
    if descriptor < 0:
        raise ConnectionResetError("the session has ended")
    poller = select.poll()
    poller.register(descriptor, wanted)
    return bool(poller.poll(max(0.0, seconds) * 1000))


def _is_poll(request: Request) -> bool:
    """Whether the call can be cancelled."""
    return request.operation.number in POLLS
