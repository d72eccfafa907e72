"""Sends calls from an event loop: over a session, many at once on one connection (docs/session.md),
or over HTTP, where the server offers no session or it does not carry the call.

Like `tuff.blocking.transport`, it sends each call once, and reports a lost connection.
"""

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from http import HTTPStatus
from ssl import SSLContext, SSLError, create_default_context
from typing import Any, TypeVar
from urllib.parse import urlsplit

from tuff.address import Address
from tuff.errors import ClientClosedError, ServerUnreachableError, WrongStateError
from tuff.flows_and_repeated_calls import Call
from tuff.optional_packages import Extra
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

with Extra("an asyncio client", "aio"):
    from tuff.aio.http import HttpConnections
    from tuff.aiohttp_sessions import notice_closed_connections

log = logging.getLogger(__name__)

T = TypeVar("T")

HEAD_BYTES_MAX = 1 << 16  # bytes of the server's answer to the upgrade
# Frames that are written together, at most. The server works on them while other tasks still run.
FRAMES_PER_WRITE_MAX = 16
_REPLY = int(Kind.REPLY)  # faster than the member of the enumeration
_PINGS_PER_IDLE = 3  # pings in the time after which the server ends an idle session


def transport_of(addresses: Sequence[Address]) -> "AsyncTransport | AsyncClusterTransport":
    """The transport of a client that has these addresses, at least one."""
    transports = [AsyncTransport(address) for address in addresses]
    return transports[0] if len(transports) == 1 else AsyncClusterTransport(transports)


class AsyncClusterTransport:
    """Connections to several servers of a cluster, any of which takes any call."""

    def __init__(self, transports: Sequence["AsyncTransport"]) -> None:
        self._transports = transports
        self._servers = Servers([transport.url for transport in transports])

    @property
    def url(self) -> str:
        """The address of the server in use."""
        return self._transports[self._servers.current].url

    async def send(self, call: Call[T]) -> T:
        """Send a call; if it reaches no server at one address it goes to the others
        at once, in turn. Any other failure is raised, and the next call goes to the next server.

        Raises:
            ServerUnreachableError: no server could be reached.
        """
        subject = subject_of(call.request)
        tried: list[str] = []
        for server in self._servers.in_order(subject):
            try:
                response = await self._transports[server].response(call)
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

    async def close(self) -> None:
        """Close all connections; calling it again is harmless."""
        for transport in self._transports:
            await transport.close()


class AsyncTransport:
    """Connections to one server, for the tasks of the event loop on which it is first used. The
    session is opened with the first call that a session carries, and again after its end."""

    def __init__(self, address: Address) -> None:
        self.url = address.url.rstrip("/")
        self._address = address
        self._http = HttpConnections(address)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._offers = Offers()
        self._ssl: SSLContext | None = None
        self._session: AsyncSession | None = None
        self._opening: asyncio.Task[AsyncSession] | None = None

    async def send(self, call: Call[T]) -> T:
        """Send a call once; returns the value of the response.

        Raises:
            ConnectionLostError: no response came; it says whether the outcome is unknown.
            TuffError: the class of the server's refusal.
        """
        return call.answer(await self.response(call))

    async def response(self, call: Call[Any]) -> Response:
        """The response of the server to a call, which is sent once. Raises: as `send`."""
        self._begin_use()
        response = await self._response_of_session(call.request)
        if response is None:
            response = await self._http.response(call.request)
        self._http.was_answered = True
        if response.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._address.require_no_proxy(call, response)
        return response

    async def close(self) -> None:
        """Close all connections; calling it again is harmless."""
        self._closed = True
        await self._close_session()
        await self._http.close()

    def _begin_use(self) -> None:
        if self._closed:
            raise ClientClosedError
        loop = asyncio.get_running_loop()
        if self._loop is loop:
            return
        if self._loop is not None:
            raise WrongStateError(
                "the client belongs to the event loop that used it first; connect again in this one"
            )
        self._loop = loop
        if self._address.with_sessions and self.url.startswith("https:"):
            # One for all sessions, since making one reads all authorities that the machine trusts.
            self._ssl = self._address.ssl_context or create_default_context()

    async def _response_of_session(self, request: Request) -> Response | None:
        """None if it has to be sent over HTTP: a session does not carry the operation, or the
        trace context, which is a field of HTTP; or there is no session."""
        if request.operation.number is None or request.trace_headers:
            return None
        session = await self._usable_session(request)
        if session is None:
            return None
        within_s = self._address.timeout_s + request.wait_s
        try:
            return await session.exchange(request, within_s=within_s)
        except OSError as error:  # and with it TimeoutError
            raise self._address.lost(request, error, was_sent=True) from error

    async def _usable_session(self, request: Request) -> "AsyncSession | None":
        session = self._session
        if session is not None and session.is_idle and not request.is_read:
            await notice_closed_connections()
        if session is not None and session.is_usable:
            return session
        if self._opening is None:
            if not self._address.with_sessions or not self._offers.is_worth_asking(self._now_s()):
                return None
            self._opening = asyncio.ensure_future(open_session(self._address, self._ssl))
            self._opening.add_done_callback(self._opened)
        try:
            # Shielded: the other callers wait for it, too.
            return await asyncio.shield(self._opening)
        except NoSessionError:
            return None
        except SSLError as error:
            raise self._address.not_trusted(error) from error
        except OSError as error:
            raise self._address.unreachable(error) from error

    def _opened(self, opening: "asyncio.Task[AsyncSession]") -> None:
        self._opening = None
        error = None if opening.cancelled() else opening.exception()
        if isinstance(error, NoSessionError):
            for_s = self._offers.refused(error, self._now_s())
            log.debug(
                "%s offers no session (%s); HTTP is used for %g s", self._address.url, error, for_s
            )
        elif not opening.cancelled() and error is None:
            self._session = opening.result()

    async def _close_session(self) -> None:
        opening = self._opening
        if opening is not None:
            opening.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await opening
        if self._session is not None:
            self._session.abort()
            await asyncio.sleep(0)  # in which the event loop closes the connection

    def _now_s(self) -> float:
        return asyncio.get_running_loop().time()


class AsyncSession(asyncio.Protocol):
    """One session, from its upgrade to its end. For the tasks of one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._head: bytearray | None = bytearray()  # of the answer; None once frames come
        self._reader = FrameReader(frame_bytes_max=REPLY_BYTES_MAX)
        self._greeted: asyncio.Future[Greeting] = self._loop.create_future()
        self._limits: Greeting | None = None
        self._waiting: dict[int, asyncio.Future[Response]] = {}
        self._frames: list[bytes] = []  # not written yet
        self._next_id = 1
        self._heard_s = self._loop.time()  # when bytes last arrived
        self._pings: asyncio.TimerHandle | None = None
        self._is_ended = False

    @property
    def is_idle(self) -> bool:
        """Whether no call waits."""
        return not self._waiting

    @property
    def is_usable(self) -> bool:
        """Whether it takes calls."""
        return self._limits is not None and not self._is_ended

    async def begin(self, address: Address) -> None:
        """Ask for the upgrade, and wait for the greeting.

        Raises:
            NoSessionError: the server offers none.
            OSError: the connection broke.
        """
        assert self._transport is not None
        parts = urlsplit(address.url)
        fields = {"Host": parts.netloc, **upgrade_fields(address)}
        lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        target = parts.path.rstrip("/") + PATH
        self._transport.write(f"GET {target} HTTP/1.1\r\n{lines}\r\n".encode())
        self._limits = limits = await self._greeted
        self._pings = self._loop.call_later(limits.idle_s / _PINGS_PER_IDLE, self._ping, limits)

    async def exchange(self, request: Request, *, within_s: float) -> Response | None:
        """The response to a call; None if the session can't carry it now: as many calls are under
        way as it may have, or it is too large. If the caller is cancelled, a poll is cancelled at
        the server.

        Raises:
            OSError: the connection broke, or no reply came in time; it may have been executed.
        """
        call_id, self._next_id = self._next_id, self._next_id + 1
        number, limits = request.operation.number, self._limits
        assert number is not None, "a session carries the operation"
        is_poll = number in POLLS
        data = call_frame(
            call_id,
            number,
            request.parameters,
            request.query,
            request.body,
            request.content_type,
            request.accept,
        )
        if (
            limits is None
            or data is None
            or len(data) > limits.frame_bytes_max
            or len(self._waiting) >= (limits.polls_max if is_poll else limits.calls_max)
        ):
            return None
        reply: asyncio.Future[Response] = self._loop.create_future()
        self._waiting[call_id] = reply
        sent_s = self._loop.time()
        # Cheaper than `asyncio.timeout`, which would also cancel the task to end it.
        limit = self._loop.call_later(within_s, _end_late, reply)
        try:
            self._write(data)
            return await reply
        except TimeoutError:
            if self._heard_s < sent_s:
                self.abort()  # the other end is gone: the next call gets another session
            raise
        finally:
            limit.cancel()
            if self._waiting.pop(call_id, None) is not None and is_poll and self.is_usable:
                self._write(frame(int(Kind.CANCEL), call_id))
            self._close_if_done()

    def abort(self) -> None:
        """Close the connection now."""
        self._is_ended = True
        if self._transport is not None:
            self._transport.abort()

    def _write(self, data: bytes) -> None:
        if self._transport is None:
            raise ConnectionResetError("the session has ended")
        if len(self._waiting) <= 1 and not self._frames:
            self._transport.write(data)
            return
        # The tasks that the same replies have woken make their next calls in a few writes.
        if not self._frames:
            self._loop.call_soon(self._write_frames)
        self._frames.append(data)
        if len(self._frames) >= FRAMES_PER_WRITE_MAX:
            self._write_frames()

    def _write_frames(self) -> None:
        frames, self._frames = self._frames, []
        if frames and self._transport is not None:
            self._transport.write(b"".join(frames))

    # What the event loop calls.

    def connection_made(  # type: ignore[override]  # a stream's, in uvloop not by its class
        self, transport: asyncio.Transport
    ) -> None:
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._is_ended = True
        if self._pings is not None:
            self._pings.cancel()
        lost = exc if isinstance(exc, OSError) else ConnectionResetError("the session has ended")
        waiting, self._waiting = self._waiting, {}
        for reply in waiting.values():
            if not reply.done():
                reply.set_exception(lost)
        if not self._greeted.done():
            self._greeted.set_exception(lost)

    def data_received(self, data: bytes) -> None:
        self._heard_s = self._loop.time()
        if self._head is not None:
            self._head += data
            head, end, rest = self._head.partition(b"\r\n\r\n")
            if not end:
                if len(self._head) > HEAD_BYTES_MAX:
                    self._refused(None)
                return
            if not head.startswith(b"HTTP/1.1 101"):
                self._refused(int(head[9:12]) if head[9:12].isdigit() else None)
                return
            self._head, data = None, bytes(rest)
        frames, error = self._reader.feed(data)
        try:
            for _, elements in frames:
                self._take(elements)
        except BadRequestError:
            self.abort()
        if error is not None:
            self.abort()

    def _refused(self, status: int | None) -> None:
        if not self._greeted.done():
            self._greeted.set_exception(NoSessionError(status, f"it answered {status}"))
        self.abort()

    def _take(self, elements: list[object]) -> None:
        """Raises: BadRequestError: the frame does not follow the protocol."""
        kind = elements[0]
        if kind == _REPLY:
            call_id, status, headers, body, form = reply_of(elements)
            reply = self._waiting.pop(call_id, None)
            if reply is not None and not reply.done():
                reply.set_result(Response(status, headers, body, form))
        elif kind == Kind.END:
            self._is_ended = True
            self._close_if_done()
        elif kind == Kind.GREETING and not self._greeted.done():
            self._greeted.set_result(greeting_of(elements))

    def _close_if_done(self) -> None:
        if self._is_ended and not self._waiting and self._transport is not None:
            self._transport.close()

    def _ping(self, limits: Greeting) -> None:
        self._pings = self._loop.call_later(limits.idle_s / _PINGS_PER_IDLE, self._ping, limits)
        if self._transport is not None and not self._waiting:
            self._transport.write(frame(int(Kind.PING)))


def _end_late(reply: "asyncio.Future[Response]") -> None:
    if not reply.done():
        reply.set_exception(TimeoutError("timed out"))


async def open_session(address: Address, ssl_context: SSLContext | None) -> AsyncSession:
    """A new session, over TLS if there is a context.

    Raises:
        NoSessionError: the server offers none.
        OSError: there is no connection.
    """
    parts = urlsplit(address.url)
    port = parts.port or (443 if ssl_context is not None else 80)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(address.connect_timeout_s):
        _, session = await loop.create_connection(
            AsyncSession, parts.hostname or "", port, ssl=ssl_context
        )
    try:
        async with asyncio.timeout(address.connect_timeout_s):
            await session.begin(address)
    except OSError as error:  # and with it TimeoutError
        session.abort()
        raise NoSessionError(None, f"{type(error).__name__}: {error}") from error
    except BaseException:
        session.abort()
        raise
    return session
