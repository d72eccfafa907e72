"""A shim between a server and the C library: it records, fails and delays file calls, and sets the
clock.

`disk_shim.c` is compiled by `cc` and loaded with LD_PRELOAD, so that the calls of Python and of
LevelDB pass through it alike.
"""

import errno
import fcntl
import mmap
import os
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from tests.programs import find

SOURCE = Path(__file__).with_name("disk_shim.c")
NS_PER_S = 1_000_000_000

_CLOCK = struct.Struct("=3q")


def build(directory: Path) -> Path:
    """The compiled shim, in this directory."""
    target = directory / "disk_shim.so"
    flags = ("-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    command = ["cc", *flags, "-o", str(target), str(SOURCE), "-ldl", "-lpthread"]
    subprocess.run(command, check=True, timeout=60)
    return target


def has_compiler() -> bool:
    return find("cc") is not None


class Shim:
    """The shim of the programs that are started with `environment`, for the files below `root`. Its
    own files are in `control`, which must be elsewhere."""

    def __init__(self, library: Path, *, root: Path, control: Path) -> None:
        control.mkdir(exist_ok=True)
        self.trace = control / "trace"
        self._library, self._root = library, root
        self._rules, self._clock = control / "rules", control / "clock"
        self._clock.write_bytes(_CLOCK.pack(0, 0, 0))

    def environment(self, *, traced: bool = False) -> Mapping[str, str]:
        """The environment of a program that runs with the shim."""
        shown = {
            "LD_PRELOAD": str(self._library),
            "SHIM_ROOT": str(self._root),
            "SHIM_RULES": str(self._rules),
            "SHIM_CLOCK": str(self._clock),
        }
        return {**os.environ, **shown} | ({"SHIM_TRACE": str(self.trace)} if traced else {})

    def position(self) -> int:
        """The length of the trace."""
        return self.trace.stat().st_size

    @contextmanager
    def between_calls(self) -> Iterator[None]:
        """No traced program is inside a call during the block: each call has happened and is in the
        trace, or has not begun. If others continue after a traced program, kill it only here."""
        with self.trace.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield

    @contextmanager
    def injecting(self, *rules: str) -> Iterator[None]:
        """Let calls fail or wait by these rules during the block."""
        self.set_rules(*rules)
        try:
            yield
        finally:
            self.set_rules()

    def set_rules(self, *rules: str) -> None:
        """Replace all rules."""
        temporary = self._rules.with_suffix(".new")
        temporary.write_text("".join(f"{rule}\n" for rule in rules))
        temporary.replace(self._rules)

    def hits(self) -> list[str]:
        """Every call that failed or waited: its name, path, and the errno or minus the wait."""
        path = self._rules.with_name("rules.hits")
        return path.read_text().splitlines() if path.exists() else []

    def set_clock(self, *, wall_s: float = 0, boot_s: float = 0, frozen_at_s: float = 0) -> None:
        """Shift the wall clock and the boot-time clock against the machine's, or stop the wall
        clock."""
        numbers = (round(each * NS_PER_S) for each in (wall_s, boot_s, frozen_at_s))
        with self._clock.open("r+b") as file, mmap.mmap(file.fileno(), _CLOCK.size) as shown:
            shown[:] = _CLOCK.pack(*numbers)


def failing(call: str, part: str, error: int, *, first: int = 1, count: int = 0) -> str:
    """A rule: from the `first` such call on a path with this part, `count` (0: all) calls fail."""
    assert error in errno.errorcode
    return f"{call} {part} {first} {count} {error}"


def slow(call: str, part: str, *, wait_ms: int, first: int = 1, count: int = 0) -> str:
    """A rule: such calls take so much longer."""
    return f"{call} {part} {first} {count} {-wait_ms}"
