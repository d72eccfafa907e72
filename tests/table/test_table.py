"""Reads, writes, scans, changes and rollbacks of a table."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from tests.table.conftest import OpenTable
from tests.table.service_model import Service
from tests.table.transactions import fill, read, transaction
from tuff.errors import WrongStateError
from tuff.exactly_once_subscriber import TablePositions
from tuff.protocol.errors import (
    RequestTooLargeError,
    StorageUnavailableError,
)
from tuff.protocol.ids import FIRST_ID, TopicId
from tuff.protocol.transaction import TransactionType, VisibilityLevel
from tuff.tables.leveldb_table import TransactionalTable
from tuff.tables.row_format import Version
from tuff.tables.versioned_table import VersionedTable


def test_get_returns_a_committed_row_or_none(service: Service, table: VersionedTable) -> None:
    fill(service, table, "apple")

    with transaction(service, table):
        assert table.get(b"apple") == b"apple"
        assert table.get(b"pear") is None


def test_rows_are_there_after_opening_again(
    open_table: OpenTable, service: Service, tmp_path: Path
) -> None:
    with open_table(tmp_path) as first:
        fill(service, first, "apple")
    with open_table(str(tmp_path)) as second:
        assert read(service, second) == [(b"apple", b"apple")]


def test_a_scan_returns_any_keys_in_order_without_its_stop(
    service: Service, table: VersionedTable
) -> None:
    keys = [b"", b"\x00", b"\x00\x00", b"\x00\x01", b"a", b"a\x00", b"a\x00b", b"ab", b"\xff\xff"]
    with transaction(service, table):
        for key in reversed(keys):
            table.put(key, b"v" + key)
        assert list(table.scan()) == [(key, b"v" + key) for key in keys]

    with transaction(service, table):
        assert list(table.scan()) == [(key, b"v" + key) for key in keys]
        assert [key for key, _ in table.scan(b"a", b"ab")] == [b"a", b"a\x00", b"a\x00b"]
        assert list(table.scan(b"b", b"a")) == []


def test_a_scan_leaves_out_the_rows_of_tuff(service: Service, table: VersionedTable) -> None:
    """The positions of a subscriber were among the rows of the program."""
    partition = TopicId("shop", "orders").partition(0)
    with transaction(service, table):
        TablePositions(table, "sales").save(partition, FIRST_ID, None)
        table.put(b"\x00tuff", b"a row of the program")
        assert list(table.scan()) == [(b"\x00tuff", b"a row of the program")]

    with transaction(service, table):
        assert list(table.scan(b"\x00", b"\x01")) == [(b"\x00tuff", b"a row of the program")]
        (row,) = table.scan(b"\x00tuff:", b"\x00tuff;")
        assert row[1] == FIRST_ID.to_bytes()


def test_a_transaction_reads_only_its_own_uncommitted_writes(
    service: Service, table: VersionedTable
) -> None:
    fill(service, table, "apple", "pear")

    with transaction(service, table):
        table.put(b"apple", b"mine")
        table.delete(b"pear")
        assert (table.get(b"apple"), table.get(b"pear")) == (b"mine", None)
        assert list(table.scan()) == [(b"apple", b"mine")]
        with transaction(service, table):
            assert list(table.scan()) == [(b"apple", b"apple"), (b"pear", b"pear")]


def test_a_transaction_keeps_its_snapshot_while_others_commit(
    service: Service, table: VersionedTable
) -> None:
    fill(service, table, "apple")

    with transaction(service, table):
        with transaction(service, table):
            table.put(b"apple", b"new")
            table.put(b"pear", b"new")

        assert list(table.scan()) == [(b"apple", b"apple")]


def test_a_rollback_removes_only_what_commit_tx_stored(
    service: Service, table: VersionedTable
) -> None:
    fill(service, table, "apple")
    started = service.start()
    table.start_tx(started)
    table.put(b"apple", b"never")
    table.put(b"pear", b"never")
    table.commit_tx(started)

    table.rollback_tx(started)
    table.rollback_tx(started)
    service.abort(started)

    assert read(service, table) == [(b"apple", b"apple")]


def test_another_process_can_roll_back_after_a_crash(
    open_table: OpenTable, service: Service, tmp_path: Path
) -> None:
    with open_table(tmp_path, buffer_bytes=1) as first:
        fill(service, first, "apple")
        started = service.start()
        first.start_tx(started)
        first.put(b"apple", b"never")
        changed = service.checkpoint(started)
        first.update_tx(changed)
        first.put(b"pear", b"never")

    with open_table(tmp_path) as second:
        second.start_tx(started)  # the value as it was before the checkpoint
        second.rollback_tx(started)
        service.abort(started)
        assert read(service, second) == [(b"apple", b"apple")]


def test_another_process_can_continue_a_transaction_and_undo_all_of_it(
    open_table: OpenTable, service: Service, tmp_path: Path
) -> None:
    started = service.start()
    with open_table(tmp_path) as first:
        first.start_tx(started)
        first.put(b"apple", b"1")
        first.commit_tx(started)
        changes = set(first.tx_changes(started))
    with open_table(tmp_path) as second:
        second.start_tx(started)
        assert second.get(b"apple") == b"1"
        second.put(b"pear", b"2")
        assert len(changes) == 1
        assert changes < set(second.tx_changes(started))
        second.commit_tx(started)
        second.rollback_tx(started)
        service.abort(started)
        assert read(service, second) == []


def test_a_change_is_the_id_of_the_table_and_the_key(
    open_table: OpenTable, service: Service, tmp_path: Path
) -> None:
    one = open_table(tmp_path / "a" / "stock", new_id=lambda: b"1" * 16)
    two = open_table(tmp_path / "b" / "stock", new_id=lambda: b"2" * 16)

    with one, two, transaction(service, one, two) as started:
        assert list(one.tx_changes(started)) == []
        one.put(b"apple", b"1")
        one.delete(b"pear")
        two.put(b"apple", b"1")

        assert set(one.tx_changes(started)) == {b"1" * 16 + b"apple", b"1" * 16 + b"pear"}
        assert set(two.tx_changes(started)) == {b"2" * 16 + b"apple"}


def test_a_table_keeps_its_first_id(
    open_table: OpenTable, service: Service, tmp_path: Path
) -> None:
    changes = []
    for number in (b"1", b"2"):
        with (
            open_table(tmp_path, new_id=lambda number=number: number * 16) as table,
            transaction(service, table) as started,
        ):
            table.put(b"a", b"")
            changes.append(set(table.tx_changes(started)))

    assert changes == [{b"1" * 16 + b"a"}] * 2


def test_a_long_transaction_has_one_change_for_all_writes(
    open_table: OpenTable, service: Service, tmp_path: Path
) -> None:
    with open_table(tmp_path, buffer_bytes=1, new_id=lambda: b"1" * 16) as table:
        started = service.start(TransactionType.LONG)
        table.start_tx(started)
        assert list(table.tx_changes(started)) == []
        table.put(b"apple", b"1")
        table.put(b"pear", b"1")

        assert list(table.tx_changes(started)) == [b"1" * 16]
        table.rollback_tx(started)


def test_a_checkpoint_keeps_earlier_writes_and_can_hide_later_ones(
    service: Service, table: VersionedTable
) -> None:
    with transaction(service, table) as started:
        table.put(b"apple", b"early")
        table.put(b"pear", b"early")
        later = service.checkpoint(started)
        table.update_tx(later)
        table.put(b"apple", b"late")
        table.delete(b"pear")

        assert list(table.scan()) == [(b"apple", b"late")]
        table.update_tx(replace(later, visibility_level=VisibilityLevel.SNAPSHOT_EXCLUDE_CURRENT))
        assert list(table.scan()) == [(b"apple", b"early"), (b"pear", b"early")]
        assert table.get(b"pear") == b"early"

    assert read(service, table) == [(b"apple", b"late")]


def test_a_scan_shows_no_later_writes(service: Service, table: VersionedTable) -> None:
    fill(service, table, *"abcd")

    with transaction(service, table):
        table.put(b"bb", b"mine")
        rows = table.scan()
        assert next(rows) == (b"a", b"a")
        table.put(b"c", b"late")
        table.delete(b"d")
        with transaction(service, table):
            table.put(b"b", b"others")

        assert [value for _, value in rows] == [b"b", b"mine", b"c", b"d"]


def test_an_unfinished_scan_does_not_delay_close(
    open_table: OpenTable, service: Service, tmp_path: Path
) -> None:
    table = open_table(tmp_path)
    fill(service, table, *"abc")
    table.start_tx(service.start())
    rows = table.scan()
    assert next(rows) == (b"a", b"a")

    table.close()
    table.close()

    with pytest.raises(WrongStateError, match="is closed"):
        list(rows)
    with pytest.raises(WrongStateError, match="is closed"):
        table.get(b"a")


@pytest.mark.parametrize("path", ["", "sub/sub"])
def test_a_directory_has_one_owner(tmp_path: Path, path: str) -> None:
    with (
        TransactionalTable(tmp_path / path),
        pytest.raises(StorageUnavailableError, match="already open"),
    ):
        TransactionalTable(tmp_path / path)
    TransactionalTable(tmp_path / path).close()


def test_keys_and_values_are_bytes_of_bounded_size(service: Service, table: VersionedTable) -> None:
    key_bytes_max = table._store.key_bytes_max
    with transaction(service, table):
        with pytest.raises(TypeError, match="encode"):
            table.put("apple", b"1")  # type: ignore[arg-type] # what a program may do
        with pytest.raises(TypeError, match="encode"):
            table.put(b"apple", "1")  # type: ignore[arg-type] # what a program may do
        with pytest.raises(TypeError, match="encode"):
            table.scan("a")  # type: ignore[arg-type] # what a program may do
        with pytest.raises(RequestTooLargeError, match=f"{key_bytes_max + 1}"):
            table.get(b"k" * (key_bytes_max + 1))
        with pytest.raises(RequestTooLargeError):
            table.put(b"k", bytes(table._store.value_bytes_max + 1))
        table.put(b"k" * key_bytes_max, b"")
        assert table.get(b"k" * key_bytes_max) == b""

    assert read(service, table) == [(b"k" * key_bytes_max, b"")]


def test_a_long_transaction_can_not_write_after_tx_changes(
    service: Service, table: VersionedTable
) -> None:
    """It had no changes, so it would commit as read-only."""
    started = service.start(TransactionType.LONG)
    table.start_tx(started)
    assert table.tx_changes(started) == frozenset()
    table.put(b"late", b"")

    with pytest.raises(WrongStateError, match=r"b'late' of .* too late to be checked"):
        table.commit_tx(started)


def test_a_commit_on_a_closed_table_raises(
    open_table: OpenTable, service: Service, tmp_path: Path
) -> None:
    table = open_table(tmp_path / "closed")
    started = service.start()
    table.start_tx(started)
    table.put(b"a", b"")
    table.close()

    with pytest.raises(WrongStateError, match=r"table .* is closed"):
        table.commit_tx(started)


def test_writes_beyond_the_buffer_are_stored_early(
    open_table: OpenTable, service: Service, tmp_path: Path
) -> None:
    with open_table(tmp_path / "small", buffer_bytes=1_000) as table:
        writer = service.start()
        table.start_tx(writer)
        table.put(b"a", b"x" * 500)
        assert list(table._store.keys_of(writer.transaction_id)) == []
        table.put(b"b", b"x" * 500)
        assert list(table._store.keys_of(writer.transaction_id)) == [b"a", b"b"]
        table.rollback_tx(writer)


def test_a_damaged_older_version_does_not_affect_readers(
    service: Service, table: VersionedTable
) -> None:
    first = service.start()
    service.commit(first)
    fill(service, table, "apple")
    old = Version(b"apple", first.write_pointer).stored_key
    table._store._database.write([(old, b"damaged")])

    assert read(service, table) == [(b"apple", b"apple")]


def test_close_waits_for_a_write_in_flight(tmp_path: Path) -> None:
    table = TransactionalTable(tmp_path / "table")
    store = table._store._database
    closing = Thread(target=table.close)

    def rows() -> Iterator[tuple[bytes, bytes | None]]:
        closing.start()
        while not store._database.calls.is_closing:
            pass
        closing.join(0)
        assert closing.is_alive()
        yield b"r", b"x"

    store.write(rows())  # type: ignore[arg-type] # whose rows are made while it runs
    closing.join()


def test_a_repeated_rollback_does_not_use_the_store(
    open_table: OpenTable, service: Service, tmp_path: Path
) -> None:
    table = open_table(tmp_path / "table")
    started = service.start()
    table.start_tx(started)
    table.put(b"a", b"")
    table.rollback_tx(started)
    table.close()

    table.rollback_tx(started)


@pytest.mark.parametrize("has_views", [True, False])
def test_without_views_no_writes_are_stored_early_during_a_scan(
    open_table: OpenTable,
    service: Service,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    has_views: bool,
) -> None:
    """The scan would show them, and a scan shows no later writes."""
    with open_table(tmp_path / "small", buffer_bytes=1) as table:
        monkeypatch.setattr(type(table._store), "has_views", has_views)
        writer = service.start()
        table.start_tx(writer)
        table.put(b"a", b"early")
        rows = table.scan()
        table.put(b"b", b"late")
        while_scanning = list(table._store.keys_of(writer.transaction_id))

        assert list(rows) == [(b"a", b"early")]

        table.put(b"c", b"")
        assert while_scanning == ([b"a", b"b"] if has_views else [b"a"])
        assert list(table._store.keys_of(writer.transaction_id)) == [b"a", b"b", b"c"]
        table.rollback_tx(writer)
