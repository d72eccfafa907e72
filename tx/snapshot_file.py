"""The bytes of a snapshot file: the whole state at one LSN (design §4, Snapshots).

    snapshot := header numbers open* prepared* request* messages-only* principal* view pending
                outcome* commit* sink* end
    each a frame, a MessagePack list that starts with its tag; `end` holds the number of frames

Ten thousand open transactions have ten thousand snapshots of ten thousand pointers, nearly all the
same. So each list is written as its difference to the one before, and read into shared lists.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from tuff.protocol.pointer_list import PointerList
from tuff.protocol.transaction import Transaction, TransactionType
from tuff_storage.disk.files import write_file
from tuff_storage.disk.records import Damage, pack_frame, read_frames
from tx.conflicts import CommittedChanges
from tx.consistency import inconsistency
from tx.file_headers import (
    DOUBT_VERSION,
    FORMAT_VERSION,
    OWNERS_VERSION,
    PREPARED_VERSION,
    REQUESTS_VERSION,
    FileHeader,
    FileKind,
    KnownFile,
    damaged,
    format_of,
    free_path,
    pack_header,
    read_header,
    unreadable,
)
from tx.log_records import (
    CONFLICT,
    COUNT,
    FLAG,
    IN_DOUBT,
    KEYS,
    POINTER,
    POINTER_RANGE,
    PUBLISHED,
    REASON,
    TEXT,
    TIME_MS,
    TYPE,
    Conflict,
    InDoubt,
    MalformedError,
    PointerRange,
    from_bytes,
    items,
    joined,
    optional,
    record,
    to_bytes,
    tuple_of,
)
from tx.outcomes import STATE, OpenTransaction, PackedOutcomes, Preparation, packed_outcomes
from tx.reader_snapshots import View, ViewChange, with_all
from tx.state import Sink, StateImage

RECORDS_PER_FRAME = 1_000  # records; keeps a frame well under its limit, and the overhead small

T = TypeVar("T")

_END, _NUMBERS, _OPEN, _VIEW, _PENDING, _OUTCOMES, _COMMITS, _SINKS, _PREPARED = range(9)
_PRINCIPALS, _REQUESTS, _MESSAGES_ONLY, _IN_DOUBT = 9, 10, 11, 12

_POINTERS = tuple_of(POINTER)
_COMMIT = record(CommittedChanges, COUNT, POINTER, TEXT, KEYS)
_SINK = record(
    Sink, TEXT, COUNT, TEXT, POINTER, optional(STATE), optional(REASON), TIME_MS, COUNT,
    tuple_of(TEXT),
)  # fmt: skip
_DOUBT = record(InDoubt, *IN_DOUBT)
_PREPARATION = record(Preparation, COUNT, TIME_MS, TEXT, PUBLISHED)
_CHANGE = record(
    ViewChange, POINTER, optional(STATE), _POINTERS, _POINTERS, _POINTERS, POINTER
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Numbers:
    lsn: int
    seen: int
    last_pointer: int
    highest_reserved: int
    blocks: tuple[PointerRange, ...]
    is_clean: bool


@dataclass(frozen=True, slots=True)
class _OpenRecord:
    """An open transaction without its two lists."""

    transaction_id: int
    read_pointer: int
    first_short_in_progress: int
    type: TransactionType
    checkpoints: tuple[int, ...]
    seen: int
    client: str
    timeout_ms: int
    started_at_ms: int
    expires_at_ms: int
    changes: frozenset[bytes] | None
    conflict: Conflict | None
    survived_crash: bool
    lease_ms: int | None


_NUMBERS_FORM = record(_Numbers, COUNT, COUNT, POINTER, POINTER, tuple_of(POINTER_RANGE), FLAG)
_OPENED = record(
    _OpenRecord, POINTER, POINTER, POINTER, TYPE, _POINTERS, COUNT, TEXT, COUNT, TIME_MS, TIME_MS,
    optional(KEYS), optional(CONFLICT), FLAG, optional(COUNT),
)  # fmt: skip


def pack_snapshot(header: FileHeader, image: StateImage) -> bytes:
    """The bytes of the whole file. Takes time in proportion to the state: run it in a thread."""
    bodies = list(_bodies(image))
    end = to_bytes([_END, len(bodies)])
    head = pack_header(FileKind.SNAPSHOT, header, version=_version(image))
    return b"".join((head, *map(pack_frame, bodies), pack_frame(end)))


def _version(image: StateImage) -> int:
    """A server that does not know prepared transactions, principals, request ids of starts, or
    commits in doubt, must refuse the file."""
    if any(opened.doubt is not None for opened in image.open):
        return DOUBT_VERSION
    if image.prunable or any(each.request_id or each.is_messages_only for each in image.open):
        return REQUESTS_VERSION
    if image.principals:
        return OWNERS_VERSION
    if any(opened.prepared is not None for opened in image.open):
        return PREPARED_VERSION
    return FORMAT_VERSION


def write_snapshot(directory: Path, header: FileHeader, image: StateImage) -> tuple[KnownFile, int]:
    """Make a snapshot file, durably and atomically; the file, and its size in bytes. Raises:
    OSError."""
    path = free_path(directory, FileKind.SNAPSHOT, now_ms=header.created_ms, epoch=header.epoch)
    data = pack_snapshot(header, image)
    write_file(path, data)
    return KnownFile(path, FileKind.SNAPSHOT, header), len(data)


def _bodies(image: StateImage) -> Iterator[bytes]:
    numbers = _Numbers(
        image.lsn,
        image.seen,
        image.last_pointer,
        image.highest_reserved,
        image.blocks,
        image.is_clean,
    )
    yield to_bytes([_NUMBERS, _NUMBERS_FORM.pack(numbers)])
    lists = _SharedLists()
    yield from _bodies_of_open(image, lists)
    for principals in _chunks(image.principals):
        yield to_bytes([_PRINCIPALS, *(list(each) for each in principals)])
    view = image.view
    changes = lists.pack(view.in_progress, view.invalid)
    yield to_bytes(
        [_VIEW, view.read_pointer, changes, _POINTERS.pack(tuple(view.short_in_progress))]
    )
    for pending in _chunks(image.pending):
        yield to_bytes([_PENDING, *([lsn, _CHANGE.pack(change)] for lsn, change in pending)])
    for outcomes in _chunks(image.outcomes.packed()):
        yield joined(to_bytes(_OUTCOMES), *outcomes)
    for commits in _chunks(image.commits):
        yield to_bytes([_COMMITS, *map(_COMMIT.pack, commits)])
    for sinks in _chunks(image.sinks):
        yield to_bytes([_SINKS, *map(_SINK.pack, sinks)])


def _bodies_of_open(image: StateImage, lists: "_SharedLists") -> Iterator[bytes]:
    for chunk in _chunks(image.open):
        yield to_bytes([_OPEN, *(_pack_open(opened, lists) for opened in chunk)])
    for chunk in _chunks([each for each in image.open if each.prepared is not None]):
        yield to_bytes([_PREPARED, *map(_pack_prepared, chunk)])
    for doubts in _chunks([each.doubt for each in image.open if each.doubt is not None]):
        yield to_bytes([_IN_DOUBT, *map(_DOUBT.pack, doubts)])
    for chunk in _chunks([each for each in image.open if each.request_id is not None]):
        yield to_bytes([_REQUESTS, *([each.transaction_id, each.request_id] for each in chunk)])
    messages_only = [each.transaction_id for each in image.open if each.is_messages_only]
    for ids in _chunks([*messages_only, *image.prunable]):
        yield to_bytes([_MESSAGES_ONLY, *ids])


def _chunks(records: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(records), RECORDS_PER_FRAME):
        yield records[start : start + RECORDS_PER_FRAME]


class _SharedLists:
    """The last list of pointers in progress and the last invalid list: each next one is written as
    its difference to them."""

    def __init__(self) -> None:
        self.in_progress = PointerList()
        self.invalid = PointerList()

    def pack(self, in_progress: Sequence[int], invalid: Sequence[int]) -> list[object]:
        assert isinstance(in_progress, PointerList)
        assert isinstance(invalid, PointerList)
        differences = [
            *in_progress.difference(self.in_progress),
            *invalid.difference(self.invalid),
        ]
        self.in_progress, self.invalid = in_progress, invalid
        return [list(pointers) for pointers in differences]

    def unpack(self, data: object) -> None:
        started, ended, added, cleared = (_POINTERS.unpack(item) for item in items(data, count=4))
        self.in_progress = with_all(_less(self.in_progress, ended), started)
        self.invalid = with_all(_less(self.invalid, cleared), added)


def _less(pointers: PointerList, gone: tuple[int, ...]) -> PointerList:
    return pointers.without(gone) if gone else pointers


def _pack_open(opened: OpenTransaction, lists: _SharedLists) -> list[object]:
    transaction = opened.transaction
    values = _OpenRecord(
        transaction.transaction_id,
        transaction.read_pointer,
        transaction.first_short_in_progress,
        transaction.type,
        transaction.checkpoint_write_pointers,
        opened.seen,
        opened.client,
        opened.timeout_ms,
        opened.started_at_ms,
        opened.expires_at_ms,
        opened.changes,
        opened.conflict,
        opened.survived_crash,
        opened.lease_ms,
    )
    return [_OPENED.pack(values), lists.pack(transaction.in_progress, transaction.invalids)]


def _pack_prepared(opened: OpenTransaction) -> list[object]:
    assert opened.prepared is not None
    return [opened.transaction_id, _PREPARATION.pack(opened.prepared)]


def read_snapshot(name: str, data: bytes) -> tuple[FileHeader, StateImage]:
    """Raises: DamagedFilesError: it is not whole, or NewerFilesError: a newer version wrote it."""
    header, start = read_header(name, FileKind.SNAPSHOT, data)
    reader = _Reader()
    offset = start
    for found in read_frames(data, start):
        if isinstance(found, Damage):
            raise damaged(name, found.offset, found.reason)
        try:
            reader.take(from_bytes(found.body))
        except MalformedError as error:
            raise unreadable(name, found.start, error) from None
        offset = found.stop
    if reader.image is None:
        raise damaged(name, offset, "its end is missing")
    reason = inconsistency(reader.image)
    if format_of(data) != (expected := _version(reader.image)):
        reason = f"it has format {format_of(data)}, and its content has format {expected}"
    if header.lsn != reader.image.lsn:
        reason = f"its header says edit {header.lsn}, and its state edit {reader.image.lsn}"
    if reason is not None:
        raise damaged(name, start, f"the state that it holds contradicts itself: {reason}")
    return header, reader.image


class _Reader:
    """Decodes the frames of a snapshot in their order; `image` is set by the last one."""

    def __init__(self) -> None:
        self.image: StateImage | None = None
        self._frame_count = 0
        self._lists = _SharedLists()
        self._numbers: _Numbers | None = None
        self._view: View | None = None
        self._open: list[OpenTransaction] = []
        self._pending: list[tuple[int, ViewChange]] = []
        self._outcomes: list[bytes] = []
        self._commits: list[CommittedChanges] = []
        self._sinks: list[Sink] = []
        self._principals: list[tuple[int, str]] = []
        self._prunable: list[int] = []
        self._takers: dict[object, Callable[[list[object]], None]] = {
            _END: self._end,
            _NUMBERS: self._take_numbers,
            _OPEN: lambda records: self._open.extend(map(self._opened, records)),
            _PREPARED: self._take_prepared,
            _IN_DOUBT: self._take_doubts,
            _PRINCIPALS: self._take_principals,
            _REQUESTS: self._take_requests,
            _MESSAGES_ONLY: self._take_messages_only,
            _VIEW: self._take_view,
            _PENDING: lambda records: self._pending.extend(map(_unpack_pending, records)),
            _OUTCOMES: self._take_outcomes,
            _COMMITS: lambda records: self._commits.extend(map(_COMMIT.unpack, records)),
            _SINKS: lambda records: self._sinks.extend(map(_SINK.unpack, records)),
        }

    def take(self, data: object) -> None:
        tag, *records = items(data) or [None]
        taker = self._takers.get(tag) if isinstance(tag, int) else None
        if taker is None or self.image is not None:
            raise MalformedError(f"a record with the tag {tag!r} has no place here")
        taker(records)
        self._frame_count += 1

    def _take_numbers(self, records: list[object]) -> None:
        (record_data,) = items(records, count=1)
        self._numbers = _NUMBERS_FORM.unpack(record_data)

    def _opened(self, data: object) -> OpenTransaction:
        fields, lists = items(data, count=2)
        self._lists.unpack(lists)
        values = _OPENED.unpack(fields)
        transaction = Transaction(
            transaction_id=values.transaction_id,
            read_pointer=values.read_pointer,
            write_pointer=(values.transaction_id, *values.checkpoints)[-1],
            invalids=self._lists.invalid,
            in_progress=self._lists.in_progress,
            first_short_in_progress=values.first_short_in_progress,
            type=values.type,
            checkpoint_write_pointers=values.checkpoints,
        )
        return OpenTransaction(
            transaction=transaction,
            seen=values.seen,
            client=values.client,
            timeout_ms=values.timeout_ms,
            started_at_ms=values.started_at_ms,
            expires_at_ms=values.expires_at_ms,
            changes=values.changes,
            conflict=values.conflict,
            survived_crash=values.survived_crash,
            lease_ms=values.lease_ms,
        )

    def _places(self) -> dict[int, int]:
        return {opened.transaction_id: place for place, opened in enumerate(self._open)}

    def _take_prepared(self, records: list[object]) -> None:
        places = self._places()
        for record_data in records:
            transaction_id, preparation = items(record_data, count=2)
            place = places.pop(POINTER.unpack(transaction_id), None)
            if place is None:
                raise MalformedError(f"transaction {transaction_id} is prepared, and not open")
            prepared = _PREPARATION.unpack(preparation)
            self._open[place] = replace(self._open[place], prepared=prepared)

    def _take_doubts(self, records: list[object]) -> None:
        places = self._places()
        for doubt in map(_DOUBT.unpack, records):
            place = places.pop(doubt.transaction_id, None)
            if place is None:
                raise MalformedError(f"transaction {doubt.transaction_id} is in doubt, not open")
            self._open[place] = replace(self._open[place], doubt=doubt)

    def _take_principals(self, records: list[object]) -> None:
        for record_data in records:
            transaction_id, principal = items(record_data, count=2)
            self._principals.append((POINTER.unpack(transaction_id), TEXT.unpack(principal)))

    def _take_requests(self, records: list[object]) -> None:
        places = self._places()
        for record_data in records:
            transaction_id, request_id = items(record_data, count=2)
            place = places.pop(POINTER.unpack(transaction_id), None)
            if place is None:
                raise MalformedError(f"transaction {transaction_id} has a request, and is not open")
            self._open[place] = replace(self._open[place], request_id=TEXT.unpack(request_id))

    def _take_messages_only(self, records: list[object]) -> None:
        places = self._places()
        for transaction_id in map(POINTER.unpack, records):
            place = places.get(transaction_id)
            if place is None:
                self._prunable.append(transaction_id)
            else:
                self._open[place] = replace(self._open[place], is_messages_only=True)

    def _take_outcomes(self, records: list[object]) -> None:
        self._outcomes.extend(packed_outcomes(records))
        opened = {opened.transaction_id for opened in self._open}
        for record_data in records:
            if opened and (ended := items(record_data)[0]) in opened:
                raise MalformedError(f"transaction {ended} is in progress, and has ended")

    def _take_view(self, records: list[object]) -> None:
        read_pointer, lists, shorts = items(records, count=3)
        self._lists.unpack(lists)
        self._view = View(
            POINTER.unpack(read_pointer),
            self._lists.in_progress,
            PointerList(_POINTERS.unpack(shorts)),
            self._lists.invalid,
        )

    def _end(self, records: list[object]) -> None:
        (frame_count,) = items(records, count=1)
        if self._numbers is None or self._view is None or frame_count != self._frame_count:
            raise MalformedError(f"{self._frame_count} records stand before the end")
        numbers = self._numbers
        self.image = StateImage(
            lsn=numbers.lsn,
            seen=numbers.seen,
            last_pointer=numbers.last_pointer,
            highest_reserved=numbers.highest_reserved,
            blocks=numbers.blocks,
            is_clean=numbers.is_clean,
            view=self._view,
            pending=tuple(self._pending),
            open=tuple(self._open),
            outcomes=PackedOutcomes(self._outcomes),
            commits=tuple(self._commits),
            sinks=tuple(self._sinks),
            principals=tuple(self._principals),
            prunable=tuple(self._prunable),
        )


def _unpack_pending(data: object) -> tuple[int, ViewChange]:
    lsn, change = items(data, count=2)
    return COUNT.unpack(lsn), _CHANGE.unpack(change)
