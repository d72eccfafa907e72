"""What clients of a traced server were told, and how much of the trace there was when they were.

A line of the ledger is written once something is known, so that whoever vanishes leaves only what
nobody was told.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from tests.faults.ledger import Fate, Requests, Unit

NEVER = 1 << 62  # a place in the trace that is never reached


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """One unit of work: `unit` holds for who reads behind `told_at`; before that, and behind
    `asked_at`, it is under way. `rows` are those that it put into the table."""

    unit: Unit
    asked_at: int
    told_at: int
    rows: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Handed:
    """A pointer that a client was given, or a message that a reader was."""

    at: int
    pointer: int = 0
    topic: str = ""
    message: tuple[str, str] = ("", "")


@dataclass(frozen=True, slots=True)
class Account:
    """All that is known of a run."""

    told: Sequence[Told]
    handed: Sequence[Handed]

    def count_at(self, position: int) -> int:
        """How much of it had been told."""
        marks = [each.told_at for each in self.told] + [each.at for each in self.handed]
        return sum(mark <= position for mark in marks)


def line_of(entry: Told | Handed) -> str:
    form = asdict(entry)
    if isinstance(entry, Told):
        form["unit"]["fate"] = entry.unit.fate.name
    return json.dumps(form) + "\n"


def read_account(paths: Iterable[Path]) -> Account:
    told: list[Told] = []
    handed: list[Handed] = []
    for path in paths:
        for line in path.read_text("utf-8").splitlines():
            form = json.loads(line)
            if "unit" in form:
                told.append(_told(form))
            else:
                handed.append(Handed(**{**form, "message": tuple(form["message"])}))
    return Account(told, handed)


def _told(form: dict[str, object]) -> Told:
    unit = form.pop("unit")
    rows = form.pop("rows")
    assert isinstance(unit, dict)
    assert isinstance(rows, list)
    requests: Requests = tuple((topic, tuple(sent)) for topic, sent in unit.pop("requests"))
    fate = Fate[unit.pop("fate")]
    made = Unit(**unit, fate=fate, requests=requests)
    pairs = tuple((key, value) for key, value in rows)
    return Told(unit=made, rows=pairs, **form)  # type: ignore[arg-type]  # the members of one of ours
