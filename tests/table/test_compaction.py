"""Which versions a compaction removes, and which it keeps."""

import resource
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import Context
from pathlib import Path
from threading import Event, Thread

import pytest

from tests.table.conftest import OpenTable
from tests.table.crash_copy import copy_as_crashed
from tests.table.service_model import Service
from tests.table.transactions import left_invalid, read, write
from tuff.errors import WrongStateError
from tuff.protocol.errors import (
    BadRequestError,
    StorageUnavailableError,
    TransactionNotInProgressError,
)
from tuff.tables.compaction import droppable
from tuff.tables.leveldb_database import TableDatabase, WriteBatch
from tuff.tables.leveldb_table import TransactionalTable
from tuff.tables.versioned_table import VersionedTable
from tuff_storage.leveldb.scan import Rows


def stored(table: VersionedTable, kind: bytes = b"r") -> list[bytes]:
    """The stored keys that begin with a byte."""
    store = table._store._database
    return [key for key, _ in store.scan(kind, bytes((kind[0] + 1,)))]


@contextmanager
def copies_before_each_write(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Path]]:
    """Copies of the directory `table` before each batch, as a crash would leave it."""
    copies: list[Path] = []
    real = TableDatabase.write

    def copying(store: TableDatabase, batch: WriteBatch) -> None:
        copies.append(home / f"copy-{len(copies)}")
        copy_as_crashed(home / "table", copies[-1])
        real(store, batch)

    with monkeypatch.context() as patch:
        patch.setattr(TableDatabase, "write", copying)
        yield copies


@pytest.mark.parametrize(
    ("versions", "invalids", "dropped"),
    [
        ([], [], []),
        ([(5, False)], [], []),
        ([(5, True)], [], [5]),
        ([(5, False), (4, False), (3, True)], [], [3, 4]),
        ([(5, True), (4, False)], [], [4, 5]),
        ([(8, False), (5, False), (4, False)], [], [4]),
        ([(8, True), (7, False), (5, True), (4, False)], [], [4, 5]),
        ([(8, False), (7, False)], [], []),
        ([(5, False), (4, False)], [5], [5]),
        ([(8, False), (5, True), (4, False), (3, False)], [5, 8], [3, 5, 8]),
    ],
)
def test_droppable_versions(
    versions: list[tuple[int, bool]], invalids: Sequence[int], dropped: list[int]
) -> None:
    assert droppable(versions, bound=6, invalids=invalids) == dropped


def test_without_open_transactions_only_the_newest_version_is_left(
    service: Service, table: VersionedTable
) -> None:
    for number in range(5):
        write(service, table, a=b"%d" % number, b=b"%d" % number)
    write(service, table, b=None)
    assert len(stored(table)) == 11

    assert table.compact(service) == []

    assert service.open == {}
    assert len(stored(table)) == 1
    assert stored(table, b"u") == []
    assert dict(read(service, table)) == {b"a": b"4"}


@pytest.mark.parametrize("joins_early", [True, False])
@pytest.mark.parametrize("writer_starts_first", [True, False])
def test_a_compaction_keeps_the_snapshot_of_an_open_transaction(
    service: Service, table: VersionedTable, writer_starts_first: bool, joins_early: bool
) -> None:
    write(service, table, a=b"old")
    if writer_starts_first:
        writer, reader = service.start(), service.start()
    else:
        reader, writer = service.start(), service.start()
    context = Context()
    if joins_early:
        context.run(table.start_tx, reader)
    table.start_tx(writer)
    table.put(b"a", b"new")
    table.commit_tx(writer)
    service.commit(writer)
    table.post_commit(writer)

    table.compact(service)

    if not joins_early:
        context.run(table.start_tx, reader)
    assert context.run(table.get, b"a") == b"old"
    assert dict(read(service, table)) == {b"a": b"new"}


def test_compaction_removes_invalid_versions_and_returns_their_pointers(
    service: Service, table: VersionedTable
) -> None:
    write(service, table, a=b"1")
    lost = left_invalid(service, table, b"a")
    elsewhere = service.start()
    service.invalidate(elsewhere)

    returned = table.compact(service)

    assert returned == [lost.transaction_id, elsewhere.transaction_id]
    service.truncate(returned)
    assert dict(read(service, table)) == {b"a": b"1"}
    assert len(stored(table)) == 1


def test_after_a_compaction_an_ended_transaction_can_neither_read_nor_write(
    open_table: OpenTable, service: Service, tmp_path: Path
) -> None:
    """Its pointer may have left the invalid list, so that its writes would be visible."""
    table = open_table(tmp_path / "table")
    late = service.start()
    table.start_tx(late)
    table.put(b"a", b"late")
    service.invalidate(late)
    service.truncate(table.compact(service))

    with pytest.raises(TransactionNotInProgressError, match="start another"):
        table.get(b"b")
    with pytest.raises(TransactionNotInProgressError, match="start another"):
        table.commit_tx(late)
    table.rollback_tx(late)
    table.close()

    with open_table(tmp_path / "table") as again:
        again.start_tx(late)
        again.put(b"a", b"late")
        with pytest.raises(TransactionNotInProgressError, match="start another"):
            again.commit_tx(late)
        again.rollback_tx(late)
        assert dict(read(service, again)) == {}


def test_a_read_during_a_compaction_is_refused_or_complete(
    service: Service, table: VersionedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(service, table, a=b"old")
    ended = service.start()
    write(service, table, a=b"new")
    reader = Context()
    reader.run(table.start_tx, ended)
    service.invalidate(ended)
    scan_really = TableDatabase.scan

    def scan(store: TableDatabase, start: bytes, stop: bytes) -> Rows:
        monkeypatch.undo()
        table.compact(service)
        return scan_really(store, start, stop)

    monkeypatch.setattr(TableDatabase, "scan", scan)

    # Without the check the row was missing, since no visible version of it was left.
    with pytest.raises(TransactionNotInProgressError, match="start another"):
        reader.run(table.get, b"a")


def test_an_open_scan_returns_versions_that_a_compaction_removes(
    service: Service, table: VersionedTable
) -> None:
    for name in ("a", "b", "c"):
        write(service, table, **{name: b"old"})
    early = service.start()
    for name in ("a", "b", "c"):
        write(service, table, **{name: b"new"})
    reader = Context()
    reader.run(table.start_tx, early)
    rows = reader.run(table.scan)
    first = reader.run(next, rows)
    service.invalidate(early)

    table.compact(service)

    assert first == (b"a", b"old")
    assert reader.run(list, rows) == [(b"b", b"old"), (b"c", b"old")]


def test_a_compaction_waits_for_writes_in_flight(
    service: Service, table: VersionedTable, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = service.start()
    begun, go_on = Event(), Event()
    write_really, gate = TableDatabase.write, table._store._gate
    wait_really = gate.wait_for

    def slow(store: TableDatabase, batch: WriteBatch) -> None:
        if any(key.startswith(b"ra") and value is not None for key, value in batch):
            begun.set()
            assert go_on.wait(10)
        write_really(store, batch)

    def wait(until: Callable[[], bool]) -> bool:
        go_on.set()
        return wait_really(until)

    def work() -> None:
        table.start_tx(late)
        table.put(b"a", b"late")
        table.commit_tx(late)

    monkeypatch.setattr(TableDatabase, "write", slow)
    monkeypatch.setattr(gate, "wait_for", wait)
    writer = Thread(target=work)
    writer.start()
    assert begun.wait(10)
    service.invalidate(late)

    returned = table.compact(service)
    go_on.set()
    writer.join()

    assert returned == [late.transaction_id]
    assert stored(table) == []


def test_a_compaction_refuses_transactions_of_another_server(
    service: Service, table: VersionedTable
) -> None:
    for _ in range(3):
        service.commit(service.start())
    table.compact(service)

    with pytest.raises(BadRequestError, match="own server"):
        table.compact(Service())


@pytest.mark.parametrize("has_reader", [True, False])
def test_a_crash_during_a_compaction_changes_no_read(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_reader: bool
) -> None:
    monkeypatch.setattr("tuff.tables.leveldb_table.BATCH_ROWS", 1)
    table = TransactionalTable(tmp_path / "table")
    write(service, table, a=b"1", b=b"1", c=b"1")
    reader = service.start()
    write(service, table, a=b"2", b=None)
    left_invalid(service, table, b"c")
    if not has_reader:
        service.commit(reader)

    with copies_before_each_write(tmp_path, monkeypatch) as copies:
        table.compact(service)
    table.close()

    # One for the metadata row, and one for each version or undo row that is removed.
    assert len(copies) == (3 if has_reader else 6)
    for copy in copies:
        with TransactionalTable(copy) as crashed:
            if has_reader:
                crashed.start_tx(reader)
                assert dict(crashed.scan()) == {b"a": b"1", b"b": b"1", b"c": b"1"}
            assert dict(read(service, crashed)) == {b"a": b"2", b"c": b"1"}


def test_a_rollback_can_be_repeated_after_a_crash(
    service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = TransactionalTable(tmp_path / "table", buffer_bytes=1)
    write(service, table, a=b"1")
    doomed = service.start()
    table.start_tx(doomed)
    for key in (b"a", b"b", b"c"):
        table.put(key, b"never")
    with copies_before_each_write(tmp_path, monkeypatch) as copies:
        table.rollback_tx(doomed)
    table.close()

    assert len(copies) == 3
    for copy in copies:
        with TransactionalTable(copy) as crashed:
            crashed.start_tx(doomed)
            crashed.rollback_tx(doomed)
            assert len(stored(crashed)) == 1
            assert stored(crashed, b"u") == []


@contextmanager
def full_disk(home: Path) -> Iterator[None]:
    """No file of this process may grow beyond the size of the table's log."""
    size = max(path.stat().st_size for path in home.glob("*.log"))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_rollback_after_a_failed_write_raises(service: Service, tmp_path: Path) -> None:
    """The batch may reappear from LevelDB's log, so an abort would make it visible."""
    home = tmp_path / "table"
    table = TransactionalTable(home)
    write(service, table, a=b"1")
    doomed = service.start()
    table.start_tx(doomed)
    table.put(b"a", b"never")

    with full_disk(home), pytest.raises(StorageUnavailableError, match="failed"):
        table.commit_tx(doomed)
    for _ in range(2):
        with pytest.raises(StorageUnavailableError, match="opened again"):
            table.rollback_tx(doomed)
    table.start_tx(doomed)  # as a program does that starts it again to roll it back
    with pytest.raises(StorageUnavailableError, match="opened again"):
        table.rollback_tx(doomed)
    service.invalidate(doomed)
    with pytest.raises(WrongStateError, match="no transaction"):
        table.put(b"a", b"lost")
    assert dict(read(service, table)) == {b"a": b"1"}
    table.close()

    with TransactionalTable(home) as again:
        assert dict(read(service, again)) == {b"a": b"1"}
