"""What a program can rely on that keeps rows in a `TransactionalTable`."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from dataclasses import replace
from pathlib import Path
from threading import Thread

import pytest

from tests.table.service import Service
from tuff.protocol.errors import (
    BadRequestError,
    RequestTooLargeError,
    StorageUnavailableError,
)
from tuff.protocol.transaction import Transaction, TransactionType, VisibilityLevel
from tuff.table import KEY_BYTES_MAX, NESTED_COUNT_MAX, VALUE_BYTES_MAX, TransactionalTable


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[TransactionalTable]:
    with TransactionalTable(tmp_path / "stock") as made:
        yield made


@contextmanager
def transaction(service: Service, *tables: TransactionalTable) -> Iterator[Transaction]:
    """What a TransactionContext does."""
    started = service.start()
    for table in tables:
        table.start_tx(started)
    try:
        yield started
    except BaseException:
        for table in tables:
            table.rollback_tx()
        service.abort(started)
        raise
    for table in tables:
        table.commit_tx()
    service.commit(started)
    for table in tables:
        table.post_commit()


def fill(service: Service, table: TransactionalTable, *names: str) -> None:
    """Each name as a row with itself as its value."""
    with transaction(service, table):
        for name in names:
            table.put(name.encode(), name.encode())


def read(service: Service, table: TransactionalTable) -> list[tuple[bytes, bytes]]:
    with transaction(service, table):
        return list(table.scan())


def put_and_fail(
    service: Service, table: TransactionalTable, key: bytes, *, times: int = 1
) -> None:
    def work() -> None:
        with transaction(service, *([table] * times)):
            table.put(key, b"never")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()


def test_a_committed_row_is_there_and_any_other_is_none(
    service: Service, table: TransactionalTable
) -> None:
    fill(service, table, "apple")

    with transaction(service, table):
        assert table.get(b"apple") == b"apple"
        assert table.get(b"pear") is None


def test_rows_outlive_the_object_that_wrote_them(service: Service, tmp_path: Path) -> None:
    with TransactionalTable(tmp_path) as first:
        fill(service, first, "apple")
    with TransactionalTable(str(tmp_path)) as second:
        assert read(service, second) == [(b"apple", b"apple")]


def test_a_scan_is_in_key_order_half_open_and_knows_every_kind_of_key(
    service: Service, table: TransactionalTable
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


def test_a_transaction_reads_its_own_writes_and_nobody_elses(
    service: Service, table: TransactionalTable
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
    service: Service, table: TransactionalTable
) -> None:
    fill(service, table, "apple")

    with transaction(service, table):
        with transaction(service, table):
            table.put(b"apple", b"new")
            table.put(b"pear", b"new")

        assert list(table.scan()) == [(b"apple", b"apple")]


def test_a_rolled_back_transaction_leaves_nothing(
    service: Service, table: TransactionalTable
) -> None:
    fill(service, table, "apple")
    put_and_fail(service, table, b"apple")

    assert read(service, table) == [(b"apple", b"apple")]


def test_a_rollback_takes_back_what_commit_tx_wrote_and_no_more(
    service: Service, table: TransactionalTable
) -> None:
    fill(service, table, "apple")
    started = service.start()
    table.start_tx(started)
    table.put(b"apple", b"never")
    table.put(b"pear", b"never")
    table.commit_tx()

    table.rollback_tx()
    table.rollback_tx()
    service.abort(started)

    assert read(service, table) == [(b"apple", b"apple")]


def test_another_process_rolls_back_what_a_crash_left(service: Service, tmp_path: Path) -> None:
    with TransactionalTable(tmp_path, buffer_bytes=1) as first:
        fill(service, first, "apple")
        started = service.start()
        first.start_tx(started)
        first.put(b"apple", b"never")
        changed = service.checkpoint(started)
        first.update_tx(changed)
        first.put(b"pear", b"never")

    with TransactionalTable(tmp_path) as second:
        second.start_tx(started)  # the value as it was before the checkpoint
        second.rollback_tx()
        service.abort(started)
        assert read(service, second) == [(b"apple", b"apple")]


def test_another_process_goes_on_and_can_still_undo_everything(
    service: Service, tmp_path: Path
) -> None:
    started = service.start()
    with TransactionalTable(tmp_path) as first:
        first.start_tx(started)
        first.put(b"apple", b"1")
        first.commit_tx()
        changes = set(first.tx_changes())
    with TransactionalTable(tmp_path) as second:
        second.start_tx(started)
        assert second.get(b"apple") == b"1"
        second.put(b"pear", b"2")
        assert len(changes) == 1
        assert changes < set(second.tx_changes())
        second.commit_tx()
        second.rollback_tx()
        service.abort(started)
        assert read(service, second) == []


def test_changes_tell_rows_and_tables_apart(service: Service, tmp_path: Path) -> None:
    one = TransactionalTable(tmp_path / "a" / "stock", new_id=lambda: b"1" * 16)
    two = TransactionalTable(tmp_path / "b" / "stock", new_id=lambda: b"2" * 16)

    with one, two, transaction(service, one, two):
        assert list(one.tx_changes()) == []
        one.put(b"apple", b"1")
        one.delete(b"pear")
        two.put(b"apple", b"1")

        assert set(one.tx_changes()) == {b"1" * 16 + b"apple", b"1" * 16 + b"pear"}
        assert set(two.tx_changes()) == {b"2" * 16 + b"apple"}


def test_a_table_is_given_its_id_once(service: Service, tmp_path: Path) -> None:
    changes = []
    for number in (b"1", b"2"):
        with (
            TransactionalTable(tmp_path, new_id=lambda number=number: number * 16) as table,
            transaction(service, table),
        ):
            table.put(b"a", b"")
            changes.append(set(table.tx_changes()))

    assert changes == [{b"1" * 16 + b"a"}] * 2


def test_a_long_transaction_names_one_change_however_much_it_wrote(
    service: Service, tmp_path: Path
) -> None:
    with TransactionalTable(tmp_path, buffer_bytes=1, new_id=lambda: b"1" * 16) as table:
        started = service.start(TransactionType.LONG)
        table.start_tx(started)
        assert list(table.tx_changes()) == []
        table.put(b"apple", b"1")
        table.put(b"pear", b"1")

        assert list(table.tx_changes()) == [b"1" * 16]
        table.rollback_tx()


def test_a_checkpoint_keeps_earlier_writes_and_can_hide_later_ones(
    service: Service, table: TransactionalTable
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


@pytest.mark.parametrize("call", ["get", "delete", "scan", "put"])
def test_outside_of_a_transaction_a_call_is_refused(
    service: Service, table: TransactionalTable, call: str
) -> None:
    arguments = {"get": (b"a",), "delete": (b"a",), "scan": (), "put": (b"a", b"b")}[call]

    with pytest.raises(BadRequestError, match=r"client\.transaction"):
        getattr(table, call)(*arguments)
    fill(service, table, "a")
    with pytest.raises(BadRequestError, match=r"client\.transaction"):
        getattr(table, call)(*arguments)


def test_after_commit_tx_nothing_more_is_read_or_written(
    service: Service, table: TransactionalTable
) -> None:
    table.start_tx(service.start())
    table.put(b"a", b"b")
    table.commit_tx()

    with pytest.raises(BadRequestError, match="no transaction"):
        table.put(b"a", b"late")
    with pytest.raises(BadRequestError, match="no transaction"):
        table.get(b"a")


def test_a_hook_without_a_start_is_refused(service: Service, table: TransactionalTable) -> None:
    for hook in (table.commit_tx, table.post_commit, table.rollback_tx, table.tx_changes):
        with pytest.raises(BadRequestError, match="start_tx"):
            hook()
    table.leave_tx()
    table.start_tx(service.start())
    with pytest.raises(BadRequestError, match="not current"):
        table.update_tx(service.start())


def test_what_committed_can_not_be_rolled_back_by_mistake(
    service: Service, table: TransactionalTable
) -> None:
    fill(service, table, "apple")

    with pytest.raises(BadRequestError, match="committed"):
        table.rollback_tx()
    assert read(service, table) == [(b"apple", b"apple")]


def test_a_scan_goes_on_as_it_began_whatever_is_written_meanwhile(
    service: Service, table: TransactionalTable
) -> None:
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


def test_a_scan_ends_with_its_transaction(service: Service, table: TransactionalTable) -> None:
    fill(service, table, *"abc")
    with transaction(service, table):
        rows = table.scan()
        next(rows)

    with pytest.raises(BadRequestError, match="no transaction"):
        next(rows)


def test_a_scan_that_is_left_half_way_does_not_keep_the_table_from_closing(
    service: Service, tmp_path: Path
) -> None:
    table = TransactionalTable(tmp_path)
    fill(service, table, *"abc")
    table.start_tx(service.start())
    rows = table.scan()
    assert next(rows) == (b"a", b"a")

    table.close()
    table.close()

    with pytest.raises(StorageUnavailableError, match="closed"):
        list(rows)
    with pytest.raises(StorageUnavailableError, match="closed"):
        table.get(b"a")


def test_each_thread_works_in_its_own_transaction(
    service: Service, table: TransactionalTable
) -> None:
    started = [service.start() for _ in range(8)]
    seen: dict[int, list[tuple[bytes, bytes]]] = {}

    def work(number: int) -> None:
        table.start_tx(started[number])
        for row in range(50):
            table.put(b"%d/%d" % (number, row), b"%d" % row)
        seen[number] = list(table.scan())
        table.commit_tx()
        if number % 2:
            table.rollback_tx()
        else:
            table.post_commit()

    threads = [Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for number, one in enumerate(started):
        (service.abort if number % 2 else service.commit)(one)

    for number in range(8):
        assert {key.split(b"/")[0] for key, _ in seen[number]} == {b"%d" % number}
    rows = dict(read(service, table))
    assert len(rows) == 4 * 50
    assert {key.split(b"/")[0] for key in rows} == {b"0", b"2", b"4", b"6"}


async def test_each_task_works_in_its_own_transaction_and_a_child_in_its_parents(
    service: Service, table: TransactionalTable
) -> None:
    async def child(name: bytes) -> None:
        table.put(name + b"/child", b"")

    async def parent(name: bytes) -> list[bytes]:
        with transaction(service, table):
            await asyncio.sleep(0)
            await asyncio.gather(child(name))
            await asyncio.to_thread(table.put, name + b"/thread", b"")
            return [key for key, _ in table.scan()]

    found = await asyncio.gather(parent(b"a"), parent(b"b"))

    assert found == [[b"a/child", b"a/thread"], [b"b/child", b"b/thread"]]
    assert len(read(service, table)) == 4


def test_whoever_starts_the_same_transaction_elsewhere_shares_it(
    service: Service, table: TransactionalTable
) -> None:
    with transaction(service, table) as started:
        elsewhere = Context()
        elsewhere.run(table.start_tx, started)
        elsewhere.run(table.put, b"there", b"1")
        table.put(b"here", b"1")
        assert [key for key, _ in table.scan()] == [b"here", b"there"]

    with pytest.raises(BadRequestError, match="no transaction"):
        elsewhere.run(table.get, b"there")
    assert [key for key, _ in read(service, table)] == [b"here", b"there"]


def test_an_inner_transaction_is_independent_and_the_outer_goes_on(
    service: Service, table: TransactionalTable
) -> None:
    with transaction(service, table):
        table.put(b"outer", b"1")
        put_and_fail(service, table, b"inner")
        table.put(b"outer", b"2")

    assert read(service, table) == [(b"outer", b"2")]


@pytest.mark.parametrize("is_committed", [True, False])
def test_two_participants_that_share_a_table_leave_the_transaction_around_them_alone(
    service: Service, table: TransactionalTable, is_committed: bool
) -> None:
    with transaction(service, table):
        table.put(b"outer", b"1")
        if is_committed:
            with transaction(service, table, table):
                table.put(b"inner", b"1")
        else:
            put_and_fail(service, table, b"inner", times=2)
        table.put(b"outer", b"2")

    inner = [(b"inner", b"1")] if is_committed else []
    assert read(service, table) == [*inner, (b"outer", b"2")]


def test_a_transaction_that_was_left_is_current_no_more(
    service: Service, table: TransactionalTable
) -> None:
    table.start_tx(service.start())
    table.leave_tx()

    with pytest.raises(BadRequestError, match="no transaction"):
        table.put(b"a", b"b")
    with pytest.raises(BadRequestError, match="start_tx"):
        table.rollback_tx()
    fill(service, table, "apple")


def test_transactions_that_never_end_are_bounded(
    service: Service, table: TransactionalTable
) -> None:
    def start_many() -> None:
        for _ in range(NESTED_COUNT_MAX):
            table.start_tx(service.start())
        with pytest.raises(BadRequestError, match="never ended"):
            table.start_tx(service.start())

    copy_context().run(start_many)


@pytest.mark.parametrize("path", ["", "sub/sub"])
def test_a_directory_has_one_owner(tmp_path: Path, path: str) -> None:
    with (
        TransactionalTable(tmp_path / path),
        pytest.raises(StorageUnavailableError, match="already open"),
    ):
        TransactionalTable(tmp_path / path)
    TransactionalTable(tmp_path / path).close()


def test_keys_and_values_are_bytes_of_bounded_size(
    service: Service, table: TransactionalTable
) -> None:
    with transaction(service, table):
        with pytest.raises(BadRequestError, match="encode"):
            table.put("apple", b"1")  # type: ignore[arg-type] # what a program may do
        with pytest.raises(BadRequestError, match="encode"):
            table.put(b"apple", "1")  # type: ignore[arg-type] # what a program may do
        with pytest.raises(BadRequestError, match="encode"):
            table.scan("a")  # type: ignore[arg-type] # what a program may do
        with pytest.raises(RequestTooLargeError, match="65537"):
            table.get(b"k" * (KEY_BYTES_MAX + 1))
        with pytest.raises(RequestTooLargeError):
            table.put(b"k", bytes(VALUE_BYTES_MAX + 1))
        table.put(b"k" * KEY_BYTES_MAX, b"")
        assert table.get(b"k" * KEY_BYTES_MAX) == b""
