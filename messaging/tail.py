"""The newest rows of each topic in memory, as what they become in a reply (design §8).

A tail holds every row behind a place, up to the served mark, and a read is answered from it only if
it begins behind that place; it then says what a read of the store would say, without a thread and
without the disk. Tails are filled from batches that became durable, and from what a reader at the
end of a topic was handed, if those rows are only payloads, which nothing changes. What a
batch changes later (rows inverted by a rollback, rows that retention removed) it changes here in
the same step. Floors, times to live and snapshots are matters of the reader, here as there.

Readers that ask for the same in the same view are handed the same page, and so the same bytes.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from messaging.batch import Run
from messaging.columns import NO_PAYLOAD
from messaging.keys import MESSAGES, PLACE_SIZE, pack_place, place_after
from messaging.page import Page
from messaging.plain import plain_item, plain_items
from messaging.query import LAST_NUMBER, Query, first_number, next_at_end
from messaging.reader import read_memory
from messaging.reading import Reading
from messaging.rows import MessageRow
from messaging.sequence import BEFORE_ALL
from tuff.protocol.avro import ID_HEAD, encode_message
from tuff.protocol.ids import MESSAGE_ID_SIZE, MessageId, Place
from tuff.protocol.transaction import Transaction

TOPIC_SHARE = 4  # so many busy topics share the memory; one alone gets no more than its share
KEPT_SHARE = 0.75  # of a tail that grew too long, so that it is cut seldom
DECIDED_COUNT_MAX = 1_000  # rows that the event loop decides about one by one; more take a thread
FRESH_ODD_COUNT_MAX = 2 * DECIDED_COUNT_MAX  # rows; then half of them are forgotten
# Rows that a batch changes one by one. Only the end of one publish that large is marked in so many,
# and everybody would wait while each is looked for; who reads next goes to the store instead.
CHANGED_COUNT_MAX = 25_000
ROW_OVERHEAD_BYTES = 100  # bytes; what Python takes for a row beside its item
FRESH_OVERHEAD_BYTES = 130  # bytes; what it takes for a row beside its key and value

_MESSAGE_TAG = MESSAGES[0]
_PREFIX_AT = len(MESSAGES)
_PLACE = slice(len(ID_HEAD), len(ID_HEAD) + PLACE_SIZE)
_ID = slice(len(ID_HEAD), len(ID_HEAD) + MESSAGE_ID_SIZE)
_INNER_MASK = (1 << 8 * PLACE_SIZE) - 1


class _NeedsStoreError(Exception):
    """The read came to a payload group, whose payloads are in the store."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What a read of a tail with rows to decide about depended on."""

    number: int
    stop: int
    limit: int
    bytes_max: int
    undecided: object
    now_ms: int | None


class _Tail:
    """Rows of one generation of a topic, as items in their order. Of a row that is more than a
    payload the item has only the id, and `odd` has the row, by its place.

    The newest rows are `fresh`, in runs as they were stored: the first reader makes items of them,
    and a topic that nobody reads costs next to nothing. `newest` is the key of the last row of all.
    """

    __slots__ = ("_general", "_plain", "after", "fresh", "fresh_odd_count", "has_ttl", "items",
                 "newest", "odd", "size_bytes")  # fmt: skip

    def __init__(self, prefix: bytes, after: bytes) -> None:
        self.after = after
        self.newest = MESSAGES + prefix + after
        self.fresh: list[Run] = []
        self.fresh_odd_count = 0  # rows of fresh runs that are more than payloads
        self.items: list[bytes] = []
        self.odd: dict[bytes, MessageRow] = {}
        self.size_bytes = 0
        self.has_ttl = False
        self._plain: tuple[tuple[int, int, bool], Reading] | None = None
        self._general: tuple[_Seen, Transaction | None, Reading] | None = None

    def change(self, key: bytes, value: bytes | None) -> None:
        """A durable batch put this value under the key of a message row, or deleted it."""
        self.settle()
        self._change(key, value)
        self.newest = max(self.newest, key)

    def add(self, run: Run) -> None:
        """A durable batch put these rows, which lie behind all that are here."""
        self.fresh.append(run)
        self.size_bytes += _run_size(run)
        self.newest = run.keys[-1]
        self.fresh_odd_count += _odd_count(run)
        if self.fresh_odd_count > FRESH_ODD_COUNT_MAX:
            self._forget_unread()

    def _forget_unread(self) -> None:
        """Keep no more than a read decides about here: the first reader would hold up everybody
        while items are made of the rest, and then be sent to the store all the same."""
        kept_count = size_bytes = 0
        for run in reversed(self.fresh):
            kept_count += _odd_count(run)
            if kept_count > DECIDED_COUNT_MAX:
                break
            size_bytes += _run_size(run)
        self.cut(size_bytes)

    def settle(self) -> None:
        """Make items of the fresh rows."""
        self._plain = self._general = None
        runs, self.fresh, self.fresh_odd_count = self.fresh, [], 0
        for run in runs:
            self.size_bytes -= _run_size(run)
            if run.is_plain:
                items = plain_items(run.keys, run.values)
                self.items += items
                self.size_bytes += sum(_size(item, None) for item in items)
            else:
                for key, value in zip(run.keys, run.values, strict=True):
                    self._change(key, value)

    def _change(self, key: bytes, value: bytes | None) -> None:
        self._plain = self._general = None
        place_bytes = key[-PLACE_SIZE:]
        if place_bytes <= self.after:
            return
        item, row = b"", None
        if value is not None:
            item = plain_item(key, value) or b""
            if not item:
                item = encode_message(place_bytes + NO_PAYLOAD, b"")
                row = MessageRow.from_bytes(key, value)
        at = len(self.items)
        if self.items and place_bytes <= self.items[-1][_PLACE]:
            at = bisect_left(self.items, ID_HEAD + place_bytes)
            self._remove(at, place_bytes)
        if item:
            self._insert(at, place_bytes, item, row)

    def _insert(self, at: int, place_bytes: bytes, item: bytes, row: MessageRow | None) -> None:
        self.items.insert(at, item)
        if row is not None:
            self.odd[place_bytes] = row
            self.has_ttl = self.has_ttl or row.ttl_s is not None
        self.size_bytes += _size(item, row)

    def _remove(self, at: int, place_bytes: bytes) -> None:
        if self.items[at][_PLACE] == place_bytes:
            self.size_bytes -= _size(self.items.pop(at), self.odd.pop(place_bytes, None))

    def cut(self, size_bytes: int) -> None:
        """Forget the oldest rows, until what is left takes no more than this."""
        self._plain = self._general = None
        count = 0
        while self.size_bytes > size_bytes and count < len(self.items):
            item = self.items[count]
            self.size_bytes -= _size(item, self.odd.pop(item[_PLACE], None))
            count += 1
        if count:
            self.after = self.items[count - 1][_PLACE]
            del self.items[:count]
        self.has_ttl = self.has_ttl and bool(self.odd)
        if self.size_bytes > size_bytes:
            self._cut_fresh(size_bytes)

    def _cut_fresh(self, size_bytes: int) -> None:
        count = 0
        while self.size_bytes > size_bytes:
            self.size_bytes -= _run_size(self.fresh[count])
            self.fresh_odd_count -= _odd_count(self.fresh[count])
            count += 1
        self.after = self.fresh[count - 1].keys[-1][-PLACE_SIZE:]
        del self.fresh[:count]

    def lengthen(self, items: Sequence[bytes], *, after: bytes) -> None:
        """Take in the rows behind this place that lie before what is here."""
        self._plain = self._general = None
        missing = items[: bisect_right(items, self.after, key=lambda item: item[_PLACE])]
        self.items[:0] = missing
        self.size_bytes += sum(_size(item, None) for item in missing)
        self.after = after

    def read(self, query: Query, number: int, last: bytes) -> Reading | None:
        """The same as a read of the store from this number to this place, or None where only the
        store can tell."""
        items = self.items
        place_bytes = (number >> 8 * PLACE_SIZE).to_bytes(PLACE_SIZE, "big")
        first, stop = bisect_left(items, ID_HEAD + place_bytes), len(items)
        if items and items[-1][_PLACE] > last:
            behind = place_after(Place(int.from_bytes(last[:8], "big"), int.from_bytes(last[8:])))
            stop = bisect_left(items, ID_HEAD + pack_place(*behind))
        if number & _INNER_MASK and first < stop and items[first][_PLACE] == place_bytes:
            if place_bytes in self.odd:
                return None  # the start lies inside of what may be a group
            first += 1
        if not self.odd and self.size_bytes <= query.bytes_max:
            return self._read_plain(query, number, first, stop)
        if stop - first > DECIDED_COUNT_MAX:
            return None
        return self._read_general(query, number, first, stop)

    def _read_plain(self, query: Query, number: int, first: int, stop: int) -> Reading:
        taken_to = min(stop, first + query.limit)
        if taken_to <= first:
            return Reading(next_id=next_at_end(query, number), caught_up=True)
        seen = first, taken_to, taken_to == stop
        if self._plain is None or self._plain[0] != seen:
            items = self.items[first:taken_to]
            reading = Reading(
                next_id=items[-1][_ID], page=Page.of_items(items), caught_up=taken_to == stop
            )
            self._plain = seen, reading
        return self._plain[1]

    def _read_general(self, query: Query, number: int, first: int, stop: int) -> Reading | None:
        now_ms = query.now_ms if self.has_ttl else None
        seen = _Seen(number, stop, query.limit, query.bytes_max, query.undecided, now_ms)
        if self._general is not None and self._general[0] == seen:
            _, snapshot, reading = self._general
            if snapshot is query.snapshot:
                return reading
        try:
            reading = read_memory(query, self._rows(first, stop))
        except _NeedsStoreError:
            return None
        if reading.page or not reading.caught_up:  # else it says how far the others have come
            self._general = seen, query.snapshot, reading
        return reading

    def _rows(self, first: int, stop: int) -> Iterator[tuple[bytes, MessageRow | None]]:
        for at in range(first, stop):
            item = self.items[at]
            row = self.odd.get(item[_PLACE])
            if row is not None and row.reference is not None and row.reference.count:
                raise _NeedsStoreError
            yield item, row


class Tails:
    """All tails, within a bound on their bytes. Lives on the event loop."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._tails: dict[bytes, _Tail] = {}  # by the prefix of their keys
        self._filled: OrderedDict[bytes, _Tail] = OrderedDict()  # the one that grew last comes last
        self._since = pack_place(
            *BEFORE_ALL
        )  # a topic without a tail got no rows behind this place
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """What all of them take, about."""
        return self._size_bytes

    def begin(self, since: Place) -> None:
        """Forget everything, and hold what becomes durable behind this place."""
        self._tails.clear()
        self._filled.clear()
        self._since = pack_place(*since)
        self._size_bytes = 0

    def take(
        self, puts: Mapping[bytes, bytes | None], runs: Sequence[Run], *, served: Place
    ) -> None:
        """A batch with these rows became durable, and everything up to this place is served."""
        if not self._bytes_max or len(puts) > CHANGED_COUNT_MAX:
            self.begin(served)
            return
        changed: dict[bytes, _Tail] = {}
        for key, value in puts.items():
            if key[0] == _MESSAGE_TAG:
                self._take_out(key[_PREFIX_AT:-PLACE_SIZE], changed).change(key, value)
        for run in runs:
            tail = self._take_out(run.prefix, changed)
            if run.keys[0] > tail.newest:
                tail.add(run)
            elif len(run.keys) > CHANGED_COUNT_MAX:
                self.begin(served)
                return
            else:  # among rows of its own batch that are more than payloads
                for key, value in zip(run.keys, run.values, strict=True):
                    tail.change(key, value)
        self._size_bytes += sum(tail.size_bytes for tail in changed.values())
        self._limit(changed)

    def _take_out(self, prefix: bytes, changed: dict[bytes, _Tail]) -> _Tail:
        """The tail that a batch changes, which does not count until all is changed."""
        tail = changed.get(prefix)
        if tail is None:
            tail = self._tails.get(prefix)
            if tail is None:
                tail = self._tails[prefix] = _Tail(prefix, self._since)
            self._size_bytes -= tail.size_bytes
            changed[prefix] = tail
        return tail

    def keep(self, query: Query, reading: Reading) -> None:
        """Hold what was read from the store just now, if it lies right before what is held: after a
        start, the first reader at the end of a topic fetches it for all."""
        if reading.whole_from is None or not self._bytes_max:
            return
        number = MessageId(*reading.whole_from).to_int() >> 8 * PLACE_SIZE
        after = max(0, number - 1).to_bytes(PLACE_SIZE, "big")
        tail = self._tails.get(query.prefix) or _Tail(query.prefix, self._since)
        if after < tail.after <= pack_place(*query.served):
            self._tails[query.prefix] = tail
            self._size_bytes -= tail.size_bytes
            tail.lengthen(reading.page.items, after=after)
            self._size_bytes += tail.size_bytes
            self._limit({query.prefix: tail})

    def read(self, query: Query) -> Reading | None:
        """What a read of the store would give, or None where only the store can tell."""
        number = first_number(query)
        if number > LAST_NUMBER:
            return None
        place_bytes = (number >> 8 * PLACE_SIZE).to_bytes(PLACE_SIZE, "big")
        last = pack_place(*min(query.served, query.through.place))
        tail = self._tails.get(query.prefix)
        if place_bytes <= (self._since if tail is None else tail.after):
            return None
        if tail is None or place_bytes > last:
            return Reading(next_id=next_at_end(query, number), caught_up=True)
        if tail.fresh:
            self._size_bytes -= tail.size_bytes
            tail.settle()
            self._size_bytes += tail.size_bytes
        return tail.read(query, number, last)

    def _limit(self, changed: Mapping[bytes, _Tail]) -> None:
        most = self._bytes_max // TOPIC_SHARE
        for prefix, tail in changed.items():
            if tail.size_bytes > most:
                self._cut(tail, int(most * KEPT_SHARE))
            self._filled.pop(prefix, None)
            if tail.items or tail.fresh:
                self._filled[prefix] = tail
        while self._size_bytes > self._bytes_max:
            _, oldest = self._filled.popitem(last=False)
            self._cut(oldest, 0)

    def _cut(self, tail: _Tail, size_bytes: int) -> None:
        self._size_bytes -= tail.size_bytes
        tail.cut(size_bytes)
        self._size_bytes += tail.size_bytes


def _odd_count(run: Run) -> int:
    return 0 if run.is_plain else len(run.keys)


def _run_size(run: Run) -> int:
    count = len(run.keys)
    return count * (FRESH_OVERHEAD_BYTES + len(run.keys[0])) + sum(map(len, run.values))


def _size(item: bytes, row: MessageRow | None) -> int:
    return ROW_OVERHEAD_BYTES + len(item) + (0 if row is None else len(row.payload))
