"""A writer is killed in the middle of its transaction: what readers see, and how the transaction
ends."""

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from catalog_output import print_facts, print_heading, print_text
from catalog_writer import PATHS

import tuff

if TYPE_CHECKING:
    from catalog import Catalogue

WRITER_TIMEOUT_S = 3.0  # seconds; how long the readers wait behind the writer that is killed
END_WITHIN_S = 15.0  # seconds; far more than the server takes to end that writer's transaction
CHECK_INTERVAL_S = 0.1  # seconds

_WRITER = Path(__file__).with_name("catalog_writer.py")


def show_crash(catalogue: "Catalogue", directory: Path, *, snapshots: Path | None) -> None:
    """Kill a writer that has stored its rows and published, and has not committed."""
    before = catalogue.announced().next_id

    print_heading("A writer is killed in the middle of its transaction")
    pointer = kill_a_writer(catalogue)
    (directory / "medlar.txt").write_text("written by another writer\n")
    catalogue.update(directory)
    print_text(
        "Meanwhile another writer added medlar.txt, and committed. What each reader sees now:"
    )
    show_readers(catalogue, before, pointer)

    print_heading("The server ends the transaction")
    wait_for_the_end(catalogue, pointer)
    show_readers(catalogue, before, pointer)
    print_text(
        "Its messages are marked as rolled back: the committed reader skipped them, and received\n"
        "the messages behind them. Its rows stay in SQLite, and are invisible."
    )

    print_heading("The transaction in the snapshot file of the transaction service")
    show_snapshot(catalogue.client, snapshots)

    print_heading("The catalogue removes the rows of the killed writer")
    catalogue.rows.forget([pointer])
    state = catalogue.client.transactions.abort(pointer)
    print_text(
        "No row carries its pointer any more, so an abort removes the pointer from the invalid\n"
        "list."
    )
    print_facts(
        ("transaction", f"{pointer} is {state}"),
        ("invalid transactions", len(catalogue.client.transactions.invalids().invalids)),
    )


def kill_a_writer(catalogue: "Catalogue") -> int:
    """Start a writer and kill it before its commit; returns its write pointer."""
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
    print_text(
        f"Process {writer.pid} stored {len(PATHS)} rows and published {len(PATHS)} announcements "
        f"under its pointer, and was\nkilled (SIGKILL) one step before its commit."
    )
    return pointer


def show_readers(catalogue: "Catalogue", before: tuff.MessageId, pointer: int) -> None:
    """The rows in the store, and what plain and committed readers get."""
    plain = catalogue.announced(before, isolation=tuff.Isolation.ALL)
    committed = catalogue.announced(before)
    half_done = set(PATHS) & set(catalogue.visible())
    assert not half_done, "a transaction saw uncommitted rows"
    assert not any(b"half-done" in message.payload for message in committed), "so did a reader"
    print_facts(
        ("rows of the killed writer in SQLite", catalogue.rows.count_under(pointer)),
        ("its rows that a new transaction sees", len(half_done)),
        ("a plain reader receives", _announcements(plain)),
        ("a committed reader receives", _announcements(committed)),
        ("Tuff-Blocked-By", _blocker(catalogue.client, committed)),
    )


def wait_for_the_end(catalogue: "Catalogue", pointer: int) -> None:
    """Wait until the server has ended the transaction of the killed writer."""
    print_text(f"The server ends it when it times out, {WRITER_TIMEOUT_S:g} s after its start …")
    deadline = time.monotonic() + END_WITHIN_S
    outcome = catalogue.client.transactions.get(pointer)
    while outcome.state in {"in_progress", "committing"}:
        assert time.monotonic() < deadline, f"transaction {pointer} was never ended"
        time.sleep(CHECK_INTERVAL_S)
        outcome = catalogue.client.transactions.get(pointer)
    print_facts(("transaction", f"{pointer} is {outcome.state} ({outcome.reason})"))


def show_snapshot(client: tuff.Client, snapshots: Path | None) -> None:
    """Have the server write its state, and print it with the `tuff` command."""
    file = client.transactions.take_snapshot().file
    if snapshots is None:
        print_text(f"In the data directory of that server: tuff snapshot show {file}")
        return
    command = ["snapshot", "show", str(snapshots / file)]
    print_text(f"$ tuff {' '.join(command)}")
    subprocess.run([sys.executable, "-m", "tuff_cli", *command], check=True)


def _announcements(poll: tuff.Poll) -> str:
    return ", ".join(json.loads(message.payload)["path"] for message in poll) or "nothing"


def _blocker(client: tuff.Client, poll: tuff.Poll) -> str:
    if poll.blocked_by is None:
        return "none"
    return f"{poll.blocked_by}, of client {client.transactions.get(poll.blocked_by).client}"
