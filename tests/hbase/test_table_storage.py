"""Tables in HBase: cells and timestamps, announced compactions, refused tables, large scans."""

import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import happybase
import pytest

import tuff
from tests.hbase.conftest import gateway, open_with
from tests.hbase.local_hbase import LocalHBase
from tests.hbase.marks import NEEDS_HBASE
from tests.table.service_model import Service
from tests.table.transactions import fill, left_invalid, read, transaction, write
from tuff.protocol.errors import (
    BadRequestError,
    StorageUnavailableError,
    TransactionNotInProgressError,
)
from tuff.protocol.transaction import Transaction
from tuff.tables.hbase_cells import VERSIONS_MAX, HBaseCells
from tuff.tables.hbase_table import POINTERS_PER_S

pytestmark = NEEDS_HBASE

GRACE_S = 100.0

_numbers = count()


@pytest.fixture
def name() -> str:
    return f"own-{next(_numbers)}"


@pytest.fixture
def connection(hbase: LocalHBase) -> Iterator[happybase.Connection]:
    made = happybase.Connection("127.0.0.1", hbase.ports.thrift)
    yield made
    made.close()


def cells(hbase: LocalHBase, name: str, family: str = "72") -> list[str]:
    """Timestamps and kinds of all cells of rows, tombstones included."""
    lines = [line.split(" ") for line in hbase.command("raw", name)]
    return [f"{line[2]} {line[3]}" for line in lines if line[0].startswith(family)]


def after_major_compaction(hbase: LocalHBase, name: str, family: str = "72") -> list[str]:
    """The same, after HBase has executed the tombstones."""
    hbase.command("flush", name)
    hbase.command("major", name)
    return cells(hbase, name, family)


# Cells


def test_a_version_is_a_cell_whose_timestamp_is_the_write_pointer(
    hbase: LocalHBase, service: Service, name: str
) -> None:
    with tuff.HBaseTransactionalTable(gateway(hbase), name) as table:
        first = write(service, table, a=b"1")
        second = write(service, table, a=None)

    assert cells(hbase, name) == [
        f"{second.transaction_id} Put",
        f"{first.transaction_id} Put",
    ]


def test_a_rollback_overwrites_only_the_cells_of_its_transaction(
    hbase: LocalHBase, service: Service, name: str
) -> None:
    with tuff.HBaseTransactionalTable(gateway(hbase), name) as table:
        write(service, table, a=b"old", b=b"old")
        started = service.start()
        table.start_tx(started)
        table.put(b"a", b"never")
        changed = service.checkpoint(started)
        table.update_tx(changed)
        table.put(b"b", b"never")
        table.put(b"c", b"never")
        table.commit_tx(started)
        table.rollback_tx(started)
        table.rollback_tx(started)
        service.abort(changed)

        assert read(service, table) == [(b"a", b"old"), (b"b", b"old")]
    values = [line.split(" ")[4] for line in hbase.command("raw", name) if line.startswith("72")]
    assert len([value for value in values if value.startswith("02")]) == 3


def test_a_compaction_leaves_the_newest_versions_and_no_undo_row(
    hbase: LocalHBase, service: Service, name: str
) -> None:
    with tuff.HBaseTransactionalTable(gateway(hbase), name, grace=0) as table:
        for number in range(5):
            last = write(service, table, a=b"%d" % number, b=b"%d" % number)
        lost = left_invalid(service, table, b"a")
        write(service, table, b=None)

        assert table.compact(service) == [lost.transaction_id]

        service.truncate([lost.transaction_id])
        assert read(service, table) == [(b"a", b"4")]
        # The newest version, of an invalid transaction, is removed with the next one.
        assert after_major_compaction(hbase, name) == [
            f"{lost.transaction_id} Put",
            f"{last.transaction_id} Put",
        ]
        newest = write(service, table, a=b"5")
        table.compact(service)
    assert after_major_compaction(hbase, name) == [f"{newest.transaction_id} Put"]
    assert after_major_compaction(hbase, name, "75") == []


# Announced compactions


def pass_time(service: Service, seconds: float) -> None:
    service._last += int(seconds * POINTERS_PER_S)


def test_a_compaction_carries_out_the_announcement_after_the_grace_period(
    hbase: LocalHBase, service: Service, name: str
) -> None:
    with tuff.HBaseTransactionalTable(gateway(hbase), name, grace=GRACE_S) as table:
        write(service, table, a=b"1")
        write(service, table, a=b"2")
        early = left_invalid(service, table, b"b")
        held = len(cells(hbase, name))

        assert table.compact(service) == []
        late = left_invalid(service, table, b"c")
        pass_time(service, GRACE_S / 2)
        assert table.compact(service) == []
        assert len(cells(hbase, name)) == held + 1
        pass_time(service, GRACE_S / 2)
        assert table.compact(service) == [early.transaction_id]
        pass_time(service, GRACE_S)
        assert table.compact(service) == [early.transaction_id, late.transaction_id]

    service.truncate([early.transaction_id, late.transaction_id])
    with tuff.HBaseTransactionalTable(gateway(hbase), name) as table:
        assert read(service, table) == [(b"a", b"2")]


def test_an_announcement_of_another_process_is_respected(
    hbase: LocalHBase, service: Service, name: str
) -> None:
    pass_time(service, GRACE_S)
    earlier = service.start()
    with tuff.HBaseTransactionalTable(gateway(hbase), name, grace=GRACE_S) as table:
        pass_time(service, 1)
        table.compact(service)

        assert table._store.compact(earlier, bound=earlier.visibility_upper_bound) == []
        pass_time(service, 3 * GRACE_S)
        table.compact(service)
        with pytest.raises(BadRequestError, match="own server"):
            table._store.compact(earlier, bound=earlier.visibility_upper_bound)


def test_another_process_reads_an_announcement_within_the_grace_period(
    hbase: LocalHBase, service: Service, name: str
) -> None:
    now_s = [0.0]
    with (
        tuff.HBaseTransactionalTable(gateway(hbase), name, grace=GRACE_S) as compacting,
        open_with(gateway(hbase), name, grace_s=GRACE_S, elapsed_s=lambda: now_s[0]) as writing,
    ):
        late = service.start()
        writing.start_tx(late)
        writing.put(b"a", b"late")
        service.invalidate(late)
        compacting.compact(service)
        now_s[0] = GRACE_S / 10

        with pytest.raises(TransactionNotInProgressError, match="start another"):
            writing.commit_tx(late)
        writing.rollback_tx(late)
        assert cells(hbase, name) == []


def forget(service: Service, compacting: tuff.HBaseTransactionalTable, late: Transaction) -> None:
    """A transaction times out, and compactions remove its versions and its invalid pointer."""
    service.invalidate(late)
    for _ in range(2):
        gone = compacting.compact(service)
        pass_time(service, GRACE_S)
    assert gone == [late.transaction_id]
    service.truncate(gone)


def test_an_announcement_ages_while_the_machine_is_suspended(
    hbase: LocalHBase, service: Service, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    slept_s = [0.0]
    really = time.clock_gettime

    def clock_gettime(clock: int) -> float:
        return really(clock) + (slept_s[0] if clock == time.CLOCK_BOOTTIME else 0.0)

    monkeypatch.setattr(time, "clock_gettime", clock_gettime)
    with (
        tuff.HBaseTransactionalTable(gateway(hbase), name, grace=GRACE_S) as compacting,
        tuff.HBaseTransactionalTable(gateway(hbase), name) as suspended,
    ):
        late = service.start()
        suspended.start_tx(late)
        suspended.put(b"a", b"late")
        forget(service, compacting, late)
        slept_s[0] = 3 * 3_600.0

        with pytest.raises(TransactionNotInProgressError, match="start another"):
            suspended.commit_tx(late)
        assert read(service, compacting) == []


@pytest.mark.parametrize("call", ["put_undo_rows", "put"])
def test_a_process_suspended_during_a_write_leaves_no_visible_rows(
    hbase: LocalHBase, service: Service, name: str, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    """After it has read the announcement, and before it sends a call."""
    now_s = [0.0]
    with (
        tuff.HBaseTransactionalTable(gateway(hbase), name, grace=GRACE_S) as compacting,
        open_with(gateway(hbase), name, grace_s=GRACE_S, elapsed_s=lambda: now_s[0]) as writing,
    ):
        late = service.start()
        writing.start_tx(late)
        writing.put(b"a", b"late")
        really = getattr(HBaseCells, call)

        def suspend(*arguments: object, **options: object) -> None:
            monkeypatch.undo()
            forget(service, compacting, late)
            now_s[0] += 2 * GRACE_S
            really(*arguments, **options)

        monkeypatch.setattr(HBaseCells, call, suspend)
        with pytest.raises(TransactionNotInProgressError, match="start another"):
            writing.commit_tx(late)
        with suppress(StorageUnavailableError):
            writing.rollback_tx(late)

        assert read(service, compacting) == []


# Refused tables


@pytest.mark.parametrize(
    ("families", "sentence"),
    [
        ({"d": {"max_versions": 1}, "u": {}}, "keeps 1 versions"),
        ({"d": {"max_versions": VERSIONS_MAX, "time_to_live": 60}, "u": {}}, "expire after 60 s"),
        ({"d": {"max_versions": VERSIONS_MAX}, "u": {"time_to_live": 60}}, "expire after 60 s"),
        ({"d": {"max_versions": VERSIONS_MAX}}, "family u is missing"),
    ],
)
def test_a_table_that_would_lose_versions_is_refused(
    hbase: LocalHBase,
    connection: happybase.Connection,
    name: str,
    families: dict[str, dict[str, int]],
    sentence: str,
) -> None:
    connection.create_table(name, families)

    with pytest.raises(BadRequestError, match=sentence):
        tuff.HBaseTransactionalTable(gateway(hbase), name)


def test_the_error_of_opening_says_what_is_wrong(
    hbase: LocalHBase, connection: happybase.Connection, name: str
) -> None:
    tuff.HBaseTransactionalTable(connection, name).close()
    connection.disable_table(name)

    with pytest.raises(StorageUnavailableError, match="disabled; enable it"):
        tuff.HBaseTransactionalTable(connection, name)
    with pytest.raises(StorageUnavailableError, match="no HBase gateway answers at 127"):
        tuff.HBaseTransactionalTable("127.0.0.1:1", name)
    for wrong in ("localhost", "host:", ":9090", []):
        with pytest.raises(BadRequestError, match="HOST:PORT"):
            tuff.HBaseTransactionalTable(wrong, name)


def test_a_happybase_connection_gives_address_and_prefix(
    hbase: LocalHBase, service: Service, name: str
) -> None:
    given = happybase.Connection("127.0.0.1", hbase.ports.thrift, table_prefix="ours")
    with tuff.HBaseTransactionalTable(given, name) as table:
        fill(service, table, "apple")
    given.close()

    with tuff.HBaseTransactionalTable(gateway(hbase), f"ours_{name}") as table:
        assert read(service, table) == [(b"apple", b"apple")]


# Many rows, many versions


def test_reads_skip_many_invisible_rows_and_versions(
    hbase: LocalHBase, service: Service, name: str
) -> None:
    keys = [b"%05d" % number for number in range(3_000)]
    with tuff.HBaseTransactionalTable(gateway(hbase), name) as table:
        with transaction(service, table):
            for key in keys:
                table.put(key, b"old")
        for _ in range(40):
            left_invalid(service, table, b"00007")
        hiding = service.start()
        table.start_tx(hiding)
        for key in keys[::2]:
            table.put(key, b"hidden")
        table.commit_tx(hiding)
        table.leave_tx(hiding)

        with transaction(service, table):
            assert list(table.scan()) == [(key, b"old") for key in keys]
            assert table.get(b"00007") == b"old"
            some = list(table.scan(b"00100", b"00200"))
        assert some == [(key, b"old") for key in keys[100:200]]


def test_a_scan_does_not_show_later_writes_of_its_transaction(
    hbase: LocalHBase, service: Service, name: str
) -> None:
    with tuff.HBaseTransactionalTable(gateway(hbase), name, buffer_bytes=1) as table:
        with transaction(service, table):
            for number in range(100):
                table.put(b"%03d" % number, b"old")
        with transaction(service, table):
            seen = []
            for key, value in table.scan():
                seen.append(value)
                table.put(b"%03d" % (99 - int(key)), b"new")
            assert seen == [b"old"] * 100
            assert {value for _, value in table.scan()} == {b"new"}


def test_a_table_created_as_in_the_howto_is_accepted(
    hbase: LocalHBase, connection: happybase.Connection, service: Service, name: str
) -> None:
    connection.create_table(name, {"d": {"max_versions": VERSIONS_MAX}, "u": {"max_versions": 1}})

    with tuff.HBaseTransactionalTable(gateway(hbase), name) as table:
        fill(service, table, "apple")
        assert read(service, table) == [(b"apple", b"apple")]
