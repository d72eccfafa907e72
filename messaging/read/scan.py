"""The scan: one pass over an iterator of rows, one verdict per row (protocol §3.4, §6). Blocks.

Most rows are plain: no write pointer, no time to live of their own, no attributes. Nothing has to
be decided about them, so they are taken in chunks (`Ahead`) or as packed rows, and become ids and
payloads in a few loops over each chunk (`Taken`). Every other row, corrupt ones included, is
decided about one by one (`_Read`). Tests compare the two ways with each other.

A continuation inside a payload group starts at the number that the query names, and only in the row
of that number. A reader at the beginning of a payload group gets nothing of the group unless all of
it is there: where its page ends inside the group, the rest is counted, once. A continuation does
not count again. A reader that was told of an incomplete group, and goes on inside it, gets what is
there.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, islice
from operator import itemgetter
from typing import NoReturn

from messaging.read.query import (
    LAST_NUMBER,
    Query,
    Undecided,
    before_row,
    first_number,
    next_at_end,
    next_at_first,
)
from messaging.read.reply import (
    EMPTY_PAGE,
    NO_PAYLOAD,
    OF_MESSAGES,
    Columns,
    IdParts,
    Page,
    Stretch,
    Under,
)
from messaging.read.visibility import HeldRow, Verdict, verdict
from messaging.retention.decision import is_expired
from messaging.storage.engine import Rows, Store, StoreDamagedError, StoreError
from messaging.storage.packed_rows import (
    Row,
    is_packed,
    open_packed,
    row_count,
    rows_in,
    rows_max,
    scan_reporting_corruption,
)
from messaging.storage.read_ahead import COUNT_MAX, next_count
from messaging.storage.rows import (
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
from tuff.protocol import avro
from tuff.protocol.errors import DamagedRecordError
from tuff.protocol.ids import MessageId, Offset, past_group


@dataclass(slots=True, kw_only=True)
class ReadResult:
    """What was read, and where to go on: `next_id` is an exclusive start, as 20 bytes.

    `held` is the row that holds this reader back. `finished` is False when the read stopped only
    because it had passed over so many rows. `whole_from`, where it is not None, is an offset from
    which on the page is all that there is up to what is served, and nothing but payloads: no ending
    and no rollback can change what it says.
    """

    next_id: bytes
    page: Page = EMPTY_PAGE
    caught_up: bool = False
    held: HeldRow | None = None
    finished: bool = True
    whole_from: Offset | None = None

    @property
    def held_by(self) -> int | None:
        """The pointer of the row that holds this reader back."""
        return None if self.held is None else self.held.pointer

    @property
    def items(self) -> list[tuple[bytes, bytes]]:
        """Pairs of a 20-byte id and a payload, taken apart anew each time."""
        return self.page.messages()


SCAN_ROWS_MAX = (
    100_000  # rows passed over in one go; a read among skipped rows ends within a second
)

_PAST_GROUP = b"\xff" * OFFSET_SIZE  # and of the last id that a row could bring
_TOLD = Offset(0, 1)  # in a group, before all payloads: the reader knows that it is not whole
_HEAD_SIZE = HEAD.size
assert PLAIN == 0


@lru_cache(avro.LENGTHS_COUNT_MAX)
def _between(size_bytes: int) -> bytes:
    """What stands in an item between the offset and a payload of this size."""
    return NO_PAYLOAD + avro.encode_long(size_bytes)


def is_plain(value: bytes) -> bool:
    """Whether a stored value that is whole is nothing but a payload."""
    return value[0] == PLAIN


def plain_item(key: bytes, value: bytes) -> bytes | None:
    """The item of a row that was just written; None if the row is more than a payload."""
    if not is_plain(value):
        return None
    return plain_items((key,), (value,))[0]


def plain_items(keys: Sequence[bytes], values: Sequence[bytes]) -> list[bytes]:
    """The items of rows that are nothing but payloads."""
    return [
        avro.ID_HEAD + key[-OFFSET_SIZE:] + _between(len(value) - _HEAD_SIZE) + value[_HEAD_SIZE:]
        for key, value in zip(keys, values, strict=True)
    ]


COUNT_FIRST = 4  # records; a reader may want no more than one, and odd rows come together

_VALUE = itemgetter(1)


class Ahead:
    """Reads rows ahead in chunks, so that each step runs over many of them in a few loops.

    An error of the engine is raised when all rows before it were taken."""

    def __init__(self, rows: Rows) -> None:
        self._rows = rows
        self._left: list[Row] = []
        self._count = COUNT_FIRST
        self._error: StoreError | None = None
        self.passed_count = 0  # rows that were taken, or passed over

    def next(self) -> Row | None:
        """The next row; None after the last. Raises: StoreError."""
        chunk = self.chunk(1)
        return chunk[0] if chunk else None

    def chunk(self, count_max: int = COUNT_MAX) -> list[Row]:
        """The next rows, at least one and at most so many; none after the last.

        Raises: StoreError.
        """
        if not self._left:
            self._read(min(count_max, self._count))
        chunk, self._left = self._left[:count_max], self._left[count_max:]
        self.passed_count += _row_count(chunk)
        return chunk

    def give_back(self, rows: list[Row]) -> None:
        """These, the last that were taken, are still to come. The next chunk will be small."""
        self._left = rows + self._left
        self.passed_count -= _row_count(rows)
        self._count = COUNT_FIRST

    def pass_over_rest(self) -> None:
        """Take all that is left, and do nothing with it. Raises: StoreError."""
        while self.chunk():
            pass

    def _read(self, count: int) -> None:
        if self._error is not None:
            raise self._error
        try:
            # What came before an error is in the list then.
            self._left.extend(islice(self._rows, count))
        except StoreError as error:
            self._error = error
            if not self._left:
                raise
        self._count = next_count(self._left, self._count)


def _row_count(records: list[Row]) -> int:
    return sum(map(row_count, map(_VALUE, records)))


class Taken:
    """The messages of a page that is being read, as ids and payloads."""

    __slots__ = ("bytes_max", "columns", "is_behind", "is_full", "limit", "size_bytes")

    def __init__(self, *, limit: int, bytes_max: int) -> None:
        self.limit = limit
        self.bytes_max = bytes_max
        self.columns = Columns()
        self.size_bytes = 0
        self.is_full = False  # of packed rows, only the first ones did fit
        self.is_behind = False  # packed rows went on behind the last offset that was asked for

    def __len__(self) -> int:
        return len(self.columns)

    def add(self, message_id: bytes, payload: bytes) -> bool:
        """Take one message, unless the page is full; a page has room for one, however large."""
        size_bytes, count = self.size_bytes + len(payload), len(self.columns)
        if count and (count >= self.limit or size_bytes > self.bytes_max):
            return False
        self.columns.add((message_id,), (payload,))
        self.size_bytes = size_bytes
        return True

    def take_back(self, count: int) -> None:
        """Keep no more than the first messages."""
        self.is_full = self.is_behind = False
        self.columns.cut(count)
        self.size_bytes = self.columns.size_bytes()

    def add_plain(
        self, rows: Ahead, parts: IdParts, *, first: int, through: bytes | None
    ) -> Row | None:
        """Take plain rows and packed rows, up to the first record that is something else or not
        whole, or a row that does not fit any more, or whose key ends with an offset behind
        `through`; that record, or None after the last, and when the page `is_full` or the rows go
        on `is_behind`. Of packed rows that begin earlier, rows are taken from the number `first`
        on.

        Raises: StoreError.
        """
        while True:
            room = self.limit - len(self.columns)
            if room <= 0:
                return rows.next()
            chunk = rows.chunk(room)
            if not chunk:
                return None
            if is_packed(chunk[0][1]):
                count = self._add_packed(chunk, parts, first, through)
            else:
                count = self._add_chunk(chunk, parts, through)
            if self.is_full or self.is_behind:
                return None
            if count < len(chunk):
                rows.give_back(chunk[count + 1 :])
                return chunk[count]

    def add_packed(
        self, key: bytes, value: bytes, parts: IdParts, *, first: int, through: bytes | None
    ) -> bool:
        """Take what fits of packed rows, from the offset with the number `first` on, up to
        `through` another; False, and nothing, if the value is not whole."""
        run = open_packed(key, value)
        if run is None:
            return False
        start, stop = max(0, first - run.number), run.length
        if through is not None:
            stop = min(stop, offset_number(through) - run.number + 1)
        self.is_behind = stop < run.length
        if stop <= start:
            return True
        fits = min(stop, start + self.limit - len(self.columns))
        stretch = Stretch.of(run, start, fits, parts)
        room = self.bytes_max - self.size_bytes
        if stretch.size_bytes > room:
            fits = bisect_right(run.bounds(), stretch.start_byte + room, lo=start) - 1
            fits = max(fits, start + (not self.columns))
            stretch = Stretch.of(run, start, fits, parts)
        self.is_full = fits < stop
        if fits > start:
            self.columns.add_stretch(stretch)
            self.size_bytes += stretch.size_bytes
        return True

    def _add_packed(
        self, chunk: list[Row], parts: IdParts, first: int, through: bytes | None
    ) -> int:
        """How many records from the beginning of the chunk were taken."""
        for at, (key, value) in enumerate(chunk):
            if not is_packed(value):
                return at
            is_whole = self.add_packed(key, value, parts, first=first, through=through)
            if not is_whole or self.is_full or self.is_behind:
                return at
        return len(chunk)

    def _add_chunk(self, chunk: list[Row], parts: IdParts, through: bytes | None) -> int:
        """How many rows from the beginning of the chunk were taken."""
        keys, values = zip(*chunk, strict=True)
        payloads = [value[_HEAD_SIZE:] for value in values]
        checksums = map(crc32, map(PLAIN_MARK.join, zip(keys, payloads, strict=True)))
        # No flags, and the checksum.
        heads = [checksum.to_bytes(_HEAD_SIZE, "big") for checksum in checksums]
        is_whole = [*map(bytes.startswith, values, heads)]
        count = len(chunk) if all(is_whole) else is_whole.index(False)
        if through is not None and keys[-1][-OFFSET_SIZE:] > through:
            count = min(count, bisect_right(keys, through, key=lambda key: key[-OFFSET_SIZE:]))
        size_bytes = self.size_bytes + sum(map(len, payloads[:count]))
        if size_bytes > self.bytes_max:
            sums = [*accumulate(map(len, payloads), initial=self.size_bytes)]
            count = bisect_right(sums, self.bytes_max, lo=1) - 1
            size_bytes = sums[count]
        front, back = parts
        offsets = [key[-OFFSET_SIZE:] for key in keys[:count]]
        ids = (
            [front + offset + back for offset in offsets]
            if front
            else [offset + back for offset in offsets]
        )
        self.columns.add(ids, payloads[:count])
        self.size_bytes = size_bytes
        return count


def read(store: Store, query: Query) -> ReadResult:
    """The messages from the start on that this reader may be handed.

    Raises:
        DamagedRecordError: the first record to deliver is damaged.
        StoreError: the engine can't read.
    """
    return _Read(store, query, are_groups_counted=True).run()


def first(store: Store, query: Query) -> ReadResult:
    """The first message from the start on, if there is one; costs no count of a payload group.

    Raises:
        DamagedRecordError: the first record to deliver is damaged.
        StoreError: the engine can't read.
    """
    return _Read(store, replace(query, limit=1), are_groups_counted=False).run()


def read_memory(query: Query, rows: Iterable[tuple[bytes, MessageRow | None]]) -> ReadResult:
    """The same read of rows in memory, from the start on and no further than `served`: the items
    that they become, and the row itself where it is more than a payload. None stands for a group,
    and none is before the start."""
    return _Read(None, query, are_groups_counted=True).run_memory(rows)


class _Stop(Exception):  # noqa: N818 - ends the pass over the rows; it is no error
    """The read is over: a limit, a held row, the end of the range or damage."""


class _Read:
    """Ids are kept as their 20 bytes here, whose order is that of their numbers."""

    def __init__(self, store: Store | None, query: Query, *, are_groups_counted: bool) -> None:
        self._maybe_store = store
        self._are_groups_counted = are_groups_counted
        self._query = query
        number = first_number(query)
        self._is_behind_all = number > LAST_NUMBER
        self._start = MessageId.from_int(min(number, LAST_NUMBER))
        self._start_bytes = self._start.to_bytes()
        # In packed rows no message has anything behind its offset.
        is_inside = self._start_bytes[OFFSET_SIZE:] != NO_PAYLOAD
        self._first = self._start.offset.to_int() + is_inside
        self._through_bytes = query.through.to_bytes()
        self._number = number
        self._next = next_at_first(query, number)
        self._taken = Taken(limit=query.limit, bytes_max=query.bytes_max)
        self._under: list[Under] = []
        self._is_plain = True  # nothing but payloads so far
        self._result = ReadResult(next_id=self._next)

    def run(self) -> ReadResult:
        query, result = self._query, self._result
        last = min(query.high_water_mark, query.through.offset)
        if self._is_behind_all or self._start.offset > last:
            result.caught_up = True
            return self._ended()
        start = message_key(query.prefix, self._start.offset)
        stop = message_key(query.prefix, offset_after(last))
        try:
            with closing(self._scan(start, stop)) as records:
                self._pass_over(Ahead(records), pack_offset(*last))
            result.caught_up = True
            if self._is_plain and last == query.high_water_mark:
                result.whole_from = self._start.offset
        except _Stop:
            pass
        except StoreDamagedError as error:
            self._damaged_block(error)
        return self._ended()

    def run_memory(self, rows: Iterable[tuple[bytes, MessageRow | None]]) -> ReadResult:
        try:
            for item, row in rows:
                message_id, payload = avro.decode_message(item)
                if row is None:
                    self._deliver(message_id, payload)
                else:
                    self._row(message_id[:OFFSET_SIZE], row)
            self._result.caught_up = True
        except _Stop:
            pass
        return self._ended()

    def _ended(self) -> ReadResult:
        if self._result.caught_up and not self._taken:
            self._next = max(self._next, next_at_end(self._query, self._number))
        self._result.next_id = self._next
        self._result.page = Page(self._taken.columns, self._under)
        return self._result

    def _scan(self, start: bytes, stop: bytes) -> Rows:
        return scan_reporting_corruption(self._store, start, stop, report_damaged_rows=True)

    @property
    def _store(self) -> Store:
        assert self._maybe_store is not None
        return self._maybe_store

    def _pass_over(self, rows: Ahead, through: bytes) -> None:
        # The first record is the only one that a start may cut.
        record = rows.next()
        while record is not None:
            if rows.passed_count > SCAN_ROWS_MAX:
                self._result.finished = False
                raise _Stop
            if is_packed(record[1]):
                self._pack(*record, through)
            else:
                self._single(*record, through)
            before = len(self._taken)
            record = self._taken.add_plain(rows, OF_MESSAGES, first=self._first, through=through)
            self._took(before)

    def _pack(self, key: bytes, value: bytes, through: bytes) -> None:
        first, before = self._first, len(self._taken)
        self._is_plain = self._is_plain and first == self._start.offset.to_int()
        if not self._taken.add_packed(key, value, OF_MESSAGES, first=first, through=through):
            self._one_by_one(key, value, through)
        self._took(before)

    def _took(self, before: int) -> None:
        if len(self._taken) > before:
            self._next = self._taken.columns.last_id
        if self._taken.is_full:
            raise _Stop
        if self._taken.is_behind:
            self._result.caught_up = True
            raise _Stop

    def _single(self, key: bytes, value: bytes, through: bytes) -> None:
        try:
            row = MessageRow.from_bytes(key, value)
        except DamagedRowError:
            self._one_by_one(key, value, through)
        else:
            self._general(key[-OFFSET_SIZE:], value, row)

    def _one_by_one(self, key: bytes, value: bytes, through: bytes) -> None:
        """The rows of a record that is damaged. One that can't be told apart may have rows up to
        `through`, whatever its key is."""
        self._is_plain = False
        rows = rows_in(key, value)
        is_apart = len(rows) > 1
        for row_key, row_value in rows:
            offset_bytes = row_key[-OFFSET_SIZE:]
            is_before = offset_number(row_key) < self._first and (is_apart or is_packed(value))
            if is_before or (is_apart and offset_bytes > through):
                continue
            try:
                row = MessageRow.from_bytes(row_key, row_value)
            except DamagedRowError as error:
                held = "" if is_apart else self._may_hold(key, value, self._first, self._next)
                # Whether it was a message or stands for a group can't be told any more: the offset
                # to go on from lies past both.
                finding = error.finding + held
                self._damaged(offset_bytes + NO_PAYLOAD, offset_bytes + _PAST_GROUP, finding)
            self._general(offset_bytes, row_value, row)

    def _general(self, offset_bytes: bytes, value: bytes, row: MessageRow) -> None:
        is_cut = offset_bytes + NO_PAYLOAD < self._start_bytes
        self._is_plain = self._is_plain and value[0] == PLAIN and not is_cut
        self._row(offset_bytes, row)

    def _row(self, offset_bytes: bytes, row: MessageRow) -> None:
        offset = offset_in(offset_bytes)
        if self._is_passed_over(offset, row):
            self._pass(offset_bytes + _PAST_GROUP)
        elif row.reference is None:
            self._deliver(offset_bytes + NO_PAYLOAD, row.payload, row.tx_pointer)
        else:
            assert row.tx_pointer is not None
            if row.reference.count:
                self._group(offset, abs(row.tx_pointer), row.reference)
            self._pass(offset_bytes + _PAST_GROUP)

    def _is_passed_over(self, offset: Offset, row: MessageRow) -> bool:
        if self._is_expired(offset, row.ttl_s):
            return True
        found = verdict(row.tx_pointer, self._query.snapshot)
        if found is Verdict.HOLD and self._query.undecided is Undecided.HOLD:
            assert row.tx_pointer is not None
            self._result.held = HeldRow(row.tx_pointer, offset, row.ttl_s)
            if not self._taken:
                # What is before it is decided. Left behind at what was live when it looked, the
                # reader would be told soon that it is too late.
                self._pass(before_row(offset))
            raise _Stop
        return found is not Verdict.ACCEPT

    def _is_expired(self, offset: Offset, ttl_s: int | None) -> bool:
        return ttl_s is not None and is_expired(
            offset.timestamp_ms, ttl_s, now_ms=self._query.now_ms
        )

    def _group(self, offset: Offset, pointer: int, brings: PayloadRange) -> None:
        inside = Offset(0, 0)
        if offset == self._start.offset:
            # Only the row that the start names is entered in the middle.
            inside = Offset(self._start.write_timestamp_ms, self._start.payload_seq_id)
        if inside > brings.last:
            return
        prefix = self._query.prefix
        first = max(brings.first, inside)
        start = payload_key(prefix, pointer, first)
        stop = payload_key(prefix, pointer, offset_after(brings.last))
        is_beginning = inside <= _TOLD or inside == brings.first
        with closing(self._scan(start, stop)) as scanned:
            rows = Ahead(scanned)
            if is_beginning and self._are_groups_counted:
                self._whole_group(offset, pointer, brings, rows)
                return
            try:
                self._pass_over_group(offset, pointer, rows, first=first)
            except StoreDamagedError as error:
                self._take_note()
                if self._taken:
                    raise _Stop from None
                behind = behind_in_group(prefix, pointer, offset, brings.last, error)
                raise block_refusal(self._next, behind, error) from None

    def _pass_over_group(self, offset: Offset, pointer: int, rows: Ahead, *, first: Offset) -> None:
        parts = IdParts(pack_offset(*offset), b"")
        is_last = offset == self._query.through.offset
        through = self._through_bytes[OFFSET_SIZE:] if is_last else None
        while True:
            before = len(self._taken)
            record = self._taken.add_plain(rows, parts, first=first.to_int(), through=through)
            if len(self._taken) > before:
                self._under.append(Under(before, len(self._taken), pointer))
            self._took(before)
            if record is None:
                return
            for key, value in rows_in(*record):
                if offset_in(key) >= first:
                    self._stored(parts.front, offset, pointer, key, value, first=first)

    def _stored(
        self, front: bytes, offset: Offset, pointer: int, key: bytes, value: bytes, *, first: Offset
    ) -> None:
        id_bytes = front + key[-OFFSET_SIZE:]
        try:
            row = PayloadRow.from_bytes(key, value)
        except DamagedRowError as error:
            passed = self._next[OFFSET_SIZE:] if self._next.startswith(front) else b""
            held = self._may_hold(key, value, first.to_int(), passed)
            self._damaged(id_bytes, id_bytes, error.finding + held)
        if self._is_expired(offset, row.ttl_s):
            self._pass(id_bytes)
        else:
            self._deliver(id_bytes, row.payload, pointer)

    def _whole_group(self, offset: Offset, pointer: int, brings: PayloadRange, rows: Ahead) -> None:
        """Deliver a group from its beginning, or nothing of it if rows of it are missing."""
        before = len(self._taken), self._next
        ended: _Stop | DamagedRecordError | None = None
        try:
            try:
                self._pass_over_group(offset, pointer, rows, first=brings.first)
            except (_Stop, DamagedRecordError) as error:
                if isinstance(error, _Stop) and len(self._taken) == before[0]:
                    # The page was full already. Left behind expired rows of the group, the next
                    # one began inside it, and counted nothing.
                    self._next = before[1]
                    raise
                ended = error
                rows.pass_over_rest()
            is_whole = rows.passed_count == brings.count
            is_gone = (
                not is_whole and self._store.get(message_key(self._query.prefix, offset)) is None
            )
        except StoreDamagedError as error:
            self._take_back(*before)
            self._not_whole(offset, str(error))
        if not is_whole:
            self._take_back(*before)
            if is_gone:
                return  # retention, or the end of the topic, came in between and took all of it
            counts = f"it brings {brings.count} stored messages, and {rows.passed_count} are there"
            self._not_whole(offset, counts)
        if ended is not None:
            raise ended

    def _take_back(self, count: int, next_id: bytes) -> None:
        self._taken.take_back(count)
        self._under = [each for each in self._under if each.first < count]
        self._result.caught_up = False
        self._next = next_id

    def _not_whole(self, offset: Offset, reason: str) -> NoReturn:
        offset_bytes = pack_offset(*offset)
        behind = offset_bytes + pack_offset(*_TOLD)
        self._damaged(offset_bytes + NO_PAYLOAD, behind, f"is damaged ({reason})")

    def _deliver(self, id_bytes: bytes, payload: bytes, pointer: int | None = None) -> None:
        if id_bytes < self._start_bytes:
            return
        if id_bytes > self._through_bytes:
            self._result.caught_up = True
            raise _Stop
        index = len(self._taken)
        if not self._taken.add(id_bytes, payload):
            raise _Stop
        if pointer is not None:
            self._under.append(Under(index, index + 1, abs(pointer)))
        self._next = id_bytes

    def _pass(self, id_bytes: bytes) -> None:
        self._next = max(self._next, id_bytes)

    def _may_hold(self, key: bytes, value: bytes, first: int, passed: bytes) -> str:
        return may_hold(self._store, key, value, after=first - 1, passed=passed)

    def _damaged(self, id_bytes: bytes, behind: bytes, finding: str) -> NoReturn:
        self._take_note()
        if self._taken:
            raise _Stop
        raise refusal(id_bytes, behind, finding)

    def _damaged_block(self, error: StoreDamagedError) -> None:
        self._take_note()
        if not self._taken:
            offset = MessageId.from_bytes(self._next).offset
            behind = behind_block(self._store, self._query, offset, error)
            raise block_refusal(self._next, behind, error)

    def _take_note(self) -> None:
        """Go on behind what was taken, also when the engine failed in the middle of taking."""
        if self._taken:
            self._pass(self._taken.columns.last_id)


def refusal(id_bytes: bytes, behind: bytes, finding: str) -> DamagedRecordError:
    """The refusal of this record, which names the offset behind it."""
    return DamagedRecordError(
        f"the record {id_bytes.hex()} {finding}; to go on without it, read on from "
        f"{behind.hex()}, exclusive",
        members={"id": id_bytes.hex(), "next": behind.hex()},
    )


def block_refusal(passed: bytes, behind: bytes, error: StoreDamagedError) -> DamagedRecordError:
    """The refusal of all that may have stood between two offsets, of which the first was passed."""
    first = MessageId.from_bytes(passed).to_int() + 1
    return DamagedRecordError(
        f"messages behind {passed.hex()} are damaged, or can't be told ({error}); to go on without "
        f"them, read on from {behind.hex()}, exclusive",
        members={"id": MessageId.from_int(first).hex(), "next": behind.hex()},
    )


def may_hold(store: Store, key: bytes, value: bytes, *, after: int, passed: bytes) -> str:
    """What else may be lost with a record, of which no row stands up to an offset, given as a
    number, nor up to the one that was passed, given as bytes or none."""
    after = max(after, int.from_bytes(passed[:OFFSET_SIZE], "big"))
    count = min(rows_max(store, key, value), offset_number(key) - after)
    if count <= 1:
        return ""
    return f" and may have been up to {count} messages, of which this was the last"


def behind_block(store: Store, query: Query, damaged: Offset, error: StoreDamagedError) -> bytes:
    """An offset behind a stretch of messages that can't be read, which begins at this one."""
    if error.readable_from is not None:
        offset = first_offset(MESSAGES + query.prefix, error.readable_from)
    else:
        offset = _readable_offset(store, query, damaged)
    if offset is None or offset > query.high_water_mark:
        return past_group(query.high_water_mark).to_bytes()
    return before_row(offset)


def behind_in_group(
    prefix: bytes, pointer: int, offset: Offset, last: Offset, error: StoreDamagedError
) -> bytes:
    """The same in the payload group that a row brings, up to its last payload."""
    front = pointer_prefix(prefix, pointer)
    inside = None if error.readable_from is None else first_offset(front, error.readable_from)
    if inside is None or inside > last:
        return before_row(offset_after(offset))
    return MessageId.from_int(MessageId(*offset, *inside).to_int() - 1).to_bytes()


def _readable_offset(store: Store, query: Query, damaged: Offset) -> Offset | None:
    """Ever larger steps in time, where the engine can't tell the end."""
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
