"""Deterministic simulation: the real components on a simulated disk and a simulated clock.

    python -m tests.simulation --seeds 10000 --from 0      these seeds, one after the other
    python -m tests.simulation --hours 3 --from 1000000    as many seeds as the time allows
    python -m tests.simulation --seed 42                   one seed, with its trace
    python -m tests.simulation --replay history.json       a history that was printed

With --cluster, each of these simulates several servers of a cluster (tests/simulation/cluster).

Run several processes with different `--from`. The first seed that fails in some way is shortened
and printed as a history for `--replay`; further seeds that fail in the same way are counted. The
exit code is 1 if a seed failed. `invariants.py` has the checks, `operations.py`, `profiles.py`,
`runner.py` and `scenarios.py` the operations, docs/decisions/0016 the reasons.
"""

import argparse
import gc
import itertools
import logging
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from tests.simulation import operations, simulation
from tests.simulation.cluster import histories as cluster_histories
from tests.simulation.cluster import simulation as cluster_simulation
from tests.simulation.operations import History, shortest
from tests.simulation.simulation import Result

PROGRESS_EVERY_S = 60


class Simulated(NamedTuple):
    """What is simulated: how a seed makes a history of it, and how a history runs."""

    history_of: Callable[[int], History]
    run: Callable[[History], Result]


ONE_SERVER = Simulated(operations.history_of, simulation.run)
CLUSTER = Simulated(cluster_histories.history_of, cluster_simulation.run)


def main(arguments: list[str]) -> int:
    """The program; returns its exit code."""
    options = _parser().parse_args(arguments)
    logging.disable(logging.CRITICAL)
    simulated = CLUSTER if options.cluster else ONE_SERVER
    if options.replay is not None:
        history = History.from_json(options.replay.read_text("utf-8"))
        return _show(simulated.run(history))
    if options.seed is not None:
        return _show(simulated.run(simulated.history_of(options.seed)))
    if options.until_one_fails:
        return _first_failure(simulated, _seeds(options))
    return _explore(simulated, _seeds(options), shrinks=not options.whole)


def _seeds(options: argparse.Namespace) -> Iterator[int]:
    if options.hours is None:
        return iter(range(options.first, options.first + options.seeds))
    end_s = time.monotonic() + options.hours * 3600
    return itertools.takewhile(lambda _: time.monotonic() < end_s, itertools.count(options.first))


def _explore(simulated: Simulated, seeds: Iterable[int], *, shrinks: bool) -> int:
    began_s = reported_s = time.monotonic()
    count = 0
    failed: Counter[str] = Counter()
    for seed, history, result in _played(simulated, seeds):
        count += 1
        if result.kind is not None:
            failed[result.kind] += 1
            print(f"seed {seed}: {result.failure}", flush=True)
            if shrinks and failed[result.kind] == 1:
                print(_shortest(simulated, history, result).to_json(), flush=True)
        if time.monotonic() - reported_s > PROGRESS_EVERY_S:
            reported_s = time.monotonic()
            print(f"... seed {seed}, {count} played, {failed.total()} failed", flush=True)
    for kind, times in failed.most_common():
        print(f"{times} times: {kind}")
    seconds = time.monotonic() - began_s
    print(f"{count} seeds, {failed.total()} failed in {len(failed)} ways, {seconds:.0f} s")
    return int(failed.total() > 0)


def _first_failure(simulated: Simulated, seeds: Iterable[int]) -> int:
    for count, (seed, _, result) in enumerate(_played(simulated, seeds), 1):
        if result.failure is not None:
            print(f"seed {seed} after {count}: {result.failure}")
            return 1
    print("no seed failed")
    return 0


def _played(simulated: Simulated, seeds: Iterable[int]) -> Iterator[tuple[int, History, Result]]:
    # Automatic garbage collection takes a third of the time. A server that has ended is one large
    # cycle, which one collection after each seed frees; frozen modules are not scanned.
    gc.collect()
    gc.freeze()
    gc.disable()
    for seed in seeds:
        history = simulated.history_of(seed)
        yield seed, history, simulated.run(history)
        gc.collect()


def _shortest(simulated: Simulated, history: History, result: Result) -> History:
    def fails(shorter: History) -> bool:
        return simulated.run(shorter).kind == result.kind

    return shortest(history, fails)


def _show(result: Result) -> int:
    print(result.trace or "no promise is broken")
    print(f"digest {result.digest}")
    return int(result.failure is not None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--hours", type=float, help="run for so long, in place of --seeds")
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="a history in a file")
    parser.add_argument("--cluster", action="store_true", help="simulate servers of a cluster")
    parser.add_argument("--until-one-fails", action="store_true", help="stop at the first failure")
    parser.add_argument("--whole", action="store_true", help="do not shorten failing histories")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
