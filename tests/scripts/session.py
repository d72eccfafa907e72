"""The state that the commands of one script share: its world, its names, its calls."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.scripts.names import Pointers
from tests.scripts.words import Words
from tests.scripts.world import Reply, World

Lines = list[str]


@dataclass(frozen=True, slots=True)
class Verb:
    """One command: what runs it, and which words have a meaning of their own."""

    run: Callable[[Words], Awaitable[Lines]]
    options: frozenset[str] = frozenset()
    flags: frozenset[str] = frozenset()


class RefusedError(Exception):
    """The server answered with an error."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.status)
        self.reply = reply


class Session:
    """One script's world and names. `objects` are the transaction objects, as a client keeps them;
    `under_way` the commands that run beside the others."""

    def __init__(self, directory: Path) -> None:
        self.world = World(directory)
        self.pointers = Pointers()
        self.objects: dict[str, object] = {}
        self.under_way: dict[str, asyncio.Task[Lines]] = {}

    async def call(
        self,
        method: str,
        path: str,
        body: object = None,
        query: Mapping[str, str] | None = None,
    ) -> Reply:
        """Ask the server. Raises: RefusedError."""
        reply = await self.world.life.request(method, path, body, query or {})
        if reply.status >= 400:
            raise RefusedError(reply)
        return reply

    def told(self, refusal: Reply) -> str:
        """An error of the server, with names in the place of numbers."""
        return f"{refusal.status} {refusal.body['code']}: {self.readable(refusal.body['detail'])}"

    def readable(self, sentence: str) -> str:
        """A sentence of the server, as it would be on any machine and in any run."""
        return self.pointers.told(sentence.replace(str(self.world.data), "DATA"))
