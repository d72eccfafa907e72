"""The tail cache: the newest messages of each topic in memory (design §8, decision 0014).

The cache of a topic holds every row behind an offset, up to the high-water mark. A read that starts
behind that offset is answered from it, without a thread and without the disk, with the result of a
read of the store. It is filled from batches that became durable, and from what a reader at the end
of a topic read, if those rows are plain, since nothing changes plain rows. A later change to a row
(a rollback inverts it, retention removes it) changes the cache in the same step. Log starts, times
to live and snapshots are applied by the reader, as for rows of the store.

Readers that ask for the same in the same view get the same `Messages`, and so the same bytes.
"""

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from operator import attrgetter

from messaging.log.read_result import NO_PAYLOAD, Messages
from messaging.log.scan import Columns, MemoryRow, ReadResult, read_memory
from messaging.model.packed_rows import NewRows
from messaging.model.row_format import (
    BEFORE_ALL,
    HEAD,
    MESSAGES,
    OFFSET_SIZE,
    PLAIN,
    MessageRow,
    pack_offset,
)
from messaging.model.visibility import Query, first_offset_after, next_at_end, read_after
from tuff.protocol.ids import Offset
from tuff.protocol.transaction import Transaction

TOPIC_SHARE = 4  # the number of busy topics that share the memory; none gets more than its share
KEPT_SHARE = 0.75  # of a tail that grew too large, so that it is cut rarely
DECIDED_COUNT_MAX = 1_000  # rows that the event loop decides about one by one; more take a thread
FRESH_FLAGGED_COUNT_MAX = 2 * DECIDED_COUNT_MAX  # rows; then half of them are forgotten
# Rows that a batch changes one by one. Only a rollback by a client, or setting aside, of one large
# publish changes so many, and it would block the event loop; the next reader reads the store.
CHANGED_COUNT_MAX = 25_000
ROW_OVERHEAD_BYTES = 130  # bytes; what Python takes for a row beside its payload
FLAGGED_OVERHEAD_BYTES = 200  # bytes; what it takes in addition for a row that is not plain
FRESH_OVERHEAD_BYTES = 130  # bytes; what it takes for a row beside its key and value

_SIZE_BYTES = attrgetter("size_bytes")
_MESSAGE_TAG = MESSAGES[0]
_PREFIX_AT = len(MESSAGES)


_ReadInputs = tuple[object, ...]  # what the result of a read depended on, beside the snapshot


class _NeedsStoreError(Exception):
    """The read came to a payload group, whose payloads are in the store, or to too many rows."""


class _TopicTail:
    """Rows of one generation of a topic, in the columns of `Messages`: an id and a payload of each.
    `flagged` has the rows that are not plain, by their offset.

    The newest rows are `fresh`: as they were stored, publish by publish. The first reader makes
    columns of them, so that a topic without readers costs next to nothing. `newest` is the key of
    the last row.
    """

    __slots__ = ("_known", "after", "flagged", "fresh", "fresh_flagged_count", "has_ttl", "ids",
                 "newest", "payloads", "size_bytes")  # fmt: skip

    def __init__(self, prefix: bytes, after: bytes) -> None:
        self.after = after
        self.newest = MESSAGES + prefix + after
        self.fresh: list[NewRows] = []
        self.fresh_flagged_count = 0  # fresh rows that are not plain
        self.ids: list[bytes] = []
        self.payloads: list[bytes] = []
        self.flagged: dict[bytes, MessageRow] = {}
        self.size_bytes = 0
        self.has_ttl = False
        self._known: tuple[_ReadInputs, Transaction | None, ReadResult] | None = None

    def change(self, key: bytes, value: bytes | None) -> None:
        """A durable batch put this value under the key of a message row, or deleted it."""
        self.merge_fresh()
        self._change(key, value)
        self.newest = max(self.newest, key)

    def append(self, rows: NewRows) -> None:
        """A durable batch put these rows, which are behind all cached ones."""
        self.fresh.append(rows)
        self.size_bytes += _new_rows_size(rows)
        self.newest = rows.keys[-1]
        self.fresh_flagged_count += _flagged_count(rows)
        if self.fresh_flagged_count > FRESH_FLAGGED_COUNT_MAX:
            self._forget_unread()
        elif len(rows.keys) > CHANGED_COUNT_MAX:
            self.cut(0)  # their columns would take the event loop as long

    def _forget_unread(self) -> None:
        """Keep no more rows than a read decides about here. With more, the first reader would block
        the event loop while columns are made, and then read the store anyway."""
        kept_count = size_bytes = 0
        for rows in reversed(self.fresh):
            kept_count += _flagged_count(rows)
            if kept_count > DECIDED_COUNT_MAX:
                break
            size_bytes += _new_rows_size(rows)
        self.cut(size_bytes)

    def merge_fresh(self) -> None:
        """Make columns of the fresh rows."""
        self._known = None
        new_rows, self.fresh, self.fresh_flagged_count = self.fresh, [], 0
        for rows in new_rows:
            self.size_bytes -= _new_rows_size(rows)
            if rows.is_plain:
                payloads = [value[HEAD.size :] for value in rows.values]
                self.ids += [key[-OFFSET_SIZE:] + NO_PAYLOAD for key in rows.keys]
                self.payloads += payloads
                self.size_bytes += _size(payloads)
            else:
                for key, value in zip(rows.keys, rows.values, strict=True):
                    self._change(key, value)

    def _change(self, key: bytes, value: bytes | None) -> None:
        offset_bytes = key[-OFFSET_SIZE:]
        if offset_bytes <= self.after:
            return
        index = len(self.ids)
        if self.ids and offset_bytes <= self.ids[-1][:OFFSET_SIZE]:
            index = bisect_left(self.ids, offset_bytes)
            self._remove(index, offset_bytes)
        if value is not None:
            self._insert(index, key, value)

    def _insert(self, index: int, key: bytes, value: bytes) -> None:
        offset_bytes = key[-OFFSET_SIZE:]
        payload = value[HEAD.size :]
        if value[0] != PLAIN:
            row = self.flagged[offset_bytes] = MessageRow.from_bytes(key, value)
            payload = row.payload
            self.has_ttl = self.has_ttl or row.ttl_s is not None
            self.size_bytes += _flagged_size(row)
        self.ids.insert(index, offset_bytes + NO_PAYLOAD)
        self.payloads.insert(index, payload)
        self.size_bytes += _size([payload])

    def _remove(self, index: int, offset_bytes: bytes) -> None:
        if self.ids[index][:OFFSET_SIZE] == offset_bytes:
            self.size_bytes -= self._forget(index)
            del self.ids[index], self.payloads[index]

    def _forget(self, index: int) -> int:
        """Forget what makes this row more than its payload; the bytes of all of it."""
        row = self.flagged.pop(self.ids[index][:OFFSET_SIZE], None)
        return _size([self.payloads[index]]) + (0 if row is None else _flagged_size(row))

    def cut(self, size_bytes: int) -> None:
        """Forget the oldest rows, until what is left takes no more than this."""
        self._known = None
        count = 0
        while self.size_bytes > size_bytes and count < len(self.ids):
            self.size_bytes -= self._forget(count)
            count += 1
        if count:
            self.after = self.ids[count - 1][:OFFSET_SIZE]
            del self.ids[:count], self.payloads[:count]
        self.has_ttl = self.has_ttl and bool(self.flagged)
        if self.size_bytes > size_bytes:
            self._cut_fresh(size_bytes)

    def _cut_fresh(self, size_bytes: int) -> None:
        count = 0
        while self.size_bytes > size_bytes:
            self.size_bytes -= _new_rows_size(self.fresh[count])
            self.fresh_flagged_count -= _flagged_count(self.fresh[count])
            count += 1
        self.after = self.fresh[count - 1].keys[-1][-OFFSET_SIZE:]
        del self.fresh[:count]

    def prepend(self, messages: Messages, *, after: bytes) -> None:
        """Prepend the messages of all plain rows behind `after` that are not here yet."""
        self._known = None
        ids, payloads = messages.columns()
        count = bisect_right(ids, self.after + NO_PAYLOAD)
        self.ids[:0] = ids[:count]
        self.payloads[:0] = payloads[:count]
        self.size_bytes += _size(payloads[:count])
        self.after = after

    def read(self, query: Query, after: bytes, start: bytes, last: bytes) -> ReadResult | None:
        """The result of a read of the store behind the id `after`, whose rows have the offsets from
        `start` through `last`; None if the store must be read."""
        ids, flagged = self.ids, self.flagged
        first, stop = bisect_left(ids, start), bisect_right(ids, last + NO_PAYLOAD)
        if first < stop and ids[first] <= after and start not in flagged:
            first += 1  # a plain row has no message behind its offset
        if first >= stop or (query.tags is not None and not flagged):
            return _nothing(query, after)  # no plain row has tags
        if query.tags is None:  # all plain rows are delivered
            stop = min(stop, first + query.limit + len(flagged) + 1)
        inputs: _ReadInputs = (first, stop, query.limit, query.bytes_max)
        snapshot = None
        if flagged:
            now_ms, snapshot = query.now_ms if self.has_ttl else None, query.snapshot
            inputs += (after, query.undecided, query.tags, now_ms)
        known = self._known
        if known is not None and known[0] == inputs and known[1] is snapshot:
            return known[2]
        try:
            rows = self._rows(first, stop)
            fits = self.size_bytes <= query.bytes_max
            result = read_memory(query, rows, fits=fits)
        except _NeedsStoreError:
            return None
        # Without messages, a result that is caught up names the high-water mark of its time.
        if result.messages or not result.caught_up:
            self._known = inputs, snapshot, result
        return result

    def _rows(self, first: int, stop: int) -> Iterator[Columns | MemoryRow]:
        """The rows from one index to another."""
        ids, flagged = self.ids, self.flagged
        each = range(first, stop) if flagged else ()
        at = [index for index in each if ids[index][:OFFSET_SIZE] in flagged]
        if len(at) > DECIDED_COUNT_MAX:
            raise _NeedsStoreError
        for index in at:
            yield ids[first:index], self.payloads[first:index]
            offset_bytes = ids[index][:OFFSET_SIZE]
            row = flagged[offset_bytes]
            if row.reference is not None and row.reference.count:
                raise _NeedsStoreError
            yield MemoryRow(offset_bytes, row)
            first = index + 1
        yield ids[first:stop], self.payloads[first:stop]


class TailCache:
    """All tails, within a bound on their bytes. Lives on the event loop."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._tails: dict[bytes, _TopicTail] = {}  # by the prefix of their keys
        # The one that grew last comes last.
        self._filled: OrderedDict[bytes, _TopicTail] = OrderedDict()
        self.restart(BEFORE_ALL)

    @property
    def size_bytes(self) -> int:
        """What all of them take, about."""
        return self._size_bytes

    def restart(self, since: Offset) -> None:
        """Forget everything, and cache what becomes durable behind this offset."""
        self._tails.clear()
        self._filled.clear()
        self._since = pack_offset(*since)  # a topic without a tail got no rows behind this offset
        self._size_bytes = 0

    def skip_to(self, since: Offset) -> None:
        """Topics without a tail may have got rows up to this offset that were not seen here: this
        server did not own them."""
        self._since = max(self._since, pack_offset(*since))

    def forget(self, prefix: bytes) -> None:
        """Forget the tail of a topic, by the prefix of its keys."""
        tail = self._tails.pop(prefix, None)
        if tail is not None:
            self._size_bytes -= tail.size_bytes
            self._filled.pop(prefix, None)

    def apply_batch(
        self,
        puts: Mapping[bytes, bytes | None],
        new_rows: Sequence[NewRows],
        *,
        high_water_mark: Offset,
    ) -> None:
        """A batch with these rows became durable, and everything up to this offset is served."""
        if not self._bytes_max or len(puts) > CHANGED_COUNT_MAX:
            self.restart(high_water_mark)
            return
        changed: dict[bytes, _TopicTail] = {}
        for key, value in puts.items():
            if key[0] == _MESSAGE_TAG:
                self._begin_change(key[_PREFIX_AT:-OFFSET_SIZE], changed).change(key, value)
        for rows in new_rows:
            tail = self._begin_change(rows.prefix, changed)
            if rows.keys[0] > tail.newest:
                tail.append(rows)
            elif len(rows.keys) > CHANGED_COUNT_MAX:
                self.restart(high_water_mark)
                return
            else:  # the same batch has flagged rows between them
                for key, value in zip(rows.keys, rows.values, strict=True):
                    tail.change(key, value)
        self._size_bytes += sum(map(_SIZE_BYTES, changed.values()))
        self._limit(changed)

    def _begin_change(self, prefix: bytes, changed: dict[bytes, _TopicTail]) -> _TopicTail:
        """The tail that a batch changes; its bytes count again once the whole batch is applied."""
        tail = changed.get(prefix)
        if tail is None:
            tail = self._tails.get(prefix)
            if tail is None:
                tail = self._tails[prefix] = _TopicTail(prefix, self._since)
            self._size_bytes -= tail.size_bytes
            changed[prefix] = tail
        return tail

    def add_read(self, query: Query, result: ReadResult) -> None:
        """Cache what was just read from the store, if it ends where the cache begins: after a
        start, the first reader at the end of a topic fetches it for all."""
        after = result.cacheable_after
        if after is None or not self._bytes_max:
            return
        tail = self._tails.get(query.prefix) or _TopicTail(query.prefix, self._since)
        if after < tail.after <= pack_offset(*query.high_water_mark):
            self._tails[query.prefix] = tail
            self._size_bytes -= tail.size_bytes
            tail.prepend(result.messages, after=after)
            self._size_bytes += tail.size_bytes
            self._limit({query.prefix: tail})

    def read(self, query: Query) -> ReadResult | None:
        """The result of a read of the store; None if the store must be read."""
        after, last = read_after(query), query.last
        start = first_offset_after(after)
        tail = self._tails.get(query.prefix)
        if start <= (self._since if tail is None else tail.after):
            return None
        if tail is None or start > last:
            return _nothing(query, after)
        if tail.fresh:
            self._size_bytes -= tail.size_bytes
            tail.merge_fresh()
            self._size_bytes += tail.size_bytes
        return tail.read(query, after, start, last)

    def _limit(self, changed: Mapping[bytes, _TopicTail]) -> None:
        most = self._bytes_max // TOPIC_SHARE
        for prefix, tail in changed.items():
            if tail.size_bytes > most:
                self._cut(tail, int(most * KEPT_SHARE))
            self._filled.pop(prefix, None)
            if tail.ids or tail.fresh:
                self._filled[prefix] = tail
        while self._size_bytes > self._bytes_max:
            _, oldest = self._filled.popitem(last=False)
            self._cut(oldest, 0)

    def _cut(self, tail: _TopicTail, size_bytes: int) -> None:
        self._size_bytes -= tail.size_bytes
        tail.cut(size_bytes)
        self._size_bytes += tail.size_bytes


def _flagged_count(rows: NewRows) -> int:
    return 0 if rows.is_plain else len(rows.keys)


def _new_rows_size(rows: NewRows) -> int:
    count = len(rows.keys)
    return count * (FRESH_OVERHEAD_BYTES + len(rows.keys[0])) + sum(map(len, rows.values))


def _flagged_size(row: MessageRow) -> int:
    return FLAGGED_OVERHEAD_BYTES + len(row.attributes or b"")


def _size(payloads: Sequence[bytes]) -> int:
    return ROW_OVERHEAD_BYTES * len(payloads) + sum(map(len, payloads))


def _nothing(query: Query, after: bytes) -> ReadResult:
    return ReadResult(next_id=next_at_end(query, after), messages=Messages(), caught_up=True)
