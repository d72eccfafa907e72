"""A writer is killed in the middle of its transaction: what readers see, and how it ends."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from catalog_story import chapter, facts, tell
from catalog_writer import PATHS

import tuff

if TYPE_CHECKING:
    from catalog import Catalogue

WRITER_TIMEOUT_S = 3.0  # seconds; how long the readers wait behind the writer that is killed
PATIENCE_S = 15.0  # seconds; far more than the server takes to end that writer's transaction
LOOK_AGAIN_S = 0.1  # seconds

_WRITER = Path(__file__).with_name("catalog_writer.py")


def die_half_way(catalogue: "Catalogue", directory: Path, *, snapshots: Path | None) -> None:
    """Kill a writer that has stored its rows and published, and has not committed."""
    before = catalogue.announced().next_id

    chapter("A writer is killed in the middle of its transaction")
    pointer = kill_a_writer(catalogue)
    (directory / "medlar.txt").write_text("written by somebody who lives\n")
    catalogue.update(directory)
    tell("Meanwhile another writer, alive, added medlar.txt, and committed. Who sees what now:")
    show_who_sees_what(catalogue, before, pointer)

    chapter("How its transaction ends")
    wait_for_the_end(catalogue, pointer)
    show_who_sees_what(catalogue, before, pointer)
    tell(
        "Its messages are marked as rolled back: the committed reader passed them by, and was\n"
        "handed what had waited behind them. Its rows stay in SQLite, and invisible."
    )

    chapter("What the transaction service knows, from its own snapshot file")
    show_snapshot(catalogue.client, snapshots)

    chapter("The catalogue cleans up after the dead")
    catalogue.rows.forget([pointer])
    state = catalogue.client.transactions.abort(pointer)
    tell(
        "Its rows are deleted. Nothing of them is left to come to light, so an abort may take the\n"
        "pointer off the list of the invalid."
    )
    facts(
        ("transaction", f"{pointer} is {state}"),
        ("invalid transactions", len(catalogue.client.transactions.invalids().invalids)),
    )


def kill_a_writer(catalogue: "Catalogue") -> int:
    """The pointer of a transaction whose writer is dead."""
    writer = subprocess.Popen(
        [
            sys.executable,
            str(_WRITER),
            catalogue.client.url,
            str(catalogue.database),
            str(catalogue.topic),
            str(WRITER_TIMEOUT_S),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert writer.stdout is not None, "it is a pipe"
        pointer = int(writer.stdout.readline())
    finally:
        writer.kill()
        writer.communicate()
    tell(
        f"Process {writer.pid} stored {len(PATHS)} rows and published {len(PATHS)} announcements "
        f"under its pointer, and was\nkilled (SIGKILL) one step before its commit."
    )
    return pointer


def show_who_sees_what(catalogue: "Catalogue", before: tuff.MessageId, pointer: int) -> None:
    """The rows in the store, and what plain and committed readers get."""
    plain = catalogue.announced(before, isolation=tuff.Isolation.ALL)
    committed = catalogue.announced(before)
    half_done = set(PATHS) & set(catalogue.visible())
    assert not half_done, "a transaction saw half-done rows"
    assert not any(b"half-done" in message.payload for message in committed), "a reader did"
    facts(
        ("rows of the dead writer in SQLite", catalogue.rows.count_under(pointer)),
        ("rows of it that a new transaction sees", len(half_done)),
        ("a plain reader is handed", _announcements(plain)),
        ("a committed reader is handed", _announcements(committed)),
        ("Tuff-Blocked-By", _blocker(catalogue.client, committed)),
    )


def wait_for_the_end(catalogue: "Catalogue", pointer: int) -> None:
    """Wait until the server has ended the transaction of the dead writer."""
    tell(f"Nobody will ever end it, so the server does, {WRITER_TIMEOUT_S:g} s after its start …")
    deadline = time.monotonic() + PATIENCE_S
    outcome = catalogue.client.transactions.outcome(pointer)
    while outcome.state in {"in_progress", "committing"}:
        assert time.monotonic() < deadline, f"transaction {pointer} was never ended"
        time.sleep(LOOK_AGAIN_S)
        outcome = catalogue.client.transactions.outcome(pointer)
    facts(("transaction", f"{pointer} is {outcome.state} ({outcome.reason})"))


def show_snapshot(client: tuff.Client, snapshots: Path | None) -> None:
    """Have the server write its state, and print it with the `tuff` command."""
    file = client.transactions.take_snapshot().file
    if snapshots is None:
        tell(f"Where that server keeps its files: tuff snapshot show {file}")
        return
    command = ["snapshot", "show", str(snapshots / file)]
    tell(f"$ tuff {' '.join(command)}")
    subprocess.run([sys.executable, "-m", "tuff.cli", *command], check=True)


def _announcements(poll: tuff.Poll) -> str:
    return ", ".join(json.loads(message.payload)["path"] for message in poll) or "nothing"


def _blocker(client: tuff.Client, poll: tuff.Poll) -> str:
    if poll.blocked_by is None:
        return "nobody"
    return f"{poll.blocked_by}, of client {client.transactions.outcome(poll.blocked_by).client}"
