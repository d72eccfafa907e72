"""The scan: one pass over stored rows, one verdict for each row (protocol §3.4, §6). Blocks.

Most rows are plain: no write pointer, no time to live of their own, no attributes. Nothing is to be
decided about them, so that whole chunks of them, and packed rows, become messages in a few loops
(`_take_rows`, `_take_packed`). Every other record, corrupt ones included, is read row by row
(`_read_record`). A reader with a tag filter passes over plain rows, and over rows with other tags
and neither pointer nor time to live, without decoding them (`_take_selected`). Tests compare the
fast ways with the reading row by row.

A continuation inside a payload group starts at the number that the query names, and only in the row
of that number. A reader at the beginning of a payload group gets nothing of the group unless all of
it is there: if its page ends inside the group, the rest is counted, once. A continuation does not
count again. A reader that was warned of an incomplete group, and continues inside it, gets what is
there (decision 0008).
"""

import struct
from bisect import bisect_right
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import compress, islice
from operator import itemgetter
from typing import NamedTuple, NoReturn

from messaging.read.messages import NO_PAYLOAD, Messages
from messaging.read.visibility import (
    LAST_NUMBER,
    BlockingRow,
    Query,
    Verdict,
    before_row,
    first_number,
    is_past_own_ttl,
    next_at_end,
    next_at_first,
    verdict,
)
from messaging.storage.attributes import StoredTagFilter
from messaging.storage.engine import (
    SCAN_CHUNK_COUNT_MAX,
    Rows,
    Store,
    StoreDamagedError,
    StoreError,
    next_chunk_count,
)
from messaging.storage.packed_rows import (
    PackedSlice,
    Row,
    is_packed,
    open_packed,
    row_count,
    rows_in,
    rows_max,
    scan_reporting_corruption,
)
from messaging.storage.rows import (
    ATTRIBUTES_MARK,
    HAS_ATTRIBUTES,
    HEAD,
    MESSAGES,
    OFFSET_SIZE,
    PLAIN,
    PLAIN_MARK,
    DamagedRowError,
    MessageRow,
    PayloadRange,
    PayloadRow,
    first_offset,
    message_key,
    offset_after,
    offset_in,
    offset_number,
    pack_offset,
    payload_key,
    pointer_prefix,
)
from tuff.checksum import crc32
from tuff.protocol.errors import DamagedRecordError
from tuff.protocol.ids import MessageId, Offset, past_group

SCAN_ROWS_MAX = (
    100_000  # rows passed over in one scan; a read among skipped rows ends within a second
)
SCAN_CHUNK_COUNT_FIRST = 4  # records; a reader may want no more than one

_PAST_GROUP = b"\xff" * OFFSET_SIZE  # the second half of an id behind all that a row can bring
_WARNED = Offset(0, 1)  # in a group, before all payloads: the reader knows that it is incomplete
_HEAD_SIZE = HEAD.size
_ATTRIBUTES_AT = _HEAD_SIZE + 4  # in a row that has nothing but attributes; their size comes before
_SIMPLE_MARKS = (PLAIN_MARK, ATTRIBUTES_MARK)
_SMALL_ROW_BYTES_MAX = 1_024  # on average, of rows that are filtered together
_VALUE = itemgetter(1)
_FLAGS = itemgetter(0)  # of a value
assert PLAIN == 0


@dataclass(slots=True, kw_only=True)
class ReadResult:
    """What was read, and where to continue: `next_id` is an exclusive start, as 20 bytes.

    `blocking_row` is the row that holds this reader back. `finished` is False if the read stopped
    only because it had skipped so many rows. From the offset `cacheable_from` on, unless it is
    None, the messages are all rows up to the high-water mark, and all of them are plain: no end of
    a transaction and no rollback can change them.
    """

    next_id: bytes
    messages: Messages
    caught_up: bool = False
    blocking_row: BlockingRow | None = None
    finished: bool = True
    cacheable_from: Offset | None = None

    @property
    def blocking_pointer(self) -> int | None:
        """The pointer of the row that holds this reader back."""
        return None if self.blocking_row is None else self.blocking_row.pointer

    @property
    def items(self) -> list[tuple[bytes, bytes]]:
        """Pairs of a 20-byte id and a payload."""
        return self.messages.items()


def read(store: Store, query: Query) -> ReadResult:
    """The messages from the start on that this reader may receive.

    Raises:
        DamagedRecordError: the first record to deliver is damaged.
        StoreError: the engine can't read.
    """
    return _Scan(store, query, are_groups_counted=True).run()


def first_message(store: Store, query: Query) -> ReadResult:
    """The first message from the start on, if there is one; costs no count of a payload group.

    Raises:
        DamagedRecordError: the first record to deliver is damaged.
        StoreError: the engine can't read.
    """
    return _Scan(store, replace(query, limit=1), are_groups_counted=False).run()


def read_memory(query: Query, rows: Iterable[tuple[bytes, bytes, MessageRow | None]]) -> ReadResult:
    """The same of rows in memory, from the start on and up to the high-water mark: the id and the
    payload of each, and the row itself if it has flags. None of them refers to a payload group.
    """
    return _Scan(None, query, are_groups_counted=True).run_memory(rows)


class _Stop(Exception):  # noqa: N818 - ends the scan; it is no error
    """The read is over: a limit, a held row, the end of the range or corruption."""


class _RowRange(NamedTuple):
    """Rows of one table that become messages: from the offset with the number `first` to the offset
    `through`, both included. An id is `front`, the offset in the row's key, and `back`; `pointer`
    is the write pointer of all of them, or None."""

    front: bytes
    back: bytes
    first: int
    through: bytes
    pointer: int | None


class _ReadAhead:
    """Records of a scan in chunks, so that each step of the reader runs over many of them.

    An error of the engine is raised when all records before it were taken.
    """

    def __init__(self, records: Rows) -> None:
        self._records = records
        self._left: list[Row] = []  # read, and not taken yet
        self._count = SCAN_CHUNK_COUNT_FIRST
        self._error: StoreError | None = None
        self.passed_count = 0  # rows of the records that were taken

    def next(self) -> Row | None:
        """The next record; None after the last. Raises: StoreError."""
        chunk = self.chunk(1)
        return chunk[0] if chunk else None

    def chunk(self, count_max: int = SCAN_CHUNK_COUNT_MAX) -> list[Row]:
        """The next records, at least one and at most `count_max`; none after the last.

        Raises: StoreError.
        """
        if not self._left:
            self._read(min(count_max, self._count))
        chunk, self._left = self._left[:count_max], self._left[count_max:]
        self.passed_count += _row_count(chunk)
        return chunk

    def give_back(self, records: list[Row]) -> None:
        """Undo the taking of these, the last that were taken. The next chunk will be small, since
        records that need a decision of their own come together."""
        self._left = records + self._left
        self.passed_count -= _row_count(records)
        self._count = SCAN_CHUNK_COUNT_FIRST

    def pass_over_rest(self) -> None:
        """Take all records that are left, and count their rows. Raises: StoreError."""
        while self.chunk():
            pass

    def _read(self, count: int) -> None:
        if self._error is not None:
            raise self._error
        try:
            # Records before an error are in the list when it is raised.
            self._left.extend(islice(self._records, count))
        except StoreError as error:
            self._error = error
            if not self._left:
                raise
        self._count = next_chunk_count(self._left, self._count)


def _row_count(records: list[Row]) -> int:
    return sum(map(row_count, map(_VALUE, records)))


class _Scan:
    """One read. Ids are their 20 bytes here, whose order is that of their numbers."""

    def __init__(self, store: Store | None, query: Query, *, are_groups_counted: bool) -> None:
        self._maybe_store = store
        self._are_groups_counted = are_groups_counted
        self._query = query
        self._tags = None if query.tags is None else StoredTagFilter(query.tags)
        self._number = first_number(query)
        self._start = MessageId.from_int(min(self._number, LAST_NUMBER))
        self._start_bytes = self._start.to_bytes()
        # A plain row has no message behind its offset.
        is_inside = self._start_bytes[OFFSET_SIZE:] != NO_PAYLOAD
        self._first = self._start.offset.to_int() + is_inside
        self._through_bytes = query.through.to_bytes()
        self._messages = Messages(limit=query.limit, bytes_max=query.bytes_max)
        self._skipped_to = next_at_first(query, self._number)
        self._caught_up = False
        self._blocking_row: BlockingRow | None = None
        self._is_finished = True
        self._filtered_in_groups = 0  # rows of payload groups that a tag filter looked at
        self._is_plain = True  # every record so far

    @property
    def _next(self) -> bytes:
        """Where the reader continues: behind the last message, and behind what was passed over."""
        return max(self._skipped_to, self._messages.last_id) if self._messages else self._skipped_to

    def run(self) -> ReadResult:
        query = self._query
        last = min(query.high_water_mark, query.through.offset)
        if self._number > LAST_NUMBER or self._start.offset > last:
            self._caught_up = True
            return self._result()
        start = message_key(query.prefix, self._start.offset)
        stop = message_key(query.prefix, offset_after(last))
        cacheable_from = None
        try:
            with closing(self._scan(start, stop)) as records:
                self._read_records(_ReadAhead(records), last)
            self._caught_up = True
            if self._is_plain and self._tags is None and last == query.high_water_mark:
                cacheable_from = Offset.from_int(self._first)
        except _Stop:
            pass
        except StoreDamagedError as error:
            self._stop_at_block(error)
        return self._result(cacheable_from)

    def run_memory(self, rows: Iterable[tuple[bytes, bytes, MessageRow | None]]) -> ReadResult:
        try:
            for message_id, payload, row in rows:
                if row is None:
                    self._deliver(message_id, payload, None, None)
                else:
                    self._read_row(message_id[:OFFSET_SIZE], row)
            self._caught_up = True
        except _Stop:
            pass
        return self._result()

    def _result(self, cacheable_from: Offset | None = None) -> ReadResult:
        if self._caught_up and not self._messages:
            self._skip_to(next_at_end(self._query, self._number))
        return ReadResult(
            next_id=self._next,
            messages=self._messages,
            caught_up=self._caught_up,
            blocking_row=self._blocking_row,
            finished=self._is_finished,
            cacheable_from=cacheable_from,
        )

    def _scan(self, start: bytes, stop: bytes) -> Rows:
        return scan_reporting_corruption(self._store, start, stop, report_damaged_rows=True)

    @property
    def _store(self) -> Store:
        assert self._maybe_store is not None
        return self._maybe_store

    def _read_records(self, records: _ReadAhead, last: Offset) -> None:
        rows = _RowRange(b"", NO_PAYLOAD, self._first, pack_offset(*last), None)
        # Only the first record may begin before the start.
        record = records.next()
        while record is not None:
            if records.passed_count + self._filtered_in_groups > SCAN_ROWS_MAX:
                self._is_finished = False
                raise _Stop
            self._read_record(*record, rows)
            record = self._take_plain(records, rows)

    def _take_plain(self, records: _ReadAhead, rows: _RowRange) -> Row | None:
        """Take plain rows and packed rows, up to a record that needs a decision: it is something
        else, or corrupt, or a row behind the range, or does not fit. That record; None after the
        last.

        Raises: StoreError.
        """
        if self._tags is not None:
            return self._take_selected(records, rows)
        while chunk := records.chunk(max(1, self._messages.room)):
            mark = chunk[0][1][:1]
            count = 0
            if mark == PLAIN_MARK:
                count = self._take_rows(chunk, rows)
            elif is_packed(mark):
                count = self._take_packed(chunk, rows)
            if count < len(chunk):
                records.give_back(chunk[count + 1 :])
                return chunk[count]
        return None

    def _take_selected(self, records: _ReadAhead, rows: _RowRange) -> Row | None:
        """The same for a reader with a tag filter. Of the plain rows and those that have nothing
        but attributes, it takes those with the right tags, and passes over all others. It also
        returns a record after `SCAN_ROWS_MAX` rows.

        Raises: StoreError.
        """
        while chunk := records.chunk():
            is_taken = self._take_tagged(chunk, rows)
            count = len(chunk) if is_taken else self._take_each(chunk, rows)
            if count < len(chunk):
                records.give_back(chunk[count + 1 :])
                return chunk[count]
            if records.passed_count > SCAN_ROWS_MAX:
                return records.next()
        return None

    def _take_tagged(self, chunk: list[Row], rows: _RowRange) -> bool:
        """Take from a chunk of whole rows that all have attributes and nothing else. False, and
        nothing is taken, if it is another chunk, or if its rows are so large that it is no cheaper
        to handle them together."""
        keys, values = zip(*chunk, strict=True)
        if (
            set(map(_FLAGS, values)) != {HAS_ATTRIBUTES}
            or sum(map(len, values)) > len(chunk) * _SMALL_ROW_BYTES_MAX
            or keys[-1][-OFFSET_SIZE:] > rows.through
        ):
            return False
        bodies = [value[_HEAD_SIZE:] for value in values]
        checksums = map(crc32, map(ATTRIBUTES_MARK.join, zip(keys, bodies, strict=True)))
        stored = b"".join([value[1:_HEAD_SIZE] for value in values])
        if stored != struct.pack(f">{len(chunk)}I", *checksums):
            return False
        assert self._tags is not None
        found = [*compress(range(len(chunk)), map(self._tags.may_select, bodies))]
        starts = [_simple_payload_at(values[index]) for index in found]
        if not all(starts):
            return False
        count = len(chunk)  # rows that were taken or passed over
        try:
            for index, payload_at in zip(found, starts, strict=True):
                count = index
                key, value = chunk[index]
                self._take_if_selected(key[-OFFSET_SIZE:], value, payload_at, rows)
            count = len(chunk)
        finally:
            if count:
                self._skip_to(rows.front + keys[count - 1][-OFFSET_SIZE:] + rows.back)
        return True

    def _take_each(self, chunk: list[Row], rows: _RowRange) -> int:
        """How many records from the beginning of the chunk were taken or passed over."""
        passed = b""  # the offset of the last row that was passed over
        try:
            for count, (key, value) in enumerate(chunk):
                if is_packed(value):
                    if not self._take_slice(key, value, rows):
                        return count
                    continue
                offset_bytes, payload_at = key[-OFFSET_SIZE:], _simple_payload_at(value)
                if not payload_at or offset_bytes > rows.through or not _is_whole(key, value):
                    return count
                if not self._take_if_selected(offset_bytes, value, payload_at, rows):
                    passed = offset_bytes
        finally:
            if passed:
                self._skip_to(rows.front + passed + rows.back)
        return len(chunk)

    def _take_if_selected(
        self, offset_bytes: bytes, value: bytes, payload_at: int, rows: _RowRange
    ) -> bool:
        """Take the message of a row without pointer and time to live, if it has the right tags."""
        assert self._tags is not None
        attributes = value[_ATTRIBUTES_AT:payload_at]
        if not self._tags.selects(attributes):
            return False
        message_id, payload = rows.front + offset_bytes + rows.back, value[payload_at:]
        if not self._messages.append(
            message_id, payload, pointer=rows.pointer, attributes=attributes
        ):
            raise _Stop
        return True

    def _take_rows(self, chunk: list[Row], rows: _RowRange) -> int:
        """How many rows from the beginning of the chunk were taken."""
        keys, values = zip(*chunk, strict=True)
        payloads = [value[_HEAD_SIZE:] for value in values]
        checksums = map(crc32, map(PLAIN_MARK.join, zip(keys, payloads, strict=True)))
        # No flags, and the checksum.
        heads = [checksum.to_bytes(_HEAD_SIZE, "big") for checksum in checksums]
        is_whole = [*map(bytes.startswith, values, heads)]
        count = len(chunk) if all(is_whole) else is_whole.index(False)
        if keys[-1][-OFFSET_SIZE:] > rows.through:
            count = min(count, bisect_right(keys, rows.through, key=lambda key: key[-OFFSET_SIZE:]))
        front, back = rows.front, rows.back
        ids = [front + key[-OFFSET_SIZE:] + back for key in keys[:count]]
        return self._messages.extend(ids, payloads[:count], pointer=rows.pointer)

    def _take_packed(self, chunk: list[Row], rows: _RowRange) -> int:
        """How many records from the beginning of the chunk were taken."""
        for count, (key, value) in enumerate(chunk):
            if not (is_packed(value) and self._take_slice(key, value, rows)):
                return count
        return len(chunk)

    def _take_slice(self, key: bytes, value: bytes, rows: _RowRange) -> bool:
        """Take the rows of the range from packed rows; False, and none, if the value is corrupt."""
        packed = open_packed(key, value)
        if packed is None:
            return False
        start = max(0, rows.first - packed.number)
        stop = min(packed.length, offset_number(rows.through) - packed.number + 1)
        if start < stop:
            part = PackedSlice.of(packed, start, stop, front=rows.front, back=rows.back)
            if self._tags is not None:  # none of the messages has tags
                self._skip_to(part.last_id)
            elif self._messages.extend_packed(part, pointer=rows.pointer) < len(part):
                raise _Stop
        if stop < packed.length:
            self._caught_up = True
            raise _Stop
        return True

    def _read_record(self, key: bytes, value: bytes, rows: _RowRange) -> None:
        """Read the rows of any record one by one. If they can't be separated, the record may have
        had rows of the range even if its key is behind the range."""
        if is_packed(value) and self._take_slice(key, value, rows):
            return
        each_row = rows_in(key, value)
        is_separated = len(each_row) > 1
        self._is_plain = self._is_plain and value[:1] == PLAIN_MARK and not is_separated
        for row_key, row_value in each_row:
            offset_bytes = row_key[-OFFSET_SIZE:]
            is_before = offset_number(row_key) < rows.first and (is_separated or is_packed(value))
            if is_before or (is_separated and offset_bytes > rows.through):
                continue
            try:
                row = MessageRow.from_bytes(row_key, row_value)
            except DamagedRowError as error:
                others = (
                    "" if is_separated else self._possible_loss(key, value, rows.first, self._next)
                )
                # It is unknown whether it was a message or brought a group: the offset to continue
                # from is behind both.
                finding = error.finding + others
                self._stop_at(offset_bytes + NO_PAYLOAD, offset_bytes + _PAST_GROUP, finding)
            self._read_row(offset_bytes, row)

    def _read_row(self, offset_bytes: bytes, row: MessageRow) -> None:
        offset = offset_in(offset_bytes)
        found = verdict(self._query, offset, pointer=row.tx_pointer, ttl_s=row.ttl_s)
        if found is Verdict.HOLD:
            self._hold(offset, row)
        if found is Verdict.ACCEPT and row.reference is None:
            message_id = offset_bytes + NO_PAYLOAD
            self._deliver(message_id, row.payload, row.tx_pointer, row.attributes)
            return
        if found is Verdict.ACCEPT:
            self._read_group(offset, row)
        self._skip_to(offset_bytes + _PAST_GROUP)

    def _hold(self, offset: Offset, row: MessageRow) -> NoReturn:
        assert row.tx_pointer is not None
        self._blocking_row = BlockingRow(row.tx_pointer, offset, row.ttl_s)
        if not self._messages:
            # All before it is decided. A reader left behind at the first live offset would soon get
            # Tuff-Expired.
            self._skip_to(before_row(offset))
        raise _Stop

    def _read_group(self, offset: Offset, row: MessageRow) -> None:
        group = row.reference
        assert group is not None
        assert row.tx_pointer is not None
        inside = Offset(0, 0)
        if offset == self._start.offset:
            # A start may be in the middle of the row that it names, and of no other.
            inside = Offset(self._start.write_timestamp_ms, self._start.payload_seq_id)
        if not group.count or inside > group.last:
            return
        prefix, pointer = self._query.prefix, abs(row.tx_pointer)
        first = max(group.first, inside)
        start = payload_key(prefix, pointer, first)
        stop = payload_key(prefix, pointer, offset_after(group.last))
        is_last = offset == self._query.through.offset
        through = self._through_bytes[OFFSET_SIZE:] if is_last else _PAST_GROUP
        rows = _RowRange(pack_offset(*offset), b"", first.to_int(), through, pointer)
        is_beginning = inside <= _WARNED or inside == group.first
        with closing(self._scan(start, stop)) as scanned:
            records = _ReadAhead(scanned)
            if is_beginning and self._are_groups_counted:
                self._read_whole_group(offset, group, records, rows)
            else:
                try:
                    self._read_payloads(offset, records, rows)
                except StoreDamagedError as error:
                    if self._messages:
                        raise _Stop from None
                    behind = next_after_group_block(prefix, pointer, offset, group.last, error)
                    raise damaged_block_error(self._next, behind, error) from None
            if self._tags is not None:
                self._filtered_in_groups += records.passed_count

    def _read_payloads(self, offset: Offset, records: _ReadAhead, rows: _RowRange) -> None:
        while (record := self._take_plain(records, rows)) is not None:
            for key, value in rows_in(*record):
                if offset_number(key) >= rows.first:
                    self._read_payload(offset, key, value, rows)

    def _read_payload(self, offset: Offset, key: bytes, value: bytes, rows: _RowRange) -> None:
        message_id = rows.front + key[-OFFSET_SIZE:]
        try:
            row = PayloadRow.from_bytes(key, value)
        except DamagedRowError as error:
            skipped_to = self._next[OFFSET_SIZE:] if self._next.startswith(rows.front) else b""
            others = self._possible_loss(key, value, rows.first, skipped_to)
            self._stop_at(message_id, message_id, error.finding + others)
        if is_past_own_ttl(self._query, offset, row.ttl_s):
            self._skip_to(message_id)
        else:
            self._deliver(message_id, row.payload, rows.pointer, row.attributes)

    def _read_whole_group(
        self, offset: Offset, group: PayloadRange, records: _ReadAhead, rows: _RowRange
    ) -> None:
        """Deliver a group from its beginning, or nothing of it if rows of it are missing."""
        mark, skipped_to = self._messages.mark(), self._skipped_to
        ended: _Stop | DamagedRecordError | None = None
        try:
            try:
                self._read_payloads(offset, records, rows)
            except (_Stop, DamagedRecordError) as error:
                if isinstance(error, _Stop) and self._messages.mark() == mark:
                    # The page was full before. If the reader continued behind expired rows of the
                    # group, its next page would begin inside the group, and count nothing.
                    self._skipped_to = skipped_to
                    raise
                ended = error
                records.pass_over_rest()
            is_whole = records.passed_count == group.count
            is_gone = (
                not is_whole and self._store.get(message_key(self._query.prefix, offset)) is None
            )
        except StoreDamagedError as error:
            self._drop_since(mark, skipped_to)
            self._stop_at_group(offset, str(error))
        if not is_whole:
            self._drop_since(mark, skipped_to)
            if is_gone:
                return  # retention, or the end of the topic, came in between and took all of it
            counts = (
                f"it brings {group.count} stored messages, and {records.passed_count} are there"
            )
            self._stop_at_group(offset, counts)
        if ended is not None:
            raise ended

    def _drop_since(self, mark: tuple[int, ...], skipped_to: bytes) -> None:
        self._messages.cut(mark)
        self._skipped_to = skipped_to
        self._caught_up = False

    def _deliver(
        self, message_id: bytes, payload: bytes, pointer: int | None, attributes: bytes | None
    ) -> None:
        if message_id < self._start_bytes:
            return
        if message_id > self._through_bytes:
            self._caught_up = True
            raise _Stop
        tags = self._tags
        if tags is not None and (attributes is None or not tags.selects(attributes)):
            self._skip_to(message_id)
            return
        pointer = None if pointer is None else abs(pointer)
        if not self._messages.append(message_id, payload, pointer=pointer, attributes=attributes):
            raise _Stop

    def _skip_to(self, message_id: bytes) -> None:
        """All up to this id is decided, and none of it is delivered later."""
        self._skipped_to = max(self._skipped_to, message_id)

    def _possible_loss(self, key: bytes, value: bytes, first: int, skipped_to: bytes) -> str:
        return possible_loss(self._store, key, value, after=first - 1, skipped_to=skipped_to)

    def _stop_at_group(self, offset: Offset, reason: str) -> NoReturn:
        front = pack_offset(*offset)
        self._stop_at(front + NO_PAYLOAD, front + pack_offset(*_WARNED), f"is damaged ({reason})")

    def _stop_at(self, message_id: bytes, behind: bytes, finding: str) -> NoReturn:
        """End before this record, or refuse it if it is the first."""
        if self._messages:
            raise _Stop
        raise damaged_record_error(message_id, behind, finding)

    def _stop_at_block(self, error: StoreDamagedError) -> None:
        """The same at records that the engine can't read."""
        if not self._messages:
            offset = MessageId.from_bytes(self._next).offset
            behind = next_after_block(self._store, self._query, offset, error)
            raise damaged_block_error(self._next, behind, error)


def _simple_payload_at(value: bytes) -> int:
    """Where the payload begins in a row that has at most attributes before it; 0 for any other
    record. The value need not be whole."""
    mark, payload_at = value[:1], _HEAD_SIZE
    if mark == ATTRIBUTES_MARK:
        payload_at = _ATTRIBUTES_AT + int.from_bytes(value[_HEAD_SIZE:_ATTRIBUTES_AT], "big")
    return payload_at if mark in _SIMPLE_MARKS and payload_at <= len(value) else 0


def _is_whole(key: bytes, value: bytes) -> bool:
    checksum = crc32(value[_HEAD_SIZE:], crc32(key + value[:1]))
    return value.startswith(checksum.to_bytes(_HEAD_SIZE - 1, "big"), 1)


def damaged_record_error(id_bytes: bytes, behind: bytes, finding: str) -> DamagedRecordError:
    """The error for a damaged record, which names the id to continue from without it."""
    return DamagedRecordError(
        f"the record {id_bytes.hex()} {finding}; to continue without it, read from "
        f"{behind.hex()}, exclusive",
        members={"id": id_bytes.hex(), "next": behind.hex()},
    )


def damaged_block_error(
    after: bytes, behind: bytes, error: StoreDamagedError
) -> DamagedRecordError:
    """The error for all messages that the engine can't read between two ids, both exclusive."""
    first = MessageId.from_bytes(after).to_int() + 1
    return DamagedRecordError(
        f"messages behind {after.hex()} can't be read, or may be missing ({error}); to continue "
        f"without them, read from {behind.hex()}, exclusive",
        members={"id": MessageId.from_int(first).hex(), "next": behind.hex()},
    )


def possible_loss(store: Store, key: bytes, value: bytes, *, after: int, skipped_to: bytes) -> str:
    """How many messages may be lost with a damaged record, in words. Its rows are behind the offset
    with the number `after`, and behind the id `skipped_to`, of which the reader knows all."""
    after = max(after, int.from_bytes(skipped_to[:OFFSET_SIZE], "big"))
    count = min(rows_max(store, key, value), offset_number(key) - after)
    if count <= 1:
        return ""
    return f" and may have been up to {count} messages, of which this was the last"


def next_after_block(
    store: Store, query: Query, damaged: Offset, error: StoreDamagedError
) -> bytes:
    """The id to continue from, exclusive, without the messages from this offset on that the engine
    can't read."""
    if error.readable_from is not None:
        offset = first_offset(MESSAGES + query.prefix, error.readable_from)
    else:
        offset = _first_readable_offset(store, query, damaged)
    if offset is None or offset > query.high_water_mark:
        return past_group(query.high_water_mark).to_bytes()
    return before_row(offset)


def next_after_group_block(
    prefix: bytes, pointer: int, offset: Offset, last: Offset, error: StoreDamagedError
) -> bytes:
    """The same inside the payload group of a reference row, whose last payload is at `last`."""
    front = pointer_prefix(prefix, pointer)
    inside = None if error.readable_from is None else first_offset(front, error.readable_from)
    if inside is None or inside > last:
        return before_row(offset_after(offset))
    return MessageId.from_int(MessageId(*offset, *inside).to_int() - 1).to_bytes()


def _first_readable_offset(store: Store, query: Query, damaged: Offset) -> Offset | None:
    """The first offset, in ever larger steps of time, from which the engine can read again."""
    stop = message_key(query.prefix, offset_after(query.high_water_mark))
    step_ms = 1
    while damaged.timestamp_ms + step_ms <= query.high_water_mark.timestamp_ms:
        at = Offset(damaged.timestamp_ms + step_ms, 0)
        try:
            with closing(store.scan(message_key(query.prefix, at), stop)) as rows:
                next(rows, None)
        except StoreDamagedError:
            step_ms *= 2
        else:
            return at
    return None
