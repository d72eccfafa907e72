"""Processes that are suspended and resumed, as when a machine sleeps or is short of memory.

    python -m tests.faults.pauses --pauses 5 --seconds 3

The clients of `mixed` work while their server is stopped (SIGSTOP) for longer than their
transactions may last, and continued. Everything that they did and read is checked as one history.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from pathlib import Path

import tuff
from tests.faults.history import Attempt, Outcome
from tests.faults.mixed import check_and_report, mixed_history
from tests.http.process import ServerProcess, serve

TIMEOUT_S = 1.0  # seconds that a transaction may last; a pause is longer
BETWEEN_S = (0.3, 1.5)  # seconds of work between two pauses


@contextmanager
def suspended(pid: int) -> Iterator[None]:
    """SIGSTOP at the beginning of the block, SIGCONT at its end."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def paused_history(
    server: ServerProcess, table: tuff.TransactionalTable, options: argparse.Namespace
) -> tuple[list[Attempt], int]:
    """The history of clients whose server is suspended now and then, and the number of pauses."""
    chance, pauses = random.Random(options.seed), 0

    def work() -> list[Attempt]:
        return mixed_history(
            server, table, clients=options.clients, attempts=options.attempts, seed=options.seed
        )

    with ThreadPoolExecutor(1) as threads:
        working = threads.submit(work)
        while pauses < options.pauses:
            if wait([working], chance.uniform(*BETWEEN_S)).done:
                break
            with suspended(server.pid):
                time.sleep(options.seconds)
            pauses += 1
        return working.result(), pauses


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="pauses", description=__doc__)
    parser.add_argument("--pauses", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="how long each lasts")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--attempts", type=int, default=2_000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("history.jsonl"), metavar="FILE")
    options = parser.parse_args(arguments)
    with (
        tempfile.TemporaryDirectory() as home,
        serve(Path(home), f"tx.default_timeout={TIMEOUT_S}") as server,
        tuff.TransactionalTable(Path(home) / "table") as table,
    ):
        history, pauses = paused_history(server, table, options)
    violations, _ = check_and_report(history, options.keep)
    refused = sum(attempt.outcome is Outcome.FAIL for attempt in history)
    print(
        f"{pauses} pauses of {options.seconds:g} s, {len(history)} attempts, {refused} of them "
        f"ended without committing, {violations} violations"
    )
    return 1 if violations or not pauses else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
