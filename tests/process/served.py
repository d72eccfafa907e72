"""Routes that say what they were asked, behind a port."""

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

from kernel.event_loop import Arrivals
from kernel.requests_and_replies import Reply, Request, Route, json_reply
from process.admission_and_dispatch import Admission, Dispatcher
from process.allowed_hosts import AllowedHosts
from process.http_connection import HttpConnection, HttpService
from process.listener import Listener
from process.metrics import Metrics
from tests.http.client import CONDITION_WITHIN_S
from tests.made_operations import made
from tuff.protocol.errors import OverloadedError

REQUEST_BYTES_MAX = 2_000
CONNECTIONS_MAX = 5
NOW_MS = 1_480_000_000_000


class Routes:
    """Routes that say what they were asked; `/slow` answers when `go_on` is set."""

    def __init__(self) -> None:
        self.go_on = asyncio.Event()
        self.asked: list[bytes] = []

    def all(self) -> list[Route]:
        return [
            *(Route(made(method, "/v1/echo/{name}"), _echo) for method in ("GET", "POST", "PUT")),
            Route(made("POST", "/v1/echo/fixed"), _fixed),
            Route(made("POST", "/v1/{kind}/{name}/deep"), _echo),
            *(Route(made(method, "/v1/between/{name}"), _between) for method in ("GET", "POST")),
            Route(made("POST", "/v1/slow"), self._slow),
            Route(made("GET", "/v1/large"), _large),
            Route(made("GET", "/v1/refused"), _refused),
            Route(made("GET", "/v1/bug"), _bug),
            Route(made("GET", "/v1/later"), _later),
            Route(made("GET", "/health/live"), _echo),
            Route(made("GET", "/metrics"), _echo),
        ]

    async def _slow(self, request: Request) -> Reply:
        self.asked.append(request.body)
        await self.go_on.wait()
        return json_reply({"slow": request.body.decode()})


async def _echo(request: Request) -> Reply:
    form = [dict(request.parameters), request.query, request.content_type, request.accept]
    return Reply(200, "text/plain", json.dumps([*form, request.body.hex()]).encode())


async def _between(request: Request) -> Reply:
    return json_reply([request.is_forwarded, request.wants_redirect, request.authorization])


async def _fixed(_request: Request) -> Reply:
    return Reply(headers=(("Tuff-First-Id", "00"), ("Tuff-Last-Id", "01")))


async def _large(_request: Request) -> Reply:
    return Reply(200, "avro/binary", b"x" * (8 << 20))


async def _refused(_request: Request) -> Reply:
    raise OverloadedError("too much")


async def _bug(_request: Request) -> Reply:
    raise AssertionError("on purpose")


async def _later(_request: Request) -> Reply:
    await asyncio.sleep(0)
    await asyncio.to_thread(len, b"")
    return json_reply({"later": True})


class Served:
    """A Listener at `port`."""

    def __init__(self) -> None:
        self.routes = Routes()
        self.metrics = Metrics()
        self.admission = Admission(pending_max=100, waiting=lambda: 0, arrivals=Arrivals())
        self.admission.open()
        front = Dispatcher(self.admission, self.metrics, elapsed_s=lambda: 0.0)
        self._service = HttpService(
            self.routes.all(),
            (),
            front,
            AllowedHosts(["x"]),
            max_request_bytes=REQUEST_BYTES_MAX,
            now_ms=lambda: NOW_MS,
        )
        self.listener = Listener(self._service, connections_max=CONNECTIONS_MAX)

    async def open(self) -> None:
        self.port = await self.listener.listen("127.0.0.1", 0)

    async def close(self) -> None:
        await self.listener.close(within_s=0)

    @property
    def connections(self) -> set[HttpConnection]:
        return cast(set[HttpConnection], self._service.connections._open)

    @property
    def count(self) -> int:
        """How many connections there are."""
        return len(self.connections)


@asynccontextmanager
async def served() -> AsyncIterator[Served]:
    made = Served()
    await made.open()
    try:
        yield made
    finally:
        await made.close()


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()


async def talk(port: int, *segments: bytes) -> bytes:
    """Everything that the server says until it closes the connection, less what names the time.

    Between segments the server has time to read the one before.
    """
    async with connected(port) as (reader, writer):
        try:
            for segment in segments:
                writer.write(segment)
                await writer.drain()
                for _ in range(5):  # turns of the loop
                    await asyncio.sleep(0)
            return _timeless(await reader.read())
        except ConnectionError:
            return b"reset"


def _timeless(said: bytes) -> bytes:
    # The order of the headers means nothing.
    said = re.sub(rb"Date: [^\r]*\r\n", b"", said)
    blocks = re.split(rb"(?=HTTP/1\.[01] \d{3} )", said)
    return b"".join(map(_in_order, blocks))


def _in_order(reply: bytes) -> bytes:
    head, blank, body = reply.partition(b"\r\n\r\n")
    line, *headers = head.split(b"\r\n")
    return b"\r\n".join([line, *sorted(headers)]) + blank + body


async def turns() -> None:
    """Let the loop run for a while."""
    for _ in range(20):
        await asyncio.sleep(0)


async def until(condition: Callable[[], bool]) -> None:
    """Let the loop run until the condition holds."""
    until_s = time.monotonic() + CONDITION_WITHIN_S
    while not condition():
        assert time.monotonic() < until_s, "the condition never held"
        await asyncio.sleep(0)
