"""Random histories of transactions over three servers: what any reader sees of a transaction is all
or nothing, while calls are lost, topics move, and servers end and come back."""

import asyncio
import random
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from messaging.read.poll import Poll
from tests.cluster.transaction_servers import Cluster, Sent, Server, turns
from tuff.protocol.errors import TransactionUnknownError, TuffError
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import PublishEntry
from tx.outcomes import EndedState, Outcome

TOPICS = [TopicId("ns", name) for name in "abcd"]
TRANSACTIONS_COUNT = 8  # of each client
CHAOS_COUNT = 8
LOST_PERCENT = 5
SEED_S_MAX = 20.0  # seconds


class LostError(Exception):
    """The server ended during the call."""


@dataclass
class Seen:
    """What the client of a transaction knows: rows that were acknowledged, and rows that may be
    there; whether its commit or abort was acknowledged."""

    acknowledged: set[tuple[TopicId, bytes]] = field(default_factory=set)
    possible: set[tuple[TopicId, bytes]] = field(default_factory=set)
    finals: set[tuple[TopicId, bytes]] = field(default_factory=set)
    ending: EndedState | None = None


class History:
    def __init__(self, cluster: Cluster, seed: int) -> None:
        self.cluster = cluster
        self.chance = random.Random(seed)
        self.seen: dict[int, Seen] = {}
        self.visible: set[int] = set()  # transactions of which a reader saw a row
        self.reads_count = 0
        self.is_over = False

    async def run(self) -> None:
        chance = self.chance

        def is_lost(_sent: Sent) -> bool:
            return not self.is_over and chance.randrange(100) < LOST_PERCENT

        network = self.cluster.network
        network.loses_request = network.loses_reply = network.doubles = is_lost
        ticking = asyncio.ensure_future(self._tick())
        work = [self._client(number) for number in range(3)]
        try:
            await asyncio.gather(self._chaos(), self._reader(), *work)
            self.is_over = True
            await self._check_end()
        finally:
            ticking.cancel()

    async def _tick(self) -> None:
        while True:
            self.cluster.now_ms += 1
            for server in list(self.cluster.servers.values()):
                with suppress(TuffError, LostError):
                    await self._at(server, server.tick())
            await turns(20)

    async def _at(self, server: Server, work: Coroutine[Any, Any, Any]) -> Any:
        """Do something at a server. Raises: LostError: it has ended meanwhile."""
        task = server.spawn(work)
        await asyncio.wait([task])
        if task.cancelled() or server.is_dead:
            raise LostError
        return task.result()

    async def _leader(self) -> Server:
        while True:
            leader = self.cluster.leader
            if leader is not None and leader.manager.status.state.value == "running":
                return leader
            await turns(20)

    async def _client(self, number: int) -> None:
        for count in range(TRANSACTIONS_COUNT):
            with suppress(TuffError, LostError):
                await self._transaction(f"{number}.{count}")
            await turns(self.chance.randrange(100))

    async def _transaction(self, name: str) -> None:
        chance = self.chance
        leader = await self._leader()
        pointer = (await self._at(leader, leader.begin())).transaction_id
        if chance.randrange(2):
            await self._at(leader, leader.manager.take_snapshot())
        seen = self.seen[pointer] = Seen()
        for count in range(chance.randrange(4)):
            topic, payload = chance.choice(TOPICS), f"{pointer}/{name}/{count}".encode()
            owner = self.cluster.servers.get(self.cluster.owners[topic])
            if owner is None:
                continue
            seen.possible.add((topic, payload))
            with suppress(TuffError, LostError):
                await self._at(owner, owner.publish(topic, payload, pointer=pointer))
                seen.acknowledged.add((topic, payload))
        finals = chance.sample(TOPICS, chance.randrange(4))
        seen.finals = {(topic, f"{pointer}/{name}/final".encode()) for topic in finals}
        await self._end(pointer, seen)

    async def _end(self, pointer: int, seen: Seen) -> None:
        leader = await self._leader()
        runner = leader.manager.runner
        if self.chance.randrange(4) == 0:
            seen.finals = set()
            seen.ending = (await self._at(leader, runner.abort(pointer))).state
            return
        publish = [
            PublishEntry(topic=topic, payloads=[each]) for topic, each in sorted(seen.finals)
        ]
        commit = runner.commit(pointer, changes=[], publish=publish)
        seen.ending = (await self._at(leader, commit)).state

    async def _chaos(self) -> None:
        for _ in range(CHAOS_COUNT):
            await turns(self.chance.randrange(400))
            with suppress(TuffError):
                await self.chance.choice((self._move, self._move, self._replace))()

    async def _move(self) -> None:
        cluster = self.cluster
        topic, name = self.chance.choice(TOPICS), self.chance.choice(sorted(cluster.servers))
        if cluster.is_owner_alive(topic) and cluster.owners[topic] != name:
            await cluster.move(topic, name)

    async def _replace(self) -> None:
        """Kill a server, and start it again."""
        cluster = self.cluster
        name = self.chance.choice(sorted(cluster.servers))
        was_leader = cluster.leader is cluster.servers[name]
        await cluster.kill(name)
        if was_leader:
            await cluster.elect(self.chance.choice(sorted(cluster.servers)))
        await cluster.join(name)

    async def _reader(self) -> None:
        while len(self.seen) < 3 * TRANSACTIONS_COUNT - 2 and self.reads_count < 100:
            with suppress(TuffError, LostError):
                await self._read()
            await turns(50)

    async def _read(self) -> None:
        """Read all topics in one snapshot, which a server got that need not lead."""
        server = self.chance.choice(list(self.cluster.servers.values()))
        snapshot = await self._at(server, server.transactions.snapshot())
        rows: dict[TopicId, list[bytes]] = {}
        whole: set[TopicId] = set()
        for topic in TOPICS:
            owner = await self.cluster.owner(topic)
            result = await self._at(
                owner, owner.messaging.polls.poll(topic, Poll(transaction=snapshot))
            )
            rows[topic] = [payload for _, payload in result.items]
            if result.caught_up and result.blocked_by is None:
                whole.add(topic)
        self.reads_count += 1
        self._check_atomic(rows, whole)

    def _check_atomic(self, rows: dict[TopicId, list[bytes]], whole: set[TopicId]) -> None:
        there = {(topic, each) for topic, payloads in rows.items() for each in payloads}
        for pointer in {int(payload.split(b"/")[0]) for _, payload in there}:
            self.visible.add(pointer)
            seen = self.seen[pointer]
            wanted = {each for each in seen.acknowledged | seen.finals if each[0] in whole}
            assert wanted <= there, f"{pointer} is visible in part: {wanted - there} is missing"

    async def _check_end(self) -> None:
        """Every transaction has ended, and each topic has exactly the committed rows."""
        leader = await self._leader()
        expected: set[tuple[TopicId, bytes]] = set()
        possible: set[tuple[TopicId, bytes]] = set()
        for pointer, seen in self.seen.items():
            state = await self._final_state(leader, pointer)
            if seen.ending is EndedState.COMMITTED or pointer in self.visible:
                assert state is EndedState.COMMITTED, f"{pointer} was committed, and is {state}"
            if seen.ending in (EndedState.ABORTED, EndedState.INVALID):
                assert state is not EndedState.COMMITTED
            if state is EndedState.COMMITTED:
                expected |= seen.acknowledged | seen.finals
                possible |= seen.possible
        carried = leader.rows._carried
        await self.cluster.until(lambda: not carried)
        leader.manager.invalid_list.prune(also_lost=True)
        for topic in TOPICS:
            owner = await self.cluster.owner(topic)
            rows = await owner.committed(topic)
            assert len(rows) == len(set(rows)), f"duplicates in {topic}"
            there = {(topic, each) for each in rows}
            assert {each for each in expected if each[0] == topic} <= there
            assert there <= expected | possible
            assert not owner.messaging.state.index.pointers()

    async def _final_state(self, leader: Server, pointer: int) -> EndedState:
        try:
            found = await leader.manager.runner.outcome(pointer)
        except TransactionUnknownError:
            return EndedState.INVALID
        if not isinstance(found, Outcome):
            found = await leader.manager.runner.abort(pointer)
        return found.state


async def run(directory: Path, seed: int) -> History:
    cluster = Cluster(directory)
    history = History(cluster, seed)
    try:
        owners = dict(zip(TOPICS, ("s1", "s2", "s3", "s2"), strict=True))
        await cluster.start("s1", "s2", "s3", topics=owners)
        await asyncio.wait_for(history.run(), SEED_S_MAX)
    finally:
        await cluster.close()
    return history


@pytest.mark.parametrize("seed", range(6))
async def test_random_histories_are_atomic(tmp_path: Path, seed: int) -> None:
    history = await run(tmp_path, seed)

    assert history.reads_count > 0
    assert any(seen.ending is EndedState.COMMITTED for seen in history.seen.values())
