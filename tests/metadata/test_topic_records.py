"""Persistence records. The table of results is in test_managers.py."""

from dataclasses import replace

import pytest

from metadata.store_interface import DamagedEntryError, Expected, MetadataStore, Versioned
from metadata.topic_records import (
    RANGES_MAX,
    OwnerRange,
    PersistenceInfo,
    StaleClaimError,
    TopicRecords,
)
from tuff.protocol.ids import Offset, TopicId

ORDERS = TopicId("shop", "orders")
FIRST = OwnerRange(epoch=4, server_id="s1", incarnation=1, start=Offset(10, 0))
SECOND = OwnerRange(epoch=6, server_id="s2", incarnation=9, start=Offset(10, 7))
OF_TWO = PersistenceInfo(generation=1, ranges=(FIRST, SECOND))


def test_a_persistence_record_has_these_bytes(store: MetadataStore) -> None:
    TopicRecords(store).write_topic_persistence_info(ORDERS, OF_TWO, Expected.NEW)

    found = store.get(("persistence", "shop", "orders"))
    assert found is not None
    assert found.value == (
        b'{"format":1,"generation":1,"ranges":['
        b'{"epoch":4,"incarnation":1,"server_id":"s1","start_ms":10,"start_seq":0},'
        b'{"epoch":6,"incarnation":9,"server_id":"s2","start_ms":10,"start_seq":7}]}'
    )


def test_a_claim_adds_a_range() -> None:
    assert PersistenceInfo(generation=1, ranges=(FIRST,)).with_claim(SECOND) == OF_TWO


def test_only_the_newest_ranges_are_kept() -> None:
    info = PersistenceInfo(generation=1)

    for epoch in range(RANGES_MAX + 2):
        info = info.with_claim(replace(FIRST, epoch=epoch))

    assert [each.epoch for each in info.ranges] == list(range(2, RANGES_MAX + 2))


def test_an_owner_that_wrote_nothing_leaves_its_start_to_its_successor() -> None:
    successor = replace(SECOND, start=FIRST.start)

    assert PersistenceInfo(generation=1, ranges=(FIRST,)).with_claim(successor).ranges == (
        FIRST,
        successor,
    )


@pytest.mark.parametrize(
    ("claimed", "reason"),
    [
        (replace(SECOND, start=Offset(9, 9)), r"the start \(9, 9\) follows the start \(10, 0\)"),
        (replace(SECOND, start=Offset(10, 65_536)), r"\(10, 65536\) is not an offset"),
        (replace(SECOND, start=Offset(-1, 0)), r"\(-1, 0\) is not an offset"),
    ],
)
def test_starts_are_offsets_and_do_not_fall(claimed: OwnerRange, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        PersistenceInfo(generation=1, ranges=(FIRST,)).with_claim(claimed)
    with pytest.raises(ValueError, match=reason):
        PersistenceInfo(generation=1, ranges=(FIRST, claimed))


@pytest.mark.parametrize("epoch", [3, 4])
def test_epochs_rise(epoch: int) -> None:
    with pytest.raises(ValueError, match=f"the epoch {epoch} follows the epoch 4"):
        PersistenceInfo(generation=1, ranges=(FIRST, replace(SECOND, epoch=epoch)))


@pytest.mark.parametrize("epoch", [3, 4])
def test_a_claim_is_refused_after_a_later_one(epoch: int) -> None:
    with pytest.raises(StaleClaimError, match=f"epoch {epoch} is behind .* s1 with the epoch 4"):
        PersistenceInfo(generation=1, ranges=(FIRST,)).with_claim(replace(SECOND, epoch=epoch))


def test_a_claim_is_repeated_without_harm() -> None:
    assert OF_TWO.with_claim(SECOND) == OF_TWO


def test_a_claim_is_compared_with_the_newest_range_also_when_the_oldest_is_dropped() -> None:
    ranges = tuple(replace(FIRST, epoch=epoch) for epoch in range(RANGES_MAX))
    info = PersistenceInfo(generation=1, ranges=ranges)

    with pytest.raises(StaleClaimError):
        info.with_claim(replace(SECOND, epoch=31))
    with pytest.raises(ValueError, match="the start"):
        info.with_claim(replace(FIRST, epoch=32, start=Offset(9, 0)))


def test_too_many_ranges_are_refused() -> None:
    ranges = tuple(replace(FIRST, epoch=epoch) for epoch in range(RANGES_MAX + 1))

    with pytest.raises(ValueError, match="33 ranges are more than 32"):
        PersistenceInfo(generation=1, ranges=ranges)


@pytest.mark.parametrize("generation", [1 << 31, -(1 << 31)])
def test_a_generation_that_no_topic_row_can_have_is_refused(generation: int) -> None:
    with pytest.raises(ValueError, match="more than 32 bits"):
        PersistenceInfo(generation=generation)


def test_the_names_of_a_namespace_are_those_of_its_existing_topics(store: MetadataStore) -> None:
    manager = TopicRecords(store)
    for topic, generation in [
        (TopicId("shop", "orders"), 1),
        (TopicId("shop", "a.b"), 2),
        (TopicId("shop", "deleted"), -3),
        (TopicId("shop", "claimed-only"), 0),
        (TopicId("shop2", "other"), 1),
    ]:
        info = PersistenceInfo(generation=generation)
        manager.write_topic_persistence_info(topic, info, Expected.NEW)

    assert [each.name for each in manager.live("shop")] == ["a.b", "orders"]
    assert [each.name for each in manager.live("shop2")] == ["other"]
    assert manager.live("none") == []
    assert {each.namespace for each in manager.live(None)} == {"shop", "shop2"}


def test_a_scan_has_every_topic_also_deleted_ones(store: MetadataStore) -> None:
    manager = TopicRecords(store)
    deleted = PersistenceInfo(generation=-1)
    first = manager.write_topic_persistence_info(ORDERS, OF_TWO, Expected.NEW)
    second = manager.write_topic_persistence_info(TopicId("shop2", "x"), deleted, Expected.NEW)

    assert dict(manager.scan()) == {
        ORDERS: Versioned(OF_TWO, first),
        TopicId("shop2", "x"): Versioned(deleted, second),
    }


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b'{"format":1,"generation":1,"ranges":{}}', "ranges is not a list"),
        (b'{"format":1,"generation":1,"ranges":[1]}', "a member of ranges is not an object"),
        (b'{"format":1,"generation":1,"ranges":[{}]}', "epoch is missing"),
        (b'{"format":1,"generation":2147483648,"ranges":[]}', "more than 32 bits"),
    ],
)
def test_an_unreadable_persistence_record_is_reported_with_its_key(
    store: MetadataStore, data: bytes, reason: str
) -> None:
    store.put(("persistence", "shop", "orders"), data, Expected.NEW)

    with pytest.raises(DamagedEntryError, match=f"persistence/shop/orders .*{reason}"):
        TopicRecords(store).read_topic_persistence_info(ORDERS)
