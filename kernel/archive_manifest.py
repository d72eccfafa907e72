"""The manifest of an archive: an entry for each archived hour, written after the hour's files.

    ROOT/_manifest/archive.json                    which archive this is: {"id":"…","version":1}
    ROOT/_manifest/topic=NS%3ANAME/dt=DAY.json     the entries of a day, as
                                                   {"hours":[entry…],"version":1}
    ROOT/hours/topic=…/dt=DAY/hour=HH/*.parquet    as archived
    ROOT/days/topic=…/dt=DAY/hours=N/*.parquet     as compacted: N hours together

    entry = {"hour":n,"generation":n,"after":ms,"keptFrom":ms,"count":n,"first":id,"last":id,
           "checksum":n,"path":"…","files":[{"name":"…","size":bytes,"crc32":n}…]}

The columns of files are id, value, timestamp, generation, key, tags and headers. The last three are
null for a message without, and absent in files of version 0.1.0. A topic in a path is a log:
`NS:NAME:3` is a partition, and `NS:NAME` is partition 0.

`hour` counts hours since 1970. Entries of version 0.1.0 lack `keptFrom` and `files`. The file of a
day is replaced atomically. Files that no entry names are left over from a job that died, and are
not part of the archive. The jobs of `pipeline` write an archive, and the server reads it.
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

from tuff.protocol.errors import TuffError
from tuff.protocol.ids import TopicId
from tuff_storage.checksum import crc32
from tuff_storage.disk.files import make_directory, write_file
from tuff_storage.disk.locks import DirectoryLock, DirectoryLockedError

T = TypeVar("T")

VERSION = 1
HOUR_MS = 3_600_000
HOURS_PER_DAY = 24
READ_BYTES = 1 << 20  # at a time, for a checksum
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
        """The day in ISO format: `2026-11-22`."""
        return self._moment().strftime("%Y-%m-%d")

    @property
    def of_day(self) -> str:
        """The hour of the day in two digits: `05`."""
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
    covers ids, payloads, times, generations and attributes, and does not depend on the order."""

    count: int
    first: str
    last: str
    checksum: int


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of an archive, and its whole content in short."""

    name: str
    size: int  # bytes
    crc32: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One archived hour. `path`: relative to the archive's root; several hours may share one.
    `files`: those in it, by name; none if the entry does not say.

    `after_ms`: from this time to the start of the hour, the job found no committed messages; 0 if
    it found none before the hour. `kept_from_ms`: messages from this time on had not expired when
    the job read the hour; None: the entry does not say.
    """

    hour: Hour
    generation: int
    after_ms: int
    summary: Summary
    path: str
    kept_from_ms: int | None = None
    files: tuple[StoredFile, ...] = ()

    @property
    def complete_from_ms(self) -> int:
        """From this time to the end of the hour, the archive has all messages; the end of the hour
        if it may lack some of any time."""
        if self.kept_from_ms is None:
            return self.hour.stop_ms
        return min(max(self.after_ms, self.kept_from_ms), self.hour.stop_ms)


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

    def require(self, topic: TopicId) -> list[Entry]:
        """The entries of a topic, oldest first. Raises: ArchiveError: none, or unreadable."""
        entries = self.entries(topic)
        if not entries:
            known = ", ".join(self.topics()) or "no topics"
            raise ArchiveError(f"{self.root} has no archive of {topic}; it has {known}")
        return entries

    def logs(self, topic: TopicId) -> list[TopicId]:
        """The archived logs of a topic, which are its partitions; of a partition, its own.

        Raises: ArchiveError: none.
        """
        if topic.number is not None:
            self.require(topic)
            return [topic.log]
        known = (TopicId(*name.split(":", 1)) for name in self.topics())
        found = sorted((log for log in known if log.base == topic), key=lambda log: log.number or 0)
        if not found:
            self.require(topic)
        return found

    def topics(self) -> list[str]:
        """The names of the logs that have entries; `ns:topic:3` is a partition."""
        found = (self.root / "_manifest").glob("topic=*")
        return sorted(unquote(path.name.removeprefix("topic=")) for path in found)

    def entries(self, topic: TopicId) -> list[Entry]:
        """All entries of a topic, oldest first. Raises: ArchiveError: they can't be read."""
        files = sorted(self.directory_of(topic).glob("dt=*.json"))
        return sorted((entry for file in files for entry in entries_of_day(file)), key=_hour_of)

    def record(self, topic: TopicId, entries: Sequence[Entry]) -> None:
        """Store entries of one day, in place of those of the same hours, durably and atomically."""
        file = self.day_file(topic, entries[0].hour)
        assert {entry.hour.day for entry in entries} == {entries[0].hour.day}, (
            "only one file is replaced"
        )
        make_directory(file.parent)
        kept = {entry.hour: entry for entry in (entries_of_day(file) if file.exists() else [])}
        kept |= {entry.hour: entry for entry in entries}
        bodies = [_body(entry) for _, entry in sorted(kept.items())]
        text = json.dumps({"hours": bodies, "version": VERSION}, indent=1, sort_keys=True)
        write_file(file, text.encode("ascii"))

    def day_file(self, topic: TopicId, hour: Hour) -> Path:
        """The file with the entries of the day of an hour. Such files are in order by their
        names."""
        return self.directory_of(topic) / f"dt={hour.day}.json"

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

    def directory_of(self, topic: TopicId) -> Path:
        """Where the files of the manifest of a topic are; it may not exist."""
        return self.root / "_manifest" / _partition(topic)


def watermark_ms(entries: Iterable[Entry], *, generation: int) -> int:
    """The time before which all messages of this generation are archived, without a gap."""
    reached_ms = 0
    for entry in sorted(entries, key=lambda entry: entry.hour):
        if entry.generation != generation:
            continue
        if entry.after_ms > reached_ms:
            break
        reached_ms = entry.hour.stop_ms
    return reached_ms


def files_in(directory: Path) -> tuple[StoredFile, ...]:
    """The files of messages in a directory, by name, with their checksums. Raises: OSError."""
    return tuple(stored_file(file) for file in sorted(directory.glob("*.parquet")))


def stored_file(file: Path) -> StoredFile:
    """A file as it is now. Raises: OSError."""
    size = checksum = 0
    with file.open("rb") as content:
        while piece := content.read(READ_BYTES):
            size += len(piece)
            checksum = crc32(piece, checksum)
    return StoredFile(file.name, size, checksum)


def hour_partition(topic: TopicId, hour: Hour) -> str:
    """The partition directories of an hour, as Spark and Hive name them."""
    return f"{_partition(topic)}/dt={hour.day}/hour={hour.of_day}"


def _partition(topic: TopicId) -> str:
    # A path of Hadoop can't contain a colon; Spark decodes the name when it reads partitions. The
    # archive of `orders:0` is that of `orders`, as the log is: the server reads it by this name.
    return f"topic={quote(str(topic.log), safe='')}"


def _hour_of(entry: Entry) -> Hour:
    return entry.hour


def _body(entry: Entry) -> dict[str, object]:
    body = {
        "hour": entry.hour.number,
        "generation": entry.generation,
        "after": entry.after_ms,
        "keptFrom": entry.kept_from_ms,
        **asdict(entry.summary),
        "path": entry.path,
        "files": [asdict(file) for file in entry.files] or None,
    }
    return {name: value for name, value in body.items() if value is not None}


def entries_of_day(file: Path) -> list[Entry]:
    """The entries in one file of the manifest, by hour. Raises: ArchiveError: not such a file."""
    return _read(file, lambda body: [_entry(value) for value in body["hours"]])


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


def _entry(body: Mapping[str, Any]) -> Entry:
    return Entry(
        hour=Hour(body["hour"]),
        generation=body["generation"],
        after_ms=body["after"],
        summary=Summary(
            count=body["count"],
            first=body["first"],
            last=body["last"],
            checksum=body["checksum"],
        ),
        path=body["path"],
        kept_from_ms=body.get("keptFrom"),
        files=tuple(
            StoredFile(each["name"], each["size"], each["crc32"]) for each in body.get("files", ())
        ),
    )
