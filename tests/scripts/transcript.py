"""The form of a scenario script: comments, commands, `----`, and the exact output of each command.

script  := (comment | blank | step)*        comment := "#" text
step    := command "----" output* blank     an output line is never empty
"""

from collections.abc import Iterator
from dataclasses import dataclass

RULE = "----"


@dataclass(frozen=True, slots=True)
class Step:
    """A command, where it stands, and what it should print."""

    line: int
    command: str
    output: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Remark:
    """A comment, or the empty line between two steps."""

    text: str


class ScriptError(Exception):
    """A script is not written as scripts are; one sentence that names the line."""


def parse(text: str) -> Iterator[Step | Remark]:
    """The steps and remarks of a script, in order. Raises: ScriptError."""
    lines = iter(enumerate(text.splitlines(), 1))
    for number, line in lines:
        if not line or line.startswith("#"):
            yield Remark(line)
            continue
        if next(lines, (0, ""))[1] != RULE:
            raise ScriptError(f"line {number}: {line!r} is not followed by {RULE}")
        output: list[str] = []
        is_ended = False
        for _, printed in lines:
            if not printed:
                is_ended = True
                break
            output.append(printed)
        yield Step(number, line, tuple(output))
        if is_ended:
            yield Remark("")


def render(entries: list[Step | Remark]) -> str:
    """The text of a script; the opposite of `parse`."""
    lines: list[str] = []
    for entry in entries:
        match entry:
            case Remark(text):
                lines.append(text)
            case Step(_, command, output):
                lines += [command, RULE, *output]
    return "\n".join(lines) + "\n"
