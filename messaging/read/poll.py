"""Polls, long polls and browse, and their HTTP routes (protocol §3.4, §3.5).

A read takes its transaction snapshot first and its view of the rows second. A long poll takes both
again each time it wakes. It registers for wake-ups before it reads, so that no wake-up is lost.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from kernel import request_bodies
from kernel.log_events import event
from kernel.requests_and_replies import (
    BROWSE_TYPES,
    POLL_TYPES,
    Reply,
    Request,
    Route,
    body_encoding,
    reply_encoding,
)
from messaging.engines.row_store import Store
from messaging.log.read_result import NO_PAYLOAD, Messages, arrow_encoder
from messaging.log.scan import ReadResult, read
from messaging.log.state_in_memory import OpenStore, StoreState, require_log
from messaging.log.topics import Topic, TopicRecord, topic_of, topic_was_replaced
from messaging.model import avro_bodies
from messaging.model.parameters import (
    boolean,
    choice,
    start_from,
    start_time,
    tags_in,
    transaction_named,
    wait_in,
    whole_digits,
)
from messaging.model.row_format import OFFSET_SIZE, offset_after, offset_in, pack_offset
from messaging.model.visibility import (
    BEGINNING,
    PAST_ALL,
    BlockingRow,
    Query,
    Undecided,
    first_offset_after,
    id_before,
    live_after,
    read_after,
    start_after,
)
from messaging.read.read_turns import ReadTurns
from messaging.transactions_interface import TransactionView
from messaging.write.transaction_rows import TransactionRows
from tuff.protocol import json_bodies, operations
from tuff.protocol.attributes import TagFilter
from tuff.protocol.errors import (
    BadRequestError,
    DamagedRecordError,
    TransactionCommittedError,
    TransactionNotInProgressError,
    TransactionsUnavailableError,
)
from tuff.protocol.ids import MessageId, Offset, TopicId, past_group
from tuff.protocol.media_types import Encoding, MediaType
from tuff.protocol.pointer_list import POINTER_MAX, PointerList
from tuff.protocol.requests import ConsumeRequest, Isolation
from tuff.protocol.transaction import Transaction
from tuff.protocol.values import value

if TYPE_CHECKING:
    from messaging.read.archive import ArchiveRead, ArchiveReader

# Seconds that a poll without `wait` looks for a message with the right tags before it answers that
# there may be more. Each scan of the store ends after `SCAN_ROWS_MAX` rows.
FILTERED_READ_S = 1.0
# Messages of a reply that the event loop encodes; in JSON that takes it some ms (decision 0064).
ENCODED_COUNT_MAX = 1_000
DAMAGES_LOGGED_MAX = 1_000  # damaged records; a store with more has one cause
log = logging.getLogger(__name__)

_READ_PARAMETERS = frozenset({"isolation", "tx", "undecided", "wait", "through", "tags"})
_BROWSE_PARAMETERS = _READ_PARAMETERS | {"from", "inclusive", "limit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """What a read delivers. `next_id`, as an exclusive start, continues with exactly what this
    reader has not received; `blocked_by` is the id of the transaction that blocks it, while
    that is in progress, and `prepared` the database that decides it, and since when in ms.
    `archived`: they come from the archive of the topic."""

    messages: Messages
    generation: int
    next_id: bytes
    caught_up: bool
    blocked_by: int | None
    expired: bool
    archived: bool = False
    prepared: tuple[str, int] | None = None

    @property
    def items(self) -> list[tuple[bytes, bytes]]:
        """Pairs of a 20-byte id and a payload."""
        return self.messages.items()


class Recipient(NamedTuple):
    """The client that gets the reply of a poll, and the encoding of the reply, which is made by the
    thread that reads. The reads of one client take turns."""

    client: object
    encoding: Encoding


@value(kw_only=True)
class Poll:
    """One read. `start`: a message id, a publish time in ms, or None for the oldest live message;
    `limit` None: as many as a reply holds; `transaction`: the snapshot to read in; `tx`: the
    transaction in progress whose snapshot to read in; `through`: the last id to deliver; `tags`:
    which messages to deliver, None for all; `live_at_ms`: deliver only what has not expired at this
    time, in ms, which is later than now; `recipient`: None if the server itself reads.
    """

    start: MessageId | int | None = None
    inclusive: bool = True
    limit: int | None = None
    transaction: Transaction | None = None
    tx: int | None = None
    isolation: Isolation = Isolation.ALL
    undecided: Undecided = Undecided.HOLD
    wait_s: float = 0.0
    through: MessageId | None = None
    tags: TagFilter | None = None
    live_at_ms: int | None = None
    recipient: Recipient | None = None

    @property
    def is_fixed(self) -> bool:
        """Whether the poll reads in one snapshot however often it looks."""
        return self.transaction is not None or self.tx is not None


class Polls:
    """Serves reads, and keeps those that wait. Lives on the event loop; threads read the rows."""

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        transaction_rows: TransactionRows,
        *,
        archive: "ArchiveReader | None" = None,
        observe: Callable[[str, float], None],
    ) -> None:
        """`archive`: where reads continue that start before the log; None: nowhere."""
        self._store = store
        self._state = state
        self._transaction_rows = transaction_rows
        self._archive = archive
        self._observe = observe
        self._turns = ReadTurns()
        self.is_stopping = False
        self.waiting_count = 0  # long polls, and requests for leases, that wait now
        self._damages: set[tuple[TopicId, str]] = set()
        self.damaged_reads = 0  # polls that were refused for a damaged record, since the start
        self.last_damage: str | None = None  # where the last one was

    async def poll(self, topic: TopicId, poll: Poll) -> PollResult:
        """Read, and wait up to `wait_s` if there is nothing yet."""
        waiter = asyncio.Event()
        waiters: dict[asyncio.Event, None] = {}
        try:
            found, record = require_log(self._store, self._state, topic)
            waiters = found.waiters
            waiters[waiter] = None
            if poll.tx is None:
                return await self._until_found(found, topic, record.generation, poll, waiter)
            with self._transaction_rows.reading_in(poll.tx, waiter):
                return await self._until_found(found, topic, record.generation, poll, waiter)
        except DamagedRecordError as error:
            self.damaged_reads += 1
            self.last_damage = f"in {topic} at {error.members['id']}"
            self._log_damage(topic, error)
            raise
        finally:
            waiters.pop(waiter, None)

    async def reply(self, topic: TopicId, poll: Poll) -> Reply:
        """The reply of a poll to its recipient. That of many messages is made in a thread."""
        assert poll.recipient is not None
        client, encoding = poll.recipient
        result = await self.poll(topic, poll)
        if len(result.messages) > ENCODED_COUNT_MAX and not result.messages.has_encoded(encoding):
            encode = partial(result.messages.encoded, encoding, generation=result.generation)
            await self._turns.take(client, partial(self._store.in_thread_read, encode))
        return poll_reply(result, encoding)

    def latest(self, topic: TopicId) -> MessageId:
        """An id behind everything published so far: as an exclusive start, it leads to what is
        published from now on."""
        require_log(self._store, self._state, topic)
        return past_group(self._state.high_water_mark)

    def stop_waiting(self) -> None:
        """End every long poll, now and from now on, with an empty reply."""
        self.is_stopping = True
        for topic in self._state.topics:
            topic.wake()

    async def load_arrow(self) -> None:
        """Load the encoder of Arrow replies. Raises: NotAcceptableError."""
        if not arrow_encoder.cache_info().currsize:
            await self._store.read(lambda _store: arrow_encoder())

    def _log_damage(self, topic: TopicId, error: DamagedRecordError) -> None:
        """One line for each damaged record that stops a reader, however often it reads there."""
        place = topic, str(error.members["id"])
        if place not in self._damages and len(self._damages) < DAMAGES_LOGGED_MAX:
            self._damages.add(place)
            extra = event("damage_read", topic=topic, id=place[1])
            log.warning("a read of %s ends at a damaged record: %s", topic, error, extra=extra)

    async def _until_found(
        self, topic: Topic, named: TopicId, generation: int, poll: Poll, waiter: asyncio.Event
    ) -> PollResult:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + poll.wait_s
        asked = after = start_after(poll.start, inclusive=poll.inclusive)
        live_from, is_expired, was_caught_up, is_unfinished = Offset(0, 0), False, False, False
        while True:
            waiter.clear()
            self._store.require_up()
            # The snapshot first and the rows second: a row that became durable in between is newer
            # than the snapshot and blocks the reader, which otherwise would pass over it.
            fixed = poll.transaction
            snapshot = await (self._checked(fixed) if fixed else snapshot_for(self._state, poll))
            record = require_generation(topic, generation)
            record.require_one_log(named)  # it may have got a second partition meanwhile
            query = query_of(self._state, topic, record, poll, after, snapshot)
            if query.live_from < live_from:
                # Messages that had expired are live again, by a longer time to live or a clock that
                # was set back.
                query, after = replace(query, after=asked), asked
            live_from = query.live_from
            archived = None
            if self._archive is not None and _starts_in_archive(poll, query):
                archived = await self._archive.read(topic.id, generation, query)
            # A poll that was caught up is woken by each new row: it misses nothing while it waits.
            is_expired |= not was_caught_up and self._is_expired(poll, query, archived)
            if archived is not None and (archived.messages or archived.caught_up):
                return _archived_result(generation, query, archived, is_expired=is_expired)
            # The store may be ahead of memory by a batch: a read that began there continues there.
            result = await self._read(
                topic, generation, query, poll, waiter, may_be_cached=not is_unfinished
            )
            after = max(after, result.next_id)
            was_caught_up = result.caught_up
            is_unfinished = not result.finished and not result.messages
            if is_unfinished and not self._is_given_up(poll, deadline_s=deadline_s):
                continue
            if (
                result.messages
                or is_unfinished
                or self._is_waiting_useless(poll, query, result)
                or loop.time() >= deadline_s
            ):
                return self._result(generation, result, is_expired=is_expired)
            await self._wait(topic, result.blocking_row, waiter, deadline_s)

    async def _checked(self, snapshot: Transaction) -> Transaction:
        """The snapshot in a request, without the rows of its own transaction if that was rolled
        back meanwhile."""
        own = {snapshot.transaction_id, snapshot.write_pointer, *snapshot.checkpoint_write_pointers}
        if not any(map(self._state.index.has_ranges, own)):
            return snapshot
        try:
            await self._state.transactions.snapshot_of(snapshot.transaction_id)
        except TransactionCommittedError:
            return snapshot
        except TransactionNotInProgressError:
            # Its rows are rolled back in steps: this reader sees none of them from now on, so that
            # it never sees a part.
            return replace(snapshot, invalids=PointerList((*snapshot.invalids, *own)))
        except TransactionsUnavailableError:
            # A snapshot of the request needs no transactions: none ends while they are down.
            if self._state.index.may_lack_rows(own):
                raise
        return snapshot

    async def _read(
        self,
        topic: Topic,
        generation: int,
        query: Query,
        poll: Poll,
        waiter: asyncio.Event,
        *,
        may_be_cached: bool,
    ) -> ReadResult:
        result = self._state.tail_cache.read(query) if may_be_cached else None
        if result is None:
            result = await self._read_store(topic, generation, query, poll.recipient)
            if poll.transaction is not None and query.snapshot is poll.transaction:
                again = await self._checked(poll.transaction)
                if again is not query.snapshot:
                    return _nothing_read(query)
        if waiter.is_set():
            await require_in_progress(self._state.transactions, poll)
        is_blocked = result.blocking_row is not None and not result.messages
        if is_blocked and await may_read_again(self._state, query.snapshot):
            return _nothing_read(query)
        return result

    async def _read_store(
        self, topic: Topic, generation: int, query: Query, recipient: Recipient | None
    ) -> ReadResult:
        client, encoding = recipient or (None, None)

        def read_and_encode(store: Store) -> ReadResult:
            result = read(store, query)
            if encoding is not None and result.messages:
                result.messages.encoded(encoding, generation=generation)
            return result

        result = await self._turns.take(client, partial(self._store.read, read_and_encode))
        if self._archive is not None and _is_overtaken(topic, query):
            # Retention may have removed messages of the range while it was read. The archive has
            # them now, or the reader is told that it missed them: it begins again.
            return _nothing_read(query)
        self._state.tail_cache.add_read(query, result)
        return result

    def _is_given_up(self, poll: Poll, *, deadline_s: float) -> bool:
        """Whether a poll that has only passed over messages is answered before it has seen all."""
        until_s = deadline_s + max(0.0, FILTERED_READ_S - poll.wait_s)
        is_over = self.is_stopping or asyncio.get_running_loop().time() >= until_s
        return poll.tags is not None and is_over

    def _is_waiting_useless(self, poll: Poll, query: Query, result: ReadResult) -> bool:
        """Whether the poll is answered at once, since no message can come while it waits."""
        if self.is_stopping or result.next_id >= query.through:
            return True
        if result.caught_up and query.through[:OFFSET_SIZE] <= pack_offset(*query.high_water_mark):
            return True
        if not poll.is_fixed or result.blocking_pointer is None:
            return False
        # A transaction that ended and is still in the index: once its rows are rolled back, the
        # reader continues.
        return not (
            self._state.transactions.open_transaction_id(result.blocking_pointer)
            or self._state.index.ranges(result.blocking_pointer)
        )

    async def wait_until(self, waiter: asyncio.Event, alarm_s: float) -> None:
        """Wait as a long poll, until this time of the event loop at most."""
        self.waiting_count += 1
        alarm = asyncio.get_running_loop().call_at(alarm_s, waiter.set)
        try:
            await waiter.wait()
        finally:
            alarm.cancel()
            self.waiting_count -= 1

    async def _wait(
        self, topic: Topic, blocking: BlockingRow | None, waiter: asyncio.Event, deadline_s: float
    ) -> None:
        if blocking is None:
            await self.wait_until(waiter, deadline_s)
            return
        # Nothing wakes the reader when the row expires, since no transaction ends.
        rule = topic.rule_of(topic.require_durable())
        expires_ms = rule.expires_ms(blocking.offset, own_ttl_s=blocking.ttl_s)
        left_s = (expires_ms - self._state.now_ms()) / 1000
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        if left_s > 0:  # else it expired while it was read
            await self.wait_until(waiter, min(deadline_s, began_s + left_s))
            self._observe("blocked_reader_seconds", loop.time() - began_s)

    def _is_expired(self, poll: Poll, query: Query, archived: "ArchiveRead | None") -> bool:
        """Whether messages may have expired that this reader has not received, neither from the log
        nor from the archive."""
        first = first_offset_after(query.after)
        if first >= pack_offset(*query.live_from) or (
            archived is not None and archived.is_complete
        ):
            return False  # the usual case
        start = poll.start
        if not (start.publish_timestamp_ms if isinstance(start, MessageId) else start):
            return False  # the beginning
        if not isinstance(start, MessageId) or poll.inclusive:
            return True
        # A reply contained this id if it is right before a row, or that of a message which is a row
        # by itself. Such a reader missed nothing if no row was written before `live_from`.
        unread = offset_in(first)
        if query.after.startswith(first):
            if query.after != first + NO_PAYLOAD:
                return True
            unread = offset_after(unread)
        return self._state.idle_intervals.may_contain_rows(unread, stop=query.live_from)

    def _result(self, generation: int, result: ReadResult, *, is_expired: bool) -> PollResult:
        blocked_by = prepared = None
        if result.blocking_row is not None:
            blocked_by, prepared = blocker(self._state.transactions, result.blocking_row.pointer)
        return PollResult(
            messages=result.messages,
            generation=generation,
            next_id=result.next_id,
            caught_up=result.caught_up,
            blocked_by=blocked_by,
            expired=is_expired,
            prepared=prepared,
        )


def _nothing_read(query: Query) -> ReadResult:
    """The result of a read that has to begin again."""
    return ReadResult(next_id=query.after, messages=Messages(), finished=False)


def _starts_in_archive(poll: Poll, query: Query) -> bool:
    """Whether a read asks for messages before the log. One without a start begins with the log. One
    in a fixed snapshot can't continue in the archive, which does not have the transaction of a
    message. One with tags does not: older files lack them. What has expired by the time that a read
    names is not looked up there, either."""
    if poll.live_at_ms is not None or poll.tags is not None or poll.is_fixed:
        return False
    return poll.start is not None and query.after < live_after(query)


def _is_overtaken(topic: Topic, query: Query) -> bool:
    """Whether the log begins behind the first message that the query could deliver by now."""
    record = topic.durable
    return record is not None and id_before(record.log_start.to_bytes()) > read_after(query)


def _archived_result(
    generation: int, query: Query, archived: "ArchiveRead", *, is_expired: bool
) -> PollResult:
    messages = archived.messages
    return PollResult(
        messages=messages,
        generation=generation,
        next_id=messages.last_id if messages else query.through,
        caught_up=archived.caught_up,
        blocked_by=None,
        expired=is_expired,
        archived=True,
    )


def query_of(
    state: StoreState,
    topic: Topic,
    record: TopicRecord,
    poll: Poll,
    after: bytes,
    snapshot: Transaction | None,
) -> Query:
    """The query of a poll behind this id, as of now, in its snapshot."""
    limit_max = state.settings.poll_limit_max
    now_ms = max(state.expiry_ms(), poll.live_at_ms or 0)
    return Query(
        prefix=topic.prefix(record.generation),
        after=after,
        through=PAST_ALL if poll.through is None else poll.through.to_bytes(),
        high_water_mark=state.high_water_mark,
        log_start=record.log_start,
        live_from=topic.rule_of(record).live_from(now_ms=now_ms),
        now_ms=now_ms,
        limit=min(poll.limit or limit_max, limit_max),
        bytes_max=state.settings.poll_bytes_max,
        snapshot=snapshot,
        undecided=poll.undecided,
        tags=poll.tags,
    )


def query_of_all(state: StoreState, topic: Topic, record: TopicRecord) -> Query:
    """The query of a reader of all live messages, without a snapshot."""
    return query_of(state, topic, record, Poll(), BEGINNING, None)


def require_generation(topic: Topic, generation: int) -> TopicRecord:
    """The topic's record. Raises: TopicNotFoundError: the topic was deleted meanwhile."""
    record = topic.require_durable()
    if record.generation != generation:
        raise topic_was_replaced(topic.id)
    return record


async def snapshot_for(state: StoreState, poll: Poll) -> Transaction | None:
    """The snapshot of a poll; None if it reads everything. Raises: what
    `TransactionView.snapshot_of` raises."""
    if poll.transaction is not None:
        return poll.transaction
    if poll.tx is not None:
        return await state.transactions.snapshot_of(poll.tx)
    return await fresh_snapshot(state) if poll.isolation is Isolation.COMMITTED else None


async def fresh_snapshot(state: StoreState) -> Transaction:
    """A snapshot taken after this call. While transactions are down, it is made from the pointer
    index: all rows that have left it are decided, and each of the others blocks the reader, for
    which `may_read_again` has the reason."""
    try:
        return await state.transactions.snapshot()
    except TransactionsUnavailableError:
        return Transaction(
            transaction_id=POINTER_MAX,
            read_pointer=POINTER_MAX,
            write_pointer=POINTER_MAX,
            in_progress=PointerList(state.index.pointers()),
        )


def blocker(
    transactions: TransactionView, pointer: int
) -> tuple[int | None, tuple[str, int] | None]:
    """The id of the transaction with this pointer, while that is in progress, and the database that
    decides it, and since when in ms."""
    blocked_by = transactions.open_transaction_id(pointer)
    return blocked_by, None if blocked_by is None else transactions.preparation(blocked_by)


async def may_read_again(state: StoreState, snapshot: Transaction | None) -> bool:
    """Whether a reader that this snapshot blocks may go on in a newer one at once: transactions
    were down when it was taken, and are up. Raises: TransactionsUnavailableError: they are down,
    and it is not known how the transaction ended that blocks the reader."""
    if snapshot is None or snapshot.transaction_id != POINTER_MAX:
        return False
    await state.transactions.snapshot()
    return True


async def require_in_progress(transactions: TransactionView, poll: Poll) -> None:
    """Refuse what was read in a transaction that ended meanwhile: its rows may have been rolled
    back before they were read, and the reader would miss its own messages.

    Raises: as `TransactionView.snapshot_of`.
    """
    if poll.tx is not None:
        await transactions.snapshot_of(poll.tx)


def routes(polls: Polls) -> list[Route]:
    """The HTTP routes of poll and browse."""

    async def poll(request: Request) -> Reply:
        topic = topic_of(request, parameters=_READ_PARAMETERS)
        body = request.body
        asked_in = body_encoding(request.content_type, body).media_type
        if asked_in is MediaType.AVRO:
            consume = avro_bodies.decode_consume_request(body)
        else:
            consume = request_bodies.consume_request_from_json(request.value())
        if request.members is not None:
            asked_in = MediaType.AVRO  # a session has no JSON
        encoding = reply_encoding(request.accept, asked_in=asked_in, offered=POLL_TYPES)
        if encoding.media_type is MediaType.ARROW:
            await polls.load_arrow()
        return await polls.reply(topic, _poll_of(request, consume, encoding))

    async def browse(request: Request) -> Reply:
        topic = topic_of(request, parameters=_BROWSE_PARAMETERS)
        query = dict(request.query)
        limit, start = query.get("limit"), query.get("from", "earliest")
        consume = ConsumeRequest(
            inclusive=boolean(query.get("inclusive", "true"), what="inclusive"),
            limit=None if limit is None else whole_digits(limit, what="limit"),
        )
        encoding = reply_encoding(request.accept, asked_in=MediaType.JSON, offered=BROWSE_TYPES)
        asked = _poll_of(request, consume, encoding)
        if start == "latest":
            # Taken before the read, so that messages published meanwhile are delivered.
            asked = replace(asked, start=polls.latest(topic), inclusive=False)
        else:
            asked = replace(asked, start=start_from(start))
        if encoding.media_type is MediaType.ARROW:
            await polls.load_arrow()
        return await polls.reply(topic, asked)

    return [Route(operations.POLL, poll), Route(operations.BROWSE, browse)]


def _poll_of(request: Request, consume: ConsumeRequest, encoding: Encoding) -> Poll:
    query = dict(request.query)
    isolation, tx = choice(query, "isolation", Isolation), transaction_named(query)
    if (isolation, tx, consume.transaction).count(None) < 2:
        raise BadRequestError("give at most one of isolation, tx and a transaction in the body")
    undecided = choice(query, "undecided", Undecided) or Undecided.HOLD
    if undecided is Undecided.SKIP and tx is None and consume.transaction is None:
        raise BadRequestError(
            "undecided=skip needs a fixed snapshot: tx, or a transaction in the body"
        )
    require_limit(consume.limit)
    if isinstance(consume.start, int):
        start_time(consume.start)
    through = query.get("through")
    return Poll(
        start=consume.start,
        inclusive=consume.inclusive,
        limit=consume.limit,
        transaction=consume.transaction,
        tx=tx,
        isolation=isolation or Isolation.ALL,
        undecided=undecided,
        wait_s=wait_in(query),
        through=None if through is None else MessageId.from_hex(through),
        tags=tags_in(query),
        recipient=Recipient(None if request.call is None else request.call.client, encoding),
    )


def require_limit(limit: int | None) -> None:
    """Raises: BadRequestError: no read has so few messages at most."""
    if limit is not None and limit <= 0:
        raise BadRequestError(f"limit is greater than 0, not {limit}")


def poll_reply(result: PollResult, encoding: Encoding) -> Reply:
    """The reply of a poll."""
    headers: tuple[tuple[str, str], ...] = (
        ("Tuff-Next", result.next_id.hex()),
        ("Tuff-Caught-Up", "true" if result.caught_up else "false"),
    )
    if result.blocked_by is not None:
        headers += (("Tuff-Blocked-By", json_bodies.pointer_to_json(result.blocked_by)),)
    if result.prepared is not None:
        database, at_ms = result.prepared
        headers += (("Tuff-Blocked-Database", database), ("Tuff-Blocked-Since", str(at_ms)))
    if result.expired:
        headers += (("Tuff-Expired", "true"),)
    if result.archived:
        headers += (("Tuff-Archive", "true"),)
    body = result.messages.encoded(encoding, generation=result.generation)
    return Reply(200, encoding.content_type, body, headers)
