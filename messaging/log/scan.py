"""The scan: one pass over stored rows, with one verdict for each block (protocol §3.4, §6).

A block is neighbouring rows about which nothing is to be decided one by one: packed rows, or single
rows that have nothing but a payload, or attributes and a payload. A reader takes a whole block of
plain rows at once; a tag filter passes over it, and over the rows with other tags in a block with
attributes. Every other record, corrupt ones included, is read row by row (`_read_record`). Tests
compare the reading of blocks with the reading row by row.

A continuation inside a payload group starts behind the id that the query names, and only in the row
of that id. A reader at the beginning of a payload group gets nothing of the group unless all of it
is there: if its page ends inside the group, the rest is counted, once. A continuation does not
count again. A reader that was warned of an incomplete group, and continues inside it, gets what is
there (decision 0008).
"""

import struct
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import compress, groupby
from typing import NamedTuple, NoReturn

from messaging.engines.engine_interface import Chunks, Corruption, Row, StoreDamagedError
from messaging.engines.row_store import Store
from messaging.log.read_result import NO_PAYLOAD, Messages
from messaging.model.attributes import StoredTagFilter
from messaging.model.packed_rows import PackedSlice, is_packed, open_packed, row_count, rows_in
from messaging.model.row_format import (
    ATTRIBUTES_BYTE,
    HEAD,
    MESSAGES,
    OFFSET_SIZE,
    PACKED_BYTE,
    PLAIN_BYTE,
    DamagedRowError,
    MessageRow,
    PayloadRange,
    first_offset,
    message_key,
    offset_after,
    offset_in,
    offset_number,
    pack_offset,
    payload_key,
    pointer_prefix,
)
from messaging.model.visibility import (
    PAST_GROUP,
    BlockingRow,
    Query,
    Verdict,
    before_row,
    first_offset_after,
    id_before,
    is_past_own_ttl,
    next_at_end,
    next_at_first,
    past_row,
    read_after,
    verdict,
)
from tuff.protocol.errors import DamagedRecordError
from tuff.protocol.ids import MESSAGE_ID_SIZE, Offset
from tuff_storage.checksum import crc32

SCAN_ROWS_MAX = (
    100_000  # rows passed over in one scan; a read among skipped rows ends within a second
)

# The second half of an id before all payloads of a group: the reader knows that it is incomplete.
_WARNED = pack_offset(0, 1)
_HEAD_SIZE = HEAD.size
_SIZE_SIZE = 4  # bytes of a checksum, and of the size of attributes


Columns = tuple[list[bytes], list[bytes]]  # the ids and the payloads of plain rows


class MemoryRow(NamedTuple):
    """A row that is not plain, and the bytes of its offset."""

    offset_bytes: bytes
    row: MessageRow


@dataclass(slots=True, kw_only=True)
class ReadResult:
    """What was read, and where to continue: a read behind `next_id`.

    `blocking_row` is the row that blocks this reader. `finished` is False if the read stopped
    only because it had skipped so many rows. Behind the offset `cacheable_after`, unless it is
    None, the messages are all rows up to the high-water mark, and all of them are plain: no end of
    a transaction and no rollback can change them.
    """

    next_id: bytes
    messages: Messages
    caught_up: bool = False
    blocking_row: BlockingRow | None = None
    finished: bool = True
    cacheable_after: bytes | None = None

    @property
    def blocking_pointer(self) -> int | None:
        """The pointer of the row that blocks this reader."""
        return None if self.blocking_row is None else self.blocking_row.pointer

    @property
    def items(self) -> list[tuple[bytes, bytes]]:
        """Pairs of a 20-byte id and a payload."""
        return self.messages.items()


def read(store: Store, query: Query) -> ReadResult:
    """The messages that this reader may receive.

    Raises:
        DamagedRecordError: the first record to deliver is damaged.
        StoreError: the engine can't read.
    """
    return _Scan(query, store, are_groups_counted=True).run()


def first_message(store: Store, query: Query) -> ReadResult:
    """The first message that this reader may receive; costs no count of a payload group.

    Raises:
        DamagedRecordError: the first record to deliver is damaged.
        StoreError: the engine can't read.
    """
    return _Scan(replace(query, limit=1), store, are_groups_counted=False).run()


def read_memory(query: Query, rows: Iterable[Columns | MemoryRow], *, fits: bool) -> ReadResult:
    """The messages that this reader may receive of rows in memory, from the one that its start
    names on, and up to the high-water mark. None of them refers to a payload group. `fits`: all
    messages together are few enough bytes for a reply."""
    return _Scan(query, None, are_groups_counted=False, fits=fits).run_memory(rows)


class _Stop(Exception):  # noqa: N818 - ends the scan; it is no error
    """The read is over: a limit, a blocking row, the end of the range or corruption."""


class _RowRange(NamedTuple):
    """Rows of one table that become messages: from the offset with the number `first` to the offset
    `through`, both included. An id is `front`, the offset in the row's key, and `back`; `pointer`
    is the write pointer of all of them, or None."""

    front: bytes
    back: bytes
    first: int
    through: bytes
    pointer: int | None


_Decide = Callable[[bytes, bytes, _RowRange], None]  # reads the rows of one record


class _Scan:
    """One read. Ids are their 20 bytes here, whose order is that of their numbers."""

    def __init__(
        self, query: Query, store: Store | None, *, are_groups_counted: bool, fits: bool = False
    ) -> None:
        self._maybe_store = store
        self._are_groups_counted = are_groups_counted
        self._query = query
        self._tags = None if query.tags is None else StoredTagFilter(query.tags)
        self._after = read_after(query)
        bytes_max = None if fits else query.bytes_max
        self._messages = Messages(limit=query.limit, bytes_max=bytes_max)
        self._skipped_to = next_at_first(query, self._after)
        self._result = ReadResult(next_id=self._skipped_to, messages=self._messages)
        self._passed_count = 0  # rows that were taken or passed over
        self._group_count = 0  # rows of a payload group that were read
        self._is_plain = True  # every record so far

    @property
    def _next(self) -> bytes:
        """Where the reader continues: behind the last message, and behind what was passed over."""
        return max(self._skipped_to, self._messages.last_id) if self._messages else self._skipped_to

    @property
    def _store(self) -> Store:
        assert self._maybe_store is not None
        return self._maybe_store

    def run(self) -> ReadResult:
        prefix, last = self._query.prefix, self._query.last
        if self._after >= last + PAST_GROUP:
            self._result.caught_up = True
            return self._ended()
        start = MESSAGES + prefix + first_offset_after(self._after)
        stop = message_key(prefix, offset_after(offset_in(last)))
        # A plain row has no message behind its offset.
        first = int.from_bytes(self._after[:OFFSET_SIZE], "big") + 1
        rows = _RowRange(b"", NO_PAYLOAD, first, last, None)
        try:
            with closing(self._scan(start, stop)) as chunks:
                for chunk in chunks:
                    self._require_few()
                    self._read_chunk(chunk, rows, self._read_record)
            self._result.caught_up = True
            is_newest = offset_in(last) == self._query.high_water_mark
            if self._is_plain and self._tags is None and is_newest:
                self._result.cacheable_after = self._after[:OFFSET_SIZE]
        except _Stop:
            pass
        except StoreDamagedError as error:
            self._stop_at_block(error)
        return self._ended()

    def run_memory(self, rows: Iterable[Columns | MemoryRow]) -> ReadResult:
        try:
            for each in rows:
                if isinstance(each, MemoryRow):
                    self._read_row(*each)
                elif each[0]:
                    self._take_columns(*each)
            self._result.caught_up = True
        except _Stop:
            pass
        return self._ended()

    def _ended(self) -> ReadResult:
        if self._result.caught_up and not self._messages:
            self._skip_to(next_at_end(self._query, self._after))
        self._result.next_id = self._next
        return self._result

    def _scan(self, start: bytes, stop: bytes) -> Chunks:
        return self._store.chunks(start, stop, corruption=Corruption.RAISE_AT_ROWS)

    def _require_few(self) -> None:
        """End the read if it passed over so many rows that others wait for the thread."""
        if self._passed_count > SCAN_ROWS_MAX:
            self._result.finished = False
            raise _Stop

    def _read_chunk(self, chunk: Sequence[Row], rows: _RowRange, decide: _Decide) -> None:
        """Take the blocks of a chunk, and let `decide` read all other records."""
        for flags, group in groupby(chunk, _flags):
            records = [*group]
            while records:
                if flags == PACKED_BYTE:
                    count = int(self._take_packed(*records[0], rows))
                elif flags in (PLAIN_BYTE, ATTRIBUTES_BYTE):
                    count = self._take_rows(records, flags, rows)
                else:
                    count = 0
                if not count:
                    decide(*records[0], rows)
                    count = 1
                records = records[count:]

    def _take_packed(self, key: bytes, value: bytes, rows: _RowRange) -> bool:
        """Take the rows of the range from packed rows; False, and none, if the value is corrupt."""
        packed = open_packed(key, value)
        if packed is None:
            return False
        start = max(0, rows.first - packed.number)
        stop = min(packed.length, offset_number(rows.through) - packed.number + 1)
        if start < stop:
            self._passed_count += stop - start
            part = PackedSlice(packed, start, stop, rows.front, rows.back)
            if self._tags is not None:  # none of the messages has tags
                self._skip_to(part.last_id)
            elif self._messages.extend_packed(part, pointer=rows.pointer) < len(part):
                raise _Stop
        if stop < packed.length:
            self._result.caught_up = True
            raise _Stop
        return True

    def _take_rows(self, records: list[Row], flags: bytes, rows: _RowRange) -> int:
        """Take single rows with these flags from the beginning, up to one that is corrupt, behind
        the range, or does not fit; how many."""
        if self._tags is None:
            records = records[: max(1, self._messages.room)]
        keys, values = zip(*records, strict=True)
        if offset_number(keys[0]) < rows.first:
            return 0
        bodies = [value[_HEAD_SIZE:] for value in values]
        count = _whole_count(keys, values, bodies, flags)
        if keys[-1][-OFFSET_SIZE:] > rows.through:
            count = min(count, bisect_right(keys, rows.through, key=lambda key: key[-OFFSET_SIZE:]))
        self._passed_count += count
        front, back = rows.front, rows.back
        ids = [front + key[-OFFSET_SIZE:] + back for key in keys[:count]]
        if flags == ATTRIBUTES_BYTE:
            self._is_plain = False
            return self._take_attributes(ids, bodies, rows.pointer)
        if self._tags is None:
            return self._messages.extend(ids, bodies[:count], pointer=rows.pointer)
        if ids:
            self._skip_to(ids[-1])
        return count

    def _take_attributes(
        self, ids: Sequence[bytes], bodies: Sequence[bytes], pointer: int | None
    ) -> int:
        """How many of these rows with attributes, from the first on, were taken or passed over."""
        tags, count = self._tags, len(ids)
        chosen: Iterable[int] = range(count)
        if tags is not None:
            chosen = compress(chosen, map(tags.may_select, bodies))
        for index in chosen:
            body = bodies[index]
            payload_at = _SIZE_SIZE + int.from_bytes(body[:_SIZE_SIZE], "big")
            attributes = body[_SIZE_SIZE:payload_at]
            is_chosen = payload_at <= len(body) and (tags is None or tags.selects(attributes))
            if payload_at > len(body) or (
                is_chosen
                and not self._messages.append(
                    ids[index], body[payload_at:], pointer=pointer, attributes=attributes
                )
            ):
                count = index
                break
        if count:
            self._skip_to(ids[count - 1])
        return count

    def _take_columns(self, ids: list[bytes], payloads: list[bytes]) -> None:
        if self._tags is not None:
            self._skip_to(ids[-1])
        elif self._messages.extend(ids, payloads) < len(ids):
            raise _Stop

    def _read_record(self, key: bytes, value: bytes, rows: _RowRange) -> None:
        """Read the rows of any record one by one. If they can't be separated, the record may have
        had rows of the range even if its key is behind the range."""
        self._require_few()
        each_row = rows_in(key, value)
        is_separated = len(each_row) > 1
        self._is_plain = self._is_plain and value[:1] == PLAIN_BYTE and not is_separated
        for row_key, row_value in each_row:
            offset_bytes = row_key[-OFFSET_SIZE:]
            self._passed_count += 1
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
                self._stop_at(offset_bytes + NO_PAYLOAD, offset_bytes + PAST_GROUP, finding)
            self._read_row(offset_bytes, row)

    def _read_row(self, offset_bytes: bytes, row: MessageRow) -> None:
        offset = offset_in(offset_bytes)
        found = verdict(self._query, offset, row)
        if found is Verdict.BLOCK:
            self._hold(offset, row)
        if found is Verdict.ACCEPT and row.reference is None:
            message_id = offset_bytes + NO_PAYLOAD
            self._deliver(message_id, row.payload, row.tx_pointer, row.attributes)
            return
        if found is Verdict.ACCEPT:
            self._read_group(offset, row)
        self._skip_to(offset_bytes + PAST_GROUP)

    def _hold(self, offset: Offset, row: MessageRow) -> NoReturn:
        assert row.tx_pointer is not None
        self._result.blocking_row = BlockingRow(row.tx_pointer, offset, row.ttl_s)
        if not self._messages:
            # All before it is decided. A reader left behind at the first live offset would soon get
            # Tuff-Expired.
            self._skip_to(before_row(offset))
        raise _Stop

    def _read_group(self, offset: Offset, row: MessageRow) -> None:
        group = row.reference
        assert group is not None
        assert row.tx_pointer is not None
        front, first, is_beginning = pack_offset(*offset), group.first, True
        before, inside = self._after[:OFFSET_SIZE], self._after[OFFSET_SIZE:]
        if before == front and inside != NO_PAYLOAD:
            # A start may be in the middle of the row that it names, and of no other.
            named = offset_after(offset_in(inside))
            first, is_beginning = max(first, named), first == named
        if not group.count or first > group.last:
            return
        prefix, pointer = self._query.prefix, abs(row.tx_pointer)
        start = payload_key(prefix, pointer, first)
        stop = payload_key(prefix, pointer, offset_after(group.last))
        through = self._query.through
        last = through[OFFSET_SIZE:] if through.startswith(front) else PAST_GROUP
        rows = _RowRange(front, b"", first.to_int(), last, pointer)
        passed_count = self._passed_count
        with closing(self._scan(start, stop)) as chunks:
            records = self._counted(chunks)
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
        if self._tags is None:  # the group is delivered, except for what has expired
            self._passed_count = passed_count

    def _counted(self, chunks: Chunks) -> Iterator[list[Row]]:
        self._group_count = 0
        for chunk in chunks:
            self._group_count += sum([row_count(value) for _, value in chunk])
            yield chunk

    def _read_payloads(self, offset: Offset, records: Iterator[list[Row]], rows: _RowRange) -> None:
        def decide(key: bytes, value: bytes, rows: _RowRange) -> None:
            for row_key, row_value in rows_in(key, value):
                if offset_number(row_key) >= rows.first:
                    self._read_payload(offset, row_key, row_value, rows)

        for chunk in records:
            self._read_chunk(chunk, rows, decide)

    def _read_payload(self, offset: Offset, key: bytes, value: bytes, rows: _RowRange) -> None:
        message_id = rows.front + key[-OFFSET_SIZE:]
        try:
            row = MessageRow.from_bytes(key, value)
        except DamagedRowError as error:
            skipped_to = self._next[OFFSET_SIZE:] if self._next.startswith(rows.front) else b""
            others = self._possible_loss(key, value, rows.first, skipped_to)
            self._stop_at(message_id, message_id, error.finding + others)
        if is_past_own_ttl(self._query, offset, row.ttl_s):
            self._skip_to(message_id)
        else:
            self._deliver(message_id, row.payload, rows.pointer, row.attributes)

    def _read_whole_group(
        self, offset: Offset, group: PayloadRange, records: Iterator[list[Row]], rows: _RowRange
    ) -> None:
        """Deliver a group from its beginning, or nothing of it if rows of it are missing."""
        sizes, skipped_to = self._messages.sizes(), self._skipped_to
        ended: _Stop | DamagedRecordError | None = None
        try:
            try:
                self._read_payloads(offset, records, rows)
            except (_Stop, DamagedRecordError) as error:
                if isinstance(error, _Stop) and self._messages.sizes() == sizes:
                    # The page was full before. If the reader continued behind expired rows of the
                    # group, its next page would begin inside the group, and count nothing.
                    self._skipped_to = skipped_to
                    raise
                ended = error
                deque(records, maxlen=0)  # counts the rest
            is_whole = self._group_count == group.count
            is_gone = (
                not is_whole and self._store.get(message_key(self._query.prefix, offset)) is None
            )
        except StoreDamagedError as error:
            self._drop_since(sizes, skipped_to)
            self._stop_at_group(offset, str(error))
        if not is_whole:
            self._drop_since(sizes, skipped_to)
            if is_gone:
                return  # retention, or the end of the topic, came in between and took all of it
            counts = f"it brings {group.count} stored messages, and {self._group_count} are there"
            self._stop_at_group(offset, counts)
        if ended is not None:
            raise ended

    def _drop_since(self, sizes: tuple[int, ...], skipped_to: bytes) -> None:
        self._messages.cut(sizes)
        self._skipped_to = skipped_to
        self._result.caught_up = False

    def _deliver(
        self, message_id: bytes, payload: bytes, pointer: int | None, attributes: bytes | None
    ) -> None:
        if message_id <= self._after:
            return
        if message_id > self._query.through:
            self._result.caught_up = True
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
        self._stop_at(front + NO_PAYLOAD, front + _WARNED, f"is damaged ({reason})")

    def _stop_at(self, message_id: bytes, behind: bytes, finding: str) -> NoReturn:
        """End before this record, or refuse it if it is the first: the error names the id to
        continue from without it."""
        if self._messages:
            raise _Stop
        raise DamagedRecordError(
            f"the record {message_id.hex()} {finding}; to continue without it, read from "
            f"{behind.hex()}, exclusive",
            members={"id": message_id.hex(), "next": behind.hex()},
        )

    def _stop_at_block(self, error: StoreDamagedError) -> None:
        """End the read at records that the engine can't read."""
        if not self._messages:
            offset = offset_in(self._next[:OFFSET_SIZE])
            behind = next_after_block(self._store, self._query, offset, error)
            raise damaged_block_error(self._next, behind, error)


def _flags(record: Row) -> bytes:
    return record[1][:1]


def _whole_count(
    keys: Sequence[bytes], values: Sequence[bytes], bodies: Sequence[bytes], flags: bytes
) -> int:
    """How many of these rows, from the first on, are whole; all have these flags."""
    count = len(keys)
    stored = b"".join([value[1:_HEAD_SIZE] for value in values])
    checksums = map(crc32, map(flags.join, zip(keys, bodies, strict=True)))
    expected = struct.pack(f">{count}I", *checksums)
    if stored == expected:
        return count
    at = range(0, _SIZE_SIZE * count, _SIZE_SIZE)
    pairs = zip(values, (expected[each : each + _SIZE_SIZE] for each in at), strict=True)
    return next(index for index, pair in enumerate(pairs) if pair[0][1:_HEAD_SIZE] != pair[1])


def damaged_block_error(
    after: bytes, behind: bytes, error: StoreDamagedError
) -> DamagedRecordError:
    """The error for all messages that the engine can't read between two ids, both exclusive."""
    first = int.from_bytes(after, "big") + 1
    return DamagedRecordError(
        f"messages behind {after.hex()} can't be read, or may be missing ({error}); to continue "
        f"without them, read from {behind.hex()}, exclusive",
        members={"id": f"{first:0{2 * MESSAGE_ID_SIZE}x}", "next": behind.hex()},
    )


def possible_loss(store: Store, key: bytes, value: bytes, *, after: int, skipped_to: bytes) -> str:
    """How many messages may be lost with a damaged record, in words. Its rows are behind the offset
    with the number `after`, and behind the id `skipped_to`, of which the reader knows all."""
    after = max(after, int.from_bytes(skipped_to[:OFFSET_SIZE], "big"))
    count = min(store.count_max(key, value), offset_number(key) - after)
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
        return past_row(query.high_water_mark)
    return before_row(offset)


def next_after_group_block(
    prefix: bytes, pointer: int, offset: Offset, last: Offset, error: StoreDamagedError
) -> bytes:
    """The id after which a reader continues behind a corrupt block inside the payload group of a
    reference row, whose last payload is at `last`."""
    front = pointer_prefix(prefix, pointer)
    inside = None if error.readable_from is None else first_offset(front, error.readable_from)
    if inside is None or inside > last:
        return before_row(offset_after(offset))
    return id_before(pack_offset(*offset) + pack_offset(*inside))


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
