"""What worker processes take off the process that decides.

    python -m benchmarks.workers [--seconds S] [--rounds N] [--conns N] [--workers 0,1,2]

Servers with different numbers of workers get the same calls in turns: without TLS, with it, and
with TLS on a new connection for each call. Prints the processor time of the main process and of all
workers per call, less what they take when idle: other load on the machine changes it least. From
both follows the most that a machine with so many cores can do. Each process uses one core at most,
and all of them together no more than there are.
"""

import argparse
import os
import socket
import ssl
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import trustme

from benchmarks.generator import Run, measure, number
from benchmarks.processes import Running, tuff

SCENARIOS = ("publish", "start", "transaction")
PUBLISH_TLS, CONNECTIONS_TLS = "publish with TLS", "new TLS connection"
IDLE_S = 1.0  # in which a server has no calls
_REQUEST = b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n"
CORES = (2, 4, 8)


class Cost(NamedTuple):
    """Processor time per call, in microseconds."""

    main_us: float
    workers_us: float


def own_s(pid: int) -> float:
    """The processor time of the threads of one process, in seconds; the kernel counts in
    nanoseconds here."""
    threads = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[0]) for each in threads) / 1e9


def workers_of(pid: int) -> list[int]:
    """The processes that a server has started."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]


def cost_of(load: Callable[[], float], server: Running) -> Cost:
    """Measure once. `load` returns the number of its calls."""
    idle = _shares(server, lambda: time.sleep(IDLE_S))
    calls = 0.0

    def work() -> None:
        nonlocal calls
        calls = load()

    busy = _shares(server, work)
    main_s, workers_s = (
        max(0.0, (b - a) * busy.seconds) for a, b in zip(idle[1:], busy[1:], strict=True)
    )
    return Cost(main_s / calls * 1e6, workers_s / calls * 1e6)


class _Shares(NamedTuple):
    """Processor time per second."""

    seconds: float
    main: float
    workers: float


def _shares(server: Running, work: Callable[[], None]) -> _Shares:
    workers = workers_of(server.pid)
    began_s = time.perf_counter()
    before = own_s(server.pid), sum(map(own_s, workers))
    work()
    after = own_s(server.pid), sum(map(own_s, workers))
    seconds = time.perf_counter() - began_s
    main_s, workers_s = (b - a for a, b in zip(before, after, strict=True))
    return _Shares(seconds, main_s / seconds, workers_s / seconds)


def new_connections(server: Running, context: ssl.SSLContext, *, seconds: float) -> float:
    """Make one call over each of many connections; returns their number."""
    until_s, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < until_s:
        with _connected(server, context) as connection:
            _call(connection)
        count += 1
    return count


def _connected(server: Running, context: ssl.SSLContext) -> ssl.SSLSocket:
    host, _, port = server.addr.partition(":")
    plain = socket.create_connection((host, int(port)))
    return context.wrap_socket(plain, server_hostname=host)


def _call(connection: ssl.SSLSocket) -> None:
    connection.sendall(_REQUEST)
    assert connection.recv(65_536).startswith(b"HTTP/1.1 200 ")


def calls_per_s(cost: Cost, *, workers: int, cores: int) -> float:
    """The most that this machine can do, with nothing else on it."""
    bounds = [1e6 / cost.main_us, cores * 1e6 / (cost.main_us + cost.workers_us)]
    if workers:
        bounds.append(workers * 1e6 / cost.workers_us)
    return min(bounds)


def best_count(without: Cost, with_workers: Cost, *, cores: int) -> tuple[int, float]:
    """The number of workers with the highest rate on so many cores, and that rate."""
    rates = {0: calls_per_s(without, workers=0, cores=cores)}
    for count in range(1, cores + 1):
        rates[count] = calls_per_s(with_workers, workers=count, cores=cores)
    best = max(rates, key=lambda count: (round(rates[count]), -count))
    return best, rates[best]


def main(arguments: list[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of each run")
    parser.add_argument("--conns", type=int, default=64)
    parser.add_argument("--workers", default="0,1,2")
    options = parser.parse_args(arguments)
    counts = [int(each) for each in options.workers.split(",")]
    with tempfile.TemporaryDirectory(prefix="tuff-workers-") as home:
        found = {
            **_plain(Path(home), options, counts),
            **_with_tls(Path(home), options, counts),
        }
    for scenario, costs in found.items():
        _show(scenario, costs)
    return 0


def _plain(
    home: Path, options: argparse.Namespace, counts: list[int]
) -> dict[str, dict[int, Cost]]:
    found: dict[str, dict[int, list[Cost]]] = {
        each: {count: [] for count in counts} for each in SCENARIOS
    }
    with ExitStack() as stack:
        servers = _servers(home / "plain", counts, [], stack)
        time.sleep(IDLE_S)
        for count, server in servers.items():
            sizes = [_resident_mib(pid) for pid in (server.pid, *workers_of(server.pid))]
            shown = ", ".join(f"{size:.0f}" for size in sizes)
            print(f"{count} workers: ready in {server.start_s:.2f} s; MiB resident: {shown}")
        for _ in range(options.rounds):
            for scenario, by_count in found.items():
                run = _run(scenario, options)
                for count, server in servers.items():
                    by_count[count].append(cost_of(_load(run, server), server))
    return {scenario: _medians(by_count) for scenario, by_count in found.items()}


def _run(scenario: str, options: argparse.Namespace, *flags: str) -> Run:
    return Run(
        scenario=scenario,
        connections=options.conns,
        seconds=options.seconds,
        flags=("-warm", "0", *flags),
    )


def _load(run: Run, server: Running) -> Callable[[], float]:
    return lambda: number(measure(run, server), "calls")


def _with_tls(
    home: Path, options: argparse.Namespace, counts: list[int]
) -> dict[str, dict[int, Cost]]:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    key, certificate, trusted = home / "key.pem", home / "certificate.pem", home / "ca.pem"
    issued.private_key_pem.write_to_path(key)
    issued.cert_chain_pems[0].write_to_path(certificate)
    authority.cert_pem.write_to_path(trusted)
    settings = [f"server.tls_key_file={key}", f"server.tls_certificate_file={certificate}"]
    context = ssl.create_default_context(cafile=trusted)
    publish = _run("publish", options, "-ca", str(trusted))
    found: dict[str, dict[int, list[Cost]]] = {
        each: {count: [] for count in counts} for each in (PUBLISH_TLS, CONNECTIONS_TLS)
    }
    with ExitStack() as stack:
        servers = _servers(home / "tls", counts, settings, stack)
        for _ in range(options.rounds):
            for count, server in servers.items():
                found[PUBLISH_TLS][count].append(cost_of(_load(publish, server), server))
            for count, server in servers.items():
                load = partial(new_connections, server, context, seconds=options.seconds)
                found[CONNECTIONS_TLS][count].append(cost_of(load, server))
    return {scenario: _medians(by_count) for scenario, by_count in found.items()}


def _servers(
    home: Path, counts: list[int], settings: list[str], stack: ExitStack
) -> dict[int, Running]:
    return {
        count: stack.enter_context(
            tuff(home / str(count), settings=[*settings, f"server.workers={count}"])
        )
        for count in counts
    }


def _medians(found: dict[int, list[Cost]]) -> dict[int, Cost]:
    return {
        count: Cost(median(c.main_us for c in costs), median(c.workers_us for c in costs))
        for count, costs in found.items()
    }


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / (1 << 20)


def _show(scenario: str, costs: dict[int, Cost]) -> None:
    for count, cost in costs.items():
        print(
            f"{scenario:20} {count} workers: main {cost.main_us:6.1f} us/call, "
            f"workers {cost.workers_us:6.1f} us/call"
        )
    if 0 not in costs or len(costs) < 2:
        return
    with_workers = costs[max(costs)]
    for cores in CORES:
        count, rate = best_count(costs[0], with_workers, cores=cores)
        alone = calls_per_s(costs[0], workers=0, cores=cores)
        print(f"{scenario:20} {cores} cores: {alone:.0f}/s without, {rate:.0f}/s with {count}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
