"""What is run to attack the promises, one program after the other; docs/reliability.md tells why.

A program says its figure in the last line it prints, and its verdict with its exit code.
"""

import sys
from collections.abc import Sequence
from dataclasses import dataclass

Command = tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One attack. `promises` are the numbers of docs/architecture.md §2; `scaled` is what twenty
    minutes on two cores allow for, all programs together, and `full` the whole of it."""

    name: str
    promises: tuple[int, ...]
    attack: str
    scaled: Command
    full: Command
    within_s: int = 1_200  # of the scaled one; ten times that for the whole


def _python(module: str, *arguments: str) -> Command:
    return (sys.executable, "-m", module, *arguments)


def _tests(*arguments: str) -> Command:
    return _python("pytest", "-q", *arguments)


PROGRAMS: Sequence[Program] = (
    Program(
        name="kill",
        promises=(1, 2, 3, 4, 5, 9),
        attack="SIGKILL of a loaded server, and exact accounting of what clients were told",
        scaled=_tests("tests/faults/test_kill.py", "-m", "not slow"),
        full=_tests("tests/faults/test_kill.py"),
    ),
)
