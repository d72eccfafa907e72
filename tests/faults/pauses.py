"""Processes that stand still, as when a machine is suspended or short of memory, and go on.

    python -m tests.faults.pauses --pauses 5 --seconds 3

Mixed clients work while their server is stopped (SIGSTOP) and let go again, for longer than their
transactions may last. What they did and were shown is checked as one history.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import tuff
from tests.faults.history import Attempt, Outcome
from tests.faults.mixed import judged, mixed_history
from tests.http.process import ServerProcess, serve

TIMEOUT_S = 1.0  # seconds that a transaction may last; a pause is longer
BETWEEN_S = (0.3, 1.5)  # seconds of work between two pauses


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    """The process does nothing meanwhile; it is let go whatever happens."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def paused_history(
    server: ServerProcess, table: tuff.TransactionalTable, options: argparse.Namespace
) -> tuple[list[Attempt], int]:
    """What mixed clients of a server with pauses did, and how many pauses there were."""
    chance, over, pauses = random.Random(options.seed), threading.Event(), 0
    history: list[Attempt] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            history.extend(
                mixed_history(
                    server,
                    table,
                    clients=options.clients,
                    attempts=options.attempts,
                    seed=options.seed,
                )
            )
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            failures.append(error)
        finally:
            over.set()

    thread = threading.Thread(target=work)
    thread.start()
    while pauses < options.pauses and not over.wait(chance.uniform(*BETWEEN_S)):
        with standing_still(server.pid):
            time.sleep(options.seconds)
        pauses += 1
    thread.join()
    if failures:
        raise failures[0]
    return history, pauses


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
    with tempfile.TemporaryDirectory() as home:
        server = serve(Path(home), f"tx.default_timeout={TIMEOUT_S}")
        try:
            with tuff.TransactionalTable(Path(home) / "table") as table:
                history, pauses = paused_history(server, table, options)
        finally:
            server.end()
    wrong = [one for one in judged(history, options.keep) if not one.anomaly.is_permitted]
    refused = sum(attempt.outcome is Outcome.FAIL for attempt in history)
    sys.stdout.write(
        f"{pauses} pauses of {options.seconds:g} s, {len(history)} attempts, {refused} of them "
        f"ended without committing, {len(wrong)} violations\n"
    )
    return 1 if wrong or not pauses else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
