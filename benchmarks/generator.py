"""The load generator: a Go program of the standard library alone, built when it is needed."""

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


class LoadError(Exception):
    """The generator could not be built, or a run of it failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measurement: what the generator is told."""

    scenario: str
    mode: str = "closed"
    connections: int = 64
    seconds: float = 2.0
    flags: tuple[str, ...] = ()


def build() -> Path:
    """The program, built anew only when a source is newer. Raises: LoadError."""
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
    """A run that goes on beside something else; leaving the block ends it, whatever happened."""

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

    def report(self, *, may_be_empty: bool = False) -> dict[str, object]:
        """Wait for its end. Raises: LoadError: it failed, or not one call of it succeeded."""
        said, complaint = self._process.communicate()
        if self._process.returncode != 0:
            raise LoadError(f"{' '.join(self._command)}: {complaint}")
        report: dict[str, object] = json.loads(said)
        if report.get("calls") == 0 and not may_be_empty:
            why = report.get("first_error", "nothing was answered")
            raise LoadError(f"{' '.join(self._command)}: {why}")
        return report

    def __exit__(self, *_: object) -> None:
        if self._process.poll() is None:
            self._process.kill()
        self._process.communicate()


def measure(run: Run, server: Running) -> dict[str, object]:
    """Do a run against a server. Raises: LoadError."""
    with Background(run, server) as running_alone:
        return running_alone.report()


def warm_up(run: Run, server: Running) -> None:
    """Do a run that nobody reads, until the server has compiled what it needs."""
    with Background(run, server) as running_alone:
        running_alone.report(may_be_empty=True)


@contextmanager
def sink(directory: Path) -> Iterator[Running]:
    """The generator's own counterpart, which answers at once: it shows the generator's ceiling."""
    command = [str(build()), "sink", "-addr", "127.0.0.1:0"]
    with running(command, directory / "sink.log", ready=says_its_address) as server:
        yield server
