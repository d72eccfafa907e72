"""Servers of a cluster in one process: real components behind real sockets. Who owns what is set by
the test."""

import asyncio
from collections.abc import AsyncIterator, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import aiohttp
from yarl import URL

from cluster.forwarding import leader_route, topic_route, topics_route
from cluster.peers import Owner, Peers
from kernel.requests_and_replies import Reply, Request, Route
from process import session_connection
from process.allowed_hosts import AllowedHosts
from process.components import Components
from process.http_connection import HttpService
from process.listener import Listener
from tests.process.manual_clock import ManualClock
from tests.process.test_components import components_over
from tuff.protocol.errors import TuffError
from tuff.protocol.ids import TopicId
from tuff.protocol.operations import BEGIN_SESSION, WAIT_FOR_TOPICS, Server

REQUEST_BYTES_MAX = 16_777_216
AUDIT = TopicId("default", "audit")
AUDIT_PATH = "/v1/namespaces/default/topics/audit"


class Owners:
    """Who owns which topic, and who leads. What is not set is this server's own."""

    def __init__(self) -> None:
        self.of_topics: dict[TopicId, Owner] = {}
        self.leading: Owner | TuffError | None = None
        self.asked: list[tuple[TopicId, bool, bool]] = []
        self.changed: list[TopicId] = []
        self.forgotten: list[TopicId] = []

    async def owner_of(self, topic: TopicId, *, is_forwarded: bool, creates: bool) -> Owner | None:
        self.asked.append((topic, is_forwarded, creates))
        await asyncio.sleep(0)
        return self.of_topics.get(topic)

    def forget(self, topic: TopicId) -> None:
        self.forgotten.append(topic)

    async def note_change(self, topic: TopicId) -> None:
        self.changed.append(topic)

    def leader(self) -> Owner | None:
        if isinstance(self.leading, TuffError):
            raise self.leading
        return self.leading


@dataclass
class Node:
    """One server. `answered` has the operations that its own handlers answered."""

    components: Components
    owners: Owners
    peers: Peers
    listener: Listener
    port: int = 0
    answered: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def connections_count(self) -> int:
        """The number of open connections to this server."""
        return len(self.listener._service.connections)

    @property
    def owner(self) -> Owner:
        return Owner(f"s{self.port}", self.url)


class Spawned:
    """The tasks of a test."""

    def __init__(self) -> None:
        self.tasks: set[asyncio.Task[None]] = set()

    def __call__(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)


@asynccontextmanager
async def node(directory: Path) -> AsyncIterator[Node]:
    """A server that owns everything until the test says otherwise."""
    owners, spawned = Owners(), Spawned()
    peers = Peers(spawn=spawned)
    async with components_over(directory, ManualClock(wall_ms=1_700_000_000_000)) as components:
        answered: list[str] = []
        routes = [
            _routed(_counted(route, answered), owners, peers) for route in components._routes()
        ]
        service = HttpService(
            routes,
            (),
            components._dispatcher,
            AllowedHosts(),
            max_request_bytes=REQUEST_BYTES_MAX,
            now_ms=lambda: 0,
        )
        service.switch = session_connection.Sessions(
            routes,
            components._dispatcher,
            service.connections,
            max_request_bytes=REQUEST_BYTES_MAX,
            refusal=lambda _head: None,
        ).begin
        made = Node(components, owners, peers, Listener(service, connections_max=100))
        made.answered = answered
        made.port = await made.listener.listen("127.0.0.1", 0)
        try:
            yield made
        finally:
            await peers.close()
            await made.listener.close(within_s=0)
            await asyncio.gather(*spawned.tasks, return_exceptions=True)


@asynccontextmanager
async def nodes(directory: Path, count: int) -> AsyncIterator[list[Node]]:
    """Several servers, each with a store of its own."""
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(node(directory / str(i))) for i in range(count)]


def _routed(route: Route, owners: Owners, peers: Peers) -> Route:
    joined = SimpleNamespace(ownership=owners, election=owners)
    match route.operation.answered_by:
        case Server.TOPIC_OWNER:
            return topic_route(route, lambda: joined, peers)
        case Server.LEADER:
            return leader_route(route, lambda: joined, peers)
        case _ if route.operation is WAIT_FOR_TOPICS:
            return topics_route(route, lambda: joined, peers)
        case _:
            return route


def _counted(route: Route, answered: list[str]) -> Route:
    if route.operation is BEGIN_SESSION:
        return route

    async def handler(request: Request) -> Reply:
        answered.append(str(route.operation))
        return await route.handler(request)

    return route.wrapped(handler)


@dataclass(frozen=True, slots=True)
class Answered:
    """A reply as the client sees it; names of headers are in small letters."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def lasting(self) -> tuple[int, dict[str, str], bytes]:
        """The reply without what forwarding adds, and without the time."""
        left = {"tuff-owner", "date"}
        return (self.status, {k: v for k, v in self.headers.items() if k not in left}, self.body)


@asynccontextmanager
async def client() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as session:
        yield session


async def call(
    session: aiohttp.ClientSession,
    method: str,
    url: str,
    *,
    body: bytes | None = None,
    **headers: str,
) -> Answered:
    """Send a request; `_` in the name of a header stands for `-`. No redirect is followed."""
    async with session.request(
        method,
        URL(url, encoded=True),
        data=None if body is None else BytesIO(body),
        headers={name.replace("_", "-"): value for name, value in headers.items()},
        skip_auto_headers=["Content-Type"],
        allow_redirects=False,
    ) as reply:
        found = {name.lower(): value for name, value in reply.headers.items()}
        return Answered(reply.status, found, await reply.read())
