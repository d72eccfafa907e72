"""Owner records and floors. The table of results is in test_managers.py."""

import pytest

from kernel.owner_floor import Floor
from metadata.store_interface import (
    Condition,
    DamagedEntryError,
    Expected,
    Key,
    MetadataStore,
    MetadataUnavailableError,
    Versioned,
)
from metadata.topic_owner_records import OwnerInfo, OwnerRecords
from tuff.protocol.ids import Offset, TopicId

ORDERS = TopicId("shop", "orders")
RETURNS = TopicId("shop", "returns")
FLOOR = Floor(Offset(5, 6), cell_ms=7, longest_transaction_ms=8)
OWNED = OwnerInfo(server_id="s1", incarnation=3, floor=FLOOR)
RELEASED = OwnerInfo(server_id=None, incarnation=4, floor=FLOOR)


def test_an_owner_record_has_these_bytes(store: MetadataStore) -> None:
    OwnerRecords(store).write_owner_info(ORDERS, RELEASED, Expected.NEW)

    found = store.get(("owners", "shop", "orders"))
    assert found is not None
    assert found.value == (
        b'{"cell_ms":7,"format":1,"incarnation":4,"longest_transaction_ms":8,"offset_ms":5,"offset_seq":6,"server_id":null}'
    )


def test_a_scan_has_the_record_of_each_topic(store: MetadataStore) -> None:
    manager = OwnerRecords(store)
    first = manager.write_owner_info(ORDERS, OWNED, Expected.NEW)
    second = manager.write_owner_info(RETURNS, RELEASED, Expected.NEW)

    assert dict(manager.scan()) == {
        ORDERS: Versioned(OWNED, first),
        RETURNS: Versioned(RELEASED, second),
    }


def test_topics_whose_removal_has_an_unknown_outcome_are_taken(
    store: MetadataStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    manager, put = OwnerRecords(store), store.put
    manager.note_released("s1", [ORDERS])

    def put_and_lose_the_reply(key: Key, value: bytes, expected: Condition) -> int:
        put(key, value, expected)
        raise MetadataUnavailableError("no answer")

    monkeypatch.setattr(store, "put", put_and_lose_the_reply)

    assert manager.take_released("s1") == [ORDERS]
    assert manager.take_released("s1") == []


def test_a_scan_without_records_is_empty(store: MetadataStore) -> None:
    assert list(OwnerRecords(store).scan()) == []


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "Expecting value"),
        (b"\xff", "can't decode"),
        (b"[]", "the value is not an object"),
        (b"[" * 100_000, "recursion"),
        (b"{}", "format is missing"),
        (b'{"format":true}', "format is not an integer"),
        (b'{"format":2}', "its format is 2, and this version reads 1"),
        (b'{"format":1}', "server_id is missing"),
        (b'{"format":1,"server_id":1}', "server_id is not text"),
        (b'{"format":1,"server_id":null,"incarnation":1.0}', "incarnation is not an integer"),
        (
            b'{"cell_ms":7,"format":1,"incarnation":4,"longest_transaction_ms":8,"offset_ms":5,"offset_seq":65536,'
            b'"server_id":null}',
            r"seq_id=65536.* is out of range",
        ),
    ],
)
def test_an_unreadable_owner_record_is_reported_with_its_key(
    store: MetadataStore, data: bytes, reason: str
) -> None:
    store.put(("owners", "shop", "orders"), data, Expected.NEW)
    manager = OwnerRecords(store)

    with pytest.raises(DamagedEntryError, match=f"owner record .* owners/shop/orders .*{reason}"):
        manager.read_owner_info(ORDERS)
    with pytest.raises(DamagedEntryError, match="owners/shop/orders"):
        list(manager.scan())


def test_an_unreadable_owner_record_can_be_replaced(store: MetadataStore) -> None:
    store.put(("owners", "shop", "orders"), b"?", Expected.NEW)
    manager = OwnerRecords(store)

    version = manager.write_owner_info(ORDERS, OWNED, Expected.ANY)

    assert manager.read_owner_info(ORDERS) == Versioned(OWNED, version)


@pytest.mark.parametrize(
    "key", [("owners", "shop"), ("owners", "a", "b", "c"), ("owners", "a", "!")]
)
def test_a_key_that_names_no_topic_is_reported(store: MetadataStore, key: tuple[str, ...]) -> None:
    store.put(key, b"", Expected.NEW)

    with pytest.raises(DamagedEntryError, match="names no topic"):
        list(OwnerRecords(store).scan())


def test_a_raised_floor_has_the_higher_offset_and_the_higher_cell_timestamp() -> None:
    one = Floor(Offset(5, 9), cell_ms=3, longest_transaction_ms=8)
    other = Floor(Offset(6, 2), cell_ms=1, longest_transaction_ms=8)

    assert one.raised_to(other) == Floor(Offset(6, 2), cell_ms=3, longest_transaction_ms=8)
    assert other.raised_to(one) == Floor(Offset(6, 2), cell_ms=3, longest_transaction_ms=8)


def test_within_a_millisecond_the_higher_sequence_id_is_the_higher_offset() -> None:
    one = Floor(Offset(5, 9), cell_ms=3, longest_transaction_ms=8)
    other = Floor(Offset(5, 2), cell_ms=4, longest_transaction_ms=8)

    assert one.raised_to(other) == Floor(Offset(5, 9), cell_ms=4, longest_transaction_ms=8)


@pytest.mark.parametrize(
    ("offset", "cell_ms", "longest_transaction_ms"),
    [
        (Offset(-1, 0), 0, 0),
        (Offset(1 << 64, 0), 0, 0),
        (Offset(0, -1), 0, 0),
        (Offset(0, 65_536), 0, 0),
        (Offset(0, 0), -1, 0),
        (Offset(0, 0), 1 << 64, 0),
        (Offset(0, 0), 0, -1),
        (Offset(0, 0), 0, 1 << 64),
    ],
)
def test_a_floor_out_of_range_is_refused(
    offset: Offset, cell_ms: int, longest_transaction_ms: int
) -> None:
    with pytest.raises(ValueError, match="is out of range"):
        Floor(offset, cell_ms, longest_transaction_ms)
