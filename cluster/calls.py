"""Calls between the servers of a cluster and their HTTP routes.

A call to this server itself takes no way over the network. `cluster/peers.py` sends the others.
"""

import asyncio
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from typing import Generic, TypeVar

from cluster.peers import Owner, PeerRefusedError, Peers, resolve_future
from kernel.event_loop import Spawn
from kernel.requests_and_replies import Reply, Request, Route
from metadata.json_values import Fields
from tuff.protocol.json_bodies import parse_json
from tuff.protocol.media_types import JSON_REPLY_TYPE
from tuff.protocol.operations import call_between_servers

T = TypeVar("T")

PATH = "/v1/cluster"
# Seconds in which a call is answered. Longer than a batch takes, also in a store that recovers; a
# call that is not answered is repeated, or ends as unknown.
ANSWER_S_MAX = 20.0


CallHandler = Callable[[Fields], Awaitable[Mapping[str, object]]]


class Calls:
    """Calls to the servers of the cluster, this one included. Lives on the event loop."""

    def __init__(self, peers: Peers) -> None:
        self._peers = peers
        self._handlers: dict[str, CallHandler] = {}

    def serve(self, handlers: Mapping[str, CallHandler]) -> None:
        """Answer these calls, by name."""
        self._handlers.update(handlers)

    def routes(self) -> list[Route]:
        """The routes at which the other servers call this one."""
        return [
            Route(call_between_servers(name), _route_handler(handler))
            for name, handler in self._handlers.items()
        ]

    async def call(
        self,
        to: Owner | None,
        name: str,
        value: Mapping[str, object],
        *,
        within_s: float = math.inf,
    ) -> Fields:
        """The reply of a server; None: this one. Sent once. `within_s` may only make the limit of
        the whole exchange shorter.

        Raises:
            PeerUnansweredError: no answer came.
            TuffError: the refusal of the server.
        """
        if to is None:
            return Fields(await self._handlers[name](Fields(value)))
        body = json.dumps(value).encode("ascii")
        try:
            return Fields(
                await self._peers.ask(
                    to.url,
                    "POST",
                    f"{PATH}/{name}",
                    body,
                    within_s=min(within_s, ANSWER_S_MAX),
                )
            )
        except PeerRefusedError as error:
            raise error.error from None


class SharedCall(Generic[T]):
    """One call at a time. All callers that ask before a call begins get its result, so each result
    is newer than the question."""

    def __init__(self, call: Callable[[], Awaitable[T]], *, spawn: Spawn) -> None:
        self._call = call
        self._spawn = spawn
        self._next: asyncio.Future[T] | None = None
        self._is_running = False

    async def result(self) -> T:
        """The result of a call that begins after this. Raises: what the call raises."""
        if self._next is None:
            self._next = asyncio.get_running_loop().create_future()
            if not self._is_running:
                self._is_running = True
                self._spawn(self._run())
        return await asyncio.shield(self._next)

    async def _run(self) -> None:
        try:
            while (waiting := self._next) is not None:
                self._next = None
                await resolve_future(waiting, self._call())
        finally:
            self._is_running = False


def _route_handler(handler: CallHandler) -> Callable[[Request], Awaitable[Reply]]:
    async def answer(request: Request) -> Reply:
        body = await handler(Fields(parse_json(request.body)))
        return Reply(200, JSON_REPLY_TYPE, json.dumps(body).encode("ascii"))

    return answer
