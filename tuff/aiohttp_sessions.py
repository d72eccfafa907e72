"""Sessions of aiohttp whose requests are sent once: those of the client, and of a server that calls
other servers of its cluster."""

import asyncio
from types import SimpleNamespace

import aiohttp


def new_session(
    connector: aiohttp.BaseConnector, *, auto_decompress: bool = True
) -> aiohttp.ClientSession:
    """A session that keeps no cookies, and sends each request once.

    aiohttp repeats every PUT and DELETE when a kept connection breaks, and then a topic that was
    just created "exists already". If the server has died, the second attempt could not connect
    either, and the request would seem never to have been sent. So a second attempt is refused with
    ServerDisconnectedError before it connects or sends anything; the caller decides what is
    repeated.
    """
    return aiohttp.ClientSession(
        connector=connector,
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=auto_decompress,
        trace_configs=[_sending_once()],
    )


async def notice_closed_connections() -> None:
    """Let a session notice which kept connections the server has closed, before a write is sent on
    one of them and lost with an unknown outcome."""
    # One turn of the loop reads the end, the next removes the connection from the pool.
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def _sending_once() -> aiohttp.TraceConfig:
    async def connect_once(
        session: aiohttp.ClientSession,
        attempts: SimpleNamespace,
        params: aiohttp.TraceConnectionCreateStartParams,
    ) -> None:
        if hasattr(attempts, "has_begun"):
            raise aiohttp.ServerDisconnectedError

    async def send_once(
        session: aiohttp.ClientSession,
        attempts: SimpleNamespace,
        params: aiohttp.TraceRequestHeadersSentParams,
    ) -> None:
        if hasattr(attempts, "has_begun"):
            raise aiohttp.ServerDisconnectedError
        attempts.has_begun = True

    config = aiohttp.TraceConfig()
    config.on_connection_create_start.append(connect_once)
    config.on_request_headers_sent.append(send_once)
    return config
