"""HTTP from an event loop, with aiohttp."""

import aiohttp

from tuff.address import Address
from tuff.aiohttp_sessions import new_session, notice_closed_connections
from tuff.requests_and_responses import Request, Response


class HttpConnections:
    """HTTP connections to one server, for the tasks of one event loop."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._url = address.url.rstrip("/")
        self._session: aiohttp.ClientSession | None = None
        self.was_answered = False

    async def response(self, request: Request) -> Response:
        """The response to a request, which is sent once. Raises: as `AsyncTransport.send`."""
        if not request.is_read:
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
                request, error, was_sent=True, never_answered=not self.was_answered
            ) from error

    async def close(self) -> None:
        """Close all connections; calling it again is harmless."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _exchange(self, request: Request) -> Response:
        # A server that sends one byte a second never exceeds a read timeout, so there is a total.
        answer_s = self._address.timeout_s + request.wait_s
        connect_s = self._address.connect_timeout_s
        timeout = aiohttp.ClientTimeout(
            total=connect_s + answer_s, connect=connect_s, sock_read=answer_s
        )
        async with self._opened().request(
            request.operation.method,
            self._url + request.path,
            data=request.content,
            headers=self._address.headers(request),
            timeout=timeout,
            allow_redirects=False,
            ssl=self._address.ssl_context or True,
        ) as reply:
            body = await reply.read()
            headers = {name.lower(): value for name, value in reply.headers.items()}
            return Response(reply.status, headers, body)

    def _opened(self) -> aiohttp.ClientSession:
        if self._session is None:
            # A long poll occupies its connection, so their number is not limited: with the default
            # of 100, the task with the next call would wait for ever.
            self._session = new_session(aiohttp.TCPConnector(limit=0))
        return self._session
