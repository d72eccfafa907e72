"""The read: one pass over an iterator of rows, one verdict per row (protocol §3.4, §6). Blocks.

A continuation inside a payload group starts where the number of the query says, and only in the
row that the number names.

A reader that comes to the beginning of a payload group is handed nothing of it unless all of it is
there: where its page ends inside, the rest is counted, once. A continuation counts no more. One
that was told of a group that is not whole goes on inside it too, and is handed what there is.
"""

from collections.abc import Iterable
from contextlib import closing
from dataclasses import replace
from typing import NoReturn

from messaging.ahead import Ahead
from messaging.columns import NO_PAYLOAD, OF_MESSAGES, IdParts
from messaging.damage import behind_block, behind_in_group, block_refusal, may_hold, refusal
from messaging.keys import (
    PLACE_SIZE,
    message_key,
    pack_place,
    payload_key,
    place_after,
    place_in,
    place_number,
)
from messaging.page import Page, Under
from messaging.plain import Taken
from messaging.query import (
    LAST_NUMBER,
    Query,
    Undecided,
    before_row,
    first_number,
    next_at_end,
    next_at_first,
)
from messaging.reading import Reading
from messaging.retention import is_expired
from messaging.rows import PLAIN, DamagedRowError, MessageRow, PayloadRange, PayloadRow
from messaging.run_table import scan_told
from messaging.runs import is_run, rows_in
from messaging.storage.seam import Rows, Store, StoreDamagedError
from messaging.visibility import HeldRow, Verdict, verdict
from tuff.protocol import avro
from tuff.protocol.errors import DamagedRecordError
from tuff.protocol.ids import MessageId, Place

SCAN_ROWS_MAX = (
    100_000  # rows passed over in one go; a read among skipped rows ends within a second
)

_PAST_GROUP = b"\xff" * PLACE_SIZE  # and of the last id that a row could bring
_TOLD = Place(0, 1)  # in a group, before all payloads: the reader knows that it is not whole


def read(store: Store, query: Query) -> Reading:
    """The messages from the start on that this reader may be handed.

    Raises:
        DamagedRecordError: the first record to deliver is damaged.
        StoreError: the engine can't read.
    """
    return _Read(store, query, are_groups_counted=True).run()


def first(store: Store, query: Query) -> Reading:
    """The first message from the start on, if there is one; costs no count of a payload group.

    Raises:
        DamagedRecordError: the first record to deliver is damaged.
        StoreError: the engine can't read.
    """
    return _Read(store, replace(query, limit=1), are_groups_counted=False).run()


def read_memory(query: Query, rows: Iterable[tuple[bytes, MessageRow | None]]) -> Reading:
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
        # In a run no message has anything behind its place.
        is_inside = self._start_bytes[PLACE_SIZE:] != NO_PAYLOAD
        self._first = self._start.place.to_int() + is_inside
        self._through_bytes = query.through.to_bytes()
        self._number = number
        self._next = next_at_first(query, number)
        self._taken = Taken(limit=query.limit, bytes_max=query.bytes_max)
        self._under: list[Under] = []
        self._is_plain = True  # nothing but payloads so far
        self._reading = Reading(next_id=self._next)

    def run(self) -> Reading:
        query, reading = self._query, self._reading
        last = min(query.served, query.through.place)
        if self._is_behind_all or self._start.place > last:
            reading.caught_up = True
            return self._ended()
        start = message_key(query.prefix, self._start.place)
        stop = message_key(query.prefix, place_after(last))
        try:
            with closing(self._scan(start, stop)) as records:
                self._pass_over(Ahead(records), pack_place(*last))
            reading.caught_up = True
            if self._is_plain and last == query.served:
                reading.whole_from = self._start.place
        except _Stop:
            pass
        except StoreDamagedError as error:
            self._damaged_block(error)
        return self._ended()

    def run_memory(self, rows: Iterable[tuple[bytes, MessageRow | None]]) -> Reading:
        try:
            for item, row in rows:
                message_id, payload = avro.decode_message(item)
                if row is None:
                    self._deliver(message_id, payload)
                else:
                    self._row(message_id[:PLACE_SIZE], row)
            self._reading.caught_up = True
        except _Stop:
            pass
        return self._ended()

    def _ended(self) -> Reading:
        if self._reading.caught_up and not self._taken:
            self._next = max(self._next, next_at_end(self._query, self._number))
        self._reading.next_id = self._next
        self._reading.page = Page(self._taken.columns, self._under)
        return self._reading

    def _scan(self, start: bytes, stop: bytes) -> Rows:
        return scan_told(self._store, start, stop, are_rows_told=True)

    @property
    def _store(self) -> Store:
        assert self._maybe_store is not None
        return self._maybe_store

    def _pass_over(self, rows: Ahead, through: bytes) -> None:
        # The first record is the only one that a start may cut.
        record = rows.next()
        while record is not None:
            if rows.passed_count > SCAN_ROWS_MAX:
                self._reading.finished = False
                raise _Stop
            if is_run(record[1]):
                self._run(*record, through)
            else:
                self._single(*record, through)
            before = len(self._taken)
            record = self._taken.add_plain(rows, OF_MESSAGES, first=self._first, through=through)
            self._took(before)

    def _run(self, key: bytes, value: bytes, through: bytes) -> None:
        first, before = self._first, len(self._taken)
        self._is_plain = self._is_plain and first == self._start.place.to_int()
        if not self._taken.add_run(key, value, OF_MESSAGES, first=first, through=through):
            self._one_by_one(key, value, through)
        self._took(before)

    def _took(self, before: int) -> None:
        if len(self._taken) > before:
            self._next = self._taken.columns.last_id
        if self._taken.is_full:
            raise _Stop
        if self._taken.is_behind:
            self._reading.caught_up = True
            raise _Stop

    def _single(self, key: bytes, value: bytes, through: bytes) -> None:
        try:
            row = MessageRow.from_bytes(key, value)
        except DamagedRowError:
            self._one_by_one(key, value, through)
        else:
            self._general(key[-PLACE_SIZE:], value, row)

    def _one_by_one(self, key: bytes, value: bytes, through: bytes) -> None:
        """The rows of a record that is damaged. One that can't be told apart may have rows up to
        `through`, whatever its key is."""
        self._is_plain = False
        rows = rows_in(key, value)
        is_apart = len(rows) > 1
        for row_key, row_value in rows:
            place_bytes = row_key[-PLACE_SIZE:]
            is_before = place_number(row_key) < self._first and (is_apart or is_run(value))
            if is_before or (is_apart and place_bytes > through):
                continue
            try:
                row = MessageRow.from_bytes(row_key, row_value)
            except DamagedRowError as error:
                held = "" if is_apart else self._may_hold(key, value, self._first, self._next)
                # Whether it was a message or stands for a group can't be told any more: the place
                # to go on from lies past both.
                finding = error.finding + held
                self._damaged(place_bytes + NO_PAYLOAD, place_bytes + _PAST_GROUP, finding)
            self._general(place_bytes, row_value, row)

    def _general(self, place_bytes: bytes, value: bytes, row: MessageRow) -> None:
        is_cut = place_bytes + NO_PAYLOAD < self._start_bytes
        self._is_plain = self._is_plain and value[0] == PLAIN and not is_cut
        self._row(place_bytes, row)

    def _row(self, place_bytes: bytes, row: MessageRow) -> None:
        place = place_in(place_bytes)
        if self._is_passed_over(place, row):
            self._pass(place_bytes + _PAST_GROUP)
        elif row.reference is None:
            self._deliver(place_bytes + NO_PAYLOAD, row.payload, row.tx_pointer)
        else:
            assert row.tx_pointer is not None
            if row.reference.count:
                self._group(place, abs(row.tx_pointer), row.reference)
            self._pass(place_bytes + _PAST_GROUP)

    def _is_passed_over(self, place: Place, row: MessageRow) -> bool:
        if self._is_expired(place, row.ttl_s):
            return True
        found = verdict(row.tx_pointer, self._query.snapshot)
        if found is Verdict.HOLD and self._query.undecided is Undecided.HOLD:
            assert row.tx_pointer is not None
            self._reading.held = HeldRow(row.tx_pointer, place, row.ttl_s)
            if not self._taken:
                # What is before it is decided. Left behind at what was live when it looked, the
                # reader would be told soon that it is too late.
                self._pass(before_row(place))
            raise _Stop
        return found is not Verdict.ACCEPT

    def _is_expired(self, place: Place, ttl_s: int | None) -> bool:
        return ttl_s is not None and is_expired(
            place.timestamp_ms, ttl_s, now_ms=self._query.now_ms
        )

    def _group(self, place: Place, pointer: int, brings: PayloadRange) -> None:
        inside = Place(0, 0)
        if place == self._start.place:
            # Only the row that the start names is entered in the middle.
            inside = Place(self._start.write_timestamp_ms, self._start.payload_seq_id)
        if inside > brings.last:
            return
        prefix = self._query.prefix
        first = max(brings.first, inside)
        start = payload_key(prefix, pointer, first)
        stop = payload_key(prefix, pointer, place_after(brings.last))
        is_beginning = inside <= _TOLD or inside == brings.first
        with closing(self._scan(start, stop)) as scanned:
            rows = Ahead(scanned)
            if is_beginning and self._are_groups_counted:
                self._whole_group(place, pointer, brings, rows)
                return
            try:
                self._pass_over_group(place, pointer, rows, first=first)
            except StoreDamagedError as error:
                self._take_note()
                if self._taken:
                    raise _Stop from None
                behind = behind_in_group(prefix, pointer, place, brings.last, error)
                raise block_refusal(self._next, behind, error) from None

    def _pass_over_group(self, place: Place, pointer: int, rows: Ahead, *, first: Place) -> None:
        parts = IdParts(pack_place(*place), b"")
        is_last = place == self._query.through.place
        through = self._through_bytes[PLACE_SIZE:] if is_last else None
        while True:
            before = len(self._taken)
            record = self._taken.add_plain(rows, parts, first=first.to_int(), through=through)
            if len(self._taken) > before:
                self._under.append(Under(before, len(self._taken), pointer))
            self._took(before)
            if record is None:
                return
            for key, value in rows_in(*record):
                if place_in(key) >= first:
                    self._stored(parts.front, place, pointer, key, value, first=first)

    def _stored(
        self, front: bytes, place: Place, pointer: int, key: bytes, value: bytes, *, first: Place
    ) -> None:
        id_bytes = front + key[-PLACE_SIZE:]
        try:
            row = PayloadRow.from_bytes(key, value)
        except DamagedRowError as error:
            passed = self._next[PLACE_SIZE:] if self._next.startswith(front) else b""
            held = self._may_hold(key, value, first.to_int(), passed)
            self._damaged(id_bytes, id_bytes, error.finding + held)
        if self._is_expired(place, row.ttl_s):
            self._pass(id_bytes)
        else:
            self._deliver(id_bytes, row.payload, pointer)

    def _whole_group(self, place: Place, pointer: int, brings: PayloadRange, rows: Ahead) -> None:
        """Deliver a group from its beginning, or nothing of it if rows of it are missing."""
        before = len(self._taken), self._next
        ended: _Stop | DamagedRecordError | None = None
        try:
            try:
                self._pass_over_group(place, pointer, rows, first=brings.first)
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
                not is_whole and self._store.get(message_key(self._query.prefix, place)) is None
            )
        except StoreDamagedError as error:
            self._take_back(*before)
            self._not_whole(place, str(error))
        if not is_whole:
            self._take_back(*before)
            if is_gone:
                return  # retention, or the end of the topic, came in between and took all of it
            counts = f"it brings {brings.count} stored messages, and {rows.passed_count} are there"
            self._not_whole(place, counts)
        if ended is not None:
            raise ended

    def _take_back(self, count: int, next_id: bytes) -> None:
        self._taken.take_back(count)
        self._under = [each for each in self._under if each.first < count]
        self._reading.caught_up = False
        self._next = next_id

    def _not_whole(self, place: Place, reason: str) -> NoReturn:
        place_bytes = pack_place(*place)
        behind = place_bytes + pack_place(*_TOLD)
        self._damaged(place_bytes + NO_PAYLOAD, behind, f"is damaged ({reason})")

    def _deliver(self, id_bytes: bytes, payload: bytes, pointer: int | None = None) -> None:
        if id_bytes < self._start_bytes:
            return
        if id_bytes > self._through_bytes:
            self._reading.caught_up = True
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
            place = MessageId.from_bytes(self._next).place
            behind = behind_block(self._store, self._query, place, error)
            raise block_refusal(self._next, behind, error)

    def _take_note(self) -> None:
        """Go on behind what was taken, also when the engine failed in the middle of taking."""
        if self._taken:
            self._pass(self._taken.columns.last_id)
