"""Bank transfers under `kill -9` of the client process and of the server.

    python -m tests.faults.bank --kills 10 --seconds 60

Eight threads (tests/faults/workload_bank.py) transfer money between a hundred rows of a table, and
publish a message for each transfer in the same transaction. Every snapshot has the same sum, and
its rows and messages agree. At the end each transfer that was reported as done is there, none that
was reported as failed, and for each unknown one the outcome can be asked for and is true
(promises 1, 4, 5, 9).
"""

import argparse
import json
import random
import signal
import socket
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Event, Thread

import tuff
from tests.faults.workload_bank import audit, messages_of, open_accounts
from tests.http.client import until
from tests.http.process import ENDS_WITH_PARENT, REPOSITORY, serve

PROGRESS_WITHIN_S = 120.0  # seconds; a worker that does nothing for so long is stuck
PROGRESS_COUNT_MAX = 30  # transfers at most between two kills, where no time was asked for
BOTH_CHANCE = 0.25  # of the server's kills, that share takes the worker along
# Below the ephemeral ports, so that no other process takes the port while the server is down: the
# worker knows no other.
PORTS = range(20_000, 30_000)


class Worker:
    """One process of the workload, and its output."""

    def __init__(self, url: str, table: Path, *, run: int, errors: Path) -> None:
        self._errors = errors
        program = [sys.executable, "-m", "tests.faults.workload_bank"]
        command = [*ENDS_WITH_PARENT, *program, url, str(table), f"run{run}"]
        with errors.open("ab") as file:
            self._process = subprocess.Popen(
                command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=file, text=True
            )
        self.lines: list[str] = []
        self._listener = Thread(target=self._listen)
        self._listener.start()

    def _listen(self) -> None:
        assert self._process.stdout is not None
        with self._process.stdout as stdout:
            self.lines.extend(iter(stdout.readline, ""))

    def has_done(self, transfer_count: int) -> bool:
        self.check()
        count = 0
        for line in list(self.lines):
            count += line.startswith("done")
        return count >= transfer_count and any(line.startswith("seen") for line in self.lines)

    def check(self) -> None:
        assert self._process.poll() is None, self._errors.read_text(errors="replace")

    def kill(self) -> list[list[str]]:
        """SIGKILL; the words of each line that it printed."""
        self.check()
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        self._listener.join()
        return [line.split() for line in self.lines]

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._listener.join()


class BankProgram:
    """One bank on one data directory; `run` gives the figures."""

    def __init__(self, home: Path, *, seed: int) -> None:
        self._home = home
        self._table = home / "table"
        self._chance = random.Random(seed)
        self._port = _free_port(self._chance)
        self._server = serve(home, port=self._port)
        self._url = self._server.url
        self._said: list[list[str]] = []
        self._committed: dict[str, bool] = {}  # of those in doubt, by pointer
        self._figures: Counter[str] = Counter()
        with tuff.Client(self._url) as client, tuff.TransactionalTable(self._table) as table:
            open_accounts(client, table)
        self._worker = self._hire()

    def run(self, *, kills: int, seconds: float = 0.0) -> dict[str, int]:
        """Kill worker and server `kills` times each, over at least so many seconds."""
        gap_s = seconds / max(1, 2 * kills)
        left = Counter(worker=kills, server=kills)
        try:
            while left.total():
                self._let_work(gap_s)
                victim = self._chance.choices(list(left), weights=list(left.values()))[0]
                if victim == "worker":
                    self._kill_worker()
                else:
                    takes_both = left["worker"] > 0 and self._chance.random() < BOTH_CHANCE
                    self._kill_server(and_worker=takes_both)
                    left["worker"] -= takes_both
                left[victim] -= 1
                self._settle_doubts()
            self._let_work(gap_s)
            self._said += self._worker.kill()
            self._settle_doubts()
            self._account()
        finally:
            self._worker.end()
            self._server.end()
        return dict(self._figures)

    def _hire(self) -> Worker:
        self._figures["workers"] += 1
        return Worker(
            self._url, self._table, run=self._figures["workers"], errors=self._home / "errors.txt"
        )

    def _let_work(self, gap_s: float) -> None:
        enough = self._chance.randint(1, PROGRESS_COUNT_MAX)
        until(
            lambda: self._worker.has_done(enough),
            within_s=PROGRESS_WITHIN_S,
            what="transfers to be made",
        )
        Event().wait(gap_s + self._chance.random() * 0.02)

    def _kill_worker(self) -> None:
        self._said += self._worker.kill()
        self._worker = self._hire()
        self._figures["worker_kills"] += 1

    def _kill_server(self, *, and_worker: bool) -> None:
        self._server.kill()
        self._figures["server_kills"] += 1
        if and_worker:
            self._kill_worker()
        self._server = serve(self._home, port=self._port)

    def _settle_doubts(self) -> None:
        """Resolve the unknown outcomes of dead workers early: they are kept for 15 minutes."""
        doubtful = [words[2] for words in self._said if words[0] == "doubt"]
        with tuff.Client(self._url) as client:
            for pointer in doubtful:
                if pointer not in self._committed:
                    self._committed[pointer] = _settled(client, int(pointer))

    def _account(self) -> None:
        with (
            tuff.Client(self._url) as client,
            tuff.TransactionalTable(self._table) as table,
        ):
            for left in client.transactions.overview().in_progress:
                _settled(client, left.transaction_id)
            names: set[str] = set()
            with client.transaction(table):
                audit(table, _committed(client), names=names)
            found = len(messages_of(_committed(client)))
        assert found == len(names)
        self._figures["transfers"] = len(names)
        self._compare(names)

    def _compare(self, names: set[str]) -> None:
        """The replies that the workers got agree with the table."""
        for word, *rest in self._said:
            self._figures[word] += 1
            match word:
                case "done":
                    assert rest[0] in names, f"{rest[0]} was done, and is lost"
                case "failed":
                    assert rest[0] not in names, f"{rest[0]} failed, and is there"
                case "doubt":
                    is_committed = self._committed[rest[1]]
                    assert is_committed == (rest[0] in names), f"{rest}: committed {is_committed}"
                case _:
                    assert word in {"seen", "audited"}, word


def _settled(client: tuff.Client, pointer: int) -> bool:
    """Whether a transaction has committed; otherwise it is invalidated."""
    with suppress(tuff.errors.TransactionNotInProgressError):
        client.transactions.invalidate(pointer)
    return client.transactions.get(pointer).state == "committed"


def _committed(client: tuff.Client) -> Callable[..., tuff.Poll]:
    def poll(topic: tuff.TopicId, start: object = None, **where: object) -> tuff.Poll:
        return client.poll(topic, start, isolation="committed", **where)  # type: ignore[arg-type]  # as given

    return poll


def _free_port(chance: random.Random) -> int:
    while True:
        port = chance.choice(PORTS)
        with socket.socket() as one:
            try:
                one.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code. A broken promise ends it with the failed assertion."""
    parser = argparse.ArgumentParser(prog="bank", description=__doc__)
    parser.add_argument(
        "--kills", type=int, default=10, help="of the worker and of the server each"
    )
    parser.add_argument("--seconds", type=float, default=0.0, help="that it lasts at least")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        program = BankProgram(Path(home), seed=options.seed)
        figures = program.run(kills=options.kills, seconds=options.seconds)
    print(json.dumps(figures))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
