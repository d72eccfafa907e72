"""What is left of each row in a directory that may be damaged (design §5; promise 8).

The newest version that is whole by our own checksum counts. It is *doubtful* where a newer one may
have stood in what can't be read: then it is told what it was, and not surely what it became.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from messaging.bookmarks import Hold, Position
from messaging.facts import Facts, Mark
from messaging.index import IndexedRange
from messaging.keys import (
    FACTS,
    FACTS_KEY,
    HOLDS,
    INDEX,
    MARK_KEY,
    MESSAGES,
    PAYLOADS,
    POSITIONS,
    TOPICS,
    row_prefix,
    split_bookmark,
    split_prefix,
    split_topic,
)
from messaging.rows import DamagedRowError, MessageRow, NewerRowError, PayloadRow
from messaging.runs import is_run, require_run, rows_in, rows_max, whole_rows
from messaging.storage.leveldb_files import Hole, Survey, Version, survey
from messaging.topics import TopicRecord

TABLES: Mapping[bytes, str] = {
    MESSAGES: "message",
    PAYLOADS: "payload",
    TOPICS: "topic",
    INDEX: "index",
    FACTS: "fact",
    HOLDS: "hold",
    POSITIONS: "position",
}
LOG_SUFFIX = ".log"


@dataclass(frozen=True, slots=True)
class Remain:
    """What is left under a key. `value` is None where nothing is whole; `damage` is how the newest
    version is damaged, None where it is not; `file` holds what is left, or the damage. `is_newer`:
    it is no damage, but written by a newer version of this program."""

    key: bytes
    value: bytes | None
    file: str
    damage: str | None = None
    is_doubtful: bool = False
    is_newer: bool = False


class Remains:
    """A store's rows, read without its engine. Blocks; changes nothing."""

    def __init__(self, directory: Path) -> None:
        """Raises: OSError: a file can't be read."""
        self._survey: Survey = survey(directory, whole_rows=whole_rows)

    @property
    def holes(self) -> list[Hole]:
        """Where the files can't be read."""
        return self._survey.holes

    def rows(self) -> Iterator[Remain]:
        """Each key's remain, in the order of the keys; none for keys that were deleted."""
        for versions in self._survey.versions():
            remain = self._remain(versions)
            if remain is None:
                continue
            value = versions[0].value if remain.value is None else remain.value
            # A run whose flags are damaged looks like a row by itself.
            is_whole_row = remain.value is not None and not is_run(remain.value)
            if value is None or remain.is_newer or is_whole_row:
                yield remain
            else:
                yield from _rows_of(remain, value)

    def versions(self) -> Iterator[list[Version]]:
        """All that is left of each key, the newest first."""
        return self._survey.versions()

    def hides(self, low: bytes, high: bytes) -> bool:
        """Whether a row, or a newer version of it, from key to key may stand in a hole."""
        return any(hole.covers(low, high) for hole in self.holes)

    def _remain(self, versions: Sequence[Version]) -> Remain | None:
        damage: DamagedRowError | None = None
        for version in versions:
            if version.value is None:
                break
            error = row_error(version.key, version.value)
            if error is None:
                # Of a torn batch nobody knows what else was in it.
                is_torn = not version.is_sure and version.file.endswith(LOG_SUFFIX)
                is_doubtful = damage is not None or is_torn or self.hides(version.key, version.key)
                text = None if damage is None else str(damage)
                return Remain(version.key, version.value, version.file, text, is_doubtful)
            damage = damage or error
            if isinstance(error, NewerRowError):
                break  # the ones before it are older than what is there
        if damage is None:
            return None
        is_newer = isinstance(damage, NewerRowError)
        first = versions[0]
        return Remain(first.key, None, first.file, str(damage), is_doubtful=True, is_newer=is_newer)


def _rows_of(remain: Remain, value: bytes) -> Iterator[Remain]:
    """What is left of each row of a run: of a damaged one, the rows that are whole."""
    rows = rows_in(remain.key, value)
    count_max = rows_max(remain.key, value) if len(rows) == 1 else 1
    held = f"; it may have been up to {count_max} rows, the last under this key"
    for key, row in rows:
        error = row_error(key, row)
        if error is None:
            # That an older version was taken is told once, under the key of both.
            is_older = remain.value is not None and key == remain.key
            yield replace(remain, key=key, value=row, damage=remain.damage if is_older else None)
        else:
            damage = str(error) + (held if count_max > 1 else "")
            yield replace(remain, key=key, value=None, damage=damage)


def row_error(key: bytes, value: bytes) -> DamagedRowError | None:
    """Why a row can't be read; None if it can, or is of a table that nobody knows."""
    check = _CHECKS.get(key[:1])
    if check is None:
        return None
    try:
        check(key, value)
    except DamagedRowError as error:
        return error
    except (ValueError, IndexError, struct.error) as error:
        return DamagedRowError(str(error))
    return None


def shown(key: bytes) -> str:
    """A key for people: the table, and the row key in hex, as `tuff table show` prints it."""
    return f"{TABLES.get(key[:1], 'unknown')} row {key[1:].hex()}"


def _check_rows(read_row: Callable[[bytes, bytes], object], key: bytes, value: bytes) -> None:
    split_prefix(row_prefix(key))
    read = require_run if is_run(value) else read_row
    read(key, value)


def _check_topic(key: bytes, value: bytes) -> None:
    split_topic(key[1:])
    TopicRecord.from_bytes(key, value)


def _check_fact(key: bytes, value: bytes) -> None:
    if key == MARK_KEY:
        Mark.from_bytes(key, value)
    elif key == FACTS_KEY:
        Facts.from_bytes(key, value)


def _check_hold(key: bytes, value: bytes) -> None:
    split_bookmark(key)
    Hold.from_bytes(key, value)


def _check_position(key: bytes, value: bytes) -> None:
    split_bookmark(key)
    Position.from_bytes(key, value)


_CHECKS: Mapping[bytes, Callable[[bytes, bytes], object]] = {
    MESSAGES: partial(_check_rows, MessageRow.from_bytes),
    PAYLOADS: partial(_check_rows, PayloadRow.from_bytes),
    TOPICS: _check_topic,
    INDEX: IndexedRange.from_bytes,
    FACTS: _check_fact,
    HOLDS: _check_hold,
    POSITIONS: _check_position,
}
