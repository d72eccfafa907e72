"""What a round is made of: subjects, each of which yields named reports."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generator import Run, measure
from benchmarks.processes import Running

Report = dict[str, object]
Rows = Iterator[tuple[str, Report]]


class MissingError(Exception):
    """A peer is not installed; the results name it, and say why."""


@dataclass(frozen=True, slots=True)
class Pace:
    """How long each run lasts."""

    seconds: float = 1.5
    warm_s: float = 0.4
    compile_s: float = 2.0  # before the first run of a Java machine, which compiles meanwhile

    def run(self, scenario: str, *flags: str, mode: str = "closed", connections: int = 64) -> Run:
        return Run(
            scenario=scenario,
            mode=mode,
            connections=connections,
            seconds=self.seconds,
            flags=("-warm", str(self.warm_s), *flags),
        )


@dataclass(frozen=True, slots=True)
class Subject:
    """`measure(directory, pace)` starts what it needs, yields rows, and ends what it started."""

    name: str
    measure: Callable[[Path, Pace], Rows]


def rows(name: str, runs: dict[str, Run], server: Running) -> Rows:
    """Do the runs one after the other."""
    for label, run in runs.items():
        yield f"{name} {label}", measure(run, server)
