"""A disk and a clock between a real server and the kernel, which see, spoil and delay its calls.

`disk_shim.c` says how; it is compiled by `cc` and loaded in front of the C library, so that what
Python asks for and what LevelDB asks for pass through it alike.
"""

import errno
import mmap
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

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
    return shutil.which("cc") is not None


class Shim:
    """The shim in front of the programs that are started with `environment`, for the files below
    `root`. What it needs for that lies in `control`, which must be elsewhere."""

    def __init__(self, library: Path, *, root: Path, control: Path) -> None:
        control.mkdir(exist_ok=True)
        self.trace = control / "trace"
        self._library, self._root = library, root
        self._rules, self._clock = control / "rules", control / "clock"
        self._clock.write_bytes(_CLOCK.pack(0, 0, 0))

    def environment(self, *, traced: bool = False) -> Mapping[str, str]:
        """What a program's environment has to hold."""
        shown = {
            "LD_PRELOAD": str(self._library),
            "SHIM_ROOT": str(self._root),
            "SHIM_RULES": str(self._rules),
            "SHIM_CLOCK": str(self._clock),
        }
        return {**os.environ, **shown} | ({"SHIM_TRACE": str(self.trace)} if traced else {})

    def position(self) -> int:
        """How much of the trace there is: what was answered by now rests on no more."""
        return self.trace.stat().st_size

    @contextmanager
    def injecting(self, *rules: str) -> Iterator[None]:
        """Let the calls fail or wait that these rules name, as long as this lasts."""
        self.set_rules(*rules)
        try:
            yield
        finally:
            self.set_rules()

    def set_rules(self, *rules: str) -> None:
        """From now on these rules count, and no others."""
        temporary = self._rules.with_suffix(".new")
        temporary.write_text("".join(f"{rule}\n" for rule in rules))
        temporary.replace(self._rules)

    def hits(self) -> list[str]:
        """Every call that was spoilt so far: its name, path, and the errno or minus the wait."""
        path = self._rules.with_name("rules.hits")
        return path.read_text().splitlines() if path.exists() else []

    def set_clock(self, *, wall_s: float = 0, boot_s: float = 0, frozen_at_s: float = 0) -> None:
        """Let the wall clock and the boot-time clock differ so much from the machine's, or the wall
        clock stand still."""
        numbers = (round(each * NS_PER_S) for each in (wall_s, boot_s, frozen_at_s))
        with self._clock.open("r+b") as file, mmap.mmap(file.fileno(), _CLOCK.size) as shown:
            shown[:] = _CLOCK.pack(*numbers)


def failing(call: str, part: str, error: int, *, first: int = 1, count: int = 0) -> str:
    """A rule: from the `first` such call on a path with that part, `count` (0: all) fail."""
    assert error in errno.errorcode
    return f"{call} {part} {first} {count} {error}"


def slow(call: str, part: str, *, wait_ms: int, first: int = 1, count: int = 0) -> str:
    """A rule: such calls take so much longer."""
    return f"{call} {part} {first} {count} {-wait_ms}"
