"""Reads before the log, from the Parquet archive of a topic (protocol §3.4; decision 0044).

Only files that the manifest names are read, and none before its checksum was compared with the
manifest: the decoder ends the whole process at some flipped bits. Afterwards each page is compared
with its own checksum as it is read. The row groups of a page of messages are found by the minimum
of their ids.

Only this module reads the archive, and it is loaded only where one is configured.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from kernel.archive_manifest import (
    Archive,
    ArchiveError,
    Entry,
    Hour,
    StoredFile,
    entries_of_day,
    stored_file,
)
from kernel.event_loop import InThread
from messaging.log.read_result import Messages
from messaging.model.attributes import encode_attributes
from messaging.model.row_format import OFFSET_SIZE, offset_in
from messaging.model.visibility import Query, before_row, id_after, live_after
from tuff.protocol.attributes import NO_ATTRIBUTES, Attributes
from tuff.protocol.errors import ArchiveUnavailableError, DamagedRecordError
from tuff.protocol.ids import Offset, TopicId

T = TypeVar("T")

DECODED_BYTES_MAX = 67_108_864  # of row groups in memory, of which there is one at least
MANIFEST_FILES_MAX = 10_000  # cached days of all topics
FILES_MAX = 1_000  # whose metadata are in memory

# Files that were written before there were attributes have only the first two.
_ATTRIBUTES = ("key", "tags", "headers")
_COLUMNS = ("id", "value", *_ATTRIBUTES)


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveRead:
    """Messages from the start of a query on, up to the log. `is_complete`: the archive has all
    messages from the start up to the last of these; without messages, up to the log. `caught_up`:
    it has no more of them up to the last id of the query, which is before the log."""

    messages: Messages
    is_complete: bool
    caught_up: bool


class _DamagedFileError(Exception):
    """A file of the archive is not the one that was written; the message says how."""


@dataclass(frozen=True, slots=True)
class _Stamp:
    """A file as it was when it was looked up. A file that replaces it has another stamp."""

    path: Path
    inode: int
    mtime_ns: int
    size: int

    @classmethod
    def of(cls, path: Path) -> "_Stamp":
        found = path.stat()
        return cls(path, found.st_ino, found.st_mtime_ns, found.st_size)


@dataclass(frozen=True, slots=True)
class _ArchiveFile:
    """The metadata of a file whose checksum was compared, and the first id of each row group."""

    stamp: _Stamp
    metadata: pq.FileMetaData
    first_ids: list[bytes]


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """A decoded row group. `attributes`: as stored in a log, by the index of the message, of those
    messages that have any."""

    ids: list[bytes]
    values: pa.Array
    attributes: dict[int, bytes]
    size_bytes: int


class ArchiveReader:
    """The archive below one root directory. Called on the event loop; one thread reads the files,
    and alone has the caches."""

    def __init__(self, root: Path, in_thread: InThread) -> None:
        self._archive = Archive(root)
        self._in_thread = in_thread
        self._entries_of_day = lru_cache(MANIFEST_FILES_MAX)(
            lambda stamp: entries_of_day(stamp.path)
        )
        self._verified = lru_cache(FILES_MAX)(_verified)
        self._decoded: OrderedDict[tuple[_Stamp, int], _RowGroup] = OrderedDict()

    async def read(self, topic: TopicId, generation: int, query: Query) -> ArchiveRead:
        """The messages from the start of the query on that are before the log, up to the limits of
        the query. Messages of other generations of the topic are not among them.

        They end before the first interval of which the archive may lack messages, unless they begin
        in it. So a reader learns of each such interval, with the read that begins in it.

        Raises:
            ArchiveUnavailableError: a file of the archive is missing, or can't be read now.
            DamagedRecordError: the first message is in a corrupt file; names the end of the hour.
        """
        return await self._run(partial(self._read, topic, generation, query))

    async def bounds(
        self, topic: TopicId, generation: int, query: Query
    ) -> list[tuple[bytes, bytes]]:
        """The archived hours in the range of the query, oldest first: the first and the last id of
        each, which are before the log. Raises: ArchiveUnavailableError."""

        def find() -> list[tuple[bytes, bytes]]:
            rows = [row for row in self._rows(topic, query) if row.generation == generation]
            ranges = [_range(row, query.after, _last(query)) for row in rows]
            return [each for each in ranges if each[0] <= each[1]]

        return await self._run(find)

    async def _run(self, read: Callable[[], T]) -> T:
        def read_again_if_moved() -> T:
            try:
                return read()
            except FileNotFoundError:
                # A compaction may have moved it since the manifest was read.
                return read()

        try:
            return await self._in_thread(read_again_if_moved)
        except (ArchiveError, OSError) as error:
            raise ArchiveUnavailableError(
                f"the archive, in which this read continues, can't be read: {error}; try again "
                "later"
            ) from error

    def _rows(self, topic: TopicId, query: Query) -> Iterator[Entry]:
        """The rows of all generations from the day on in which the query starts, oldest first.
        Raises: ArchiveError, OSError."""
        root = self._archive.root
        if not (root / "_manifest").is_dir():
            raise ArchiveError(
                f"{root} is no archive, as it has no directory _manifest: its file system is not "
                "mounted, or tuff-pipeline archive has not run yet"
            )
        start = offset_in(min(query.after, _last(query))[:OFFSET_SIZE])
        first = self._archive.day_file(topic, Hour.at(start.timestamp_ms))
        for file in sorted(first.parent.glob("dt=*.json")):
            if file >= first:
                yield from self._entries_of_day(_Stamp.of(file))

    def _read(self, topic: TopicId, generation: int, query: Query) -> ArchiveRead:
        messages = Messages(limit=query.limit, bytes_max=query.bytes_max)
        after, last = query.after, _last(query)
        is_complete = True
        for row in self._rows(topic, query):
            hour_last = before_row(Offset(row.hour.stop_ms, 0))
            if row.generation != generation or hour_last <= after:
                continue
            if before_row(Offset(row.hour.start_ms, 0)) >= last:
                break
            if before_row(Offset(row.complete_from_ms, 0)) > after:
                if messages:
                    return ArchiveRead(messages=messages, is_complete=is_complete, caught_up=False)
                is_complete = False
            if not self._take_hour(row, after, last, messages):
                return ArchiveRead(messages=messages, is_complete=is_complete, caught_up=False)
            after = hour_last
        is_at_end = after >= last
        return ArchiveRead(
            messages=messages,
            is_complete=is_complete and (bool(messages) or is_at_end),
            caught_up=is_at_end and last < live_after(query),
        )

    def _take_hour(self, row: Entry, after: bytes, last: bytes, messages: Messages) -> bool:
        """Append the messages of an hour behind `after` through `last`; whether all did fit.

        Raises: ArchiveError, OSError, DamagedRecordError; none of them if there are messages.
        """
        first, last = _range(row, after, last)
        if first > last:
            return True
        try:
            return self._take_range(row, first, last, messages)
        except (_DamagedFileError, ArchiveError, OSError) as error:
            if messages:
                return False
            if not isinstance(error, _DamagedFileError):
                raise
            behind = row.summary.last
            raise DamagedRecordError(
                f"{error}, in the archive; to continue without the rest of the hour {row.hour}, "
                f"read from {behind}, exclusive",
                members={"id": first.hex(), "next": behind},
            ) from None

    def _take_range(self, row: Entry, first: bytes, last: bytes, messages: Messages) -> bool:
        """Append the messages of an hour from one id through another."""
        if not row.files:
            raise ArchiveError(
                f"the manifest has no checksums of {row.path}, which version 0.1.0 has written; "
                "the next run of tuff-pipeline archive adds them"
            )
        directory = self._archive.root / row.path
        files = [self._verified(_Stamp.of(directory / each.name), each) for each in row.files]
        groups = [(id_, file, i) for file in files for i, id_ in enumerate(file.first_ids)]
        begin = bisect_right(groups, first, key=itemgetter(0))
        for group_first, file, index in groups[max(0, begin - 1) :]:
            if group_first > last:
                break
            if not _append(self._row_group(file, index), first, last, messages):
                return False
        return True

    def _row_group(self, file: _ArchiveFile, index: int) -> _RowGroup:
        key = (file.stamp, index)
        found = self._decoded.pop(key, None) or _decode(file, index)
        size_bytes = sum(each.size_bytes for each in self._decoded.values())
        while self._decoded and size_bytes + found.size_bytes > DECODED_BYTES_MAX:
            _, oldest = self._decoded.popitem(last=False)
            size_bytes -= oldest.size_bytes
        self._decoded[key] = found
        return found


def _last(query: Query) -> bytes:
    """The last id that may be read from the archive."""
    return min(live_after(query), query.through)


def _range(row: Entry, after: bytes, last: bytes) -> tuple[bytes, bytes]:
    """The first and the last id of a row that are behind `after` and not behind `last`."""
    first_id, last_id = (bytes.fromhex(each) for each in (row.summary.first, row.summary.last))
    return max(first_id, id_after(after)), min(last_id, last)


def _append(group: _RowGroup, first: bytes, last: bytes, messages: Messages) -> bool:
    start, stop = bisect_left(group.ids, first), bisect_right(group.ids, last)
    count = min(stop - start, messages.room)
    ids = group.ids[start : start + count]
    values = group.values.slice(start, count).to_pylist()
    if not group.attributes:
        return messages.extend(ids, values) == stop - start
    for at, (message_id, value) in enumerate(zip(ids, values, strict=True), start):
        if not messages.append(message_id, value, attributes=group.attributes.get(at)):
            return False
    return count == stop - start


def _verified(stamp: _Stamp, expected: StoredFile) -> _ArchiveFile:
    """The metadata of a file, once its content was compared with the manifest.

    Raises: OSError, _DamagedFileError.
    """
    found = stored_file(stamp.path)
    if found != expected:
        raise _DamagedFileError(
            f"{stamp.path} has {found.size} bytes with the CRC {found.crc32:08x}, but the manifest "
            f"says {expected.size} and {expected.crc32:08x}"
        )
    with _opened(stamp.path) as parquet:
        place = parquet.schema_arrow.names.index("id")
        metadata = parquet.metadata
        groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
        return _ArchiveFile(
            stamp, metadata, [group.column(place).statistics.min for group in groups]
        )


def _decode(file: _ArchiveFile, index: int) -> _RowGroup:
    """Raises: OSError, _DamagedFileError."""
    with _opened(file.stamp.path, file.metadata) as parquet:
        there = [name for name in _COLUMNS if name in parquet.schema_arrow.names]
        table = parquet.read_row_group(index, columns=there).combine_chunks()
    (values,) = table.column("value").chunks
    return _RowGroup(
        table.column("id").to_pylist(), values, _attributes_in(table), size_bytes=table.nbytes
    )


def _attributes_in(table: pa.Table) -> dict[int, bytes]:
    given = [name for name in table.column_names if name in _ATTRIBUTES]
    if not any(table.column(name).null_count < len(table) for name in given):
        return {}
    return {
        index: encode_attributes(attributes)
        for index, row in enumerate(table.select(given).to_pylist())
        if (attributes := _attributes_of(row)) != NO_ATTRIBUTES
    }


def _attributes_of(row: Mapping[str, Any]) -> Attributes:
    headers = ((each["name"], each["value"]) for each in row.get("headers") or ())
    return Attributes(row.get("key"), tuple(row.get("tags") or ()), tuple(headers))


@contextmanager
def _opened(path: Path, metadata: pq.FileMetaData | None = None) -> Iterator[pq.ParquetFile]:
    """Raises: OSError; _DamagedFileError: the decoder can't read the file."""
    try:
        with pq.ParquetFile(path, metadata=metadata, page_checksum_verification=True) as parquet:
            yield parquet
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # of the operating system; the decoder's own errors have no number
        text = " ".join(str(error).split())
        raise _DamagedFileError(f"{path} can't be decoded: {text}") from None
