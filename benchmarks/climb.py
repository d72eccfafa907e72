"""`python -m benchmarks.climb`: what each feature of the server adds to the cost of the floor.

    python -m benchmarks.climb [--rounds N] [--seconds S] [--under-way N] [--tree DIR ...]

The features of `benchmarks.floor` are added one after the other, and at last the server of each
tree is measured. Each round visits all of them in turn. Printed is the least of the rounds: the
processor time of the server for one transaction, which is a start and a commit with ten keys and
one message, over four sessions.
"""

import argparse
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.floor import FEATURES
from benchmarks.generator import Run, build, measure, number
from benchmarks.processes import ROOT, Running, floor, tuff


@contextmanager
def _server(directory: Path, step: str | Path) -> Iterator[Running]:
    if isinstance(step, Path):
        with tuff(directory / "tuff", tree=step) as server:
            yield server
        return
    features = FEATURES[: FEATURES.index(step) + 1] if step else ()
    with floor(directory, *features) as server:
        yield server


def cost_us(step: str | Path, run: Run) -> float:
    """The processor time of a server for one call of a run."""
    with (
        tempfile.TemporaryDirectory(prefix="tuff-bench-") as directory,
        _server(Path(directory), step) as server,
    ):
        return number(measure(run, server), "server_cpu_us_per_call")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.climb", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--under-way", type=int, default=64)
    parser.add_argument("--tree", type=Path, nargs="*", default=[ROOT])
    options = parser.parse_args()
    build()
    run = Run(
        scenario="session-transaction",
        connections=options.under_way,
        seconds=options.seconds,
        flags=("-warm", "0.4"),
    )
    steps: list[str | Path] = ["", *FEATURES, *options.tree]
    least = dict.fromkeys(steps, float("inf"))
    for _ in range(options.rounds):
        for step in steps:
            least[step] = min(least[step], cost_us(step, run))
    before = least[""]
    print(f"{'':24} {'us':>7} {'added':>7} {'x floor':>8}")
    for step, cost in least.items():
        name = f"with {step}" if isinstance(step, str) and step else str(step or "floor")
        print(f"{name:24} {cost:7.1f} {cost - before:7.1f} {cost / least['']:8.2f}")
        before = cost


if __name__ == "__main__":
    main()
