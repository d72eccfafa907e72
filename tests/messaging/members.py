"""Servers of a cluster over one model of the tables that they share, each with a real message store
component. Which server owns which topic is decided by the test."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from kernel.owner_floor import NO_FLOOR
from messaging.service import MessagingService
from messaging.topic_handover import TopicHandover
from tests.cluster.shared_store import SharedOpener, SharedTables
from tests.messaging.world import World
from tuff.protocol.ids import TopicId

CLUSTER_ID = "0" * 32


class Member(World):
    """One incarnation of a server."""

    service: MessagingService
    handover: TopicHandover

    def __init__(self, tables: SharedTables, server_id: str, incarnation: int = 1) -> None:
        self.opener: SharedOpener = tables.opener(
            server_id, incarnation, now_ms=lambda: self.clock.now_ms
        )
        super().__init__(self.opener)
        self.is_shared = True
        self.server_id, self.incarnation = server_id, incarnation
        self.tables = tables

    @asynccontextmanager
    async def serving(self, *topics: TopicId) -> AsyncIterator["Member"]:
        """The server while it runs; the topics are new ones, and its own."""
        async with self.running() as service:
            self.service = service
            self.handover = TopicHandover(service.store, service.state, service.committer)
            for topic in topics:
                await self.handover.take([topic], NO_FLOOR)
                await service.topics.create(topic, {})
            yield self

    async def pass_on(self, topic: TopicId, to: "Member") -> None:
        """Give a topic to another server, which takes it."""
        await to.handover.take([topic], await self.handover.give(topic))

    async def fence(self, other: "Member", *topics: TopicId) -> None:
        """Fence another server, and take its topics."""
        floor = self.tables.fence(other.server_id, other.incarnation, now_ms=self.clock)
        await self.handover.take(topics, floor)


def new_tables() -> SharedTables:
    tables = SharedTables()
    tables.adopt(CLUSTER_ID)
    return tables
