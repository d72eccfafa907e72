"""The load generator, a Go program of the standard library alone, which is built when needed; and
the measurements that it makes."""

import json
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.processes import ROOT, Running, running, says_its_address

SOURCES = ROOT / "benchmarks" / "load"
BINARY = ROOT / "build" / "benchmarks" / "load"


Report = dict[str, object]
Rows = Iterator[tuple[str, Report]]


class LoadError(Exception):
    """The generator could not be built, or a run of it failed."""


class MissingError(Exception):
    """A peer is not installed; the results name it with this reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The arguments of one measurement."""

    scenario: str
    mode: str = "closed"
    connections: int = 64
    seconds: float = 2.0
    flags: tuple[str, ...] = ()


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


def build() -> Path:
    """The program, built again only if a source is newer. Raises: LoadError."""
    sources = [path for path in SOURCES.iterdir() if path.suffix in (".go", ".mod")]
    if BINARY.exists() and BINARY.stat().st_mtime > max(p.stat().st_mtime for p in sources):
        return BINARY
    if shutil.which("go") is None:
        raise LoadError("the load generator is a Go program, and there is no go command here")
    BINARY.parent.mkdir(parents=True, exist_ok=True)
    command = ["go", "build", "-o", str(BINARY), "."]
    done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise LoadError(done.stderr)
    return BINARY


class Background:
    """A run in the background of a `with` block, which ends it."""

    def __init__(self, run: Run, server: Running) -> None:
        self._command = [
            str(build()),
            run.mode,
            *("-scenario", run.scenario, "-addr", server.addr, "-pid", str(server.pid)),
            *("-conns", str(run.connections), "-seconds", str(run.seconds)),
            *run.flags,
        ]

    def __enter__(self) -> "Background":
        self._process = subprocess.Popen(
            self._command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        return self

    def report(self, *, may_be_empty: bool = False) -> Report:
        """Wait for its end. Raises: LoadError: it failed, or none of its calls succeeded."""
        said, complaint = self._process.communicate()
        if self._process.returncode != 0:
            raise LoadError(f"{' '.join(self._command)}: {complaint}")
        report: Report = json.loads(said)
        if report.get("calls") == 0 and not may_be_empty:
            why = report.get("first_error", "nothing was answered")
            raise LoadError(f"{' '.join(self._command)}: {why}")
        return report

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def measure(run: Run, server: Running) -> Report:
    """Do a run against a server. Raises: LoadError."""
    with Background(run, server) as load:
        return load.report()


def number(report: Report, figure: str) -> float:
    """A figure of a report."""
    value = report[figure]
    assert isinstance(value, int | float), value
    return float(value)


def rows(name: str, runs: dict[str, Run], server: Running) -> Rows:
    """Do the runs one after the other."""
    for label, run in runs.items():
        yield f"{name} {label}", measure(run, server)


def warm_up(run: Run, server: Running) -> None:
    """Do a run whose report is not used, while the server compiles its code."""
    with Background(run, server) as load:
        load.report(may_be_empty=True)


@contextmanager
def sink(directory: Path) -> Iterator[Running]:
    """The generator's own counterpart, which answers at once: it shows the generator's ceiling."""
    command = [str(build()), "sink", "-addr", "127.0.0.1:0"]
    with running(command, directory / "sink.log", ready=says_its_address) as server:
        yield server
