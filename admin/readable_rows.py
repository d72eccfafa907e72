"""Every row that can be read in a message store that may be corrupt (design §5; promise 8).

Of each row the newest version whose checksum is right is taken. It *may be stale* where bytes that
can't be read may have contained a newer one.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from admin.leveldb_survey import Hole, Survey, Version, survey
from messaging.storage.packed_rows import (
    is_packed,
    packed_count_max,
    require_packed,
    rows_in,
    whole_rows,
)
from messaging.storage.pointer_index import IndexedRange
from messaging.storage.rows import (
    HOLDS,
    INDEX,
    LAST_BATCH_KEY,
    MESSAGES,
    METADATA,
    METADATA_KEY,
    PAYLOADS,
    POSITIONS,
    TOPICS,
    DamagedRowError,
    Hold,
    LastBatch,
    MessageRow,
    NewerRowError,
    PayloadRow,
    Position,
    StoreMetadata,
    row_prefix,
    split_named_row_key,
    split_prefix,
    split_topic,
)
from messaging.topics import TopicRecord

TABLE_NAMES: Mapping[bytes, str] = {
    MESSAGES: "message",
    PAYLOADS: "payload",
    TOPICS: "topic",
    INDEX: "index",
    METADATA: "fact",
    HOLDS: "hold",
    POSITIONS: "position",
}
LOG_SUFFIX = ".log"


@dataclass(frozen=True, slots=True)
class ReadRow:
    """What can be read of a row. `value` is None if no version of it is intact; `corruption` says
    what is wrong with the newest version, None if it is intact; `file` is where the version that
    was read, or is corrupt, lies. `is_newer_format`: a newer version of this program wrote it, and
    it is not corrupt."""

    key: bytes
    value: bytes | None
    file: str
    corruption: str | None = None
    may_be_stale: bool = False
    is_newer_format: bool = False


class ReadableRows:
    """A store's rows, read without its engine. Blocks; changes nothing."""

    def __init__(self, directory: Path) -> None:
        """Raises: OSError: a file can't be read."""
        self._survey: Survey = survey(directory, whole_rows=whole_rows)

    @property
    def holes(self) -> list[Hole]:
        """Where the files can't be read."""
        return self._survey.holes

    def rows(self) -> Iterator[ReadRow]:
        """Every row in the order of the keys, without those that were deleted."""
        for versions in self._survey.versions():
            found = self._newest(versions)
            if found is None:
                continue
            value = versions[0].value if found.value is None else found.value
            # Packed rows whose flags are corrupt look like a single row.
            is_single = found.value is not None and not is_packed(found.value)
            if value is None or found.is_newer_format or is_single:
                yield found
            else:
                yield from _unpacked(found, value)

    def versions(self) -> Iterator[list[Version]]:
        """All versions of each key that can be read, the newest first."""
        return self._survey.versions()

    def may_hide(self, low: bytes, high: bytes) -> bool:
        """Whether what can't be read may contain a version of a row from key `low` to `high`."""
        return any(hole.covers(low, high) for hole in self.holes)

    def _newest(self, versions: Sequence[Version]) -> ReadRow | None:
        corruption: DamagedRowError | None = None
        for version in versions:
            if version.value is None:
                break
            error = row_error(version.key, version.value)
            if error is None:
                # What else a torn batch contained is unknown.
                is_torn = not version.is_sure and version.file.endswith(LOG_SUFFIX)
                may_be_stale = (
                    corruption is not None or is_torn or self.may_hide(version.key, version.key)
                )
                text = None if corruption is None else str(corruption)
                return ReadRow(version.key, version.value, version.file, text, may_be_stale)
            corruption = corruption or error
            if isinstance(error, NewerRowError):
                break  # the versions before it are older than an intact one
        if corruption is None:
            return None
        return ReadRow(
            versions[0].key,
            None,
            versions[0].file,
            str(corruption),
            may_be_stale=True,
            is_newer_format=isinstance(corruption, NewerRowError),
        )


def _unpacked(packed: ReadRow, value: bytes) -> Iterator[ReadRow]:
    """Each of the rows that are packed in one value; of a corrupt one, those that are intact."""
    rows = rows_in(packed.key, value)
    count_max = packed_count_max(packed.key, value) if len(rows) == 1 else 1
    held = f"; it may have been up to {count_max} rows, the last of them with this key"
    for key, row in rows:
        error = row_error(key, row)
        if error is None:
            # That an older version was taken is reported once, with the key of both.
            is_older = packed.value is not None and key == packed.key
            corruption = packed.corruption if is_older else None
            yield replace(packed, key=key, value=row, corruption=corruption)
        else:
            text = str(error) + (held if count_max > 1 else "")
            yield replace(packed, key=key, value=None, corruption=text)


def row_error(key: bytes, value: bytes) -> DamagedRowError | None:
    """Why a row can't be read; None if it can, or belongs to an unknown table."""
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


def row_name(key: bytes) -> str:
    """The table, and the row key in hex, as `tuff table show` prints it."""
    return f"{TABLE_NAMES.get(key[:1], 'unknown')} row {key[1:].hex()}"


def _check_rows(read_row: Callable[[bytes, bytes], object], key: bytes, value: bytes) -> None:
    split_prefix(row_prefix(key))
    read = require_packed if is_packed(value) else read_row
    read(key, value)


def _check_topic(key: bytes, value: bytes) -> None:
    split_topic(key[1:])
    TopicRecord.from_bytes(key, value)


def _check_fact(key: bytes, value: bytes) -> None:
    if key == LAST_BATCH_KEY:
        LastBatch.from_bytes(key, value)
    elif key == METADATA_KEY:
        StoreMetadata.from_bytes(key, value)


def _check_hold(key: bytes, value: bytes) -> None:
    split_named_row_key(key)
    Hold.from_bytes(key, value)


def _check_position(key: bytes, value: bytes) -> None:
    split_named_row_key(key)
    Position.from_bytes(key, value)


_CHECKS: Mapping[bytes, Callable[[bytes, bytes], object]] = {
    MESSAGES: partial(_check_rows, MessageRow.from_bytes),
    PAYLOADS: partial(_check_rows, PayloadRow.from_bytes),
    TOPICS: _check_topic,
    INDEX: IndexedRange.from_bytes,
    METADATA: _check_fact,
    HOLDS: _check_hold,
    POSITIONS: _check_position,
}
