"""The bytes of a snapshot file: the whole state at one LSN (design §4, Snapshots).

    snapshot := header numbers open* prepared* request* messages-only* principal* view pending
                outcome* commit* sink* end
    each a frame, a MessagePack list that starts with its tag; `end` holds the number of frames

Ten thousand open transactions have ten thousand snapshots of ten thousand pointers, nearly all the
same. So each list is written as its difference to the one before, and read into shared lists.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from tuff.protocol.pointer_list import PointerList
from tuff.protocol.transaction import Transaction
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
    Codec,
    InDoubt,
    MalformedError,
    as_it_is,
    from_bytes,
    items,
    joined,
    optional,
    record,
    to_bytes,
    tuple_of,
)
from tx.outcomes import STATE, OpenTransaction, PackedOutcomes, Preparation, packed_outcomes
from tx.state import Sink, StateImage, View, ViewChange, with_all

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
_NUMBER_CODECS: Mapping[str, Codec[Any]] = {
    "lsn": COUNT,
    "seen": COUNT,
    "last_pointer": POINTER,
    "highest_reserved": POINTER,
    "blocks": tuple_of(POINTER_RANGE),
    "is_clean": FLAG,
}
# The first field, the transaction, has five entries in its place.
_AS_IT_IS: Codec[Any] = Codec(as_it_is, as_it_is)
_OPENED = record(
    OpenTransaction, _AS_IT_IS, COUNT, TEXT, COUNT, TIME_MS, TIME_MS, optional(KEYS),
    optional(CONFLICT), FLAG, optional(COUNT),
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
    lists, view = _SharedLists(), image.view
    numbers = [codec.pack(getattr(image, name)) for name, codec in _NUMBER_CODECS.items()]
    yield to_bytes([_NUMBERS, numbers])
    yield from _frames(_OPEN, image.open, lambda opened: _pack_open(opened, lists))
    prepared = [(each.transaction_id, each.prepared) for each in image.open if each.prepared]
    yield from _frames(_PREPARED, prepared, lambda pair: [pair[0], _PREPARATION.pack(pair[1])])
    yield from _frames(_IN_DOUBT, [each.doubt for each in image.open if each.doubt], _DOUBT.pack)
    requests = [
        (each.transaction_id, each.request_id) for each in image.open if each.request_id is not None
    ]
    yield from _frames(_REQUESTS, requests, list)
    messages_only = [each.transaction_id for each in image.open if each.is_messages_only]
    yield from _frames(_MESSAGES_ONLY, [*messages_only, *image.prunable], int)
    yield from _frames(_PRINCIPALS, image.principals, list)
    changes = lists.pack(view.in_progress, view.invalid)
    yield to_bytes(
        [_VIEW, view.read_pointer, changes, _POINTERS.pack(tuple(view.short_in_progress))]
    )
    yield from _frames(_PENDING, image.pending, lambda pair: [pair[0], _CHANGE.pack(pair[1])])
    for outcomes in _chunks(image.outcomes.packed()):
        yield joined(to_bytes(_OUTCOMES), *outcomes)
    yield from _frames(_COMMITS, image.commits, _COMMIT.pack)
    yield from _frames(_SINKS, image.sinks, _SINK.pack)


def _frames(tag: int, records: Sequence[T], pack: Callable[[T], object]) -> Iterator[bytes]:
    for chunk in _chunks(records):
        yield to_bytes([tag, *map(pack, chunk)])


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
    entries = [
        transaction.transaction_id,
        transaction.read_pointer,
        transaction.first_short_in_progress,
        TYPE.pack(transaction.type),
        transaction.checkpoint_write_pointers,
        *items(_OPENED.pack(opened))[1:],
    ]
    return [entries, lists.pack(transaction.in_progress, transaction.invalids)]


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
        self._numbers: dict[str, Any] | None = None
        self._view: View | None = None
        self._open: dict[int, OpenTransaction] = {}
        self._pending: list[tuple[int, ViewChange]] = []
        self._outcomes: list[bytes] = []
        self._commits: list[CommittedChanges] = []
        self._sinks: list[Sink] = []
        self._principals: list[tuple[int, str]] = []
        self._prunable: list[int] = []
        self._takers: dict[object, Callable[[list[object]], None]] = {
            _END: self._end,
            _NUMBERS: self._take_numbers,
            _OPEN: self._take_open,
            _PREPARED: lambda records: self._set("prepared", _pairs(records, _PREPARATION)),
            _IN_DOUBT: lambda records: self._set("doubt", map(_unpack_doubt, records)),
            _PRINCIPALS: lambda records: self._principals.extend(_pairs(records, TEXT)),
            _REQUESTS: lambda records: self._set("request_id", _pairs(records, TEXT)),
            _MESSAGES_ONLY: self._take_messages_only,
            _VIEW: self._take_view,
            _PENDING: lambda records: self._pending.extend(_pairs(records, _CHANGE)),
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
        (entries,) = items(records, count=1)
        values = items(entries, count=len(_NUMBER_CODECS))
        self._numbers = {
            name: codec.unpack(value)
            for (name, codec), value in zip(_NUMBER_CODECS.items(), values, strict=True)
        }

    def _take_open(self, records: list[object]) -> None:
        for data in records:
            opened = self._opened(data)
            if opened.transaction_id in self._open:
                raise MalformedError(
                    f"it contradicts itself: transaction {opened.transaction_id} is listed twice"
                )
            self._open[opened.transaction_id] = opened

    def _opened(self, data: object) -> OpenTransaction:
        entries, lists = items(data, count=2)
        self._lists.unpack(lists)
        transaction_id, read_pointer, first_short, kind, pointers, *rest = items(entries, count=14)
        own, checkpoints = POINTER.unpack(transaction_id), _POINTERS.unpack(pointers)
        transaction = Transaction(
            transaction_id=own,
            read_pointer=POINTER.unpack(read_pointer),
            write_pointer=(own, *checkpoints)[-1],
            invalids=self._lists.invalid,
            in_progress=self._lists.in_progress,
            first_short_in_progress=POINTER.unpack(first_short),
            type=TYPE.unpack(kind),
            checkpoint_write_pointers=checkpoints,
        )
        return _OPENED.unpack([transaction, *rest])

    def _set(self, field: str, values: Iterable[tuple[int, Any]]) -> None:
        for transaction_id, value in values:
            opened = self._open.get(transaction_id)
            if opened is None or getattr(opened, field) is not None:
                raise MalformedError(
                    f"transaction {transaction_id} has a {field}, and is not open, or has two"
                )
            self._open[transaction_id] = replace(opened, **{field: value})

    def _take_messages_only(self, records: list[object]) -> None:
        for transaction_id in map(POINTER.unpack, records):
            opened = self._open.get(transaction_id)
            if opened is None:
                self._prunable.append(transaction_id)
            else:
                self._open[transaction_id] = replace(opened, is_messages_only=True)

    def _take_outcomes(self, records: list[object]) -> None:
        self._outcomes.extend(packed_outcomes(records))
        for record_data in records:
            if self._open and (ended := items(record_data)[0]) in self._open:
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
        self.image = StateImage(
            **self._numbers,
            view=self._view,
            pending=tuple(self._pending),
            open=tuple(self._open.values()),
            outcomes=PackedOutcomes(self._outcomes),
            commits=tuple(self._commits),
            sinks=tuple(self._sinks),
            principals=tuple(self._principals),
            prunable=tuple(self._prunable),
        )


def _pairs(records: list[object], codec: Codec[T]) -> Iterator[tuple[int, T]]:
    """Pairs of a number, as a transaction id, and a value."""
    for data in records:
        number, value = items(data, count=2)
        yield COUNT.unpack(number), codec.unpack(value)


def _unpack_doubt(data: object) -> tuple[int, InDoubt]:
    doubt = _DOUBT.unpack(data)
    return doubt.transaction_id, doubt
