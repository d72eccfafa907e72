"""What each operation of the two managers does under each condition: one table for all."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from kernel.owner_floor import Floor
from metadata.store_interface import (
    BadVersionError,
    Condition,
    EntryExistsError,
    Expected,
    MetadataStore,
    NoEntryError,
    Versioned,
)
from metadata.topic_owner_records import (
    OwnerInfo,
    OwnerRecords,
)
from metadata.topic_records import (
    OwnerRange,
    PersistenceInfo,
    TopicRecords,
)
from tuff.protocol.ids import Offset, TopicId

ORDERS = TopicId("shop", "orders")
FLOOR = Floor(Offset(5, 6), cell_ms=7, longest_transaction_ms=8)


@dataclass(frozen=True)
class Operations:
    """One manager's record of one topic; `first` and `second` are two values."""

    first: Any
    second: Any
    read: Callable[[], Versioned[Any] | None]
    create: Callable[[Any], int]
    write: Callable[[Any, Condition], int]


def ownership(store: MetadataStore) -> Operations:
    manager = OwnerRecords(store)
    return Operations(
        first=OwnerInfo(server_id="s1", incarnation=1, floor=FLOOR),
        second=OwnerInfo(server_id=None, incarnation=2, floor=FLOOR),
        read=lambda: manager.read_owner_info(ORDERS),
        create=lambda value: manager.write_owner_info(ORDERS, value, Expected.NEW),
        write=lambda value, version: manager.write_owner_info(ORDERS, value, version),
    )


def persistence(store: MetadataStore) -> Operations:
    manager = TopicRecords(store)
    claimed = OwnerRange(epoch=1, server_id="s1", incarnation=1, start=Offset(5, 7))
    return Operations(
        first=PersistenceInfo(generation=1),
        second=PersistenceInfo(generation=-1, ranges=(claimed,)),
        read=lambda: manager.read_topic_persistence_info(ORDERS),
        create=lambda value: manager.write_topic_persistence_info(ORDERS, value, Expected.NEW),
        write=lambda value, version: manager.write_topic_persistence_info(ORDERS, value, version),
    )


MANAGERS = [ownership, persistence]

# (operation, condition, record) -> result, as in the design of the managers. A condition "version"
# is the version of the first record, which "older" records no longer have.
RESULTS = {
    ("create", "new", "missing"): "done",
    ("create", "new", "current"): "exists",
    ("write", "version", "missing"): "no record",
    ("write", "version", "current"): "done",
    ("write", "version", "older"): "bad version",
    ("write", "any", "missing"): "no record",
    ("write", "any", "current"): "done",
    ("write", "any", "older"): "done",
}


@pytest.mark.parametrize("manager", MANAGERS)
@pytest.mark.parametrize(("call", "result"), RESULTS.items(), ids="-".join)
def test_an_operation_has_the_result_of_the_table(
    store: MetadataStore,
    manager: Callable[[MetadataStore], Operations],
    call: tuple[str, str, str],
    result: str,
) -> None:
    operations = manager(store)
    operation, condition, record = call
    version = prepared(operations, record)
    before = operations.read()

    expected = {"new": Expected.NEW, "any": Expected.ANY, "version": version}[condition]
    calls: dict[str, Callable[[], object]] = {
        "create": lambda: operations.create(operations.second),
        "write": lambda: operations.write(operations.second, expected),
    }
    errors = {
        "exists": EntryExistsError,
        "no record": NoEntryError,
        "bad version": BadVersionError,
    }
    if result == "done":
        returned = calls[operation]()
        assert operations.read() == Versioned(operations.second, returned)
        assert returned is None or returned > version
    else:
        with pytest.raises(errors[result]):
            calls[operation]()
        assert operations.read() == before


@pytest.mark.parametrize("manager", MANAGERS)
def test_a_write_that_expects_no_record_creates_one_or_names_the_topic(
    store: MetadataStore, manager: Callable[[MetadataStore], Operations]
) -> None:
    operations = manager(store)

    operations.write(operations.first, Expected.NEW)

    with pytest.raises(EntryExistsError, match="shop/orders"):
        operations.write(operations.first, Expected.NEW)


def prepared(operations: Operations, record: str) -> int:
    """Make the record as a case wants it; returns the version that the case names."""
    if record == "missing":
        return 0  # no record ever has it
    version = operations.create(operations.first)
    if record == "older":
        operations.write(operations.first, version)
    return version
