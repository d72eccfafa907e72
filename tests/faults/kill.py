"""`kill -9` of a server under many clients and two readers that never stop.

    python -m tests.faults.kill --kills 20 --clients 64
    python -m tests.faults.kill --kills 1000 --tally build/prove/kills.jsonl

Each round loads the server, kills it, starts it again on the same data, and asks for all unknown
outcomes. After some rounds everything that clients did and read is checked as one history (promises
1 to 5, 9), and a new server with empty directories takes over, so that the program can run for
hours. With a tally it can be interrupted, and continues when it is started again.

tally := one JSON object a line for each chunk without a violation:
         {"version": …, "seed": …, "kills": …, "units": …, "seconds": …}
"""

import argparse
import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path

from tests.faults.history import View, save
from tests.faults.workload_messages import (
    VIEWS,
    Accounts,
    Follower,
    Shared,
    Worker,
    create_topics,
    read_all,
    require_no_violation,
    without_lost_copies,
)
from tests.http.calls import begin
from tests.http.client import Client, ok, until
from tests.http.forking import REPOSITORY
from tests.http.process import ServerProcess, serve

LOAD_WITHIN_S = 120.0
UNIT_COUNT = (60, 240)  # attempts of all clients, from and to, until the kill
ROUNDS_PER_HOME = 20  # rounds on one data directory; what is there is compared in every round
SOURCES = ("tuff", "tx", "messaging", "process")  # a tally is of one version of these


class KillProgram:
    """Rounds of load and SIGKILL on one data directory."""

    def __init__(
        self,
        home: Path,
        *,
        seed: int,
        clients: int,
        unit_count: tuple[int, int] = UNIT_COUNT,
        kept: Path | None = None,
    ) -> None:
        self._home = home
        self._random = random.Random(seed)
        self._client_count = clients
        self._units_until_kill = unit_count
        self._kept = kept
        self._server = serve(home)
        self._shared = Shared(port=self._server.port)
        self._followers = [Follower(self._shared, view) for view in VIEWS]
        self._threads = [threading.Thread(target=one.follow) for one in self._followers]
        self._accounts = Accounts(self._shared)
        self._unit_count = 0
        client = Client(self._server.port, is_checked=False)
        create_topics(client)
        client.close()

    def run(self, rounds: int) -> int:
        """Run so many rounds; the number of attempts that were accounted for."""
        for thread in self._threads:
            thread.start()
        try:
            for number in range(rounds):
                self._load(number)
                self._restart(ServerProcess.kill)
                self._account()
            self._restart(_terminate)
            self._account()
            self._read_everything()
        finally:
            self._shared.over.set()
            for thread in self._threads:
                thread.join()
            self._server.end()
        self._shared.raise_failures()
        self._check_history()
        return self._unit_count

    def _load(self, number: int) -> None:
        """Let all clients work until so many attempts are done, then SIGKILL the server."""
        workers = [
            Worker(
                self._shared,
                number=each,
                first_unit=1_000_000 * number,
                first_places=self._accounts.places[View.ALL],
            )
            for each in range(self._client_count)
        ]
        threads = [threading.Thread(target=one.work) for one in workers]
        enough = self._random.randint(*self._units_until_kill)
        for thread in threads:
            thread.start()
        until(
            lambda: len(self._shared.attempts) >= enough or self._shared.failures,
            within_s=LOAD_WITHIN_S,
            what="the load to get going",
        )
        self._server.kill()
        for thread in threads:
            thread.join()
        self._shared.raise_failures()

    def _restart(self, end: Callable[[ServerProcess], object]) -> None:
        end(self._server)
        assert "Traceback" not in self._server.stderr(), self._server.stderr()
        self._server = serve(self._home)
        self._shared.port = self._server.port

    def _account(self) -> None:
        client = Client(self._server.port, is_checked=False)
        self._accounts.add(client, self._shared.attempts)
        self._unit_count += len(self._shared.attempts)
        self._shared.attempts.clear()
        self._check_pointers(client)
        client.close()

    def _check_pointers(self, client: Client) -> None:
        pointers = self._shared.pointers
        assert len(set(pointers)) == len(pointers), "a pointer was given out twice"
        tx = begin(client)
        assert int(tx.id) > max(pointers, default=0), "a pointer went back"
        pointers.append(int(tx.id))
        ok(tx.abort())

    def _read_everything(self) -> None:
        """Let the followers reach the end, and read everything from the beginning once more."""
        for follower in self._followers:
            follower.caught_up.clear()
        for follower in self._followers:
            assert follower.caught_up.wait(60) or self._shared.failures, "a reader got stuck"
        self._shared.raise_failures()
        client = Client(self._server.port, is_checked=False)
        self._shared.history += [read_all(client, view) for view in VIEWS]
        client.close()

    def _check_history(self) -> None:
        try:
            require_no_violation(self._shared.history)
        except AssertionError:
            if self._kept is not None:
                save(self._kept, without_lost_copies(self._shared.history))
            raise


def _terminate(server: ServerProcess) -> None:
    assert server.terminate() == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """The kills of one server on one data directory."""

    version: str
    seed: int
    kills: int
    units: int
    seconds: float


class Tally:
    """The chunks of one version of the server. The file may have other versions too; without a
    file nothing is kept."""

    def __init__(self, file: Path | None, *, version: str) -> None:
        self._file = file
        self._version = version
        self._chunks = [each for each in _read(file) if each.version == version]

    @property
    def kills(self) -> int:
        return sum(each.kills for each in self._chunks)

    @property
    def units(self) -> int:
        return sum(each.units for each in self._chunks)

    @property
    def seconds(self) -> float:
        return sum(each.seconds for each in self._chunks)

    def add(self, *, seed: int, kills: int, units: int, seconds: float) -> None:
        """Enter a chunk, in the file at once."""
        chunk = Chunk(
            version=self._version, seed=seed, kills=kills, units=units, seconds=round(seconds, 1)
        )
        self._chunks.append(chunk)
        if self._file is not None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with self._file.open("a") as file:
                file.write(json.dumps(asdict(chunk)) + "\n")


def version_here() -> str:
    """A digest of the server's sources: kills of one version prove nothing about another."""
    digest = sha256()
    modules = (path for name in SOURCES for path in (REPOSITORY / name).rglob("*.py"))
    for path in sorted([REPOSITORY / "server.py", *modules]):
        digest.update(f"{path.relative_to(REPOSITORY)}\n".encode() + path.read_bytes())
    return digest.hexdigest()[:12]


def _read(file: Path | None) -> Iterator[Chunk]:
    if file is not None and file.exists():
        for line in file.read_text("utf-8").splitlines():
            yield Chunk(**json.loads(line))


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code. A broken promise ends it with the failed assertion."""
    parser = argparse.ArgumentParser(prog="kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("history.jsonl"), metavar="FILE")
    parser.add_argument("--tally", type=Path, metavar="FILE", help="continue where this file ends")
    options = parser.parse_args(arguments)
    tally = Tally(options.tally, version=version_here())
    if tally.kills:
        print(f"before: {_summary(tally, clients=options.clients)}")
    while tally.kills < options.kills:
        rounds = min(ROUNDS_PER_HOME, options.kills - tally.kills)
        seed, began_s = options.seed + tally.kills, time.monotonic()
        with tempfile.TemporaryDirectory() as home:
            program = KillProgram(Path(home), seed=seed, clients=options.clients, kept=options.keep)
            units = program.run(rounds)
        tally.add(seed=seed, kills=rounds, units=units, seconds=time.monotonic() - began_s)
        print(_summary(tally, clients=options.clients), flush=True)
    return 0


def _summary(tally: Tally, *, clients: int) -> str:
    return (
        f"{tally.kills} kills under {clients} clients, {tally.units} units of work accounted for, "
        f"{tally.kills / tally.seconds * 60:.1f} kills a minute, nothing wrong"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
