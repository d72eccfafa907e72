"""The manifest of an archive: a row for each archived hour, written after the hour's files.

    ROOT/_manifest/archive.json                    which archive this is: {"id":"…","version":1}
    ROOT/_manifest/topic=NS%3ANAME/dt=DAY.json     the rows of a day: {"hours":[row…],"version":1}
    ROOT/hours/topic=…/dt=DAY/hour=HH/*.parquet    as archived
    ROOT/days/topic=…/dt=DAY/hours=N/*.parquet     as compacted: N hours together

    row = {"hour":n,"generation":n,"after":ms,"count":n,"first":id,"last":id,"checksum":n,
           "path":"…"}

`hour` counts hours since 1970. The file of a day is replaced atomically. Files that no row names
are left over from a job that died, and are not part of the archive.
"""

import json
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, unquote

from tuff.disk.files import make_directory, write_file
from tuff.disk.locks import DirectoryLock, DirectoryLockedError
from tuff.protocol.errors import TuffError
from tuff.protocol.ids import TopicId

T = TypeVar("T")

VERSION = 1
HOUR_MS = 3_600_000
HOURS_PER_DAY = 24
ID_BYTES = 16  # random bytes; no two archives draw the same


class ArchiveError(TuffError):
    """An archive differs from its manifest, or can't do what a job asks for."""

    code = "bad_archive"


@dataclass(frozen=True, slots=True, order=True)
class Hour:
    """An hour in UTC; `number` counts hours since 1970."""

    number: int

    @classmethod
    def at(cls, time_ms: int) -> "Hour":
        """The hour that contains a time."""
        return cls(time_ms // HOUR_MS)

    @property
    def start_ms(self) -> int:
        return self.number * HOUR_MS

    @property
    def stop_ms(self) -> int:
        return self.start_ms + HOUR_MS

    @property
    def day(self) -> str:
        """As `2026-11-22`."""
        return self._moment().strftime("%Y-%m-%d")

    @property
    def of_day(self) -> str:
        """As `05`."""
        return self._moment().strftime("%H")

    @property
    def is_last_of_day(self) -> bool:
        return self.number % HOURS_PER_DAY == HOURS_PER_DAY - 1

    def __str__(self) -> str:
        return f"{self.day}T{self.of_day}"

    def _moment(self) -> datetime:
        return datetime.fromtimestamp(self.start_ms / 1000, tz=UTC)


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A summary of messages, for comparison: `first` and `last` are ids as hex digits; the checksum
    covers ids, payloads, times and generations, and does not depend on the order."""

    count: int
    first: str
    last: str
    checksum: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One archived hour. `path`: relative to the archive's root; several hours may share one.
    `after_ms`: as in `ClosedHour`."""

    hour: Hour
    generation: int
    after_ms: int
    summary: Summary
    path: str


class Archive:
    """One root directory, on a file system that the driver and all executors can access."""

    def __init__(self, root: Path) -> None:
        self.root = root.absolute()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the archive against other jobs. Raises: ArchiveError: another job has it locked."""
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
        """The random id of this archive, which the first call draws and stores. Call it with the
        lock held. Raises: ArchiveError: the file can't be read."""
        file = self.root / "_manifest" / "archive.json"
        if not file.exists():
            make_directory(file.parent)
            body = {"id": secrets.token_hex(ID_BYTES), "version": VERSION}
            write_file(file, json.dumps(body, sort_keys=True).encode("ascii"))
        return _read(file, lambda body: str(body["id"]))

    def require(self, topic: TopicId) -> list[Row]:
        """The rows of a topic, oldest first. Raises: ArchiveError: none, or unreadable."""
        rows = self.rows(topic)
        if not rows:
            known = ", ".join(self.topics()) or "no topics"
            raise ArchiveError(f"{self.root} has no archive of {topic}; it has {known}")
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
        """Store rows of one day, in place of those of the same hours, durably and atomically."""
        days = {row.hour.day for row in rows}
        assert len(days) == 1, "only the file of one day is replaced"
        file = self._manifest(topic) / f"dt={days.pop()}.json"
        make_directory(file.parent)
        kept = {row.hour: row for row in (_rows(file) if file.exists() else [])}
        kept |= {row.hour: row for row in rows}
        forms = [_form(row) for _, row in sorted(kept.items())]
        text = json.dumps({"hours": forms, "version": VERSION}, indent=1, sort_keys=True)
        write_file(file, text.encode("ascii"))

    def hour_path(self, topic: TopicId, hour: Hour) -> str:
        """The path of an archived hour, relative to the root."""
        return f"hours/{hour_partition(topic, hour)}"

    def day_path(self, topic: TopicId, day: str, *, hour_count: int) -> str:
        """The path of the merged hours of a day, relative to the root."""
        return f"days/{_partition(topic)}/dt={day}/hours={hour_count}"

    def staging(self, topic: TopicId) -> Path:
        """The directory where a job writes files before it moves them. The holder of the lock may
        remove its contents."""
        return self.root / "_staging" / _partition(topic)

    def _manifest(self, topic: TopicId) -> Path:
        return self.root / "_manifest" / _partition(topic)


def watermark_ms(rows: Iterable[Row], *, generation: int) -> int:
    """The time before which all messages of this generation are archived, without a gap."""
    reached_ms = 0
    for row in sorted(rows, key=lambda row: row.hour):
        if row.generation != generation:
            continue
        if row.after_ms > reached_ms:
            break
        reached_ms = row.hour.stop_ms
    return reached_ms


def hour_partition(topic: TopicId, hour: Hour) -> str:
    """The partition directories of an hour, as Spark and Hive name them."""
    return f"{_partition(topic)}/dt={hour.day}/hour={hour.of_day}"


def _partition(topic: TopicId) -> str:
    # A path of Hadoop can't contain a colon; Spark decodes the name when it reads partitions.
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
    """Decode a file of the manifest. Raises: ArchiveError: not a manifest, or a later version."""
    try:
        body = json.loads(file.read_bytes())
        version = body["version"]
        if version == VERSION:
            return decode(body)
    except (ValueError, KeyError, TypeError) as error:
        raise ArchiveError(f"{file} is not a manifest: {type(error).__name__}: {error}") from None
    raise ArchiveError(
        f"{file} has version {version}, but this program knows {VERSION}; use a later program"
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
