"""Deterministic simulation: the real rooms on a simulated disk, under a simulated clock.

    python -m tests.simulation --seeds 10000 --from 0      these seeds, one after the other
    python -m tests.simulation --hours 3 --from 1000000    as many as there is time for
    python -m tests.simulation --seed 42                   one seed, with its trace
    python -m tests.simulation --replay history.json       a history that was printed

Several processes share the work with different `--from`. The first seed that fails in some way is
made shorter as long as it does, and printed as a history for `--replay`; the program goes on, and
counts what else fails in the same way; it ends with 1. What is checked stands in
`tests/simulation/invariants.py`, what is done in `tests/simulation/operations.py` and
`tests/simulation/profiles.py`, and why it is done in docs/decisions/0016.
"""

import argparse
import gc
import itertools
import logging
import sys
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.simulation.operations import History, history_of, shortest
from tests.simulation.simulation import Result, run

PROGRESS_EVERY_S = 60


def main(arguments: list[str]) -> int:
    """The program; returns its exit code."""
    options = _parser().parse_args(arguments)
    logging.disable(logging.CRITICAL)
    if options.replay is not None:
        history = History.from_json(options.replay.read_text("utf-8"))
        return _show(run(history))
    if options.seed is not None:
        return _show(run(history_of(options.seed)))
    if options.until_one_fails:
        return _first_failure(_seeds(options))
    return _explore(_seeds(options), shrinks=not options.whole)


def _seeds(options: argparse.Namespace) -> Iterator[int]:
    if options.hours is None:
        return iter(range(options.first, options.first + options.seeds))
    end_s = time.monotonic() + options.hours * 3600
    return itertools.takewhile(lambda _: time.monotonic() < end_s, itertools.count(options.first))


def _explore(seeds: Iterable[int], *, shrinks: bool) -> int:
    began_s = reported_s = time.monotonic()
    count = 0
    failed: Counter[str] = Counter()
    for seed, history, result in _played(seeds):
        count += 1
        if result.kind is not None:
            failed[result.kind] += 1
            print(f"seed {seed}: {result.failure}", flush=True)
            if shrinks and failed[result.kind] == 1:
                print(_shortest(history, result).to_json(), flush=True)
        if time.monotonic() - reported_s > PROGRESS_EVERY_S:
            reported_s = time.monotonic()
            print(f"... seed {seed}, {count} played, {failed.total()} failed", flush=True)
    for kind, times in failed.most_common():
        print(f"{times} times: {kind}")
    seconds = time.monotonic() - began_s
    print(f"{count} seeds, {failed.total()} failed in {len(failed)} ways, {seconds:.0f} s")
    return int(failed.total() > 0)


def _first_failure(seeds: Iterable[int]) -> int:
    for count, (seed, _, result) in enumerate(_played(seeds), 1):
        if result.failure is not None:
            print(f"seed {seed} after {count}: {result.failure}")
            return 1
    print("no seed failed")
    return 0


def _played(seeds: Iterable[int]) -> Iterator[tuple[int, History, Result]]:
    # By itself the cyclic collector takes a third of the time. A server that vanished is one great
    # cycle: collected at once, without a look at what was imported, it leaves its memory to the
    # next one.
    gc.collect()
    gc.freeze()
    gc.disable()
    for seed in seeds:
        history = history_of(seed)
        yield seed, history, run(history)
        gc.collect()


def _shortest(history: History, result: Result) -> History:
    def fails(shorter: History) -> bool:
        return run(shorter).kind == result.kind

    return shortest(history, fails)


def _show(result: Result) -> int:
    print(result.trace or "nothing is wrong")
    print(f"digest {result.digest}")
    return int(result.failure is not None)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", type=int, default=1000, help="how many seeds")
    parser.add_argument("--from", dest="first", type=int, default=0, help="the first seed")
    parser.add_argument("--hours", type=float, help="go on for so long, in place of --seeds")
    parser.add_argument("--seed", type=int, help="one seed only")
    parser.add_argument("--replay", type=Path, metavar="FILE", help="a history in a file")
    parser.add_argument("--until-one-fails", action="store_true", help="end with the first one")
    parser.add_argument("--whole", action="store_true", help="make failing histories no shorter")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
