"""`kill -9` of a real server under load: many clients, two readers that never stop, a ledger.

    python -m tests.faults.kill --kills 20 --clients 64
    python -m tests.faults.kill --kills 1000 --tally build/prove/kills.jsonl

Each round loads the server, kills it without warning, starts one on what it left, resolves every
doubt by asking, and compares what readers find with what clients were told (promises 1 to 5, 9).
After some rounds all that everybody did and was shown is checked as one history, and a new server
with empty directories takes over, so that a program may run for hours. With a tally it may be
interrupted, and goes on where it was when it is started again.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.faults.checker import violations
from tests.faults.checker_findings import report
from tests.faults.checker_history import BEGINNING, save
from tests.faults.kill_clients import (
    TOPICS,
    Follower,
    Shared,
    Worker,
    check_outcomes,
    read_all,
    read_on,
    resolved,
    topic_of,
)
from tests.faults.kill_history import attempted, without_lost_copies
from tests.faults.kill_tally import Tally, version_here
from tests.faults.ledger import Unit, check_committed, check_prefix
from tests.http.calls import begin
from tests.http.client import Client, ok, until
from tests.http.process import ServerProcess, serve

LOAD_WITHIN_S = 120.0
UNIT_COUNT = (60, 240)  # units of work of all clients, from and to, until the kill
ROUNDS_PER_HOME = 20  # rounds on one data directory; what is there is compared in every round
ISOLATIONS = ("committed", "all")


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
        self._followers = [Follower(self._shared, isolation=name) for name in ISOLATIONS]
        self._threads = [threading.Thread(target=one.follow) for one in self._followers]
        self._views: dict[str, dict[str, list[tuple[str, str]]]] = {
            name: {topic: [] for topic in TOPICS} for name in ISOLATIONS
        }
        self._places = {name: dict.fromkeys(TOPICS, BEGINNING) for name in ISOLATIONS}
        self._unit_count = 0
        self._repeated: list[Unit] = []
        client = Client(self._server.port, is_checked=False)
        for name in TOPICS:
            ok(topic_of(client, name).create())
        client.close()

    def run(self, rounds: int) -> int:
        """How many units of work were accounted for."""
        for thread in self._threads:
            thread.start()
        try:
            for number in range(rounds):
                self._load(number)
                self._restart(ServerProcess.kill)
                self._account()
            self._restart(_terminate)
            self._account()
            self._compare_followers()
        finally:
            self._shared.over.set()
            for thread in self._threads:
                thread.join()
            self._server.end()
        self._raise_failures()
        self._check_history()
        return self._unit_count

    def _load(self, number: int) -> None:
        """All clients at work until so many units are done, then SIGKILL in the middle of it."""
        workers = [
            Worker(
                self._shared,
                number=each,
                first_unit=1_000_000 * number,
                first_places=self._places["all"],
            )
            for each in range(self._client_count)
        ]
        threads = [threading.Thread(target=one.work) for one in workers]
        enough = self._random.randint(*self._units_until_kill)
        for thread in threads:
            thread.start()
        until(
            lambda: len(self._shared.units) >= enough or self._shared.failures,
            within_s=LOAD_WITHIN_S,
            what="the load to get going",
        )
        self._server.kill()
        for thread in threads:
            thread.join()
        self._raise_failures()

    def _restart(self, end: Callable[[ServerProcess], object]) -> None:
        end(self._server)
        assert "Traceback" not in self._server.stderr(), self._server.stderr()
        self._server = serve(self._home)
        self._shared.port = self._server.port

    def _account(self) -> None:
        client = Client(self._server.port, is_checked=False)
        new = [resolved(client, unit) for unit in self._shared.units]
        self._shared.units.clear()
        self._unit_count += len(new)
        self._shared.history += map(attempted, new)
        self._repeated += [unit for unit in new if unit.ids]
        check_outcomes(client, new)
        self._check_pointers(client)
        for isolation, view in self._views.items():
            # Whatever this round wrote stands behind all that was there before it.
            after = self._places[isolation]
            found, self._places[isolation] = read_on(client, isolation=isolation, after=after)
            if isolation == "committed":
                check_committed(new, found)
            for topic, messages in found.items():
                view[topic] += messages
        client.close()

    def _check_pointers(self, client: Client) -> None:
        pointers = self._shared.pointers
        assert len(set(pointers)) == len(pointers), "a pointer was given out twice"
        tx = begin(client)
        assert int(tx.id) > max(pointers, default=0), "a pointer went back"
        pointers.append(int(tx.id))
        ok(tx.abort())

    def _compare_followers(self) -> None:
        """Who followed all the time was shown what one is shown who reads it all at the end."""
        for follower in self._followers:
            follower.caught_up.clear()
        for follower in self._followers:
            assert follower.caught_up.wait(60) or self._shared.failures, "a reader got stuck"
        self._raise_failures()
        client = Client(self._server.port, is_checked=False)
        for follower, isolation in zip(self._followers, ISOLATIONS, strict=True):
            whole = read_all(client, isolation=isolation)
            for shown in (follower.seen, self._views[isolation]):
                check_prefix(shown, whole)
                check_prefix(whole, shown)
        client.close()

    def _check_history(self) -> None:
        history = without_lost_copies(self._shared.history, self._repeated)
        found = violations(history)
        if found and self._kept is not None:
            save(self._kept, history)
        assert not found, report(found)

    def _raise_failures(self) -> None:
        if self._shared.failures:
            raise self._shared.failures[0]


def _terminate(server: ServerProcess) -> None:
    assert server.terminate() == 0


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code. What is wrong ends it with the assertion that failed."""
    parser = argparse.ArgumentParser(prog="kill", description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, default=Path("history.jsonl"), metavar="FILE")
    parser.add_argument("--tally", type=Path, metavar="FILE", help="go on where this ends")
    options = parser.parse_args(arguments)
    tally = Tally(options.tally, version=version_here())
    if tally.kills:
        sys.stdout.write(f"before: {_told(tally, clients=options.clients)}")
    while tally.kills < options.kills:
        rounds = min(ROUNDS_PER_HOME, options.kills - tally.kills)
        seed, began_s = options.seed + tally.kills, time.monotonic()
        with tempfile.TemporaryDirectory() as home:
            program = KillProgram(Path(home), seed=seed, clients=options.clients, kept=options.keep)
            units = program.run(rounds)
        tally.add(seed=seed, kills=rounds, units=units, seconds=time.monotonic() - began_s)
        sys.stdout.write(_told(tally, clients=options.clients))
        sys.stdout.flush()
    return 0


def _told(tally: Tally, *, clients: int) -> str:
    return (
        f"{tally.kills} kills under {clients} clients, {tally.units} units of work accounted for, "
        f"{tally.kills / tally.seconds * 60:.1f} kills a minute, nothing wrong\n"
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
