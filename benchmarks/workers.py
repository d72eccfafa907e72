"""What worker processes take off the process that decides.

    python -m benchmarks.workers [--seconds S] [--rounds N] [--conns N] [--workers 0,1,2]

Servers with different numbers of workers get the same calls in turns, over HTTP, from the load
generator. Prints the processor time of the main process and of all workers per call, which other
load on the machine changes least. From both follows the most that a machine with so many cores can
do: each process uses one core at most, and all of them together no more than there are.
"""

import argparse
import os
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import NamedTuple

from benchmarks.generator import Run, measure, number
from benchmarks.processes import Running, tuff

SCENARIOS = ("publish", "poll", "transaction")  # in this order: the polls read what was published
CORES = (2, 4, 8)


class Cost(NamedTuple):
    """Processor time per call, in microseconds."""

    main_us: float
    workers_us: float


def own_s(pid: int) -> float:
    """The processor time of one process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def workers_of(pid: int) -> list[int]:
    """The processes that a server has started."""
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for path in lists for child in path.read_text().split()]


def cost_of(run: Run, server: Running) -> Cost:
    """Measure once."""
    workers = workers_of(server.pid)
    before = own_s(server.pid), sum(map(own_s, workers))
    calls = number(measure(run, server), "calls")
    after = own_s(server.pid), sum(map(own_s, workers))
    main_s, workers_s = (b - a for a, b in zip(before, after, strict=True))
    return Cost(main_s / calls * 1e6, workers_s / calls * 1e6)


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
    for scenario, costs in _measure(options, counts).items():
        _show(scenario, costs)
    return 0


def _measure(options: argparse.Namespace, counts: list[int]) -> dict[str, dict[int, Cost]]:
    found: dict[str, dict[int, list[Cost]]] = {
        each: {count: [] for count in counts} for each in SCENARIOS
    }
    with tempfile.TemporaryDirectory(prefix="tuff-workers-") as home, ExitStack() as stack:
        servers = {
            count: stack.enter_context(
                tuff(Path(home) / str(count), settings=[f"server.workers={count}"])
            )
            for count in counts
        }
        for count, server in servers.items():
            sizes = [_resident_mib(pid) for pid in (server.pid, *workers_of(server.pid))]
            shown = ", ".join(f"{size:.0f}" for size in sizes)
            print(f"{count} workers: ready in {server.start_s:.2f} s; MiB resident: {shown}")
        for _ in range(options.rounds):
            for scenario in SCENARIOS:
                flags = ("-warm", "0")
                run = Run(scenario=scenario, connections=options.conns, seconds=options.seconds,
                          flags=flags)  # fmt: skip
                for count, server in servers.items():
                    found[scenario][count].append(cost_of(run, server))
    return {
        scenario: {count: _median(costs) for count, costs in by_count.items()}
        for scenario, by_count in found.items()
    }


def _median(costs: list[Cost]) -> Cost:
    return Cost(median(c.main_us for c in costs), median(c.workers_us for c in costs))


def _resident_mib(pid: int) -> float:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / (1 << 20)


def _show(scenario: str, costs: dict[int, Cost]) -> None:
    for count, cost in costs.items():
        print(
            f"{scenario:12} {count} workers: main {cost.main_us:6.1f} us/call, "
            f"workers {cost.workers_us:6.1f} us/call"
        )
    if 0 not in costs or len(costs) < 2:
        return
    with_workers = costs[max(costs)]
    for cores in CORES:
        count, rate = best_count(costs[0], with_workers, cores=cores)
        alone = calls_per_s(costs[0], workers=0, cores=cores)
        print(f"{scenario:12} {cores} cores: {alone:.0f}/s without, {rate:.0f}/s with {count}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
