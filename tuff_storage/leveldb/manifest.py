"""The format of LevelDB's manifest: which tables and logs a database consists of.

manifest := record*         as in LevelDB's log format; CURRENT holds its name and a newline
record   := field*          each with a tag; numbers are varints, keys have a length before them
"""

from dataclasses import dataclass, field
from pathlib import Path

from tuff_storage.leveldb.log import (
    SECTOR_SIZE,
    Gap,
    MalformedError,
    read_records,
    read_string,
    read_varint,
    torn_from,
)

CURRENT = "CURRENT"
MANIFEST_PREFIX = "MANIFEST-"
TABLE_SUFFIXES = (".ldb", ".sst")
LOG_SUFFIX = ".log"

_KEY_TAIL_SIZE = 8  # bytes of sequence and kind behind each key
# Fields of a record, by their tag.
_COMPARATOR, _LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _COMPACTED = 1, 2, 3, 4, 5
_DELETED_FILE, _NEW_FILE, _PREVIOUS_LOG = 6, 7, 9


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A location in CURRENT or in the manifest that can't be read, and why. `is_tail`: the last
    write, which a power cut tore, so that it was never acknowledged."""

    file: str
    offset: int
    reason: str
    is_tail: bool = False


@dataclass(slots=True)
class Manifest:
    """The files of the database: tables with their key ranges, and the logs from a number on."""

    tables: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)
    log_number: int = 0  # the first manifest names no log
    previous_log: int = 0
    last_sequence: int = 0  # the highest of all tables

    def needs_log(self, number: int) -> bool:
        return number >= self.log_number or number == self.previous_log

    def lost_log(self, directory: Path) -> str | None:
        """The name of the log that the manifest names and that is missing; None if it exists.
        LevelDB creates a log before the manifest names it."""
        name = f"{self.log_number:06}{LOG_SUFFIX}"
        is_there = not self.log_number or (directory / name).is_file()
        return None if is_there else name


def numbered(directory: Path, *suffixes: str) -> list[tuple[int, Path]]:
    """The numbered files with one of these suffixes, in order of their numbers."""
    paths = (path for path in directory.iterdir() if path.suffix in suffixes)
    return sorted((int(path.stem), path) for path in paths if path.stem.isdigit())


def read_manifest(directory: Path) -> tuple[Manifest | None, list[Unreadable]]:
    """The manifest of a directory, None if it can't be read, and the locations that can't be read.

    Raises: OSError.
    """
    if not (directory / CURRENT).exists() and not numbered(directory, LOG_SUFFIX, *TABLE_SUFFIXES):
        return None, []  # a power cut came before there was anything
    named, unreadable = _current(directory)
    if named is None:
        return None, unreadable
    manifest = Manifest()
    whole_count = 0
    data = named.read_bytes()
    torn = _torn_from(data)
    if torn is not None:
        unreadable.append(Unreadable(named.name, torn, "the last write is cut off", is_tail=True))
    for record in read_records(data[:torn]):
        reason = record.reason if isinstance(record, Gap) else "the checksum does not match"
        if isinstance(record, Gap) or not record.is_whole:
            return None, [*unreadable, Unreadable(named.name, record.offset, reason)]
        try:
            _apply(manifest, record.data)
        except (MalformedError, IndexError) as error:
            return None, [*unreadable, Unreadable(named.name, record.offset, str(error))]
        whole_count += 1
    if not whole_count:
        return None, [*unreadable, Unreadable(named.name, 0, "it is empty")]
    return manifest, unreadable


def _current(directory: Path) -> tuple[Path | None, list[Unreadable]]:
    path = directory / CURRENT
    text = path.read_bytes() if path.is_file() else b""
    name = text[:-1].decode("ascii", "replace")
    if not text.endswith(b"\n") or not name.startswith(MANIFEST_PREFIX) or "/" in name:
        return None, [Unreadable(CURRENT, 0, "it names no manifest")]
    if not (directory / name).is_file():
        return None, [Unreadable(CURRENT, 0, f"there is no {name}, which it names")]
    return directory / name, []


def _torn_from(data: bytes) -> int | None:
    """Where the last write begins, if a power cut tore it; otherwise None."""
    last = next(reversed(list(read_records(data))), None)
    # A write that was torn at the border of a sector ends the file there.
    if isinstance(last, Gap) and last.is_tail and len(data) % SECTOR_SIZE == 0:
        return last.offset
    return torn_from(data)


def _apply(manifest: Manifest, data: bytes) -> None:
    at = 0
    while at < len(data):
        tag, at = read_varint(data, at)
        if tag == _COMPARATOR:
            _, at = read_string(data, at)
        elif tag in (_LOG_NUMBER, _NEXT_FILE, _LAST_SEQUENCE, _PREVIOUS_LOG):
            number, at = read_varint(data, at)
            _note_number(manifest, tag, number)
        elif tag in (_COMPACTED, _DELETED_FILE, _NEW_FILE):
            at = _apply_file(manifest, tag, data, at)
        else:
            raise MalformedError(f"no manifest has a field {tag}")


def _note_number(manifest: Manifest, tag: int, number: int) -> None:
    if tag == _LOG_NUMBER:
        manifest.log_number = number
    elif tag == _PREVIOUS_LOG:
        manifest.previous_log = number
    elif tag == _LAST_SEQUENCE:
        manifest.last_sequence = max(manifest.last_sequence, number)


def _apply_file(manifest: Manifest, tag: int, data: bytes, at: int) -> int:
    _level, at = read_varint(data, at)
    if tag == _COMPACTED:
        return read_string(data, at)[1]
    number, at = read_varint(data, at)
    if tag == _DELETED_FILE:
        manifest.tables.pop(number, None)
        return at
    _size, at = read_varint(data, at)
    low, at = read_string(data, at)
    high, at = read_string(data, at)
    manifest.tables[number] = low[:-_KEY_TAIL_SIZE], high[:-_KEY_TAIL_SIZE]
    return at
