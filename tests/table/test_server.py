"""Tables in transactions of a real server: isolation, conflicts, messages, compaction, crashes."""

import random
import subprocess
import sys
from contextvars import Context
from pathlib import Path
from threading import Thread

import pytest

import tuff
from tests.http.process import ServerProcess
from tests.table import transfers
from tests.table.conftest import OpenTable
from tests.table.transfers import TOTAL, account, move, total
from tuff.tables.versioned_table import VersionedTable

KILL_ROUNDS = 3
TRANSFERS_PER_ROUND = 40  # reported transfers before the program is killed


def read(client: tuff.Client, table: VersionedTable) -> dict[bytes, bytes]:
    with client.transaction(table):
        return dict(table.scan())


def put(client: tuff.Client, table: VersionedTable, key: bytes, value: bytes) -> None:
    with client.transaction(table):
        table.put(key, value)


def test_a_row_and_a_message_appear_together_or_not_at_all(
    client: tuff.Client, table: VersionedTable
) -> None:
    topic = tuff.TopicId("table", "together")
    client.topics.create(topic)

    def sell(*, fails: bool) -> None:
        with client.transaction(table) as tx:
            table.put(b"apple", b"41")
            tx.publish(topic, "sold one apple")
            if fails:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        sell(fails=True)
    assert (read(client, table), len(client.poll(topic, isolation="committed"))) == ({}, 0)
    sell(fails=False)

    assert read(client, table) == {b"apple": b"41"}
    assert len(client.poll(topic, isolation="committed")) == 1


def test_an_update_is_never_lost(client: tuff.Client, table: VersionedTable) -> None:
    put(client, table, b"stock", b"1")

    def overtaken() -> None:
        with client.transaction(table):
            assert table.get(b"stock") == b"1"
            put(client, table, b"stock", b"2")
            assert table.get(b"stock") == b"1"
            table.put(b"stock", b"1 + 1")

    with pytest.raises(tuff.TransactionConflictError) as caught:
        overtaken()

    assert caught.value.key is not None
    assert caught.value.key.endswith(b"stock")
    assert read(client, table) == {b"stock": b"2"}


def test_equal_keys_of_two_tables_do_not_conflict(
    open_table: OpenTable, client: tuff.Client, table: VersionedTable, tmp_path: Path
) -> None:
    with open_table(tmp_path / "other" / "table") as other:
        with client.transaction(table):
            table.put(b"stock", b"1")
            put(client, other, b"stock", b"2")
        assert (read(client, table), read(client, other)) == (
            {b"stock": b"1"},
            {b"stock": b"2"},
        )


def test_write_skew_is_possible(client: tuff.Client, table: VersionedTable) -> None:
    """Each doctor leaves because the other one is on call: only written rows conflict.

    To exclude it, both transactions must write one row in common.
    """
    with client.transaction(table):
        table.put(b"doctor/a", b"on call")
        table.put(b"doctor/b", b"on call")

    def leave(name: bytes) -> None:
        on_call = [key for key, value in table.scan(b"doctor/") if value == b"on call"]
        assert len(on_call) == 2
        table.put(name, b"off")

    with client.transaction(table):
        leave(b"doctor/a")
        with client.transaction(table):
            leave(b"doctor/b")

    assert set(read(client, table).values()) == {b"off"}


def test_two_tables_commit_and_roll_back_together(
    open_table: OpenTable, client: tuff.Client, table: VersionedTable, tmp_path: Path
) -> None:
    with open_table(tmp_path / "other") as other:
        other_id = other._store.table_id

        def work() -> None:
            with client.transaction(table, other):
                table.put(b"a", b"1")
                other.put(b"b", b"1")
                blocker = client.transactions.start()
                client.transactions.commit(blocker, changes=[other_id + b"b"])

        with pytest.raises(tuff.TransactionConflictError):
            work()
        assert (read(client, table), read(client, other)) == ({}, {})
        with client.transaction(table, other):
            table.put(b"a", b"1")
            other.put(b"b", b"1")
        assert (read(client, table), read(client, other)) == ({b"a": b"1"}, {b"b": b"1"})


def test_a_checkpointed_transaction_commits_all_writes(
    client: tuff.Client, table: VersionedTable
) -> None:
    with client.transaction(table) as tx:
        table.put(b"a", b"1")
        tx.checkpoint()
        table.put(b"b", b"2")

    assert read(client, table) == {b"a": b"1", b"b": b"2"}


def test_a_long_transaction_with_rows_is_not_read_only(
    client: tuff.Client, table: VersionedTable
) -> None:
    with client.transaction(table, type="long") as tx:
        table.put(b"a", b"1")
        assert list(table.tx_changes(tx.transaction)) != []
        transaction = tx.transaction

    assert client.transactions.get(transaction).state == "committed"
    assert read(client, table) == {b"a": b"1"}


def test_a_compaction_keeps_a_snapshot_of_the_server(
    client: tuff.Client, table: VersionedTable
) -> None:
    """The writer is in progress when the reader starts, and has committed before the compaction."""
    put(client, table, b"a", b"old")
    writer = Context()
    context = client.transaction(table)
    writer.run(context.__enter__)
    reader = client.transactions.start()
    writer.run(table.put, b"a", b"new")
    writer.run(context.__exit__, None, None, None)

    table.compact(client)

    table.start_tx(reader)
    assert table.get(b"a") == b"old"
    table.rollback_tx(reader)
    client.transactions.abort(reader)
    assert read(client, table) == {b"a": b"new"}


def test_pointers_that_a_compaction_returns_can_be_truncated(
    client: tuff.Client, table: VersionedTable
) -> None:
    lost = client.transactions.start()
    table.start_tx(lost)
    table.put(b"a", b"never")
    table.commit_tx(lost)
    table.leave_tx(lost)
    client.transactions.invalidate(lost)

    returned = table.compact(client)
    client.transactions.truncate(ids=returned)

    assert lost.transaction_id in returned
    assert lost.transaction_id not in client.transactions.invalids().invalids
    assert read(client, table) == {}


def run_all(threads: list[Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_transfers_of_many_threads_keep_the_total(
    client: tuff.Client, table: VersionedTable
) -> None:
    transfers.fill(client, table)
    seen: list[int] = []
    conflicts: list[str] = []

    def work(thread: int) -> None:
        chance = random.Random(thread)
        for number in range(10):
            try:
                move(client, table, f"{thread}/{number}", chance)
            except tuff.TransactionConflictError:
                conflicts.append(f"{thread}/{number}")

    def watch() -> None:
        for _ in range(5):
            table.compact(client)
            for _ in range(4):
                with client.transaction(table):
                    seen.append(total(table))

    run_all([*(Thread(target=work, args=(thread,)) for thread in range(8)), Thread(target=watch)])

    rows = read(client, table)
    assert seen == [TOTAL] * 20
    assert len([key for key in rows if key.startswith(b"done/")]) + len(conflicts) == 80
    assert sum(int(rows[account(number)]) for number in range(6)) == TOTAL


def run_and_kill(server: ServerProcess, home: Path, round_number: int) -> set[bytes]:
    """The transfers that the program reported as committed before it was killed."""
    command = [sys.executable, "-m", "tests.table.transfers", server.url, str(home)]
    program = subprocess.Popen([*command, str(round_number)], stdout=subprocess.PIPE)
    assert program.stdout is not None
    with program, program.stdout:
        lines = [program.stdout.readline() for _ in range(TRANSFERS_PER_ROUND)]
        program.kill()
        rest = program.stdout.read()
    whole, _, _ = rest.rpartition(b"\n")
    return {b"done/" + line.strip() for line in [*lines, *whole.splitlines()]}


def test_a_killed_writer_leaves_whole_transfers_only(
    server: ServerProcess, client: tuff.Client, tmp_path: Path
) -> None:
    home, reported = tmp_path / "table", set[bytes]()
    with tuff.TransactionalTable(home) as table:
        transfers.fill(client, table)

    for round_number in range(KILL_ROUNDS):
        reported |= run_and_kill(server, home, round_number)
        for left in client.transactions.overview().in_progress:
            client.transactions.invalidate(left.transaction_id)
        with tuff.TransactionalTable(home) as table:
            before = read(client, table)
            client.transactions.truncate(ids=table.compact(client))
            after = read(client, table)
            with client.transaction(table):
                assert total(table) == TOTAL

        assert reported <= set(before)
        assert after == before

    assert len(reported) >= KILL_ROUNDS * TRANSFERS_PER_ROUND


class RefusingError(Exception):
    """Raised by `Refusing`."""


class Refusing(tuff.TransactionAware):
    """A participant whose start fails."""

    name = "refusing"

    def start_tx(self, transaction: tuff.Transaction) -> None:
        raise RefusingError

    def tx_changes(self, transaction: tuff.Transaction) -> list[bytes]:
        raise AssertionError

    def commit_tx(self, transaction: tuff.Transaction) -> None:
        raise AssertionError

    def rollback_tx(self, transaction: tuff.Transaction) -> None:
        raise AssertionError


def test_a_failed_start_of_another_participant_leaves_the_transaction(
    client: tuff.Client, table: VersionedTable
) -> None:
    with client.transaction(table):
        with pytest.raises(RefusingError):
            client.transaction(table, Refusing()).__enter__()
        table.put(b"a", b"1")

    with pytest.raises(tuff.WrongStateError, match="no transaction"):
        table.get(b"a")
    assert read(client, table) == {b"a": b"1"}
