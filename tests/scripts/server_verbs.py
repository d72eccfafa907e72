"""The commands that move time, stop and crash the server, and hold its disks."""

import asyncio
import shutil

from tests.scripts.names import shown_time, time_of
from tests.scripts.session import Lines, Session, Verb
from tests.scripts.words import Words

DISKS = {"messages": "store-writer", "log": "transaction-log"}
_NS_PER_MS = 1_000_000


class ServerVerbs:
    """Time, restarts, crashes and disks."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def verbs(self) -> dict[str, Verb]:
        return {
            "health": Verb(self.health),
            "clock": Verb(self.clock),
            "wall": Verb(self.wall),
            "sweep": Verb(self.sweep),
            "restart": Verb(self.restart),
            "crash": Verb(self.crash),
            "hold": Verb(self.hold),
            "release": Verb(self.release),
            "lose": Verb(self.lose),
            "find": Verb(self.find),
        }

    async def health(self, _words: Words) -> Lines:
        body = (await self._session.call("GET", "/health/ready")).body
        failed = [
            (name, check) for name, check in body["checks"].items() if check["status"] != "ok"
        ]
        told = [f"{name} {check['status']}: {check['detail']}" for name, check in failed]
        return [body["status"], *map(self._session.readable, told)]

    async def clock(self, words: Words) -> Lines:
        before_ms = time_of("0")
        self._session.world.clock.move(time_of(words.rest[0]) - before_ms)
        await self._session.world.life.tick()
        await self._session.world.settle()
        return [shown_time(self._session.world.clock.wall_ns() // _NS_PER_MS)]

    async def wall(self, words: Words) -> Lines:
        """Sets the wall clock; no time passes."""
        self._session.world.clock.set_wall(time_of(words.rest[0]) - time_of("0"))
        return [shown_time(self._session.world.clock.wall_ns() // _NS_PER_MS)]

    async def sweep(self, _words: Words) -> Lines:
        await self._session.world.life.sweep()
        return ["ok"]

    async def restart(self, words: Words) -> Lines:
        await self._session.world.restart(_settings(words))
        return ["ok"]

    async def crash(self, words: Words) -> Lines:
        for task in self._session.under_way.values():
            task.cancel()
        await self._session.world.crash(_settings(words))
        await asyncio.gather(*self._session.under_way.values(), return_exceptions=True)
        self._session.under_way.clear()
        return ["ok"]

    async def hold(self, words: Words) -> Lines:
        """Lets the calls of one of the two disks wait until it is released."""
        self._session.world.life.disks[DISKS[words.rest[0]]].hold()
        return ["ok"]

    async def release(self, words: Words) -> Lines:
        self._session.world.life.disks[DISKS[words.rest[0]]].release()
        return ["ok"]

    async def lose(self, _words: Words) -> Lines:
        """Takes the transaction files away while the server is stopped."""
        world = self._session.world
        await world.stop()
        (world.data / "snapshots").rename(world.data / "lost")
        await world.restart({})
        return ["ok"]

    async def find(self, _words: Words) -> Lines:
        """Puts them back in their place."""
        world = self._session.world
        await world.stop()
        shutil.rmtree(world.data / "snapshots")
        (world.data / "lost").rename(world.data / "snapshots")
        await world.restart({})
        return ["ok"]


def _settings(words: Words) -> dict[str, str]:
    pairs = (word.partition("=") for word in words.rest)
    return {name: value for name, _, value in pairs}
