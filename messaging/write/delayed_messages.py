"""Delayed messages: how they are stored, enter their topic when they are due, and are listed and
cancelled (protocol §3.10; decision 0043, section 5).

A delayed message is one row of a table of its own, in the order of due times. At the due time one
batch writes the message to its topic and deletes that row.

Under a transaction it is first an *undecided row* in the same table, which nothing here reads: the
commit replaces it by the delayed row (`messaging/write/transaction_rows.py`).
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Sequence, Set
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from kernel.event_loop import FutureTask
from kernel.log_events import event
from kernel.requests_and_replies import EMPTY_REPLY, Reply, Request, Route, json_reply, read_object
from messaging.engines.engine_interface import Corruption
from messaging.engines.row_store import Store
from messaging.log.delayed_due_times import AT_ONCE, NOTHING_DUE, Due
from messaging.log.state_in_memory import OpenStore, StoreState, require_log, require_topic
from messaging.log.topics import Topic, topic_of, topic_was_replaced
from messaging.model.attributes import decode_attributes
from messaging.model.packed_rows import NewRows
from messaging.model.parameters import boolean, whole_digits
from messaging.model.row_format import (
    DELAYED,
    DamagedRowError,
    MessageRow,
    delayed_key,
    message_keys,
    undecided_start,
)
from messaging.settings import MessagingSettings
from messaging.write.write_batch import WriteBatch
from messaging.write.write_queue import WRITE_OVERHEAD_BYTES, Write, WriteQueue
from tuff.protocol import operations
from tuff.protocol.errors import (
    BadRequestError,
    DamagedRecordError,
    DelayedNotFoundError,
    OwnershipMovingError,
    ShuttingDownError,
    TopicNotFoundError,
    TuffError,
)
from tuff.protocol.ids import DelayedId, Offset, TopicId
from tuff.protocol.json_bodies import attributes_to_json, payload_to_json

log = logging.getLogger(__name__)

ENTERED_COUNT_MAX = 1_000  # messages that enter a topic in one batch; some ms of the event loop
ENTERED_BYTES_MAX = 4 << 20  # bytes of their payloads, unless the first one is larger
LOOKS_COUNT_MAX = 32  # topics that are looked at at once; each look takes a thread and a batch
RETRY_MS = 1_000  # ms until the next look at a topic after one that failed
RETRY_MS_MAX = 64_000  # ms; after looks that failed by a bug, each waits twice as long as the last
LISTED_COUNT_MAX = 1_000  # messages in one page of a list; keeps a reply without payloads small
LISTED_COUNT = 100  # the same, unless the request says how many


class Waiting(NamedTuple):
    """A message that has not entered its topic yet."""

    id: DelayedId
    row: MessageRow


@dataclass(slots=True)
class _Found:
    """Rows that one look has read: the ids to cancel that are there, and the messages that are due,
    in their order. `next_ms` is when the next one is due, None if no other waits."""

    cancelled: set[DelayedId]
    due: list[Waiting] = field(default_factory=list)
    next_ms: int | None = None

    @property
    def size_bytes(self) -> int:
        return sum(len(each.row.payload) for each in self.due)


class _Cancel(NamedTuple):
    """A call that cancels a message, and waits."""

    id: DelayedId
    done: "asyncio.Future[None]"


class DelayedMessages:
    """Lets delayed messages enter their topics; lists and cancels them. Lives on the event loop.

    All changes of the delayed rows of one topic, but new rows, are made by one *look* at a time, so
    that no row is both cancelled and entered, or entered twice.
    """

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        committer: WriteQueue,
        settings: MessagingSettings,
        *,
        observe: Callable[[str, float], None],
    ) -> None:
        self._store = store
        self._state = state
        self._committer = committer
        self._settings = settings
        self._observe = observe
        self._looking: set[TopicId] = set()
        self._again: set[TopicId] = set()  # to look at once more after the look under way
        self._failed_counts: dict[TopicId, int] = {}  # looks at a topic that failed in a row
        # When the first message was due that could not enter yet, in ms since the epoch.
        self._late_since_ms: dict[TopicId, int] = {}
        self._cancels: defaultdict[TopicId, list[_Cancel]] = defaultdict(list)
        self._is_closing = False
        self.entered_count = 0  # messages, since the start

    async def run(self) -> None:
        """Look at each topic when its next message is due, until `close`."""
        times = self._state.due_times
        loop = asyncio.get_running_loop()
        while not self._is_closing:
            times.changed.clear()
            self.look()
            next_ms = times.next_ms()
            alarm = None
            if next_ms is not None and len(self._looking) < LOOKS_COUNT_MAX:
                left_s = max(0, next_ms - self._state.now_ms()) / 1000
                alarm = loop.call_later(left_s, times.changed.set)
            await times.changed.wait()
            if alarm is not None:
                alarm.cancel()

    def look(self) -> None:
        """Begin the looks whose time has come."""
        times, now_ms = self._state.due_times, self._state.now_ms()
        while len(self._looking) < LOOKS_COUNT_MAX and not self._is_closing:
            topic = times.take(now_ms=now_ms)
            if topic is None:
                return
            if topic in self._looking:
                self._again.add(topic)
                continue
            self._looking.add(topic)
            FutureTask(self._look_at(topic), refusals=TuffError).go_on()

    def next_due_ms(self) -> int | None:
        """When the next message is due, in ms since the epoch; None if none waits. While a message
        that is due can't enter its topic, it is in the past."""
        next_ms = self._state.due_times.next_ms()
        known = [] if next_ms is None or next_ms == AT_ONCE else [next_ms]
        return min([*known, *self._late_since_ms.values()], default=None)

    def close(self) -> None:
        """Begin no more looks, and refuse the calls that wait for one. Looks under way end with
        their batch."""
        self._is_closing = True
        self._state.due_times.changed.set()
        cancels, self._cancels = self._cancels, defaultdict(list)
        for cancel in [each for waiting in cancels.values() for each in waiting]:
            _fail(cancel, _stopping())

    async def listed(
        self, topic: TopicId, *, after: DelayedId | None = None, count_max: int
    ) -> list[Waiting]:
        """Messages that wait, in the order in which they become due, from behind this id on.

        Raises: TopicNotFoundError, DamagedRecordError, StorageUnavailableError.
        """
        found, record = require_log(self._store, self._state, topic)
        list_rows = partial(
            _listed,
            prefix=found.prefix(record.generation),
            after=after,
            count_max=count_max,
            bytes_max=self._settings.poll_bytes_max,
        )
        return await self._store.read(list_rows)

    async def cancel(self, topic: TopicId, delayed_id: DelayedId) -> None:
        """Delete a message that waits, durably.

        Raises: TopicNotFoundError, DelayedNotFoundError, UnavailableError (its kinds).
        """
        self._committer.require_ready()
        log_id = require_log(self._store, self._state, topic)[0].id
        if self._is_closing:
            raise _stopping()
        cancel = _Cancel(delayed_id, asyncio.get_running_loop().create_future())
        self._cancels[log_id].append(cancel)
        self._state.due_times.note(log_id, AT_ONCE)
        await cancel.done

    async def _look_at(self, topic: TopicId) -> None:
        cancels = self._cancels.pop(topic, [])
        try:
            await self._enter_due(topic, cancels)
            self._failed_counts.pop(topic, None)
        except Exception as error:  # noqa: BLE001 - messages must not wait for ever for a bug
            self._look_later(topic, error)
            for each in cancels:
                _fail(each, error)
        finally:
            self._looking.discard(topic)
            if topic in self._again:
                self._again.discard(topic)
                self._state.due_times.note(topic, AT_ONCE)
            self._state.due_times.changed.set()

    def _look_later(self, topic: TopicId, error: Exception) -> None:
        if isinstance(error, TopicNotFoundError) or self._state.topics.maybe_find(topic) is None:
            self._failed_counts.pop(topic, None)
            self._late_since_ms.pop(topic, None)
            return  # it was deleted, or another server owns it
        failed_count = self._failed_counts.get(topic, 0)
        is_bug = not isinstance(error, TuffError)
        if not isinstance(error, OwnershipMovingError):
            self._failed_counts[topic] = failed_count + 1
            if failed_count == 0:
                sentence = "delayed messages of %s wait, and are tried again: %s"
                level = logging.ERROR if is_bug else logging.WARNING
                extra = event("delayed_wait", topic=topic)
                bug = error if is_bug else None
                log.log(level, sentence, topic, error, exc_info=bug, extra=extra)
        retry_ms = min(RETRY_MS << failed_count, RETRY_MS_MAX) if is_bug else RETRY_MS
        self._state.due_times.note(topic, self._state.now_ms() + retry_ms)

    async def _enter_due(self, topic_id: TopicId, cancels: Sequence[_Cancel]) -> None:
        topic, record = require_topic(self._store, self._state, topic_id)
        now_ms = self._state.now_ms()
        # A clock that is wrongly far ahead would let all messages enter, for ever. And on a disk
        # that is nearly full, the messages would take space before those that wait leave theirs.
        has_space = self._committer.lack_of_space is None
        due = self._state.due_messages() if has_space else NOTHING_DUE
        may_enter = due.by_ms >= now_ms
        find = partial(
            _find,
            prefix=topic.prefix(record.generation),
            cancelled=[each.id for each in cancels],
            due=due,
            now_ms=now_ms,
            named_ms=self._state.named_due_ms,
        )
        found = await self._store.read(find)
        first_ms = found.due[0].id.due_ms if found.due else found.next_ms
        if first_ms is not None and first_ms <= now_ms:
            self._late_since_ms[topic_id] = first_ms
        if found.cancelled or found.due:
            put = partial(self._put, topic, record.generation, found)
            await self._committer.submit(
                Write(put, size_bytes=WRITE_OVERHEAD_BYTES + found.size_bytes, internal=True)
            )
            self._count_entered([each.id.due_ms for each in found.due], due, now_ms=now_ms)
        _answer(cancels, found.cancelled)
        if may_enter or found.next_ms is None:
            self._late_since_ms.pop(topic_id, None)
        if found.next_ms is not None:
            earliest_ms = AT_ONCE if may_enter else now_ms + RETRY_MS
            self._state.due_times.note(topic_id, max(found.next_ms, earliest_ms))

    def _put(self, topic: Topic, generation: int, found: _Found, batch: WriteBatch) -> None:
        if topic.require_decided().generation != generation:
            raise topic_was_replaced(topic.id)
        prefix = topic.prefix(generation)
        gone = [*found.cancelled, *(each.id for each in found.due)]
        batch.delayed += [(delayed_key(prefix, each), None) for each in gone]
        if found.due:
            rows = [each.row for each in found.due]
            first, _ = batch.next_offsets(len(rows))
            batch.put_rows(_message_rows(prefix, first, rows))
            batch.published(topic, count=len(rows), size_bytes=found.size_bytes)

    def _count_entered(self, due_ms: Sequence[int], due: Due, *, now_ms: int) -> None:
        self.entered_count += len(due_ms)
        for each in due_ms:
            by_ms = min(due.by_ms, now_ms) if each <= due.by_ms else now_ms
            self._observe("delayed_lateness_seconds", (by_ms - each) / 1000)


def _message_rows(prefix: bytes, first: Offset, rows: Sequence[MessageRow]) -> NewRows:
    keys = message_keys(prefix, first, len(rows))
    values = [row.to_bytes(key) for key, row in zip(keys, rows, strict=True)]
    is_plain = all(row.ttl_s is None and row.attributes is None for row in rows)
    return NewRows(prefix, keys, values, is_plain)


def _find(
    store: Store,
    *,
    prefix: bytes,
    cancelled: Sequence[DelayedId],
    due: Due,
    now_ms: int,
    named_ms: Collection[int],
) -> _Found:
    """The rows to cancel that are there, and those that may enter. Blocks."""
    found = _Found({each for each in cancelled if store.get(delayed_key(prefix, each)) is not None})
    size_bytes = 0
    held_ms = None  # the due time of the first row that may not enter
    for delayed_id, key, value in _rows_until(store, prefix, due, found.cancelled):
        if delayed_id in found.cancelled:
            continue
        found.next_ms = delayed_id.due_ms if held_ms is None else held_ms
        is_full = len(found.due) >= ENTERED_COUNT_MAX or size_bytes >= ENTERED_BYTES_MAX
        if delayed_id.due_ms > now_ms or is_full:
            return found
        if not due.includes(delayed_id, named_ms):
            held_ms = found.next_ms
            continue
        try:
            found.due.append(Waiting(delayed_id, MessageRow.from_bytes(key, value)))
        except DamagedRowError as error:
            if found.due or found.cancelled:
                return found  # the next look reports it
            raise _damaged(delayed_id, error) from None
        size_bytes += len(value)
    found.next_ms = held_ms
    return found


def _rows_until(
    store: Store, prefix: bytes, due: Due, cancelled: Set[DelayedId]
) -> Iterator[tuple[DelayedId, bytes, bytes]]:
    """The delayed rows of a topic up to the first that stays and is not due, and then those that
    may have been accepted by this clock. Raises: StoreError."""
    for row in _rows(store, prefix, after=None):
        yield row
        if row[0].due_ms > due.by_ms and row[0] not in cancelled:
            if due.accepted_from_ms is not None:
                first = DelayedId(due.accepted_from_ms, Offset(0, 0))
                yield from _rows(store, prefix, after=max(row[0], first))
            return


def _listed(
    store: Store, *, prefix: bytes, after: DelayedId | None, count_max: int, bytes_max: int
) -> list[Waiting]:
    found: list[Waiting] = []
    size_bytes = 0
    for delayed_id, key, value in _rows(store, prefix, after=after):
        size_bytes += len(value)
        if found and size_bytes > bytes_max:
            break
        try:
            found.append(Waiting(delayed_id, MessageRow.from_bytes(key, value)))
        except DamagedRowError as error:
            if not found:
                raise _damaged(delayed_id, error) from None
            break
        if len(found) >= count_max:
            break
    return found


def _rows(
    store: Store, prefix: bytes, *, after: DelayedId | None
) -> Iterator[tuple[DelayedId, bytes, bytes]]:
    """The delayed rows of a topic from behind this id on, less the undecided ones, with their ids.
    Raises: StoreError."""
    start = DELAYED + prefix if after is None else delayed_key(prefix, after) + b"\x00"
    with closing(
        store.records(start, undecided_start(prefix), corruption=Corruption.RAISE)
    ) as rows:
        for key, value in rows:
            yield DelayedId.from_bytes(key), key, value


def _damaged(delayed_id: DelayedId, error: DamagedRowError) -> DamagedRecordError:
    return DamagedRecordError(
        f"the delayed message {delayed_id.hex()} {error.finding}; {error.advice}",
        members={"id": delayed_id.hex(), "next": delayed_id.hex()},
    )


def _answer(cancels: Sequence[_Cancel], cancelled: Set[DelayedId]) -> None:
    left = set(cancelled)
    for each in cancels:
        if each.id not in left:
            _fail(each, _not_found(each.id))
        elif not each.done.done():
            each.done.set_result(None)
        left.discard(each.id)  # a second call that cancels it comes too late


def _fail(cancel: _Cancel, error: Exception) -> None:
    if not cancel.done.done():
        cancel.done.set_exception(error)


def _stopping() -> ShuttingDownError:
    return ShuttingDownError("the server is stopping; nothing was cancelled")


def _not_found(delayed_id: DelayedId) -> DelayedNotFoundError:
    return DelayedNotFoundError(
        f"no delayed message {delayed_id.hex()} waits: it was cancelled, or has entered the topic, "
        "or never existed"
    )


def routes(delayed: DelayedMessages) -> list[Route]:
    """The HTTP routes of delayed messages; `publish` accepts them."""
    handlers = _DelayedRoutes(delayed)
    return [
        Route(operations.LIST_DELAYED, handlers.list),
        Route(operations.CANCEL_DELAYED, handlers.cancel),
    ]


class _DelayedRoutes:
    def __init__(self, delayed: DelayedMessages) -> None:
        self._delayed = delayed

    async def list(self, request: Request) -> Reply:
        topic = topic_of(request, parameters={"limit", "after", "payloads"})
        query = dict(request.query)
        limit = whole_digits(query.get("limit", str(LISTED_COUNT)), what="limit")
        if limit <= 0:
            raise BadRequestError(f"limit is greater than 0, not {limit}")
        after = query.get("after")
        found = await self._delayed.listed(
            topic,
            after=None if after is None else DelayedId.from_hex(after),
            count_max=min(limit, LISTED_COUNT_MAX),
        )
        with_payloads = boolean(query.get("payloads", "false"), what="payloads")
        return json_reply(
            {"delayed": [_waiting_body(each, with_payloads=with_payloads) for each in found]}
        )

    async def cancel(self, request: Request) -> Reply:
        topic, delayed_id = topic_of(request), DelayedId.from_hex(request.parameters["id"])
        read_object(request.body, request.content_type, members=(), what="the cancelling")
        await self._delayed.cancel(topic, delayed_id)
        return EMPTY_REPLY


def _waiting_body(waiting: Waiting, *, with_payloads: bool) -> dict[str, object]:
    row = waiting.row
    body: dict[str, object] = {
        "id": waiting.id.hex(),
        "due": waiting.id.due_ms,
        "size": len(row.payload),
    }
    if row.ttl_s is not None:
        body["ttl"] = row.ttl_s
    if row.attributes is not None:
        body |= attributes_to_json(decode_attributes(row.attributes))
    if with_payloads:
        body["payload"] = payload_to_json(row.payload)
    return body
