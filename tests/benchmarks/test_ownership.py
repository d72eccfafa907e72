"""The race for topics notices a store that lets two servers win."""

from collections.abc import Iterator

import pytest

from benchmarks.ownership import Claimer, race, races, require_consistent
from metadata.store_interface import (
    Condition,
    Expected,
    Key,
    MetadataError,
    MetadataStore,
    NoEntryError,
    Session,
)
from tests.metadata.memory_store import MemoryMetadataStore
from tuff.protocol.ids import TopicId

TOPICS = [TopicId("bench", f"topic-{number}") for number in range(20)]


class Careless(MemoryMetadataStore):
    """It writes whichever version the entry has."""

    def put(
        self, key: Key, value: bytes, expected: Condition, *, session: Session | None = None
    ) -> int:
        try:
            return super().put(key, value, Expected.ANY, session=session)
        except NoEntryError:
            return super().put(key, value, Expected.NEW, session=session)


@pytest.fixture
def store() -> Iterator[MetadataStore]:
    store = MemoryMetadataStore()
    yield store
    store.close()


def claimers(store: MetadataStore) -> list[Claimer]:
    return [Claimer(f"s{index}", store) for index in range(4)]


def test_each_claim_of_a_race_has_one_winner(store: MetadataStore) -> None:
    found = race(claimers(store), TOPICS, contenders=3)

    assert found.winners.keys() == set(TOPICS)
    assert len({server for server, _ in found.winners.values()}) > 1
    assert found.lost == {"EntryExistsError": 40}


def test_the_topics_of_failed_servers_get_new_owners(store: MetadataStore) -> None:
    servers = claimers(store)

    lines = list(races(servers, TOPICS, contenders=4))

    assert [line.split()[0] for line in lines[1:]] == ["new", "failover"]
    require_consistent(store, servers, TOPICS)
    owners = [server.read(topic) for server in servers[:1] for topic in TOPICS]
    assert {owner.value.server_id for owner in owners if owner is not None} <= {"s1", "s3"}


def test_a_store_that_ignores_versions_is_noticed() -> None:
    store = Careless()

    with pytest.raises((AssertionError, MetadataError)):
        race(claimers(store), TOPICS, contenders=3)

    store.close()
