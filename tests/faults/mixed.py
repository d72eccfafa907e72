"""Concurrent clients of rows and topics; their history must be snapshot isolated.

    python -m tests.faults.mixed --clients 16 --attempts 5000
    python -m tests.faults.mixed --skew 200          a workload that must show write skew

Everything that clients do and read is recorded, and checked by tests/faults/checker.py.
"""

import argparse
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path

import tuff
from tests.faults.checker import check
from tests.faults.checker_anomalies import report
from tests.faults.history import Append, Attempt, Outcome, Publish, Read, Recorder, View, save
from tests.faults.workload_mixed import (
    ATTEMPTS_PER_ERA,
    PLACES,
    Follower,
    MixedClient,
    Shared,
    append,
    read_row,
    read_topic,
    topic_id,
)
from tests.http.process import ServerProcess, serve
from tuff.tables.versioned_table import VersionedTable


def mixed_history(
    server: ServerProcess, table: VersionedTable, *, clients: int, attempts: int, seed: int
) -> list[Attempt]:
    """The history of these clients, with a read of everything at the end."""
    shared = Shared(server.url, table)
    with tuff.Client(server.url, client_id="the last") as last:
        # Threads may look at the era a little after the count was reached.
        for era in range(attempts // ATTEMPTS_PER_ERA + 2):
            for number in range(PLACES):
                last.topics.create(topic_id(f"t{era}.{number}"))
        workers = [MixedClient(shared, number=each, seed=seed) for each in range(clients)]
        readers = [Follower(shared, view=view) for view in (View.COMMITTED, View.ALL)]
        _run_all(
            [threading.Thread(target=one.work, args=(attempts,)) for one in workers]
            + [threading.Thread(target=one.follow, args=(attempts,)) for one in readers]
        )
        if shared.failures:
            raise shared.failures[0]
        _read_all(shared, last)
    return shared.history


def _run_all(threads: Sequence[threading.Thread]) -> None:
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _read_all(shared: Shared, client: tuff.Client) -> None:
    written = [action for attempt in shared.history for action in attempt.actions]
    rows = {action.row for action in written if isinstance(action, Append | Read)}
    recorder = Recorder("the last", is_transaction=True)
    with client.transaction(shared.table):
        for row in sorted(rows):
            read_row(shared.table, row, recorder)
    shared.history.append(recorder.ended(Outcome.OK))
    for topic in sorted({action.topic for action in written if isinstance(action, Publish)}):
        for view in (View.COMMITTED, View.ALL):
            recorder = Recorder("the last", is_transaction=True)
            read_topic(client, topic, view, recorder)
            shared.history.append(recorder.ended(Outcome.OK))


def skewed_history(server: ServerProcess, table: VersionedTable, *, pairs: int) -> list[Attempt]:
    """Pairs of transactions that each read both rows of a pair, and write one of them."""
    shared = Shared(server.url, table)
    both_have_read = threading.Barrier(2)

    def work(side: int) -> None:
        with tuff.Client(shared.url, client_id=f"side {side}") as client:
            for pair in range(pairs):
                recorder = Recorder(f"side {side}", is_transaction=True)
                with client.transaction(table):
                    read_row(table, f"pair {pair}.{1 - side}", recorder)
                    append(table, f"pair {pair}.{side}", f"v{pair}.{side}", recorder)
                    both_have_read.wait()
                shared.history.append(recorder.ended(Outcome.OK))

    _run_all([threading.Thread(target=work, args=(side,)) for side in range(2)])
    with tuff.Client(shared.url) as client:
        _read_all(shared, client)
    return shared.history


def check_and_report(history: list[Attempt], kept: Path) -> tuple[int, int]:
    """The number of violations, and of permitted write skews; prints examples of both.

    A history with a violation is saved in the file `kept`.
    """
    findings = check(history)
    print(report(findings))
    permitted_count = sum(one.anomaly.is_permitted for one in findings)
    violation_count = len(findings) - permitted_count
    if violation_count:
        save(kept, history)
        print(f"the history is kept in {kept}")
    return violation_count, permitted_count


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="mixed", description=__doc__)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--attempts", type=int, default=5_000)
    parser.add_argument("--skew", type=int, metavar="PAIRS", help="the workload with write skew")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("history.jsonl"), metavar="FILE")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as home,
        serve(Path(home)) as server,
        tuff.TransactionalTable(Path(home) / "table") as table,
    ):
        if options.skew:
            history = skewed_history(server, table, pairs=options.skew)
        else:
            history = mixed_history(
                server, table, clients=options.clients, attempts=options.attempts,
                seed=options.seed,
            )  # fmt: skip
    violations, skews = check_and_report(history, options.keep)
    print(f"{len(history)} attempts, {skews} write skews, {violations} violations")
    return 1 if violations or (options.skew and not skews) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
