"""`python -m benchmarks.cluster`: publishing through one, two and three servers of a cluster.

    python -m benchmarks.cluster [--rounds N] [--seconds S] [--out DIRECTORY]

Three servers share one HBase in one JVM and one ZooKeeper. The same number of connections publishes
to topics of the first one, two or three servers: to the owner of the topic directly, or through
another server, which forwards. The steps take turns, round by round, and a ratio is of one round:
other load of the machine slows all of them. The processor time of each process says what limits
the throughput, and what it takes for a publish is the input of a calculation for more machines.
Writes cluster.json and cluster.md.
"""

import argparse
import json
import multiprocessing
import os
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPConnection
from multiprocessing.sharedctypes import Synchronized, SynchronizedArray
from pathlib import Path

from benchmarks.machine import describe
from benchmarks.processes import processor_s, tuff
from benchmarks.results import RESULTS
from tests.hbase.deployments import deploy, server_settings, settings_of
from tests.hbase.local_hbase import LocalHBase, why_missing
from tests.metadata.zookeeper_server import ZooKeeperServer

SERVER_COUNT = 3
LOAD_PROCESSES = 2
CONNECTIONS = 24  # of each load process; a multiple of 2 and 3, so that all servers get as many
TOPICS_OF_EACH = 4  # topics of each server that the connections share
SETTLE_S = 0.2  # seconds until the requests of the last step are answered
MACHINES, SERVER_CORES, REGION_SERVER_CORES = 10, 1, 4  # of the calculation
BODY = b'{"messages":["' + b"x" * 100 + b'"]}'
OVER = -1

Target = tuple[int, str]  # a port, and the path of a topic
Row = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Step:
    """One way to publish: to the topics of so many servers, directly or through another server."""

    servers: int
    is_direct: bool

    @property
    def name(self) -> str:
        return f"{self.servers} {'direct' if self.is_direct else 'forwarded'}"


STEPS = tuple(Step(servers, direct) for direct in (True, False) for servers in (1, 2, 3))


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--seconds", type=float, default=2.0, help="of each step of a round")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args(arguments)
    if reason := why_missing():
        sys.stderr.write(f"{reason}\n")
        return 2
    with tempfile.TemporaryDirectory() as home, _cluster(Path(home)) as (ports, pids):
        targets = [_targets(step, ports, _topics_by_owner(ports)) for step in STEPS]
        rounds = _measure(targets, pids, rounds=options.rounds, seconds=options.seconds)
    machine, rows = describe(None), _rows(rounds)
    options.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"machine": machine, "rows": rows}, indent=1)
    (options.out / "cluster.json").write_text(text + "\n")
    page = _page(rows)
    (options.out / "cluster.md").write_text(page)
    print(page)
    return 0


@contextmanager
def _cluster(home: Path) -> Iterator[tuple[list[int], dict[str, int]]]:
    """The ports of the servers, and the process ids of all processes by name."""
    with ExitStack() as ends:
        hbase = LocalHBase(home / "hbase")
        ends.callback(hbase.stop)
        tables = deploy(settings_of(hbase.ports, prefix="bench_"))
        zookeeper = ZooKeeperServer(home / "zookeeper")
        ends.callback(zookeeper.kill)
        ports, pids = [], {"hbase": hbase.jvm.pid, "zookeeper": zookeeper.pid}
        for number in range(1, SERVER_COUNT + 1):
            settings = (
                *server_settings(tables),
                f"cluster.server_id=s{number}",
                f"cluster.metadata=zookeeper://{zookeeper.address}/bench",
                f"cluster.transactions_directory={home / 'transactions'}",
                "cluster.rebalance_interval=3600",
            )
            server = ends.enter_context(tuff(home / f"s{number}", settings=settings))
            ports.append(int(server.addr.rpartition(":")[2]))
            pids[f"s{number}"] = server.pid
        yield ports, pids


def _topics_by_owner(ports: Sequence[int]) -> list[list[str]]:
    """The paths of topics that each server owns, created where they are missing."""
    owned: list[list[str]] = [[] for _ in ports]
    number = 0
    while min(map(len, owned)) < TOPICS_OF_EACH:
        assert number < 100 * TOPICS_OF_EACH, "one server gets no topics"
        path = f"/v1/namespaces/bench/topics/t{number}"
        number += 1
        _ask(ports[number % len(ports)], "PUT", path)
        owner = _ask(ports[0], "GET", path)
        at = ports[0] if owner is None else int(owner.rpartition(":")[2])
        owned[ports.index(at)].append(path)
    return owned


def _ask(port: int, method: str, path: str) -> str | None:
    """The owner that the reply names; None: the server that answered. A topic may exist already."""
    connection = HTTPConnection("127.0.0.1", port, timeout=30)
    connection.request(method, path)
    reply = connection.getresponse()
    body = reply.read()
    connection.close()
    assert reply.status in (200, 409), body
    return reply.getheader("Tuff-Owner")


def _targets(step: Step, ports: Sequence[int], owned: Sequence[Sequence[str]]) -> list[Target]:
    """Where each connection publishes in this step."""
    found = []
    for connection in range(CONNECTIONS):
        owner = connection % step.servers
        topics = owned[owner][:TOPICS_OF_EACH]
        through = owner if step.is_direct else (owner + 1) % len(ports)
        found.append((ports[through], topics[connection // step.servers % len(topics)]))
    return found


def _measure(
    targets: Sequence[Sequence[Target]],
    pids: Mapping[str, int],
    *,
    rounds: int,
    seconds: float,
) -> list[dict[str, dict[str, float]]]:
    """For each round and step: publishes a second, and processor shares by process."""
    context = multiprocessing.get_context("spawn")
    step_now = context.Value("i", 0, lock=False)
    counts = [context.Array("q", CONNECTIONS, lock=False) for _ in range(LOAD_PROCESSES)]
    loads = [
        context.Process(target=publish_on, args=(targets, step_now, each), daemon=True)
        for each in counts
    ]
    for load in loads:
        load.start()
    own = {f"load {number + 1}": load.pid or 0 for number, load in enumerate(loads)}
    watched = {**pids, **own}
    while not all(each[number] for each in counts for number in range(CONNECTIONS)):
        time.sleep(SETTLE_S)
    found = []
    for _ in range(rounds):
        of_round = {}
        for index, step in enumerate(STEPS):
            step_now.value = index
            time.sleep(SETTLE_S)
            began_s, first = time.monotonic(), sum(map(sum, counts))
            used_s = {name: processor_s(pid) for name, pid in watched.items()}
            time.sleep(seconds)
            lasted_s = time.monotonic() - began_s
            shares = {
                name: (processor_s(pid) - used_s[name]) / lasted_s for name, pid in watched.items()
            }
            of_round[step.name] = {
                "publishes/s": (sum(map(sum, counts)) - first) / lasted_s,
                **shares,
            }
        found.append(of_round)
    step_now.value = OVER
    for load in loads:
        load.join()
    return found


def publish_on(
    targets: Sequence[Sequence[Target]],
    step_now: "Synchronized[int]",
    counts: "SynchronizedArray[int]",
) -> None:
    """A load process: each connection sends a publish after the reply to the last one."""

    def publish(number: int) -> None:
        connections: dict[int, socket.socket] = {}
        while (step := step_now.value) != OVER:
            port, path = targets[step][number]
            if port not in connections:
                connections[port] = socket.create_connection(("127.0.0.1", port), 30)
            head = (
                f"POST {path}/publish HTTP/1.1\r\nHost: localhost\r\n"
                f"Content-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n"
            )
            connections[port].sendall(head.encode() + BODY)
            answer = connections[port].recv(65_536)
            assert answer.startswith(b"HTTP/1.1 200 "), answer
            counts[number] += 1
        for connection in connections.values():
            connection.close()

    threads = [threading.Thread(target=publish, args=(each,)) for each in range(CONNECTIONS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _rows(rounds: Sequence[Mapping[str, Row]]) -> dict[str, Row]:
    """The medians of all rounds, with the ratio to one server directly in the same round."""
    found: dict[str, Row] = {}
    for step in STEPS:
        of_step = [each[step.name] for each in rounds]
        row = {key: statistics.median(each[key] for each in of_step) for key in of_step[0]}
        row["ratio"] = statistics.median(
            each[step.name]["publishes/s"] / each[STEPS[0].name]["publishes/s"] for each in rounds
        )
        found[step.name] = row
    return found


def _page(rows: Mapping[str, Row]) -> str:
    names = [name for name in next(iter(rows.values())) if name not in ("publishes/s", "ratio")]
    lines = [
        "# Publishing through the servers of a cluster",
        "",
        f"{LOAD_PROCESSES * CONNECTIONS} connections, one message of 100 bytes in each request, "
        f"{os.cpu_count()} cores for everything. Processor shares are of one core.",
        "",
        "| servers | publishes/s | to 1 direct | " + " | ".join(names) + " |",
        "|---|---:|---:|" + "---:|" * len(names),
    ]
    for name, row in rows.items():
        shares = " | ".join(f"{row[each]:.0%}" for each in names)
        lines.append(f"| {name} | {row['publishes/s']:.0f} | {row['ratio']:.2f} | {shares} |")
    return "\n".join([*lines, "", *_calculation(rows)]) + "\n"


def _calculation(rows: Mapping[str, Row]) -> list[str]:
    """What MACHINES would do if processor time were the only limit, from one server's load."""
    direct, forwarded = rows["1 direct"], rows["1 forwarded"]
    owner_us, hbase_us = (_us(direct, [name]) for name in ("s1", "hbase"))
    both_us = _us(forwarded, [f"s{number + 1}" for number in range(SERVER_COUNT)])
    through_any_us = owner_us + (both_us - owner_us) * (MACHINES - 1) / MACHINES
    regions = MACHINES * REGION_SERVER_CORES * 1e6 / hbase_us
    to_owners, through_any = (
        min(MACHINES * SERVER_CORES * 1e6 / each_us, regions)
        for each_us in (owner_us, through_any_us)
    )
    return [
        f"Calculated for {MACHINES} machines of such cores, each with a server on "
        f"{SERVER_CORES} of them and a region server on {REGION_SERVER_CORES}, topics spread "
        f"evenly: {to_owners:,.0f} publishes/s to the owners, {through_any:,.0f} through any "
        "server. Inputs, in processor time of a publish: "
        f"{owner_us:.0f} us at its owner, {both_us - owner_us:.0f} us more if it is forwarded, "
        f"{hbase_us:.0f} us in HBase. Left out: network, disks, and replicas of HBase's log.",
    ]


def _us(row: Row, names: Sequence[str]) -> float:
    """The processor time of a publish in these processes, in us."""
    return sum(row[name] for name in names) / row["publishes/s"] * 1e6


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
