"""Accounts for each message after jobs were killed.

It reads the files by pyarrow, and not by Spark or the code that wrote them.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import pyarrow.parquet as pq

from kernel.archive_manifest import HOUR_MS, Archive, Entry, Hour
from tuff.protocol.ids import MessageId, TopicId

BAD_EACH = 5  # one message of so many is not an event


@dataclass(frozen=True, slots=True)
class Message:
    """A message that was acknowledged. `id` as the bytes that Parquet holds."""

    id: bytes
    payload: bytes

    @property
    def hour(self) -> int:
        return MessageId.from_bytes(self.id).publish_timestamp_ms // HOUR_MS

    @property
    def place(self) -> tuple[str, str]:
        """The partition directories of its hour."""
        return f"dt={Hour(self.hour).day}", f"hour={Hour(self.hour).of_day}"


def event(number: int) -> str:
    """A message to publish: each fifth is not an event, each third accesses data."""
    if number % BAD_EACH == 0:
        return f"no event {number}"
    members = {"type": ("run", "stop")[number % 2], "entity": f"job-{number % 3}", "number": number}
    if number % 3 == 0:
        members |= {"program": "report", "dataset": f"table-{number % 2}", "access": "read"}
    return json.dumps(members)


def rows_of_files(archive: Archive, rows: Sequence[Entry]) -> dict[int, list[Message]]:
    """The messages of each hour that a reader finds by these rows of the manifest."""
    found = {}
    for row in rows:
        table = pq.ParquetDataset(archive.root / row.path, partitioning=None).read(["id", "value"])
        messages = [Message(*each.values()) for each in table.to_pylist()]
        first, last = bytes.fromhex(row.summary.first), bytes.fromhex(row.summary.last)
        of_hour = [each for each in messages if first <= each.id <= last]
        found[row.hour.number] = sorted(of_hour, key=lambda each: each.id)
    return found


def check_archive(
    rows: Sequence[Entry],
    files: Mapping[int, Sequence[Message]],
    left: Sequence[Message],
    published: Sequence[Message],
) -> list[Message]:
    """The archived messages; with those `left` in the topic they are all published ones.

    Raises: AssertionError: something is lost, there twice, or not as its row says.
    """
    archived = []
    for row in rows:
        expected = [each for each in published if each.hour == row.hour.number]
        found = list(files[row.hour.number])
        assert found == expected, (
            f"hour {row.hour} holds {len(found)} messages, {len(set(found))} of them distinct, and "
            f"not the {len(expected)} that were published"
        )
        assert row.summary.count == len(expected), f"the row of {row.hour} says {row.summary}"
        archived += found
    begun = list(published[len(published) - len(left) :])
    assert list(left) == begun, f"the topic holds {len(left)} messages that are not its newest"
    lost = set(published) - set(archived) - set(left)
    assert not lost, f"{len(lost)} messages are neither archived nor in the topic"
    return archived


def check_files(archive: Archive, topic: TopicId, rows: Sequence[Entry]) -> None:
    """Raises: AssertionError: there is a file that no row names."""
    named = {archive.root / row.path for row in rows}
    there = {
        file.parent
        for kind in ("hours", "days")
        for file in (archive.root / kind).rglob("*.parquet")
    }
    assert there == named, f"{len(there - named)} directories are named by no row"


def check_replayed(found: Sequence[bytes], archived: Sequence[Message], *, is_whole: bool) -> None:
    """Check that the copy has the archived messages in order: all, or whole hours of the beginning.

    Raises: AssertionError.
    """
    expected = archived if is_whole else archived[: len(found)]
    assert list(found) == [each.payload for each in expected], (
        f"the copy has {len(found)} messages, {len(set(found))} of them distinct, and not the "
        f"{len(archived)} of the archive, in order"
    )
    begins_hour = (
        len(expected) == len(archived)
        or not expected
        or (archived[len(expected)].hour != expected[-1].hour)
    )
    assert begins_hour, "the copy ends within an hour, which is one transaction"


def check_audit(out: Path, dead: Sequence[bytes], archived: Sequence[Message]) -> None:
    """Raises: AssertionError: counts, edges or dead letters differ from the archived messages."""
    events = [
        (each.place, json.loads(each.payload)) for each in archived if each.payload.startswith(b"{")
    ]
    kinds = Counter((*place, each["entity"], each["type"]) for place, each in events)
    edges = Counter(
        (*place, each["program"], each["dataset"], each["access"])
        for place, each in events
        if "program" in each
    )
    counted = _summed(out / "counts", "entity", "kind")
    assert counted == kinds, f"the audit counted {counted}, and not {kinds}"
    linked = _summed(out / "edges", "program", "dataset", "access")
    assert linked == edges, f"the audit found the edges {linked}, and not {edges}"
    bad = [each.id.hex() for each in archived if not each.payload.startswith(b"{")]
    letters = [json.loads(each)["id"] for each in dead]
    assert letters == bad, (
        f"{len(letters)} dead letters for {len(bad)} messages that are not events"
    )


def _summed(directory: Path, *columns: str) -> Counter[tuple[str, ...]]:
    found: Counter[tuple[str, ...]] = Counter()
    for file in sorted(directory.rglob("*.parquet")):
        for row in pq.ParquetFile(file).read().to_pylist():
            place = file.parent.parent.name, file.parent.name
            found[(*place, *(row[column] for column in columns))] += row["count"]
    return found
