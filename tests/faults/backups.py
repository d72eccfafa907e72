"""Backups of a server under load, each restored and compared with all replies to clients.

    python -m tests.faults.backups --backups 20 --clients 16

While clients publish, commit and abort, backups are taken one after the other. Then a server is
started on each: it has everything that was acknowledged before the backup, no partial transaction,
and each topic is a prefix of the first server's (promises 1 to 5, 9). A client that only publishes
measures its latency during backups and between them; its messages, and some MB of ballast that were
there before, are accounted for as well.
"""

import argparse
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from admin.backup_and_restore import restore_archive
from tests.faults.history import BEGINNING, Attempt, Outcome, View
from tests.faults.workload_messages import (
    TOPICS,
    VIEWS,
    Shared,
    Worker,
    create_topics,
    read_all,
    read_topic,
    require_no_violation,
    topic_of,
)
from tests.http.calls import TRANSACTIONS
from tests.http.client import Client, ok, until
from tests.http.process import ServerProcess, serve
from tuff_cli.fsck_and_backup import download

LOAD_WITHIN_S = 120.0
UNITS_BETWEEN = 100  # units of work between two backups
BALLAST, PROBE = "ballast", "probe"  # topics beside those of the units of work
# Follows the number in a message of ballast, so that a backup takes some time.
WEIGHT = "|" + "x" * 1_000
BALLAST_COUNT = 1_000  # messages in one publish
Messages = Mapping[str, Sequence[tuple[str, str]]]  # by topic: message id, payload

# No transaction that is open at a backup may time out before a slow machine has restored it.
PATIENT = ("tx.default_timeout=600", "messaging.max_block=600", "tx.outcome_retention=86400")


@dataclass(frozen=True, slots=True)
class Taken:
    """A backup: the number of attempts recorded at its beginning, and its times in seconds."""

    archive: Path
    attempt_count: int
    began_s: float
    ended_s: float


class Probe:
    """Publishes numbers until the end; `waits` has the beginning and the latency of each, in s."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.waits: list[tuple[float, float]] = []

    def work(self) -> None:
        client = Client(self._shared.port)
        topic = topic_of(client, PROBE)
        while not self._shared.over.is_set():
            began = time.monotonic()
            ok(topic.publish(str(len(self.waits))))
            self.waits.append((began, time.monotonic() - began))
        client.close()

    def acknowledged_count(self, *, until_s: float) -> int:
        """How many publishes had been acknowledged by then."""
        return sum(began + wait <= until_s for began, wait in self.waits)

    def told(self, backups: Sequence[Taken]) -> str:
        """The median and the slowest hundredth, during backups and outside of them, in ms."""
        during, outside = [], []
        for began, wait in self.waits:
            is_during = any(each.began_s <= began <= each.ended_s for each in backups)
            (during if is_during else outside).append(wait * 1000)
        return f"a publish took {_quantiles(during)} during them, {_quantiles(outside)} otherwise"


def numbered(count: int) -> list[str]:
    """The payloads of a topic with so many messages, each of which is its number."""
    return [str(number) for number in range(count)]


def check_beside(
    restored: Messages, whole: Messages, *, ballast_count: int, probe_count: int, probe_told: int
) -> None:
    """The backup has all ballast, and at least those messages of the probe that were acknowledged
    before it, with the ids of the first server, which has lost none itself."""
    for topic, count in ((BALLAST, ballast_count), (PROBE, probe_count)):
        payloads = [payload for _, payload in whole[topic]]
        assert payloads == numbered(count), f"{topic} has {len(payloads)} of {count} messages"
    for topic, count in ((BALLAST, ballast_count), (PROBE, probe_told)):
        found = len(restored[topic])
        assert list(whole[topic][:found]) == list(restored[topic]), f"{topic} is no prefix"
        assert found >= count, f"{count} messages of {topic} were told, {found} are in the backup"


def read_beside(server: ServerProcess) -> Messages:
    """The topics beside those of the units; a message of ballast without its weight."""
    client = Client(server.port, is_checked=False)
    polls = [read_topic(topic_of(client, name), View.ALL) for name in (BALLAST, PROBE)]
    client.close()
    return {
        poll.topic: [(each, payload.removesuffix(WEIGHT)) for each, payload in poll.found]
        for poll in polls
    }


def _quantiles(waits_ms: list[float]) -> str:
    if len(waits_ms) < 2:
        return "no time that was measured"
    cuts = statistics.quantiles(waits_ms, n=100)
    return f"{cuts[49]:.1f} ms (p99 {cuts[98]:.1f}, n={len(waits_ms)})"


class BackupProgram:
    """One loaded server, and a server for each of its backups."""

    def __init__(self, home: Path, *, clients: int, ballast: int) -> None:
        self._home = home
        self._client_count = clients
        self._server = serve(home / "first", *PATIENT)
        self._shared = Shared(port=self._server.port)
        self._probe = Probe(self._shared)
        client = self._server.client()
        create_topics(client)
        ok(topic_of(client, PROBE).create())
        ok(topic_of(client, BALLAST).create())
        self._ballast_count = ballast * BALLAST_COUNT
        for first in range(0, self._ballast_count, BALLAST_COUNT):
            sent = [f"{number}{WEIGHT}" for number in range(first, first + BALLAST_COUNT)]
            ok(topic_of(client, BALLAST).publish(*sent))
        client.close()

    def run(self, count: int) -> str:
        """Take and check so many backups; the summary."""
        try:
            backups = self._take(count)
            attempts = list(self._shared.attempts)
            client = self._server.client()
            whole = read_all(client, View.ALL)
            beside = read_beside(self._server)
            client.close()
        finally:
            self._server.end()
        for taken in backups:
            self._check(taken, attempts, whole, beside)
        seconds = statistics.mean(each.ended_s - each.began_s for each in backups)
        return (
            f"{count} backups under {self._client_count} clients restored, {len(attempts)} units "
            f"of work accounted for in each, {seconds:.2f} s a backup; {self._probe.told(backups)}"
        )

    def _take(self, count: int) -> list[Taken]:
        places = dict.fromkeys(TOPICS, BEGINNING)
        works = [
            self._probe.work,
            *(
                Worker(self._shared, number=each, first_unit=0, first_places=places).work
                for each in range(self._client_count)
            ),
        ]
        threads = [threading.Thread(target=work) for work in works]
        for thread in threads:
            thread.start()
        try:
            return [self._take_one(number) for number in range(count)]
        finally:
            self._shared.over.set()
            for thread in threads:
                thread.join()
            self._shared.raise_failures()

    def _take_one(self, number: int) -> Taken:
        enough = len(self._shared.attempts) + UNITS_BETWEEN
        until(
            lambda: len(self._shared.attempts) >= enough or self._shared.failures,
            within_s=LOAD_WITHIN_S,
            what="the load to go on",
        )
        archive, told = self._home / f"{number}.backup", len(self._shared.attempts)
        began = time.monotonic()
        download(f"http://127.0.0.1:{self._server.port}", archive)
        return Taken(archive, told, began, time.monotonic())

    def _check(
        self, taken: Taken, attempts: Sequence[Attempt], whole: Attempt, beside: Messages
    ) -> None:
        home = taken.archive.with_suffix(".home")
        home.mkdir()
        restore_archive(taken.archive, home / "data", now_ms=time.time_ns() // 1_000_000)
        server = serve(home, *PATIENT)
        try:
            client = server.client()
            for tx in ok(client.get(TRANSACTIONS)).json["inProgress"]:
                ok(client.post(f"{TRANSACTIONS}/{tx['transactionId']}/abort"))
            began, ended = round(taken.began_s * 1e9), round(taken.ended_s * 1e9)
            known = [
                _as_restored(client, attempt, was_told=number < taken.attempt_count, began=began)
                for number, attempt in enumerate(attempts)
            ]
            # The restored server has the state that the first one had during the backup.
            reads = [
                replace(read_all(client, view), invoked=began, completed=ended) for view in VIEWS
            ]
            require_no_violation([*known, *reads, whole])
            check_beside(
                read_beside(server),
                beside,
                ballast_count=self._ballast_count,
                probe_count=len(self._probe.waits),
                probe_told=self._probe.acknowledged_count(until_s=taken.began_s),
            )
        finally:
            server.end()


def _as_restored(client: Client, attempt: Attempt, *, was_told: bool, began: int) -> Attempt:
    """The publishes of the attempt, with its outcome in the restored server, which has to be that
    of a reply before the backup."""
    attempt = replace(attempt, actions=tuple(attempt.publishes))
    if attempt.pointer is None:
        return attempt if was_told else attempt.ended(Outcome.UNKNOWN, completed=None)
    reply = client.get(f"{TRANSACTIONS}/{attempt.pointer}")
    is_committed = reply.status == 200 and reply.json["state"] == "committed"
    outcome = Outcome.OK if is_committed else Outcome.FAIL
    is_known = attempt.outcome is not Outcome.UNKNOWN
    assert not (was_told and is_known) or outcome is attempt.outcome, (
        f"{attempt} is {reply.body!r} in the backup"
    )
    assert attempt.outcome is Outcome.OK or not is_committed, (
        f"{attempt} is committed in the backup"
    )
    # A commit in the backup was made before it.
    return replace(attempt, outcome=outcome, completed=began - 1)


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code. A broken promise ends it with the failed assertion."""
    parser = argparse.ArgumentParser(prog="backups", description=__doc__)
    parser.add_argument("--backups", type=int, default=20)
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--ballast", type=int, default=20, help="MB that are there beforehand")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        program = BackupProgram(Path(home), clients=options.clients, ballast=options.ballast)
        print(program.run(options.backups))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
