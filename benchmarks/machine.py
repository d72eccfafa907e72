"""The machine of a measurement: processors, kernel, disk, versions of programs, and idleness."""

import datetime
import os
import platform
import re
import shutil
import subprocess
import tempfile
import time
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers import nats, postgres
from benchmarks.peers.jvm import SOURCES
from benchmarks.processes import ROOT


def describe(directory: Path | None) -> dict[str, object]:
    """The description of this machine for the results. `directory`: where the data lies."""
    cpu = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    memory = re.search(r"MemTotal:\s+(\d+)", Path("/proc/meminfo").read_text())
    place = str(directory or tempfile.gettempdir())
    return {
        "date": datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": _first_line("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        "processors": f"{len(os.sched_getaffinity(0))} x {cpu[1] if cpu else platform.machine()}",
        "memory_gib": round(int(memory[1]) / 2**20, 1) if memory else None,
        "kernel": platform.release(),
        "file_system": _first_line("findmnt", "-n", "-o", "FSTYPE,OPTIONS", "-T", place),
        "load_before": os.getloadavg()[0],
        "versions": _versions(),
    }


IDLE_WITHIN_S = 20.0  # a machine that others use may never be idle
_CHECK_INTERVAL_S = 0.5
_BUSY_SHARE_MAX = 0.04  # of all processors; the kernel and this program are never fully idle


def wait_until_idle() -> float:
    """Sync the disk and wait until the machine is idle; returns the seconds that it took. Otherwise
    the dirty pages of one subject slow the next."""
    began = time.perf_counter()
    os.sync()
    before = _processor_times()
    while time.perf_counter() - began < IDLE_WITHIN_S:
        time.sleep(_CHECK_INTERVAL_S)
        after = _processor_times()
        if busy_share(before, after) <= _BUSY_SHARE_MAX:
            break
        before = after
    return time.perf_counter() - began


def busy_share(before: list[int], after: list[int]) -> float:
    """The share of the processors' time that was not idle between two readings of the line `cpu` of
    /proc/stat. Its fourth number is idle time; its fifth, waiting for a disk, counts as busy."""
    spent = [late - early for early, late in zip(before, after, strict=True)]
    whole = sum(spent)
    return 1 - spent[3] / whole if whole else 0.0


def _processor_times() -> list[int]:
    return [int(field) for field in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]


def _versions() -> dict[str, str]:
    asked = {
        "go": ("go", "version"),
        "java": ("java", "--version"),
        "redis": ("redis-server", "--version"),
        "nats": (str(nats.BUILT), "--version"),
        "postgresql": (str(_newest_postgres()), "--version"),
    }
    said = {name: _first_line(*command) for name, command in asked.items()}
    libraries = {name: version(name) for name in ("aiohttp", "uvloop", "plyvel", "tuff-messaging")}
    return {"python": platform.python_version(), **libraries, **said, **_maven_versions()}


def _newest_postgres() -> Path:
    found = sorted(postgres.VERSIONS.glob("*/bin/postgres"))
    return found[-1] if found else Path("postgres")


def _maven_versions() -> dict[str, str]:
    found = {}
    for peer in ("tephra", "cdap", "kafka"):
        text = (SOURCES / peer / "pom.xml").read_text()
        stated = re.search(rf"<{peer}\.version>(.*?)<", text)
        found[peer] = stated[1] if stated else "unknown"
    return found


def _first_line(*command: str) -> str:
    if shutil.which(command[0]) is None:
        return "not here"
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return next(iter((done.stdout or done.stderr).splitlines()), "silent")
