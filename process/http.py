"""The HTTP edge: problem documents, load limits, the listening socket (protocol §1, §8)."""

import asyncio
import errno
import itertools
import json
import logging
import socket
from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from tuff.protocol.errors import (
    BadRequestError,
    InternalError,
    MethodNotAllowedError,
    NotFoundError,
    OverloadedError,
    RequestTooLargeError,
    ShuttingDownError,
    TuffError,
)
from tuff.protocol.media import PROBLEM_TYPE

log = logging.getLogger(__name__)

RETRY_AFTER_S = 1  # seconds a client should wait after a 429 or 503
LISTEN_BACKLOG = 1024  # connections the kernel holds until they are accepted
KEEP_ALIVE_S = 75.0  # seconds an idle connection is kept
CLOSE_S_MAX = 1.0  # seconds; idle connections are closed at once, others get this long
DRAIN_S_MAX = 5.0  # seconds; what is under way at a stop gets this long

_ALWAYS_ANSWERED = frozenset({"/health/live", "/health/startup", "/health/ready", "/metrics"})


class Admission:
    """Counts the requests under way, and refuses what is too much or too late.

    `waiting` tells how many of them are polls that only wait; those do not count.
    """

    def __init__(self, *, pending_max: int, waiting: Callable[[], int]) -> None:
        self._pending_max = pending_max
        self._waiting = waiting
        self._stopping = False
        self._idle = asyncio.Event()
        self._idle.set()
        self.under_way = 0

    def enter(self) -> None:
        """Raises: ShuttingDownError, OverloadedError."""
        if self._stopping:
            raise ShuttingDownError("the server is stopping; try again when it is back")
        pending = self.under_way - self._waiting()
        if pending >= self._pending_max:
            raise OverloadedError(
                f"{pending} requests are under way, which is all that "
                f"server.max_pending_requests={self._pending_max} allows; try again"
            )
        self.under_way += 1
        self._idle.clear()

    def leave(self) -> None:
        self.under_way -= 1
        if not self.under_way:
            self._idle.set()

    def stop(self) -> None:
        """Refuse new work from now on."""
        self._stopping = True

    async def drained(self) -> None:
        """Wait until nothing is under way, for `DRAIN_S_MAX` at most."""
        try:
            await asyncio.wait_for(self._idle.wait(), DRAIN_S_MAX)
        except TimeoutError:
            log.warning("%d requests were still under way at the stop", self.under_way)


def problem(error: TuffError) -> web.Response:
    """The `application/problem+json` reply that an error becomes."""
    headers = {"Retry-After": str(RETRY_AFTER_S)} if error.status in (429, 503) else None
    body = json.dumps(error.problem()).encode("utf-8")
    return web.Response(status=error.status, body=body, content_type=PROBLEM_TYPE, headers=headers)


def answering() -> Middleware:
    """The middleware that turns every error into its answer."""
    bugs = itertools.count(1)

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except TuffError as error:
            return problem(error)
        except web.HTTPException as error:
            return _translated(error, request)
        except ConnectionError:
            raise  # the client is gone: there is nobody to answer
        except Exception:  # the process goes on; the client gets the place in the log
            bug = next(bugs)
            log.exception("bug %d in %s %s", bug, request.method, request.path)
            detail = f"the server has a bug, and logged this as bug {bug}; tell who runs it"
            return problem(InternalError(detail))

    return answer


def admitting(admission: Admission) -> Middleware:
    """The middleware that counts what is under way. Health and metrics are always answered."""

    @web.middleware
    async def admit(request: web.Request, handler: Handler) -> web.StreamResponse:
        if request.path in _ALWAYS_ANSWERED:
            return await handler(request)
        admission.enter()
        try:
            return await handler(request)
        finally:
            admission.leave()

    return admit


def _translated(error: web.HTTPException, request: web.Request) -> web.Response:
    if error.status == web.HTTPNotFound.status_code:
        return problem(NotFoundError(f"there is nothing at {request.path}"))
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        reply = problem(
            MethodNotAllowedError(f"{request.path} answers {allowed}, not {request.method}")
        )
        reply.headers["Allow"] = allowed
        return reply
    if error.status == web.HTTPRequestEntityTooLarge.status_code:
        largest = request.app[MAX_REQUEST_BYTES]
        return problem(
            RequestTooLargeError(
                f"the body is larger than server.max_request_bytes={largest}; send it in parts"
            )
        )
    return problem(BadRequestError(f"the request can't be read: {error.reason}"))


MAX_REQUEST_BYTES = web.AppKey("max_request_bytes", int)


class Listener:
    """The listening socket, with a bound on open connections."""

    def __init__(self, app: web.Application, *, connections_max: int) -> None:
        self._runner = web.AppRunner(
            app,
            access_log=None,
            keepalive_timeout=KEEP_ALIVE_S,
            handle_signals=False,
            shutdown_timeout=CLOSE_S_MAX,
        )
        self._connections_max = connections_max
        self._server: asyncio.Server | None = None

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; returns the port. Raises: OSError: it can't be had."""
        await self._runner.setup()
        self._server = await asyncio.get_running_loop().create_server(
            self._accept, host, port, backlog=LISTEN_BACKLOG, reuse_address=True
        )
        return int(self._server.sockets[0].getsockname()[1])

    def _accept(self) -> asyncio.BaseProtocol:
        server = self._runner.server
        assert server is not None
        if len(server.connections) >= self._connections_max:
            return _Refusal(self._connections_max)
        return server()

    def stop_accepting(self) -> None:
        if self._server is not None:
            self._server.close()

    async def close(self) -> None:
        """Close every connection."""
        self.stop_accepting()
        await self._runner.cleanup()


class _Refusal(asyncio.Protocol):
    """Answers a connection that is one too many, and closes it."""

    def __init__(self, connections_max: int) -> None:
        self._connections_max = connections_max

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        error = OverloadedError(
            f"server.max_connections={self._connections_max} connections are open; try again"
        )
        body = json.dumps(error.problem()).encode("utf-8")
        head = (
            f"HTTP/1.1 429 Too Many Requests\r\nContent-Type: {PROBLEM_TYPE}\r\n"
            f"Content-Length: {len(body)}\r\nRetry-After: {RETRY_AFTER_S}\r\n"
            "Connection: close\r\n\r\n"
        )
        transport.write(head.encode("ascii") + body)
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
