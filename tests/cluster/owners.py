"""Servers of a cluster without sockets: real ownership of topics and real message stores, over one
metadata store and one model of the shared tables. A test pauses servers, ends their sessions, and
lets calls to the metadata store fail."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, suppress
from typing import TypeVar

from cluster.membership import Membership
from cluster.topic_claims import TopicClaims
from kernel.owner_floor import Floor
from messaging.read.poll import Poll
from metadata.store_interface import (
    Condition,
    Key,
    MetadataError,
    MetadataUnavailableError,
    Session,
    Versioned,
)
from metadata.topic_owner_records import OwnerInfo, OwnerRecords
from metadata.topic_records import PersistenceInfo, TopicRecords
from tests.cluster.shared_store import SharedTables
from tests.messaging.members import Member
from tests.messaging.world import Clock, payloads, request
from tests.metadata.memory_store import MemoryMetadataStore
from tuff.protocol.errors import OwnershipMovingError
from tuff.protocol.ids import TopicId

T = TypeVar("T")
CLUSTER_ID = "0" * 32


class FailingMetadata:
    """The metadata store as one server reaches it. The call after `calls_left` others fails, before
    it takes effect or after."""

    def __init__(self, inner: MemoryMetadataStore) -> None:
        self._inner = inner
        self.calls_left: int | None = None
        self.takes_effect = False
        self.failed_count = 0
        self.read_count = 0  # entries that were read
        self.open_session, self.close = inner.open_session, inner.close
        self.watch = inner.watch

    def fail_call(self, number: int, *, takes_effect: bool) -> None:
        """Fail the call after this number of others."""
        self.calls_left, self.takes_effect = number, takes_effect

    def work(self) -> None:
        """Fail no more calls."""
        self.calls_left = None

    def get(self, key: Key) -> Versioned[bytes] | None:
        self.read_count += 1
        return self._call(lambda: self._inner.get(key))

    def put(
        self, key: Key, value: bytes, expected: Condition, *, session: Session | None = None
    ) -> int:
        return self._call(lambda: self._inner.put(key, value, expected, session=session))

    def delete(self, key: Key, expected: Condition) -> None:
        self._call(lambda: self._inner.delete(key, expected))

    def scan(self, prefix: Key) -> Iterator[tuple[Key, Versioned[bytes]]]:
        for each in self._call(lambda: self._inner.scan(prefix)):
            self.read_count += 1
            yield each

    def require(self, key: Key, version: int) -> None:
        self._call(lambda: self._inner.require(key, version))

    def _call(self, call: Callable[[], T]) -> T:
        if self.calls_left is None or self.calls_left > 0:
            self.calls_left = None if self.calls_left is None else self.calls_left - 1
            return call()
        self.calls_left = None
        self.failed_count += 1
        if self.takes_effect:
            call()
        raise MetadataUnavailableError("the metadata store does not answer")


class _Fencing:
    """The shared tables, for the membership of one server."""

    def __init__(self, tables: SharedTables, now_ms: Callable[[], int]) -> None:
        self._tables, self._now_ms = tables, now_ms
        self.adopt = tables.adopt

    def fence(self, server_id: str, incarnation: int) -> Floor:
        return self._tables.fence(server_id, incarnation, now_ms=self._now_ms)


class Server:
    """One incarnation of a server. Its worker threads stand still while `runs` is cleared, before
    and after each call, and once `pauses_when` returns True. `lost_count`: how often it was told
    that its session ended."""

    member: Member
    ownership: TopicClaims

    def __init__(self, cluster: "Cluster", server_id: str) -> None:
        self.server_id = server_id
        self.runs = asyncio.Event()
        self.runs.set()
        self.paused = asyncio.Event()
        self.pauses_when: Callable[[], bool] | None = None
        self.lost_count = 0
        self.metadata = FailingMetadata(cluster.store)
        self._cluster = cluster
        self.membership = Membership(
            self.metadata,
            _Fencing(cluster.tables, cluster.now_ms),
            server_id=server_id,
            address=f"http://{server_id}:1",
            messages="memory",
            now_ms=cluster.now_ms,
        )
        self.identity = self.membership.join(
            new_cluster_id=CLUSTER_ID, session_s=60, lost=self._lost
        )
        self.member = Member(cluster.tables, server_id, self.identity.incarnation)
        self.member.clock = cluster.clocks.get(server_id, cluster.member_clock)
        self.member.in_thread_write = self.in_thread

    async def start(self, stack: AsyncExitStack) -> None:
        await stack.enter_async_context(self.member.serving())
        self.member.service.store.in_thread_read = self.in_thread
        self.ownership = TopicClaims(
            self.identity,
            self.membership,
            OwnerRecords(self.metadata),
            TopicRecords(self.metadata),
            self.member.handover,
            in_thread=self.in_thread,
            chance=self._cluster.chance,
        )
        await self.ownership.refresh()

    def in_thread(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        return asyncio.ensure_future(self._run(function))

    async def _run(self, function: Callable[[], T]) -> T:
        await self._pass()
        try:
            return function()
        finally:
            await self._pass()

    async def _pass(self) -> None:
        for _ in range(1 + self._cluster.chance(3)):
            await asyncio.sleep(0)
        if self.pauses_when is not None and self.pauses_when():
            self.pauses_when = None
            self.runs.clear()
            self.paused.set()
        await self.runs.wait()

    def _lost(self) -> None:
        self.lost_count += 1

    @property
    def is_alive(self) -> bool:
        return self.membership.metadata_session.is_live


class Cluster:
    """The servers by id, the newest incarnation of each. `chance(n)` is a number below n."""

    def __init__(
        self,
        store: MemoryMetadataStore,
        stack: AsyncExitStack,
        chance: Callable[[int], int] = lambda _: 0,
    ) -> None:
        self.store, self.stack, self.chance = store, stack, chance
        self.tables = SharedTables()
        self.member_clock = Clock()
        self.clocks: dict[str, Clock] = {}
        self.servers: dict[str, Server] = {}
        self.owners = OwnerRecords(store)
        self.persistence = TopicRecords(store)

    def now_ms(self) -> int:
        return self.member_clock.now_ms

    async def start(self, *server_ids: str) -> list[Server]:
        """Start servers; all of them then know each other."""
        started = []
        for server_id in server_ids:
            server = Server(self, server_id)
            await server.start(self.stack)
            self.servers[server_id] = server
            started.append(server)
        await self.refresh()
        return started

    async def refresh(self) -> None:
        for each in self.servers.values():
            if each.is_alive and each.runs.is_set() and each.pauses_when is None:
                with suppress(MetadataError):
                    await each.ownership.refresh()

    def expire(self, server: Server) -> None:
        """End the session of a server, which may not notice."""
        self.store.expire(server.membership.metadata_session.id)

    def owner(self, topic: TopicId) -> OwnerInfo:
        found = self.owners.read_owner_info(topic)
        assert found is not None
        return found.value

    def record(self, topic: TopicId) -> PersistenceInfo:
        found = self.persistence.read_topic_persistence_info(topic)
        assert found is not None
        return found.value

    async def routed(self, at: Server, topic: TopicId, *, creates: bool = False) -> Server:
        """The server that serves a request which arrives at this one, as the routes find it."""
        owner = await at.ownership.owner_of(topic, is_forwarded=False, creates=creates)
        if owner is None:
            return at
        other = self.servers[owner.server_id]
        if await other.ownership.owner_of(topic, is_forwarded=True, creates=creates) is None:
            return other
        at.ownership.forget(topic)
        raise OwnershipMovingError(f"{topic} is not at {owner.server_id}")

    async def create(self, at: Server, topic: TopicId) -> Server:
        server = await self.routed(at, topic, creates=True)
        await server.member.service.topics.create(topic, {})
        await server.ownership.note_change(topic)
        return server

    async def publish(self, at: Server, topic: TopicId, *sent: bytes) -> Server:
        server = await self.routed(at, topic)
        await server.member.service.publisher.publish(topic, request(*sent))
        return server

    async def poll(self, at: Server, topic: TopicId) -> list[bytes]:
        server = await self.routed(at, topic)
        return payloads(await server.member.service.polls.poll(topic, Poll()))


async def eventually(attempt: Callable[[], Awaitable[T]], count: int = 5) -> T:
    """The result of a call that is repeated while the ownership moves."""
    for _ in range(count - 1):
        try:
            return await attempt()
        except OwnershipMovingError:
            continue
    return await attempt()
