"""Requests between simulated servers: each is a message that the scheduler delivers, and so is its
reply. A partition or the end of a process loses them."""

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote, urlsplit

from cluster.peers import PeerRefusedError, PeerUnansweredError
from kernel.requests_and_replies import Reply, Request, Route, problem_reply
from tuff.protocol.errors import NotFoundError, TuffError, from_problem

if TYPE_CHECKING:
    from tests.simulation.cluster.node import Process


@dataclass(slots=True, eq=False)
class Exchange:
    """One request to another server. It is over once `done` has a result."""

    source: "Process"
    url: str
    method: str
    target: str
    request: Request
    until_ms: int
    done: "asyncio.Future[Reply]"
    server: "Process | None" = None  # that received it
    reply: Reply | None = None

    def fail(self, reason: str, *, was_sent: bool) -> None:
        if not self.done.done():
            self.done.set_exception(PeerUnansweredError(reason, was_sent=was_sent))


class SimPeers:
    """The other servers, for one process (`cluster.peers.Peers`). `send` gives a message to the
    network."""

    def __init__(self, process: "Process", send: Callable[[Exchange], None]) -> None:
        self._process = process
        self._send = send
        self._under_way: list[Exchange] = []
        self.polls_count = 0

    async def forward(
        self,
        base_url: str,
        method: str,
        target: str,
        request: Request,
        *,
        within_s: float,
        waits: bool = False,
    ) -> Reply:
        forwarded = request._replace(is_forwarded=True, wants_redirect=False)
        self.polls_count += waits
        try:
            reply = await self._answer(base_url, method, target, forwarded, within_s)
        finally:
            self.polls_count -= waits
        return reply._replace(headers=(*reply.headers, ("Tuff-Owner", base_url)))

    async def ask(
        self,
        base_url: str,
        method: str,
        path: str,
        body: bytes | Mapping[str, object] | None = None,
        *,
        within_s: float,
    ) -> object:
        is_form = body is not None and not isinstance(body, bytes)
        data = json.dumps(body).encode() if is_form else body or b""
        content_type = "application/json" if is_form else "application/octet-stream"
        request = Request({}, (), content_type if data else None, "application/json", data)
        reply = await self._answer(base_url, method, path, request, within_s)
        value = json.loads(reply.body) if "json" in (reply.content_type or "") else reply.body
        if reply.status >= 300:
            raise PeerRefusedError(from_problem(value, status=reply.status))
        return value

    async def _answer(
        self, base_url: str, method: str, target: str, request: Request, within_s: float
    ) -> Reply:
        until_ms = self._process.clock.boot_ms() + round(within_s * 1000)
        done = asyncio.get_running_loop().create_future()
        exchange = Exchange(self._process, base_url, method, target, request, until_ms, done)
        self._under_way.append(exchange)
        self._send(exchange)
        try:
            return await done
        finally:
            self._under_way.remove(exchange)

    def drop(self, base_url: str) -> None:
        for each in self._under_way:
            if each.url == base_url:
                each.fail("the server left the cluster before it answered", was_sent=True)

    async def close(self) -> None:
        for each in self._under_way:
            each.fail("this server is stopping", was_sent=True)


class Router:
    """Finds the route of a request, and answers it as the listener of a process does."""

    def __init__(self, routes: Sequence[Route]) -> None:
        self._routes = [(each, each.operation.path.split("/")) for each in routes]

    async def answer(self, method: str, target: str, request: Request) -> Reply:
        try:
            route, parameters, query = self._found(method, target)
            return await route.handler(request._replace(parameters=parameters, query=query))
        except TuffError as error:
            return problem_reply(error)

    def _found(
        self, method: str, target: str
    ) -> tuple[Route, Mapping[str, str], tuple[tuple[str, str], ...]]:
        parts = urlsplit(target)
        segments = parts.path.split("/")
        query = tuple(parse_qsl(parts.query, keep_blank_values=True))
        for route, pattern in self._routes:
            if route.operation.method == method and len(pattern) == len(segments):
                pairs = list(zip(pattern, segments, strict=True))
                if all(name.startswith("{") or name == given for name, given in pairs):
                    named = {n[1:-1]: unquote(g) for n, g in pairs if n.startswith("{")}
                    return route, named, query
        raise NotFoundError(f"there is no {method} {target}")
