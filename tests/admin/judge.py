"""Reads a data directory by docs/formats.md alone: each row, and which readers see it."""

import shutil
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from tests.formats.message_rows import read_store
from tests.formats.replay import State, read_state

MessageName = tuple[str, int, str]  # topic, generation, id

# A damaged length hides all rows of a table up to the next key that is stored in full. There are 16
# such rows at most, and each of the history in `files.py` has up to three packed messages.
MESSAGES_OF_A_RESTART = 48
MESSAGES_OF_A_BATCH = 4  # in one record of LevelDB's log


@dataclass
class Seen:
    """The payload of every message by topic, generation and id, whether it is shown or not; of
    those, what a fresh snapshot may see; and the highest place and pointer of all."""

    payloads: dict[MessageName, bytes] = field(default_factory=dict)
    visible: set[MessageName] = field(default_factory=set)
    places: list[list[int]] = field(default_factory=list)
    pointers: set[int] = field(default_factory=set)
    state: State | None = None


def lost_count_max(damaged: Path) -> int:
    """How many messages one damaged byte of a file may cost."""
    return MESSAGES_OF_A_RESTART if damaged.suffix == ".ldb" else MESSAGES_OF_A_BATCH


def look(data: Path) -> Seen:
    with TemporaryDirectory() as scratch:
        # LevelDB rewrites what it opens.
        rows = read_store(Path(shutil.copytree(data / "messages", Path(scratch) / "messages")))
    seen = Seen(state=read_state(data / "snapshots"))
    stored = [row for row in rows if row["table"] == "payload"]
    seen.places = [row["offset"] for row in rows if row["table"] in {"message", "payload"}]
    seen.places += [row["last"] for row in rows if row.get("name") == "mark"]
    for row in rows:
        if row["table"] == "message":
            _note(seen, row, stored)
        if row.get("pointer") is not None:
            seen.pointers.add(abs(row["pointer"]))
    return seen


def _note(seen: Seen, row: Any, stored: list[Any]) -> None:
    brought = [row] if row["reference"] is None else [s for s in stored if _brings(row, s)]
    for each in brought:
        tail = [0, 0] if each is row else each["offset"]
        ms, seq, stored_ms, stored_seq = [*row["offset"], *tail]
        message_id = f"{ms:016x}{seq:04x}{stored_ms:016x}{stored_seq:04x}"
        name = (row["topic"], row["generation"], message_id)
        seen.payloads[name] = each["payload"]
        if _is_visible(seen.state, row["pointer"]):
            seen.visible.add(name)


def _brings(row: Any, stored: Any) -> bool:
    return bool(
        all(stored[name] == row[name] for name in ("topic", "generation"))
        and stored["pointer"] == abs(row["pointer"])
        and row["reference"]["first"] <= stored["offset"] <= row["reference"]["last"]
    )


def _is_visible(state: State | None, pointer: int | None) -> bool:
    assert state is not None
    if pointer is None:
        return True
    is_excluded = pointer in state.invalid or pointer in state.in_progress
    return 0 < pointer <= state.read_pointer and not is_excluded
