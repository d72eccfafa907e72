"""Sends calls from an event loop, over a session, or over HTTP with aiohttp.

Like `tuff.blocking.transport`, it sends each call once, and reports a lost connection.
"""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import aiohttp

from tuff.address import Address
from tuff.aio.batched_calls import BatchedCalls
from tuff.calls import Call, Request, Response
from tuff.client_errors import ClientClosedError, ServerUnreachableError, WrongStateError
from tuff.http_sessions import new_session, notice_closed_connections
from tuff.protocol.errors import TuffError
from tuff.servers import Servers, subject_of, with_owner

if TYPE_CHECKING:
    from tuff.aio.session import AsyncSessions

T = TypeVar("T")


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
        """As `AsyncTransport.send`; a call that reaches no server at one address goes to the others
        at once, in turn. Any other failure is raised, and the next call goes to the next server.

        Raises:
            ServerUnreachableError: no server could be reached.
        """
        subject = subject_of(call.request.path)
        tried: list[str] = []
        for server in self._servers.in_order(subject):
            try:
                reply = await self._transports[server].send(with_owner(call))
            except TuffError as error:
                self._servers.failed(server, subject, error)
                if not isinstance(error, ServerUnreachableError):
                    raise
                tried.extend(error.tried)
            else:
                self._servers.answered(subject, reply.owner_url)
                return reply.value
        raise ServerUnreachableError(*tried)

    async def close(self) -> None:
        """Close all connections; calling it again is harmless."""
        for transport in self._transports:
            await transport.close()


class AsyncTransport:
    """Connections to one server, for the tasks of the event loop on which it is first used."""

    def __init__(self, address: Address) -> None:
        self.url = address.url.rstrip("/")
        self._address = address
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False
        self._was_answered = False
        self._sessions: AsyncSessions | None = None
        self._batches: dict[str, BatchedCalls] = {}

    async def send(self, call: Call[T]) -> T:
        """Send a call once; returns the value of the response.

        Raises:
            ConnectionLostError: no response came; it says whether the outcome is unknown.
            TuffError: the class of the server's refusal.
        """
        self._begin_use()
        response = None if self._sessions is None else await self._sessions.response(call.request)
        if response is None:
            response = await self._response_over_http(call)
        self._was_answered = True
        return self._address.answer(call, response)

    async def _response_over_http(self, call: Call[Any]) -> Response:
        if call.batched_as is None:
            return await self._respond(call)
        batches = self._batches.get(call.batched_as)
        if batches is None:
            batches = self._batches[call.batched_as] = BatchedCalls(self._respond)
        return await batches.send(call)

    async def _respond(self, call: Call[Any]) -> Response:
        request = call.request
        if not request.is_safe_to_repeat:
            await notice_closed_connections()
        try:
            return await self._exchange(request)
        except aiohttp.ClientSSLError as error:
            raise self._address.not_trusted(error.os_error) from error
        except aiohttp.ClientConnectorError as error:
            raise self._address.unreachable(error.os_error) from error
        except aiohttp.ConnectionTimeoutError as error:
            raise self._address.unreachable(error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._address.lost(
                request, error, was_sent=True, never_answered=not self._was_answered
            ) from error

    async def close(self) -> None:
        """Close all connections; calling it again is harmless."""
        self._closed = True
        if self._sessions is not None:
            await self._sessions.close()
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _exchange(self, request: Request) -> Response:
        # A server that sends one byte a second never exceeds a read timeout, so there is a total.
        answer_s = self._address.answer_within_s(request)
        connect_s = self._address.connect_timeout_s
        timeout = aiohttp.ClientTimeout(
            total=connect_s + answer_s, connect=connect_s, sock_read=answer_s
        )
        async with self._opened().request(
            request.method,
            self.url + request.path,
            data=request.content,
            headers=self._address.headers(request),
            timeout=timeout,
            allow_redirects=False,
            ssl=self._address.ssl_context or True,
        ) as reply:
            body = await reply.read()
            headers = {name.lower(): value for name, value in reply.headers.items()}
            return Response(reply.status, headers, body)

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
        if self._address.with_sessions:
            from tuff.aio.session import AsyncSessions  # it loads msgpack; HTTP does not need it

            self._sessions = AsyncSessions(self._address)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # A long poll occupies its connection, so their number is not limited: with the default
            # of 100, the task with the next call would wait for ever.
            self._session = new_session(aiohttp.TCPConnector(limit=0))
        return self._session
