"""Tables in HBase under failures and concurrency."""

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context
from itertools import count
from pathlib import Path
from threading import Thread

import pytest

import tuff
from tests.faults.checker import check
from tests.faults.checker_anomalies import Anomaly, report
from tests.faults.mixed import mixed_history, skewed_history
from tests.hbase.conftest import gateway
from tests.hbase.local_hbase import ROOT, LocalHBase
from tests.hbase.marks import NEEDS_HBASE
from tests.http.process import ServerProcess
from tests.table import transfers
from tests.table.service_model import Service
from tests.table.transactions import read
from tuff.protocol.errors import (
    StorageUnavailableError,
)
from tuff.tables.hbase_cells import HBaseCells
from tuff.tables.versioned_table import VersionedTable

pytestmark = NEEDS_HBASE


_numbers = count()


@pytest.fixture
def name() -> str:
    return f"faults-{next(_numbers)}"


# Failures


@contextmanager
def unanswered_puts(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Rows are put, but the put is not acknowledged."""
    put_really = HBaseCells.put

    def put(self: HBaseCells, rows: list[tuple[bytes, bytes]], *, pointer: int) -> None:
        put_really(self, rows, pointer=pointer)
        raise StorageUnavailableError("the HBase gateway did not answer")

    with monkeypatch.context() as patch:
        patch.setattr(HBaseCells, "put", put)
        yield


def test_a_write_of_unknown_outcome_makes_its_transaction_invalid(
    hbase: LocalHBase, client: tuff.Client, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that hangs may put a version later, over its undone cell. After an abort the
    version would be visible."""
    with tuff.HBaseTransactionalTable(gateway(hbase), name) as table:
        context = client.transaction(table)
        context.__enter__()
        pointer = context.transaction.transaction_id
        table.put(b"a", b"never")
        with (
            unanswered_puts(monkeypatch),
            pytest.raises(StorageUnavailableError, match="answer"),
        ):
            context.__exit__(None, None, None)

        assert client.transactions.get(pointer).state == "invalid"
        with client.transaction(table):
            assert list(table.scan()) == []


@pytest.mark.parametrize("second", [b"thought again", None])
def test_after_an_unacknowledged_put_the_transaction_can_not_commit(
    hbase: LocalHBase,
    client: tuff.Client,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
    second: bytes | None,
) -> None:
    """A gateway that hung would carry out the first put after the commit, over the second one."""
    late: list[Callable[[], None]] = []
    put_really = HBaseCells.put

    def put_later(self: HBaseCells, part: list[tuple[bytes, bytes]], *, pointer: int) -> None:
        late.append(lambda: put_really(self, part, pointer=pointer))
        raise StorageUnavailableError("the HBase gateway did not answer")

    def work(table: tuff.HBaseTransactionalTable) -> None:
        with client.transaction(table):
            with monkeypatch.context() as patch:
                patch.setattr(HBaseCells, "put", put_later)
                with pytest.raises(StorageUnavailableError):
                    table.put(b"a", b"first")
            if second is None:
                table.delete(b"a")
            else:
                table.put(b"a", second)

    with tuff.HBaseTransactionalTable(gateway(hbase), name, buffer_bytes=260) as table:
        with pytest.raises(StorageUnavailableError, match="start another one"):
            work(table)
        for land in late:
            land()

        with client.transaction(table):
            assert list(table.scan()) == []


def test_committed_rows_survive_a_kill_of_hbase(
    tmp_path: Path, client: tuff.Client, name: str
) -> None:
    own = LocalHBase(tmp_path / "hbase")
    try:
        with tuff.HBaseTransactionalTable(gateway(own), name) as table:
            with client.transaction(table):
                table.put(b"a", b"kept")
            own.kill()
            with pytest.raises(StorageUnavailableError), client.transaction(table):
                table.get(b"a")
            own.restart()

            with client.transaction(table):
                assert table.get(b"a") == b"kept"
                table.put(b"b", b"after")
            with client.transaction(table):
                assert list(table.scan()) == [(b"a", b"kept"), (b"b", b"after")]
    finally:
        own.stop()


# Stories


def test_transfers_of_two_programs_keep_the_total(
    hbase: LocalHBase, server: ServerProcess, name: str
) -> None:
    """Each has its own connection and table object; they share only HBase."""
    done: list[str] = []
    conflicts: list[str] = []

    def work(program: int) -> None:
        chance = random.Random(program)
        with (
            tuff.Client(server.url, client_id=f"program {program}") as client,
            tuff.HBaseTransactionalTable(gateway(hbase), name) as table,
        ):
            for number in range(25):
                try:
                    transfers.move(client, table, f"{program}/{number}", chance)
                    done.append(f"{program}/{number}")
                except tuff.TransactionConflictError:
                    conflicts.append(f"{program}/{number}")

    with (
        tuff.Client(server.url) as client,
        tuff.HBaseTransactionalTable(gateway(hbase), name, grace=0) as table,
    ):
        transfers.fill(client, table)
        threads = [Thread(target=work, args=(program,)) for program in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with client.transaction(table):
            before = list(table.scan())
            assert transfers.total(table) == transfers.TOTAL
        table.compact(client)
        with client.transaction(table):
            assert list(table.scan()) == before

    names = {key for key, _ in before if key.startswith(b"done/")}
    assert names == {b"done/" + each.encode() for each in done}
    assert len(done) + len(conflicts) == 50
    assert done


def test_the_only_anomaly_of_concurrent_clients_is_write_skew(
    server: ServerProcess, table: VersionedTable
) -> None:
    history = mixed_history(server, table, clients=4, attempts=80, seed=1)
    skewed = check(skewed_history(server, table, pairs=3))

    wrong = [one for one in check(history) if not one.anomaly.is_permitted]
    assert wrong == [], report(wrong)
    assert [one.anomaly for one in skewed] == [Anomaly.WRITE_SKEW] * 3, report(skewed)


def test_connections_of_ended_threads_are_closed(
    hbase: LocalHBase, service: Service, name: str
) -> None:
    with tuff.HBaseTransactionalTable(gateway(hbase), name) as table:
        for _ in range(20):
            thread = Thread(target=lambda: Context().run(read, service, table))
            thread.start()
            thread.join()

        assert len(table._store._cells._gateways._open) <= 2


def test_the_example_of_the_howto_runs(
    hbase: LocalHBase, server: ServerProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    page = (ROOT / "docs/howto/table-in-hbase.md").read_text("utf-8")
    program = page.split("```text\n")[1].split("```")[0]
    for documented, here in (
        ("http://127.0.0.1:7411", server.url),
        ("127.0.0.1:9090", gateway(hbase)),
    ):
        assert documented in program
        program = program.replace(documented, here)

    exec(program, {})

    assert capsys.readouterr().out == "{b'apple': b'41'}\n"
