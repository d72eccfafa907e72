"""Claims of the topics of an ended server: by many requests at once, and by clients that give up.

Two servers share a real metadata store. The message stores are in memory, and say what happened.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any, TypeVar

import pytest

from cluster.membership import Membership
from cluster.peers import Owner
from cluster.topic_claims import TopicClaims
from kernel.event_loop import FutureTask
from kernel.owner_floor import Floor
from metadata.store_interface import Key, MetadataStore, Versioned
from metadata.topic_owner_records import OwnerRecords
from metadata.topic_records import TopicRecords
from tests.metadata.memory_store import MemoryMetadataStore
from tuff.protocol.errors import TuffError
from tuff.protocol.ids import Offset, TopicId
from tuff_storage.disk.locks import StoreError

T = TypeVar("T")

TOPICS = [TopicId("n", f"t{number}") for number in range(20)]
FLOOR = Floor(Offset(1_000, 5), cell_ms=1_010, longest_transaction_ms=8)
WITHIN_S = 60.0


class Tables:
    """Shared tables that note who was fenced. A fence lasts until `may_end`."""

    def __init__(self) -> None:
        self.fenced: list[tuple[str, int]] = []
        self.failure_count = 0
        self.has_begun, self.has_ended, self.may_end = Event(), Event(), Event()
        self.may_end.set()

    def adopt(self, cluster_id: str) -> None:
        """Any cluster may have them."""

    def fence(self, server_id: str, incarnation: int) -> Floor:
        self.fenced.append((server_id, incarnation))
        self.has_begun.set()
        assert self.may_end.wait(WITHIN_S)
        self.has_ended.set()
        if self.failure_count:
            self.failure_count -= 1
            raise StoreError("HBase does not answer")
        return FLOOR


class Messages:
    """The message store of a server: the topics that it serves, with their floors."""

    def __init__(self) -> None:
        self.taken: list[tuple[TopicId, Floor]] = []
        self.has_taken = asyncio.Event()
        self.generation_now = 1

    async def take(self, topics: Iterable[TopicId], floor: Floor) -> None:
        self.taken += [(topic, floor) for topic in topics]
        self.has_taken.set()

    async def give(self, topic: TopicId) -> Floor:
        return FLOOR

    def generation(self, topic: TopicId) -> int:
        return self.generation_now


class CountingStore:
    """A metadata store that counts the reads of entries, and calls `around_puts` before and after
    each put."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.read: list[Key] = []
        self.around_puts: Callable[[], None] = lambda: None

    def put(self, *args: Any, **options: Any) -> int:
        self.around_puts()
        version = self._store.put(*args, **options)
        self.around_puts()
        return version

    def get(self, key: Key) -> Versioned[bytes] | None:
        self.read.append(key)
        return self._store.get(key)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Node:
    """One server, as far as ownership is concerned."""

    def __init__(self, store: CountingStore, tables: Tables, name: str) -> None:
        self.membership = Membership(
            store,
            tables,
            server_id=name,
            address=f"http://{name}:1",
            messages="memory",
            now_ms=lambda: 1,
        )
        self.identity = self.membership.join(
            new_cluster_id="c" * 32, session_s=60.0, lost=lambda: None
        )
        self.messages = Messages()
        self._threads = ThreadPoolExecutor(4)
        self.ownership = TopicClaims(
            self.identity,
            self.membership,
            OwnerRecords(store),
            TopicRecords(store),
            self.messages,
            in_thread=self._in_thread,
            chance=lambda _: 0,
        )

    def _in_thread(self, function: Callable[[], T]) -> "asyncio.Future[T]":
        return asyncio.wrap_future(self._threads.submit(function))

    async def claim(self, topic: TopicId) -> None:
        """A request that another server has forwarded here."""
        owner = await self.ownership.owner_of(topic, is_forwarded=True, creates=True)
        assert owner is None, owner

    def end(self) -> None:
        self.membership.metadata_session.close()
        self._threads.shutdown()


class World:
    """Two servers; the first one owns all topics when it ends."""

    def __init__(self, metadata: MetadataStore) -> None:
        self.store = store = CountingStore(metadata)
        self.tables = Tables()
        self.ended, self.heir = (Node(store, self.tables, name) for name in ("s1", "s2"))

    async def end_the_first(self) -> None:
        for topic in TOPICS:
            await self.ended.claim(topic)
        self.ended.end()
        await self.heir.ownership.refresh()


@pytest.fixture
def world() -> Iterator[World]:
    store = MemoryMetadataStore()
    world = World(store)
    yield world
    world.heir.end()
    store.close()


def run(work: Coroutine[Any, Any, T]) -> T:
    return asyncio.run(asyncio.wait_for(work, WITHIN_S))


def started(work: Coroutine[Any, Any, T]) -> "FutureTask[T]":
    """The work, as a request of a client: it runs until it waits."""
    task = FutureTask(work, refusals=TuffError)
    task.go_on()
    return task


def test_one_fence_is_enough_for_all_topics_of_an_ended_server(world: World) -> None:
    """Fences take slots of one journal from each other: with one for each topic, a takeover took
    longer the more topics there were, and some claims failed."""

    async def scenario() -> None:
        await world.end_the_first()
        world.tables.may_end.clear()
        claims = [started(world.heir.claim(topic)) for topic in TOPICS]
        assert await asyncio.to_thread(world.tables.has_begun.wait, WITHIN_S)
        world.tables.may_end.set()
        await asyncio.gather(*(each.done for each in claims))

    run(scenario())

    assert world.tables.fenced == [("s1", 1)]
    assert sorted(world.heir.messages.taken) == [(topic, FLOOR) for topic in sorted(TOPICS)]


def test_each_of_many_claims_costs_as_much_as_one(world: World) -> None:
    """Each claim recorded the generations of all topics that were claimed at that time: hundreds of
    topics took a minute."""

    async def scenario() -> None:
        await world.end_the_first()
        world.store.read.clear()
        await world.heir.claim(TOPICS[0])
        of_one = len(world.store.read)
        world.store.read.clear()
        await asyncio.gather(*(started(world.heir.claim(each)).done for each in TOPICS[1:]))
        assert len(world.store.read) <= len(TOPICS[1:]) * of_one

    run(scenario())


def test_requests_that_wait_for_one_owner_ask_for_it_once(world: World) -> None:
    async def scenario() -> None:
        await world.end_the_first()
        await world.heir.claim(TOPICS[0])
        other = Node(world.store, world.tables, "s3")
        await other.ownership.refresh()
        world.store.read.clear()
        asked = [
            started(other.ownership.owner_of(TOPICS[0], is_forwarded=False, creates=False))
            for _ in range(20)
        ]
        owners = await asyncio.gather(*(each.done for each in asked))
        other.end()

        assert owners == [Owner("s2", "http://s2:1")] * 20
        assert world.store.read.count(("owners", "n", "t0")) == 1

    run(scenario())


def test_a_server_claims_what_was_given_to_it_even_if_others_have_fewer_topics(
    world: World,
) -> None:
    """It sent the requests to a lighter server, which refused them, since the owner record names
    this one: until their loads changed, nobody served the topic."""

    async def scenario() -> None:
        await world.ended.claim(TOPICS[0])
        for topic in TOPICS[1:]:
            await world.heir.claim(topic)
        for each in (world.heir, world.ended):
            await each.ownership.publish_load()
            await each.ownership.refresh()
        await world.ended.ownership.move(TOPICS[0], "s2")
        await world.heir.ownership.refresh()

        owner = await world.heir.ownership.owner_of(TOPICS[0], is_forwarded=False, creates=False)

        assert owner is None

    run(scenario())
    world.ended.end()


def test_a_generation_that_the_last_owner_did_not_record_is_recorded_by_the_next(
    world: World,
) -> None:
    persistence = TopicRecords(world.store)

    async def scenario() -> None:
        await world.end_the_first()
        world.heir.messages.generation_now = 2
        await world.heir.claim(TOPICS[0])

    run(scenario())

    stored = persistence.read_topic_persistence_info(TOPICS[0])
    assert stored is not None
    assert stored.value.generation == 2


def test_a_change_while_an_earlier_one_is_recorded_is_recorded_later(world: World) -> None:
    """The topic was deleted while its creation was being recorded."""
    persistence = TopicRecords(world.store)
    messages, ownership = world.heir.messages, world.heir.ownership

    async def scenario() -> None:
        await world.heir.claim(TOPICS[0])
        messages.generation_now = 2
        recording = started(ownership.note_change(TOPICS[0]))
        messages.generation_now = -2
        await recording.done
        await ownership.record_generations()

    run(scenario())

    stored = persistence.read_topic_persistence_info(TOPICS[0])
    assert stored is not None
    assert stored.value.generation == -2


def test_a_fence_that_failed_is_tried_again(world: World) -> None:
    async def scenario() -> None:
        await world.end_the_first()
        world.tables.failure_count = 1
        with pytest.raises(TuffError, match="HBase does not answer"):
            await world.heir.claim(TOPICS[0])
        await world.heir.claim(TOPICS[0])

    run(scenario())

    assert world.tables.fenced == [("s1", 1), ("s1", 1)]
    assert world.heir.messages.taken == [(TOPICS[0], FLOOR)]


def test_a_claim_goes_on_when_its_client_gives_up(world: World) -> None:
    """A poll ends with its connection. Its claim has written the owner record already, so the other
    servers would send everything here, where nobody serves the topic."""

    async def scenario() -> None:
        await world.end_the_first()
        world.tables.may_end.clear()
        poll = started(world.heir.claim(TOPICS[0]))
        assert await asyncio.to_thread(world.tables.has_begun.wait, WITHIN_S)
        poll.give_up()
        world.tables.may_end.set()
        await world.heir.messages.has_taken.wait()

    run(scenario())

    assert world.heir.messages.taken == [(TOPICS[0], FLOOR)]


def test_a_failure_after_the_client_gave_up_is_no_bug_in_the_log(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        await world.end_the_first()
        world.tables.failure_count = 1
        world.tables.may_end.clear()
        poll = started(world.heir.claim(TOPICS[0]))
        assert await asyncio.to_thread(world.tables.has_begun.wait, WITHIN_S)
        poll.give_up()
        world.tables.may_end.set()
        assert await asyncio.to_thread(world.tables.has_ended.wait, WITHIN_S)
        await world.heir.claim(TOPICS[0])

    run(scenario())

    assert [each.message for each in caplog.records if each.levelname == "ERROR"] == []


def test_a_server_that_is_registering_is_not_fenced_by_a_new_leader(world: World) -> None:
    world.ended.end()
    looking = CountingStore(world.store)
    looking.around_puts = world.heir.membership.fence_ended

    restarted = Node(looking, world.tables, "s1")

    assert restarted.identity.incarnation == 2
    assert world.tables.fenced == [("s1", 1)]
    restarted.end()
