"""Every readable row of a LevelDB message store that may be corrupt (design §5; promise 8).

LevelDB's recovery writes to the directory, refuses the whole store for one corrupt block of its
log, and skips other corruption silently. Its repair does not report what it left out, and restores
rows that a lost block had replaced. So `tuff fsck` and `tuff salvage` read the files themselves,
and change none.

Of each row the newest version with a correct checksum is taken. It *may be stale* if unreadable
bytes may have contained a newer one.
"""

import heapq
import mmap
import struct
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain, groupby
from operator import attrgetter
from pathlib import Path
from typing import Generic, TypeVar

from admin.findings import Finding
from messaging.engines.sstable import Block, TableLayout, read_changes, read_layout
from messaging.log.rows_by_transaction import IndexedRange
from messaging.log.topics import TopicRecord
from messaging.model.packed_rows import (
    is_packed,
    packed_count_max,
    require_packed,
    rows_in,
    whole_rows,
)
from messaging.model.producer_rows import GapRow, ProducerRow, split_producer_key
from messaging.model.row_format import (
    DELAYED,
    HOLDS,
    INDEX,
    LAST_BATCH_KEY,
    MESSAGES,
    METADATA,
    METADATA_KEY,
    PAYLOADS,
    POSITIONS,
    PRODUCERS,
    TOPICS,
    DamagedRowError,
    Hold,
    LastBatch,
    MessageRow,
    NewerRowError,
    Position,
    StoreMetadata,
    offset_after,
    row_prefix,
    split_named_row_key,
    split_prefix,
    split_topic,
)
from tuff.protocol.ids import Offset
from tuff_storage.leveldb.log import (
    Gap,
    Readable,
    Record,
    WriteBatch,
    read_batch,
    read_records,
    torn_from,
)
from tuff_storage.leveldb.manifest import (
    LOG_SUFFIX,
    TABLE_SUFFIXES,
    Manifest,
    Unreadable,
    numbered,
    read_manifest,
)

TABLE_NAMES: Mapping[bytes, str] = {
    MESSAGES: "message",
    PAYLOADS: "payload",
    TOPICS: "topic",
    INDEX: "index",
    METADATA: "fact",
    DELAYED: "delayed",
    HOLDS: "hold",
    POSITIONS: "position",
    PRODUCERS: "producer",
}
SALVAGE_ADVICE = (
    "write everything readable to a new directory with `tuff salvage`, or restore a backup"
)


T = TypeVar("T")

# The intact rows in a key and its value: the two themselves, or rows that are packed in the value.
Rows = Sequence[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Hole:
    """A part of a file that can't be read. In a table it may have contained versions of the keys
    above `low` up to `high` (None: all that follow); in a log, changes to any key, with sequence
    numbers from `first` up to `stop` (None: unknown). `is_tail`: a crash may have cut it off."""

    file: str
    offset: int
    reason: str
    low: bytes = b""
    high: bytes | None = None
    first: int | None = None
    stop: int | None = None
    is_tail: bool = False

    def covers(self, low: bytes, high: bytes) -> bool:
        """Whether the hole may have contained a version of a key from `low` to `high`, both
        included."""
        if self.first is not None:
            return False
        return self.low < high and (self.high is None or self.high >= low)


@dataclass(frozen=True, slots=True)
class Version:
    """The value that a change gave to a key, or None for its deletion. One that is not sure was
    found in a corrupt block or batch: its value is intact, its sequence number may be wrong."""

    key: bytes
    sequence: int
    value: bytes | None
    file: str
    is_sure: bool = True


@dataclass(slots=True)
class Survey:
    """What a directory contains; `loose` are versions that are not in an intact block."""

    holes: list[Hole] = field(default_factory=list)
    loose: list[Version] = field(default_factory=list)
    tables: list[tuple[str, Readable, list[Block]]] = field(default_factory=list)

    def versions(self) -> Iterator[list[Version]]:
        """All versions of each key, the newest first, in the order of the keys."""
        streams = [_stream(*table) for table in self.tables]
        merged = heapq.merge(sorted(self.loose, key=_order), *streams, key=_order)
        for _, found in groupby(merged, key=attrgetter("key")):
            yield list(found)


def _order(version: Version) -> tuple[bytes, int]:
    return version.key, -version.sequence


def _stream(name: str, data: Readable, blocks: list[Block]) -> Iterator[Version]:
    for block in blocks:
        if block.damage is None:
            for change in read_changes(data, block):
                yield Version(change.key, change.sequence, change.value, name)


def survey(directory: Path) -> Survey:
    """Read everything in a LevelDB directory that no process has open; changes nothing.

    Raises: OSError: a file can't be read.
    """
    found = Survey()
    if not directory.is_dir():
        return found
    manifest, unreadable = read_manifest(directory)
    found.holes += map(_hole_in_manifest, unreadable)
    for number, path in numbered(directory, *TABLE_SUFFIXES):
        # Without a manifest all tables count, as in LevelDB's own repair: the newest versions win.
        if manifest is None or number in manifest.tables:
            _read_table(path, found)
    for number, (low, high) in manifest.tables.items() if manifest is not None else ():
        names = [f"{number:06}{suffix}" for suffix in TABLE_SUFFIXES]
        if not any((directory / name).is_file() for name in names):
            reason = f"the file is missing; its rows were from {_place(low)} to {_place(high)}"
            found.holes.append(Hole(names[0], 0, reason, _before(low), high))
    _read_logs(directory, manifest, found)
    return found


def _place(key: bytes) -> str:
    """The table of a row, and the name with which its key begins, mostly that of a topic."""
    name = key[1:].partition(b"\0")[0].decode("utf-8", "replace").rstrip(":")
    return f"{TABLE_NAMES.get(key[:1], 'unknown')} rows of {name}"


def _hole_in_manifest(at: Unreadable) -> Hole:
    # A torn write never took effect, and hides nothing.
    first, high = (None, b"") if at.is_tail else (0, None)
    return Hole(at.file, at.offset, at.reason, high=high, first=first, is_tail=at.is_tail)


def _before(key: bytes) -> bytes:
    """A key just below this one: above most of the keys that are below it."""
    return key[:-1]


def _read_table(path: Path, found: Survey) -> None:
    with path.open("rb") as file:
        is_empty = path.stat().st_size == 0
        data = b"" if is_empty else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    layout = read_layout(data)
    found.tables.append((path.name, data, layout.blocks))
    last = b""
    for at, block in enumerate(layout.blocks):
        if block.damage is None:
            for change in read_changes(data, block):
                last = change.key
        else:
            behind = _first_key(data, layout, at + 1)
            last = _read_corrupt_block(path.name, data, block, (last, behind), found)
    for offset, reason in layout.damages:
        # Corruption outside of the blocks hides no row, unless it hides where the blocks are.
        found.holes.append(Hole(path.name, offset, reason, last, None if layout.is_cut else b""))


def _first_key(data: Readable, layout: TableLayout, at: int) -> bytes | None:
    for block in layout.blocks[at:]:
        if block.damage is None:
            return next((change.key for change in read_changes(data, block)), None)
    return None


def _read_corrupt_block(
    name: str,
    data: Readable,
    block: Block,
    around: tuple[bytes, bytes | None],
    found: Survey,
) -> bytes:
    """Take the intact rows of a corrupt block, and note the holes between them; its last key."""
    last, behind = around
    reason = block.damage or ""
    deleted: bytes | None = None
    is_torn = False
    for change in read_changes(data, block):
        if change.value is None:
            # No checksum of ours covers its key, unless an intact row of the same key follows.
            is_torn, deleted = is_torn or deleted is not None, change.key
            continue
        rows = [] if change.key < last else whole_rows(change.key, change.value)
        if not rows:
            is_torn, deleted = True, None
            continue
        if deleted == change.key:
            found.loose.append(Version(deleted, change.sequence + 1, None, name, is_sure=False))
        if is_torn or deleted not in (None, change.key):
            found.holes.append(Hole(name, block.offset, reason, last, change.key))
        found.loose += _unsure(name, change.sequence, rows)
        is_torn, deleted, last = rows != [(change.key, change.value)], None, rows[-1][0]
    # How many rows there were is unknown, so there may be a hole after the last one.
    found.holes.append(Hole(name, block.offset, reason, last, behind))
    return last


def _unsure(name: str, sequence: int, rows: Rows) -> Iterator[Version]:
    return (Version(key, sequence, value, name, is_sure=False) for key, value in rows)


def _read_logs(directory: Path, manifest: Manifest | None, found: Survey) -> None:
    logs = numbered(directory, LOG_SUFFIX)
    live = [path for number, path in logs if manifest is None or manifest.needs_log(number)]
    lost = None if manifest is None else manifest.lost_log(directory)
    if lost is not None:
        found.holes.append(Hole(lost, 0, "the file is missing", first=0))
    reader = _LogReader(found)
    # An empty new log was made by an opening that did not complete.
    newest = next((path for path in reversed(live) if path.stat().st_size), None)
    for path in live:
        reader.read(path, is_newest=path == newest)


class _LogReader:
    """Reads logs in their order, and finds by the sequence numbers what is missing."""

    def __init__(self, found: Survey) -> None:
        self._found = found
        self._next: int | None = None

    def read(self, path: Path, *, is_newest: bool) -> None:
        data = path.read_bytes()
        torn = torn_from(data) if is_newest else None
        pending: list[tuple[int, str, bool]] = []
        for record in read_records(data[:torn]):
            if isinstance(record, Gap):
                pending.append((record.offset, record.reason, record.is_tail))
            else:
                self._take(path.name, record, pending)
        if torn is not None:
            pending.append((torn, "sectors of the last write are missing", True))
        # A write of several blocks that was cut off leaves more than one incomplete record.
        is_cut_off = is_newest and bool(pending) and pending[-1][2]
        for offset, reason, is_tail in pending:
            self._hole(path.name, offset, reason, None, is_tail=is_tail or is_cut_off)

    def _take(self, name: str, record: Record, pending: list[tuple[int, str, bool]]) -> None:
        batch = read_batch(record)
        if batch.damage is not None:
            pending.append((record.offset, batch.damage, False))
            self._take_rows(name, batch)
            return
        if not pending and self._next is not None and batch.first != self._next:
            reason = f"changes {self._next} to {batch.first - 1} are missing before it"
            pending.append((record.offset, reason, False))
        for offset, reason, _ in pending:
            self._hole(name, offset, reason, batch.first)
        pending.clear()
        self._next = batch.stop
        self._found.loose += (
            Version(change.key, change.sequence, change.value, name) for change in batch.changes
        )

    def _take_rows(self, name: str, batch: WriteBatch) -> None:
        # The batch's own number may be corrupt; if too high, an old row would replace a newer one.
        first = batch.first if self._next is None else self._next
        for at, change in enumerate(batch.changes):
            if change.value is not None:
                rows = whole_rows(change.key, change.value)
                self._found.loose += _unsure(name, first + at, rows)

    def _hole(
        self, name: str, offset: int, reason: str, stop: int | None, *, is_tail: bool = False
    ) -> None:
        first = self._next or 0
        hole = Hole(name, offset, reason, first=first, stop=stop, is_tail=is_tail)
        self._found.holes.append(hole)


@dataclass(frozen=True, slots=True)
class ReadRow:
    """What can be read of a row. `value` is None if no version of it is intact; `corruption` says
    what is wrong with the newest version, None if it is intact; `file` is where the version that
    was read, or is corrupt. `is_newer_format`: a newer version of this program wrote it, and
    it is not corrupt."""

    key: bytes
    value: bytes | None
    file: str
    corruption: str | None = None
    may_be_stale: bool = False
    is_newer_format: bool = False


class ReadableRows:
    """The rows of a store, read without its engine; none if there is no store.

    Blocks; changes nothing.
    """

    def __init__(self, directory: Path) -> None:
        """Raises: OSError: a file can't be read."""
        self._name = directory.name
        self._survey: Survey = survey(directory)

    @property
    def holes(self) -> list[Hole]:
        """The unreadable parts of the files."""
        return self._survey.holes

    def findings(self) -> list[Finding]:
        """A finding for each unreadable part."""
        # A corrupt block has a hole for each gap between two intact rows, and is reported once.
        return list(dict.fromkeys(_hole_finding(self._name, hole) for hole in self.holes))

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


def _hole_finding(directory: str, hole: Hole) -> Finding:
    reason = hole.reason
    if hole.is_tail:
        reason += (
            "; either a write that a crash cut off and that was not acknowledged, or corruption"
        )
    location = f"{directory}/{hole.file} at byte {hole.offset}"
    return Finding(location, reason, SALVAGE_ADVICE, is_corruption=not hole.is_tail)


@dataclass
class Range(Generic[T]):
    """A range of offsets that a row covers, and how many rows were found in it; `runs` are the
    first and last offsets of neighbours."""

    row: T
    first: Offset
    last: Offset
    found: int = 0
    runs: list[tuple[Offset, Offset]] = field(default_factory=list)


class Ranges(Generic[T]):
    """Ranges of rows by their owner, as a prefix and a pointer. The rows in them come after all
    ranges, in the order of their offsets."""

    def __init__(self) -> None:
        self._by_owner: defaultdict[Hashable, list[Range[T]]] = defaultdict(list)

    def add(self, owner: Hashable, covered: Range[T]) -> None:
        """Add a range in which no row was found yet."""
        self._by_owner[owner].append(covered)

    def note(self, owner: Hashable, offset: Offset) -> None:
        """A row of that owner was found."""
        for covered in self._by_owner.get(owner, ()):
            if covered.first <= offset <= covered.last:
                covered.found += 1
                runs = covered.runs
                if runs and offset == offset_after(runs[-1][1]):
                    runs[-1] = runs[-1][0], offset
                else:
                    runs.append((offset, offset))

    def __iter__(self) -> Iterator[Range[T]]:
        return chain.from_iterable(self._by_owner.values())


def _unpacked(packed: ReadRow, value: bytes) -> Iterator[ReadRow]:
    """Each of the rows that are packed in one value; of a corrupt one, those that are intact."""
    rows = rows_in(packed.key, value)
    count_max = packed_count_max(packed.key, value) if len(rows) == 1 else 1
    more = f"; it may have been up to {count_max} rows, the last of them with this key"
    for key, row in rows:
        error = row_error(key, row)
        if error is None:
            # That an older version was taken is reported once, with the key of both.
            is_older = packed.value is not None and key == packed.key
            corruption = packed.corruption if is_older else None
            yield replace(packed, key=key, value=row, corruption=corruption)
        else:
            text = str(error) + (more if count_max > 1 else "")
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


def _check_named(read_row: Callable[[bytes, bytes], object], key: bytes, value: bytes) -> None:
    split_named_row_key(key)
    read_row(key, value)


def _check_producer(key: bytes, value: bytes) -> None:
    _, _, producer = split_producer_key(key)
    (ProducerRow if producer else GapRow).from_bytes(key, value)


_CHECKS: Mapping[bytes, Callable[[bytes, bytes], object]] = {
    MESSAGES: partial(_check_rows, MessageRow.from_bytes),
    PAYLOADS: partial(_check_rows, MessageRow.from_bytes),
    DELAYED: partial(_check_rows, MessageRow.from_bytes),
    TOPICS: _check_topic,
    INDEX: IndexedRange.from_bytes,
    METADATA: _check_fact,
    HOLDS: partial(_check_named, Hold.from_bytes),
    POSITIONS: partial(_check_named, Position.from_bytes),
    PRODUCERS: _check_producer,
}
