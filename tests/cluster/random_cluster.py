"""A random run of a small cluster: clients publish and read while servers are paused, lose their
sessions, start again, move topics, and fail. Afterwards, every message is looked for."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Coroutine
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from random import Random
from typing import Any

from metadata.store_interface import MetadataError
from tests.cluster.owners import Cluster, Server, eventually
from tests.messaging.world import NOON_MS, Clock
from tests.metadata.memory_store import MemoryMetadataStore
from tuff.protocol.errors import UnavailableError
from tuff.protocol.ids import TopicId

TOPICS = [TopicId("default", name) for name in ("audit", "orders")]
CLOCK_MS = {"a": NOON_MS, "b": NOON_MS + 60_000, "c": NOON_MS - 60_000}
EVENTS = 60  # of a run
PUBLISHES = 60  # of each client
YIELDS_MAX = 25  # turns of the event loop between two events
REFUSALS = (UnavailableError, MetadataError)


@dataclass(slots=True)
class History:
    """What clients saw. The times of publishes are numbers of a counter."""

    now: int = 0
    sent: dict[bytes, int] = field(default_factory=dict)
    acknowledged: dict[bytes, int] = field(default_factory=dict)
    reads: list[tuple[TopicId, list[bytes]]] = field(default_factory=list)

    def tick(self) -> int:
        self.now += 1
        return self.now

    def check(self, topic: TopicId, found: list[bytes]) -> None:
        """Judge the messages that a topic has in the end."""
        of_topic = [each for each in self.acknowledged if each.startswith(topic.name.encode())]
        lost = set(of_topic) - set(found)
        assert not lost, f"{sorted(lost)} were acknowledged, and are lost"
        twice = [each for each, count in Counter(found).items() if count > 1]
        assert not twice, f"{twice} are there more than once"
        for position, payload in enumerate(found):
            ended = self.acknowledged.get(payload)
            for earlier in found[:position]:
                assert ended is None or self.sent[earlier] < ended, (
                    f"{earlier!r} was sent after {payload!r} was acknowledged, and is before it"
                )
        for read_topic, read in self.reads:
            if read_topic == topic:
                assert read == found[: len(read)], (
                    f"a reader saw {read[-5:]}, which is no beginning of what is there"
                )


class Run:
    """One run. `former` are servers whose sessions ended, and which may not know it."""

    def __init__(self, cluster: Cluster, chance: Random) -> None:
        self._cluster = cluster
        self._chance = chance
        self._tasks: list[asyncio.Task[None]] = []
        self.history = History()
        self.former: list[Server] = []
        self.counts: Counter[str] = Counter()

    async def execute(self) -> None:
        """Let everything happen, and check it."""
        for topic in TOPICS:
            await self._cluster.create(self._any_server(), topic)
        clients = [self._publish_all(number) for number in range(3)]
        self._begin(*clients, self._read_all())
        for _ in range(EVENTS):
            await self._yield()
            await self._happen()
        await self._settle_down()
        for topic in TOPICS:
            at = self._cluster.servers["a"]
            found = await eventually(lambda: self._cluster.poll(at, topic), 20)  # noqa: B023 - awaited in its turn
            self.history.check(topic, found)

    def _begin(self, *work: Coroutine[Any, Any, None]) -> None:
        self._tasks += [asyncio.ensure_future(each) for each in work]

    async def _settle_down(self) -> None:
        """End all failures and pauses, and wait for what is under way."""
        for each in (*self._cluster.servers.values(), *self.former):
            each.pauses_when = None
            each.runs.set()
            each.metadata.work()
        await asyncio.gather(*self._tasks)
        await self._start_missing()
        await self._cluster.refresh()

    def _any_server(self) -> Server:
        """A server that a client may ask, now and then one that has ended."""
        servers = list(self._cluster.servers.values())
        if self.former and self._chance.random() < 0.2:
            servers = self.former
        return self._chance.choice(servers)

    async def _yield(self) -> None:
        for _ in range(self._chance.randrange(YIELDS_MAX)):
            await asyncio.sleep(0)

    async def _publish_all(self, number: int) -> None:
        for count in range(PUBLISHES):
            topic = self._chance.choice(TOPICS)
            payload = f"{topic.name}-{number}-{count}".encode()
            self.history.sent[payload] = self.history.tick()
            with suppress(*REFUSALS):
                await self._cluster.publish(self._any_server(), topic, payload)
                self.history.acknowledged[payload] = self.history.tick()
            await self._yield()

    async def _read_all(self) -> None:
        for _ in range(PUBLISHES):
            topic = self._chance.choice(TOPICS)
            with suppress(*REFUSALS):
                read = await self._cluster.poll(self._any_server(), topic)
                self.history.reads.append((topic, read))
            await self._yield()

    async def _happen(self) -> None:
        """One random event."""
        server = self._chance.choice(self._servers())
        events = [*(self._pause, self._move, self._leave, self._adopt, self._tick), self._end]
        events += (
            [self._cut_off] * 2
            + [self._resume] * 2
            + [self._start] * 2
            + [self._move, self._settle]
        )
        events += [self._fail_metadata, self._fail_write, self._fail_wait]
        event = self._chance.choice(events)
        self.counts[event.__name__] += 1
        await event(server)

    async def _pause(self, server: Server) -> None:
        server.runs.clear()

    async def _cut_off(self, server: Server) -> None:
        """Stop a server in the middle of a move, and end its session."""
        left = iter(range(self._chance.randrange(20), -1, -1))
        server.pauses_when = lambda: next(left) == 0
        await self._move(server)
        await self._yield()
        await self._end(server)

    async def _resume(self, server: Server) -> None:
        self._chance.choice([server, *self.former]).runs.set()

    async def _end(self, server: Server) -> None:
        if sum(each.is_alive for each in self._servers()) > 1:
            self._cluster.expire(server)

    async def _start(self, _server: Server) -> None:
        await self._start_missing()

    async def _move(self, server: Server) -> None:
        self._begin(self._quietly(self._move_all(server)))

    async def _adopt(self, server: Server) -> None:
        self._begin(self._quietly(server.ownership.adopt()))

    async def _leave(self, server: Server) -> None:
        self._begin(self._quietly(self._stop(server)))

    async def _fail_metadata(self, server: Server) -> None:
        takes_effect = self._chance.random() < 0.5
        server.metadata.fail_call(self._chance.randrange(8), takes_effect=takes_effect)

    async def _fail_write(self, server: Server) -> None:
        failures = server.member.opener.store.failures
        failures.write = "HBase does not answer"
        failures.takes_effect = self._chance.random() < 0.5

    async def _fail_wait(self, server: Server) -> None:
        server.member.opener.store.failures.wait_until_shared = "HBase does not answer"

    async def _settle(self, server: Server) -> None:
        self._chance.choice([server, *self.former]).member.opener.store.flush()

    async def _tick(self, server: Server) -> None:
        server.member.clock.now_ms += self._chance.randrange(50)
        self._begin(self._quietly(server.member.service.tick()))

    def _servers(self) -> list[Server]:
        return list(self._cluster.servers.values())

    async def _start_missing(self) -> None:
        for server in self._servers():
            if not server.is_alive:
                self.former.append(server)
                await self._cluster.start(server.server_id)

    async def _move_all(self, server: Server) -> None:
        await server.ownership.refresh()
        for topic in sorted(server.ownership.topics()):
            await server.ownership.move(topic, self._chance.choice(["a", "b", "c"]))

    async def _stop(self, server: Server) -> None:
        """As a server that stops: it gives its topics away, and then it leaves."""
        await server.ownership.drain()
        server.membership.metadata_session.close()

    async def _quietly(self, work: Awaitable[object]) -> None:
        with suppress(*REFUSALS):
            await work


async def run_cluster(seed: int) -> Run:
    """One run with this seed, and its checks."""
    chance = Random(seed)
    store = MemoryMetadataStore()
    try:
        async with AsyncExitStack() as stack:
            cluster = Cluster(store, stack, chance.randrange)
            cluster.clocks = {name: Clock(ms) for name, ms in CLOCK_MS.items()}
            await cluster.start("a", "b", "c")
            run = Run(cluster, chance)
            await run.execute()
    finally:
        store.close()
    return run
