"""A catalogue of files that announces every change, and what happens when a writer dies.

    python examples/catalog.py [DIR] [--url URL]

A row and its announcement commit together: a reader of the topic gets exactly the changes that are
in the catalogue. Without --url it starts a server of its own on a temporary directory.
"""

import argparse
import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import TypeVar

from catalog_crash import show_crash
from catalog_output import print_facts, print_heading, print_text
from catalog_rows import Entry, VersionedRows
from catalog_scan import changes

import tuff
from tuff.launch import ServerProcess

BATCH_COUNT_MAX = 50  # files of one transaction: it stays short, and its change set small

T = TypeVar("T")


class Catalogue:
    """The files below one directory, in rows and as announcements on a topic."""

    def __init__(self, client: tuff.Client, database: Path, topic: str) -> None:
        self.client = client
        self.database = database
        self.topic = topic
        self.rows = VersionedRows(database)
        client.topics.create(topic, exist_ok=True)

    def update(self, directory: Path) -> tuple[Counter[str], int]:
        """Record and announce changes; returns their number by kind, and that of transactions."""
        counts: Counter[str] = Counter()
        transaction_count = 0
        for batch in _batches(changes(directory, self.visible())):
            with self.client.transaction(self.rows) as tx:
                for change in batch:
                    self.rows.put(change.path, change.entry)
                    tx.publish(self.topic, change.announcement())
            counts.update(change.kind for change in batch)
            transaction_count += 1
        return counts, transaction_count

    def visible(self) -> dict[bytes, Entry]:
        """The content of the catalogue, as a transaction that starts now sees it."""
        with self.client.transaction(self.rows):
            return self.rows.visible()

    def announced(
        self,
        start: tuff.MessageId | None = None,
        *,
        isolation: tuff.Isolation = tuff.Isolation.COMMITTED,
    ) -> tuff.Poll:
        """The announcements after an id, as many as one read returns."""
        return self.client.poll(self.topic, start, inclusive=start is None, isolation=isolation)

    def announced_count(self) -> int:
        """The number of announcements that a committed reader gets."""
        count, poll = 0, self.announced()
        while poll:
            count += len(poll)
            poll = self.announced(poll.next_id)
        return count


def main() -> None:
    """Run the example."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    repository = Path(__file__).resolve().parents[1]
    parser.add_argument("directory", metavar="DIR", nargs="?", type=Path, default=repository)
    parser.add_argument("--url", help="a server that runs already")
    arguments = parser.parse_args()
    if not arguments.directory.is_dir():
        parser.error(f"{arguments.directory} is not a directory; name one that has files")
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tuff-catalogue-")))
        url, snapshots = arguments.url, None
        if url is None:
            server = stack.enter_context(ServerProcess(home / "data", log=home / "server.log"))
            url, snapshots = server.url, home / "data" / "snapshots"
            print_text(
                f"Started a server at {url} (process {server.pid}), with its data in {home}."
            )
        try:
            client = stack.enter_context(tuff.Client(url, client_id="catalogue"))
            client.topics.list("default")  # reports a wrong address before the example begins
        except (ValueError, tuff.TuffError) as error:
            parser.error(str(error))
        keep_a_catalogue(client, arguments.directory, home)
        scratch = follow_changes(client, home)
        show_crash(scratch, home / "scratch", snapshots=snapshots)


def keep_a_catalogue(client: tuff.Client, directory: Path, home: Path) -> None:
    """Update the catalogue of the given directory twice."""
    catalogue = Catalogue(client, home / "catalogue.sqlite", _topic("catalogue", home))
    print_heading(f"The first run announces every file below {directory}")
    counts, transaction_count = catalogue.update(directory)
    print_text(
        f"{counts['added']} files, in {transaction_count} transactions of at most "
        f"{BATCH_COUNT_MAX}. Each row went into SQLite under its transaction's pointer,\n"
        "and its announcement went out with that transaction's commit."
    )
    print_facts(
        ("rows in the catalogue", len(catalogue.visible())),
        (f"announcements on {catalogue.topic}", catalogue.announced_count()),
    )

    print_heading("The second run announces only changes since the first")
    counts, transaction_count = catalogue.update(directory)
    print_text(
        _in_words(counts) if counts else "Nothing changed, so there was nothing to announce."
    )


def follow_changes(client: tuff.Client, home: Path) -> Catalogue:
    """A small directory in which a file is changed, added and removed."""
    directory = home / "scratch"
    directory.mkdir()
    catalogue = Catalogue(client, home / "scratch.sqlite", _topic("scratch", home))
    print_heading("A small directory, in which files are added, changed and removed")
    for name in ("apple.txt", "pear.txt", "plum.txt"):
        (directory / name).write_text(f"one {name}\n")
    print_text("Three files: " + _in_words(catalogue.update(directory)[0]))
    (directory / "apple.txt").write_text("two apples by now\n")
    (directory / "quince.txt").write_text("a new one\n")
    (directory / "plum.txt").unlink()
    print_text(
        "Then one is changed, one added, one removed: " + _in_words(catalogue.update(directory)[0])
    )
    print_text("A committed reader of the topic receives, in order:")
    for message in catalogue.announced():
        change = json.loads(message.payload)
        print_text(f"  {change['change']:8} {change['path']:12} {change.get('sha256', '')[:12]}")
    return catalogue


def _topic(name: str, home: Path) -> str:
    # The directory's name is new with each run, so that two of them never share a topic.
    return f"{home.name}:{name}"


def _in_words(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in sorted(counts.items())) + "."


def _batches(items: Iterable[T]) -> Iterator[list[T]]:
    iterator = iter(items)
    while batch := list(islice(iterator, BATCH_COUNT_MAX)):
        yield batch


if __name__ == "__main__":
    main()
