"""Sends calls over HTTP from an event loop: the only module of the client that knows aiohttp.

As `tuff.blocking.transport`, it sends each call once, and reports what was lost.
"""

import asyncio
from types import SimpleNamespace
from typing import TypeVar

import aiohttp

from tuff.address import Address
from tuff.calls import Call, Request, Response
from tuff.client_errors import ClientClosedError, WrongStateError

T = TypeVar("T")


class AsyncTransport:
    """Connections to one server, for the tasks of the event loop on which it is first used."""

    def __init__(self, address: Address) -> None:
        self.url = address.url.rstrip("/")
        self._address = address
        self._session: aiohttp.ClientSession | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._closed = False

    async def send(self, call: Call[T]) -> T:
        """The answer to a call, which is sent once.

        Raises:
            ConnectionLostError: no answer came; it says whether the outcome is unknown.
            TuffError: its kind for what the server refused.
        """
        request = call.request
        if not (request.is_read or request.is_repeatable):
            await _let_the_loop_look()
        try:
            response = await self._exchange(request)
        except aiohttp.ClientSSLError as error:
            raise self._address.not_trusted(error) from error
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError) as error:
            raise self._address.unreachable(error) from error
        except (aiohttp.ClientError, OSError) as error:
            raise self._address.lost(request, error, was_sent=True) from error
        return self._address.answer(call, response)

    async def close(self) -> None:
        """Close all connections; calling it again is harmless."""
        self._closed = True
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _exchange(self, request: Request) -> Response:
        # A server that sends a byte a second is never silent, so the whole is bounded as well.
        answer_s, connect_s = (
            self._address.answer_within_s(request),
            self._address.connect_timeout_s,
        )
        timeout = aiohttp.ClientTimeout(
            total=connect_s + answer_s, connect=connect_s, sock_read=answer_s
        )
        async with self._opened().request(
            request.method,
            self.url + request.path,
            data=request.body,
            headers=self._address.headers(request),
            timeout=timeout,
            allow_redirects=False,
            ssl=self._address.ssl_context or True,
        ) as reply:
            body = await reply.read()
            headers = {name.lower(): value for name, value in reply.headers.items()}
            return Response(reply.status, headers, body)

    def _opened(self) -> aiohttp.ClientSession:
        if self._closed:
            raise ClientClosedError
        loop = asyncio.get_running_loop()
        if self._loop not in (None, loop):
            raise WrongStateError(
                "the client belongs to the event loop that used it first; connect again in this one"
            )
        if self._session is None:
            self._loop = loop
            # A long poll keeps its connection busy, so their number can't be bounded here: the
            # hundred of the default would let the hundred-and-first task wait for ever.
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0),
                cookie_jar=aiohttp.DummyCookieJar(),
                trace_configs=[_sending_once()],
            )
        return self._session


async def _let_the_loop_look() -> None:
    # A server that went away while this program computed has closed its end of kept connections,
    # and the loop has not heard of it: what is sent on one of them is lost, and its
    # outcome unknown. One turn reads the end, the next takes the connection out of use.
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def _sending_once() -> aiohttp.TraceConfig:
    """Refuses the second attempt of a request, before anything of it is sent.

    aiohttp sends every PUT and DELETE again where a kept connection breaks, and then the topic that
    was just created "exists already"; `tuff.retries` knows which calls may be repeated.
    """

    async def send_once(
        session: aiohttp.ClientSession,
        attempts: SimpleNamespace,
        params: aiohttp.TraceRequestHeadersSentParams,
    ) -> None:
        if hasattr(attempts, "has_begun"):
            raise aiohttp.ServerDisconnectedError
        attempts.has_begun = True

    config = aiohttp.TraceConfig()
    config.on_request_headers_sent.append(send_once)
    return config
