"""What an archive holds, and may be believed: a row for each hour, written after all that it tells.

    ROOT/_manifest/archive.json                    which archive this is: {"id":"…","version":1}
    ROOT/_manifest/topic=NS%3ANAME/dt=DAY.json     the rows of a day: {"hours":[row…],"version":1}
    ROOT/hours/topic=…/dt=DAY/hour=HH/*.parquet    as archived
    ROOT/days/topic=…/dt=DAY/hours=N/*.parquet     as compacted: N hours together

    row = {"hour":n,"generation":n,"after":ms,"count":n,"first":id,"last":id,"checksum":n,
           "path":"…"}

`hour` counts from the epoch. The file of a day is replaced as a whole, so a row is there or is not.
What no row names is left over from a job that died, and is no part of the archive.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from pipeline.hours import Hour
from tuff.disk.files import make_directory, write_file
from tuff.disk.lock import DirectoryLock, DirectoryLockedError
from tuff.protocol.errors import TuffError
from tuff.protocol.names import TopicId

T = TypeVar("T")

VERSION = 1
ID_BYTES = 16  # bytes by chance; no two archives draw the same


class ArchiveError(TuffError):
    """An archive is not as its manifest says, or can't take what it is asked to."""

    code = "bad_archive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """What is compared of messages that must be the same: `first` and `last` are ids as hex digits,
    and the checksum is over ids, payloads, times and generations, in any order."""

    count: int
    first: str
    last: str
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One archived hour. `path`: below the archive's root; several hours may share one. `after_ms`:
    as `ClosedHour` has it."""

    hour: Hour
    generation: int
    after_ms: int
    summary: Summary
    path: str


class Archive:
    """One root directory, on a file system that the driver and all executors see."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other jobs from changing it. Raises: ArchiveError: another job is at it."""
        make_directory(self.root)
        try:
            lock = DirectoryLock(self.root)
        except DirectoryLockedError as error:
            raise ArchiveError(str(error)) from None
        try:
            yield
        finally:
            lock.close()

    def id(self) -> str:
        """Which archive this is, by chance; it is drawn and kept when it is first asked for. Call
        it with the lock held. Raises: ArchiveError: the file can't be read."""
        file = self.root / "_manifest" / "archive.json"
        if not file.exists():
            make_directory(file.parent)
            body = {"id": secrets.token_hex(ID_BYTES), "version": VERSION}
            write_file(file, json.dumps(body, sort_keys=True).encode("ascii"))
        return _read(file, lambda body: str(body["id"]))

    def require(self, topic: TopicId) -> list[Row]:
        """Its rows, oldest first. Raises: ArchiveError: it has none, or they can't be read."""
        rows = self.rows(topic)
        if not rows:
            known = ", ".join(self.topics()) or "of no topic"
            raise ArchiveError(f"{self.root} has no archive of {topic}; what it has is {known}")
        return rows

    def topics(self) -> list[str]:
        """The names of the topics that have rows."""
        found = (self.root / "_manifest").glob("topic=*")
        return sorted(unquote(path.name.removeprefix("topic=")) for path in found)

    def rows(self, topic: TopicId) -> list[Row]:
        """All rows of a topic, oldest first. Raises: ArchiveError: they can't be read."""
        files = sorted(self._manifest(topic).glob("dt=*.json"))
        return sorted((row for file in files for row in _rows(file)), key=lambda row: row.hour)

    def record(self, topic: TopicId, rows: Sequence[Row]) -> None:
        """Put rows of one day in the place of those of the same hours, durably and at once."""
        days = {row.hour.day for row in rows}
        assert len(days) == 1, "the file of one day is replaced, and no other"
        file = self._manifest(topic) / f"dt={days.pop()}.json"
        make_directory(file.parent)
        kept = {row.hour: row for row in (_rows(file) if file.exists() else [])}
        kept |= {row.hour: row for row in rows}
        forms = [_form(row) for _, row in sorted(kept.items())]
        text = json.dumps({"hours": forms, "version": VERSION}, indent=1, sort_keys=True)
        write_file(file, text.encode("ascii"))

    def hour_path(self, topic: TopicId, hour: Hour) -> str:
        """Where an hour is archived, below the root."""
        return f"hours/{_partition(topic)}/dt={hour.day}/hour={hour.of_day}"

    def day_path(self, topic: TopicId, day: str, *, hour_count: int) -> str:
        """Where so many hours of a day lie together, below the root."""
        return f"days/{_partition(topic)}/dt={day}/hours={hour_count}"

    def staging(self, topic: TopicId) -> Path:
        """Where a job writes what it then moves; who holds the lock may remove what is there."""
        return self.root / "_staging" / _partition(topic)

    def _manifest(self, topic: TopicId) -> Path:
        return self.root / "_manifest" / _partition(topic)


def watermark_ms(rows: Iterable[Row], *, generation: int) -> int:
    """Before which time everything of that generation of the topic is archived, without a gap."""
    reached_ms = 0
    for row in sorted(rows, key=lambda row: row.hour):
        if row.generation != generation:
            continue
        if row.after_ms > reached_ms:
            break
        reached_ms = row.hour.stop_ms
    return reached_ms


def moved(row: Row, path: str) -> Row:
    """The row, with its messages in another file."""
    return replace(row, path=path)


def _partition(topic: TopicId) -> str:
    # A colon can't stand in a path of Hadoop; Spark reads it back as it was.
    return f"topic={quote(str(topic), safe='')}"


def _form(row: Row) -> dict[str, object]:
    return {
        "hour": row.hour.number,
        "generation": row.generation,
        "after": row.after_ms,
        **asdict(row.summary),
        "path": row.path,
    }


def _rows(file: Path) -> list[Row]:
    return _read(file, lambda body: [_row(form) for form in body["hours"]])


def _read(file: Path, decode: Callable[[Mapping[str, Any]], T]) -> T:
    """What a file of the manifest says. Raises: ArchiveError: it is none, or of a later version."""
    try:
        body = json.loads(file.read_bytes())
        version = body["version"]
        if version == VERSION:
            return decode(body)
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{file} is no manifest: {type(error).__name__}: {error}") from None
    raise ArchiveError(
        f"{file} is of version {version}, and this program knows {VERSION}; use a later one"
    )


def _row(form: Mapping[str, Any]) -> Row:
    return Row(
        hour=Hour(form["hour"]),
        generation=form["generation"],
        after_ms=form["after"],
        summary=Summary(
            count=form["count"],
            first=form["first"],
            last=form["last"],
            checksum=form["checksum"],
        ),
        path=form["path"],
    )
