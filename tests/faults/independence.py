"""The throughput of publishing without a transaction while the transaction service fails.

    python -m tests.faults.independence --rounds 20

Several connections publish without a pause while the transaction service runs, is stopped, hangs
(the disk of its log does not answer), has crashed (its log can't be written), or can't start (its
files are damaged). Short rounds of each state alternate with rounds in which it runs, so that other
load of the machine affects both (promise 7). Reading is not measured.
"""

import argparse
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized, SynchronizedArray
from pathlib import Path

from tests.faults.breakpoints import BreakpointServer
from tests.faults.workload_messages import LOST
from tests.http.calls import TRANSACTIONS, Topic, begin, entry
from tests.http.client import Client, ok, until
from tests.http.process import ServerProcess

CONNECTION_COUNT = 16
OVER = -1  # instead of a server to publish to: end
SETTLE_S = 0.1  # seconds until requests in flight to another server are answered
SHARE_MIN = 0.95  # of the throughput with transactions running
TOPIC = ("faults", "t2")

State = Callable[[], AbstractContextManager[ServerProcess]]


class Independence:
    """One server whose transactions can be made to fail and brought back, and one whose
    transaction files were damaged before it started."""

    def __init__(self, home: Path) -> None:
        self.broken = BreakpointServer(home / "switched")
        self.damaged = BreakpointServer(home / "damaged")
        damage(self.damaged)

    @property
    def states(self) -> dict[str, State]:
        """Each state of transactions, as a context that begins and ends it."""
        return {
            "stopped": self._stopped,
            "hung": self._hung,
            "crashed": self._crashed,
            "damaged": self._with_damaged_files,
        }

    @contextmanager
    def _stopped(self) -> Iterator[ServerProcess]:
        client = self.broken.server.client()
        ok(client.post(f"{TRANSACTIONS}/service/stop"))
        try:
            yield self.broken.server
        finally:
            ok(client.post(f"{TRANSACTIONS}/service/start"))

    @contextmanager
    def _hung(self) -> Iterator[ServerProcess]:
        server = self.broken.server
        tx = begin(server.client())
        self.broken.forget()
        self.broken.use_log_disk("hang")
        commit = threading.Thread(target=lambda: _commit(server, tx.id))
        commit.start()
        until(lambda: "log disk" in self.broken.reached("used"), what="the log to be written")
        try:
            yield server
            assert commit.is_alive(), "a commit was answered without a disk"
        finally:
            self.broken.use_log_disk("work")
            commit.join()

    @contextmanager
    def _crashed(self) -> Iterator[ServerProcess]:
        server = self.broken.server
        tx = begin(server.client())
        self.broken.use_log_disk("fail")
        _commit(server, tx.id)
        until(lambda: transactions_of(server) == "degraded", what="transactions to be down")
        try:
            yield server
        finally:
            self.broken.use_log_disk("work")
            client = server.client()
            # The first start may still fail, with a recovery that began on the failing disk.
            until(lambda: client.post(f"{TRANSACTIONS}/service/start").status == 200)

    @contextmanager
    def _with_damaged_files(self) -> Iterator[ServerProcess]:
        yield self.damaged.server

    def end(self) -> None:
        self.broken.end()
        self.damaged.end()


def _commit(server: ServerProcess, pointer: str) -> None:
    client = Client(server.port)
    with suppress(*LOST):
        client.post(f"{TRANSACTIONS}/{pointer}/commit", {"changes": ["key"]})
    client.close()


def damage(broken: BreakpointServer) -> None:
    """Commit some transactions, kill the server, damage all transaction files, and restart it."""
    client = broken.server.client()
    topic = Topic(client, *TOPIC)
    for number in range(3):
        ok(begin(client).commit(publish=[entry(topic, f"before the damage {number}")]))
    broken.server.kill()
    for file in (broken.server.data / "snapshots").glob("*.*"):
        data = bytearray(file.read_bytes())
        data[len(data) // 3] ^= 1
        file.write_bytes(data)
    broken.restart()
    assert transactions_of(broken.server) == "degraded"


def transactions_of(server: ServerProcess) -> str:
    """The status of transactions in readiness."""
    client = Client(server.port)
    checks = client.get("/health/ready").json["checks"]
    client.close()
    return str(checks["transactions"]["status"])


@dataclass(frozen=True, slots=True)
class Rate:
    """Publishes a second, and the server's processor time for each, which other load of the machine
    affects much less."""

    per_s: float
    processor_us: float


def processor_s(server: ServerProcess) -> float:
    """Seconds of processor time that the server has used so far."""
    fields = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Load:
    """A process that publishes without a transaction and without a pause to one of the servers."""

    def __init__(self, ports: Sequence[int]) -> None:
        context = multiprocessing.get_context("spawn")
        self._counts = context.Array("q", CONNECTION_COUNT, lock=False)
        self._target = context.Value("i", 0, lock=False)
        self._ports = ports
        arguments = (tuple(ports), self._target, self._counts)
        self._process = context.Process(target=publish_on, args=arguments, daemon=True)

    def __enter__(self) -> "Load":
        self._process.start()
        until(lambda: all(self._counts), within_s=60, what="all connections to publish")
        return self

    def __exit__(self, *_: object) -> None:
        self._target.value = OVER
        self._process.join()

    def rate(self, server: ServerProcess, *, seconds: float) -> "Rate":
        """Publish to this server, and measure it for so long."""
        self._target.value = self._ports.index(server.port)
        time.sleep(SETTLE_S)
        first, began_s, used_s = self._count(), time.monotonic(), processor_s(server)
        time.sleep(seconds)
        count = self._count() - first
        rate = count / (time.monotonic() - began_s)
        return Rate(rate, 1e6 * (processor_s(server) - used_s) / max(1, count))

    def _count(self) -> int:
        return sum(self._counts[number] for number in range(CONNECTION_COUNT))


def publish_on(
    ports: Sequence[int], target: "Synchronized[int]", counts: "SynchronizedArray[int]"
) -> None:
    """The load's process: each connection sends a publish after the reply to the last one."""
    body = b'{"messages":["0123456789abcdef"]}'
    head = (
        f"POST /v1/namespaces/{TOPIC[0]}/topics/{TOPIC[1]}/publish HTTP/1.1\r\n"
        f"Host: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )

    def publish(number: int) -> None:
        connections = [socket.create_connection(("127.0.0.1", port), 30) for port in ports]
        while (at := target.value) != OVER:
            connections[at].sendall(head.encode() + body)
            answer = connections[at].recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            counts[number] += 1
        for connection in connections:
            connection.close()

    threads = [threading.Thread(target=publish, args=(each,)) for each in range(CONNECTION_COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def shares(
    independence: Independence, *, rounds: int, seconds: float
) -> dict[str, list[tuple[Rate, Rate]]]:
    """For each state and round, its rate and the rate with transactions running around it."""
    found: dict[str, list[tuple[Rate, Rate]]] = {name: [] for name in independence.states}
    normal = independence.broken.server
    with Load([normal.port, independence.damaged.server.port]) as load:
        for _ in range(rounds):
            before = load.rate(normal, seconds=seconds)
            for name, state in independence.states.items():
                with state() as server:
                    during = load.rate(server, seconds=seconds)
                after = load.rate(normal, seconds=seconds)
                found[name].append((during, _between(before, after)))
                before = after
    return found


def _between(before: Rate, after: Rate) -> Rate:
    return Rate((before.per_s + after.per_s) / 2, (before.processor_us + after.processor_us) / 2)


def table(found: Mapping[str, Sequence[tuple[Rate, Rate]]]) -> float:
    """Print the medians of all rounds; returns the lowest share of the throughput."""
    print(
        f"{'transactions are':<18}{'publishes/s':>12}{'running':>9}{'share':>8}"
        f"{'server us/publish':>20}{'running':>9}"
    )
    least = 1.0
    for name, rounds in found.items():
        share = statistics.median(during.per_s / running.per_s for during, running in rounds)
        least = min(least, share)
        cells = [
            statistics.median(getattr(rate, field) for rate in rates)
            for field in ("per_s", "processor_us")
            for rates in zip(*rounds, strict=True)
        ]
        print(
            f"{name:<18}{cells[0]:>12.0f}{cells[1]:>9.0f}{share:>8.1%}"
            f"{cells[2]:>20.0f}{cells[3]:>9.0f}"
        )
    return least


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="independence", description=__doc__)
    parser.add_argument("--seconds", type=float, default=0.5, help="how long each round measures")
    parser.add_argument("--rounds", type=int, default=20)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as home:
        independence = Independence(Path(home))
        try:
            found = shares(independence, rounds=options.rounds, seconds=options.seconds)
        finally:
            independence.end()
    least = table(found)
    print(
        f"messages without a transaction keep at least {least:.1%} of their throughput, "
        f"and the bound is {SHARE_MIN:.0%}"
    )
    return 0 if least >= SHARE_MIN else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
