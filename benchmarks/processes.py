"""Processes of a measurement: started, watched, and ended by their process ids."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
READY_WITHIN_S = 60.0
STOP_WITHIN_S = 20.0
_LOOK_AGAIN_S = 0.002  # seconds between two looks at what a process has printed
_READY = re.compile(r"ready on https?://(\S+:\d+)")


class StartError(Exception):
    """A process has ended, or did not get ready in time."""


@dataclass(frozen=True, slots=True)
class Running:
    """A process that is ready; `addr` is its host:port."""

    process: "subprocess.Popen[bytes]"
    addr: str
    start_s: float  # seconds from the fork to the moment at which it was ready

    @property
    def pid(self) -> int:
        return self.process.pid

    def resident_mib(self) -> float:
        status = Path(f"/proc/{self.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found is not None, status
        return int(found[1]) / 1024

    def processor_ms(self) -> float:
        """The processor time of its threads so far, in milliseconds."""
        files = Path(f"/proc/{self.pid}/task").glob("*/schedstat")
        return sum(int(file.read_text().split()[0]) for file in files) / 1e6

    def start_report(self) -> dict[str, object]:
        """What the start took. Call it before anything else uses the process."""
        return {
            "ready_s": self.start_s,
            "start_cpu_ms": self.processor_ms(),
            "resident_mib": self.resident_mib(),
        }


def processor_s(pid: int) -> float:
    """The processor time, in seconds, of a process and its descendants, ended ones included."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        lists = [path.read_text() for path in Path(f"/proc/{pid}/task").glob("*/children")]
    except OSError:  # it has ended meanwhile, and its time is its parent's
        return 0.0
    own_s = sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return own_s + sum(processor_s(int(child)) for each in lists for child in each.split())


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    *,
    ready: Callable[[str], str | None],
    stop: signal.Signals = signal.SIGTERM,
    cwd: Path | None = None,
) -> Iterator[Running]:
    """Start a process, wait until `ready` finds an address in what it said, and end it at last.

    Raises: StartError.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    # A server as it is installed has its bytecode, and does not compile itself at each start.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            env=environment,
            start_new_session=True,
        )
    try:
        addr = _wait(process, log, ready)
        yield Running(process, addr, time.perf_counter() - began)
    finally:
        _end(process, stop)


def _wait(process: "subprocess.Popen[bytes]", log: Path, ready: Callable[[str], str | None]) -> str:
    until = time.perf_counter() + READY_WITHIN_S
    while (addr := ready(log.read_text(errors="replace"))) is None:
        if process.poll() is not None or time.perf_counter() > until:
            said = log.read_text(errors="replace")[-2000:]
            raise StartError(f"{process.args!r} did not get ready: {said}")
        time.sleep(_LOOK_AGAIN_S)
    return addr


def _end(process: "subprocess.Popen[bytes]", stop: signal.Signals) -> None:
    if process.stdin is not None:
        process.stdin.close()  # the programs for the Java machine end with their standard input
    if process.poll() is None:
        process.send_signal(stop)
        try:
            process.wait(STOP_WITHIN_S)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    process.wait(STOP_WITHIN_S)


def says_its_address(said: str) -> str | None:
    found = _READY.search(said)
    return found and found[1]


def answers_at(port: int) -> Callable[[str], str | None]:
    """Ready when a process accepts connections at this port of the loopback device."""

    def ready(_: str) -> str | None:
        with socket.socket() as one:
            one.settimeout(0.2)
            return f"127.0.0.1:{port}" if one.connect_ex(("127.0.0.1", port)) == 0 else None

    return ready


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@contextmanager
def tuff(data: Path, *, tree: Path = ROOT, settings: Sequence[str] = ()) -> Iterator[Running]:
    """A server from the given work tree, with its data in `data`."""
    flags = [word for setting in settings for word in ("--set", setting)]
    command = [
        sys.executable,
        "-P",
        str(tree / "server.py"),
        *("--data", str(data), "--port", "0"),
        *flags,
    ]
    with running(command, data.parent / f"{data.name}.log", ready=says_its_address) as server:
        yield server


@contextmanager
def bare(directory: Path, *arguments: str) -> Iterator[Running]:
    """The bare handler (bare.py)."""
    command = [sys.executable, "-P", str(ROOT / "benchmarks" / "bare.py"), *arguments]
    with running(command, directory / "bare.log", ready=says_its_address) as server:
        yield server


@contextmanager
def floor(directory: Path, *features: str) -> Iterator[Running]:
    """The floor (floor.py), with these features."""
    command = [sys.executable, "-m", "benchmarks.floor", str(directory / "floor"), *features]
    log = directory / "floor.log"
    with running(command, log, ready=says_its_address, cwd=ROOT) as server:
        yield server
