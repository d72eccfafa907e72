"""Polls, long polls and browse, and their HTTP routes (protocol §3.4, §3.5).

A read takes its transaction snapshot first and its view of the rows second. A long poll takes both
again each time it wakes. It registers for wake-ups before it reads, so that no wake-up is lost.
"""

import asyncio
import logging
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from messaging.read.messages import Messages, arrow_form
from messaging.read.scan import ReadResult, read
from messaging.read.visibility import (
    LAST_NUMBER,
    BlockingRow,
    Query,
    Undecided,
    first_live_number,
    first_number,
    start_number,
    time_in,
)
from messaging.settings import MessagingSettings
from messaging.storage.rows import offset_after
from messaging.storage.store_state import OpenStore, StoreState, require_log
from messaging.topics import TOPIC_PATH, Topic, TopicRecord, topic_of, topic_was_replaced
from messaging.transactions_interface import TransactionView
from messaging.write.settle_and_mark import TransactionRows
from tuff.log_events import event
from tuff.protocol import avro, json_forms
from tuff.protocol.attributes import TagFilter
from tuff.protocol.errors import BadRequestError, DamagedRecordError, TransactionUnknownError
from tuff.protocol.exchange import (
    BROWSE_TYPES,
    POLL_TYPES,
    Form,
    MediaType,
    Reply,
    Request,
    Route,
    body_form,
    reply_form,
)
from tuff.protocol.ids import LAST_ID, MESSAGE_ID_SIZE, MessageId, Offset, TopicId, past_group
from tuff.protocol.json_forms import shown
from tuff.protocol.requests import ConsumeRequest, Isolation
from tuff.protocol.transaction import Transaction

if TYPE_CHECKING:
    from messaging.read.archive import ArchiveRead, ArchiveReader

WAIT_S_MAX = 60.0  # seconds a poll may wait; proxies cut longer silences
# Seconds that a poll without `wait` looks for a message with the right tags before it answers that
# there may be more. Each scan of the store ends after `SCAN_ROWS_MAX` rows.
FILTERED_READ_S = 1.0
DAMAGES_LOGGED_MAX = 1_000  # damaged records; a store with more has one cause
DIGITS_MAX = 100  # of a number in a query; its first ones are far beyond 64 bits by then
log = logging.getLogger(__name__)

Choice = TypeVar("Choice", bound=Enum)

_SECONDS = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_READ_PARAMETERS = frozenset({"isolation", "tx", "undecided", "wait", "through", "tags"})
_BROWSE_PARAMETERS = _READ_PARAMETERS | {"from", "inclusive", "limit"}


@dataclass(frozen=True, slots=True, kw_only=True)
class PollResult:
    """What a read delivers. `next_id`, as an exclusive start, continues with exactly what this
    reader has not received; `blocked_by` is the id of the transaction that holds it back, while
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Poll:
    """One read. `start`: a message id, a publish time in ms, or None for the oldest live message;
    `limit` None: as many as a reply holds; `transaction`: the snapshot to read in; `tx`: the
    transaction in progress whose snapshot to read in; `through`: the last id to deliver; `tags`:
    which messages to deliver, None for all.
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

    @property
    def is_fixed(self) -> bool:
        """Whether it reads in one snapshot however often it looks."""
        return self.transaction is not None or self.tx is not None


class Polls:
    """Serves reads, and keeps those that wait. Lives on the event loop; threads read the rows."""

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        settings: MessagingSettings,
        transaction_rows: TransactionRows,
        *,
        archive: "ArchiveReader | None" = None,
        observe: Callable[[str, float], None],
    ) -> None:
        """`archive`: where reads continue that start before the log; None: nowhere."""
        self._store = store
        self._state = state
        self._settings = settings
        self._transaction_rows = transaction_rows
        self._archive = archive
        self._observe = observe
        self.is_stopping = False
        self.waiting_count = 0  # long polls that wait now
        self._damages: set[tuple[TopicId, str]] = set()
        self.damaged_reads = 0  # polls that were refused for a damaged record, since the start

    async def poll(self, topic: TopicId, poll: Poll) -> PollResult:
        """Read, and wait up to `wait_s` if there is nothing yet."""
        try:
            return await self._registered(topic, poll)
        except DamagedRecordError as error:
            self.damaged_reads += 1
            self._log_damage(topic, error)
            raise

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
        if not arrow_form.cache_info().currsize:
            await self._store.read(lambda _store: arrow_form())

    def _log_damage(self, topic: TopicId, error: DamagedRecordError) -> None:
        """One line for each damaged record that stops a reader, however often it reads there."""
        place = topic, str(error.members["id"])
        if place not in self._damages and len(self._damages) < DAMAGES_LOGGED_MAX:
            self._damages.add(place)
            extra = event("damage_read", topic=topic, id=place[1])
            log.warning("a read of %s ends at a damaged record: %s", topic, error, extra=extra)

    async def _registered(self, topic: TopicId, poll: Poll) -> PollResult:
        found, record = require_log(self._store, self._state, topic)
        waiter = asyncio.Event()
        found.waiters[waiter] = None
        try:
            if poll.tx is None:
                return await self._poll(found, topic, record.generation, poll, waiter)
            with self._transaction_rows.reading_in(poll.tx, waiter):
                return await self._poll(found, topic, record.generation, poll, waiter)
        finally:
            del found.waiters[waiter]

    async def _poll(
        self, topic: Topic, named: TopicId, generation: int, poll: Poll, waiter: asyncio.Event
    ) -> PollResult:
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + poll.wait_s
        asked = number = start_number(poll.start, inclusive=poll.inclusive)
        live_from = Offset(0, 0)
        is_expired = was_caught_up = is_unfinished = False
        while True:
            waiter.clear()
            self._store.require_up()
            # The snapshot first and the rows second: a row that became durable in between is newer
            # than the snapshot and holds the reader back, which otherwise would pass over it.
            snapshot = await snapshot_for(self._state.transactions, poll)
            query = _restarted(
                self._query(topic, named, generation, poll, number, snapshot), asked, live_from
            )
            number, live_from = query.start, query.live_from
            archived = (
                await self._archive.read(topic.id, generation, query)
                if self._archive is not None and _starts_in_archive(poll, query)
                else None
            )
            # A poll that was caught up is woken by each new row: it misses nothing while it waits.
            is_expired |= not was_caught_up and self._is_expired(poll, query, archived)
            if archived is not None and (archived.messages or archived.caught_up):
                return _archived_result(generation, query, archived, is_expired=is_expired)
            # The store may be ahead of memory by a batch: a read that began there continues there.
            result = None if is_unfinished else self._state.tail_cache.read(query)
            if result is None:
                result = await self._read_store(topic, query)
            number = max(number, int.from_bytes(result.next_id, "big") + 1)
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
            alarm_s = deadline_s
            if result.blocking_row is not None:
                left_s = self._expires_in_s(topic, result.blocking_row)
                if left_s <= 0:  # it expired while it was read
                    continue
                alarm_s = min(deadline_s, loop.time() + left_s)
            await self._wait(waiter, alarm_s, result)

    def _query(
        self,
        topic: Topic,
        named: TopicId,
        generation: int,
        poll: Poll,
        number: int,
        snapshot: Transaction | None,
    ) -> Query:
        record = require_generation(topic, generation)
        record.require_one_log(named)  # it may have got a second partition meanwhile
        return query_of(self._state, self._settings, topic, record, poll, number, snapshot)

    async def _read_store(self, topic: Topic, query: Query) -> ReadResult:
        result = await self._store.read(partial(read, query=query))
        if self._archive is not None and _is_overtaken(topic, query):
            # Retention may have removed messages of the range while it was read. The archive has
            # them now, or the reader is told that it missed them: it begins again.
            before = MessageId.from_int(max(0, query.start - 1)).to_bytes()
            return ReadResult(next_id=before, messages=Messages(), finished=False)
        self._state.tail_cache.add_read(query, result)
        return result

    def _is_given_up(self, poll: Poll, *, deadline_s: float) -> bool:
        """Whether a poll that has only passed over messages is answered before it has seen all."""
        until_s = deadline_s + max(0.0, FILTERED_READ_S - poll.wait_s)
        is_over = self.is_stopping or asyncio.get_running_loop().time() >= until_s
        return poll.tags is not None and is_over

    def _is_waiting_useless(self, poll: Poll, query: Query, result: ReadResult) -> bool:
        """Whether the poll is answered at once, since no message can come while it waits."""
        through = query.through
        if self.is_stopping or result.next_id >= through.to_bytes():
            return True
        if result.caught_up and through.offset <= query.high_water_mark:
            return True
        if not poll.is_fixed or result.blocking_pointer is None:
            return False
        # A transaction that ended and is still in the index: once its rows are marked, the reader
        # continues.
        return not (
            self._holder(result.blocking_pointer)
            or self._state.index.ranges(result.blocking_pointer)
        )

    def _expires_in_s(self, topic: Topic, row: BlockingRow) -> float:
        """In how many seconds this row expires, and no longer holds readers back. Nothing wakes the
        reader then, since no transaction ends."""
        rule = topic.rule_of(topic.require_durable())
        expires_ms = rule.expires_ms(row.offset, own_ttl_s=row.ttl_s)
        return (expires_ms - self._state.now_ms()) / 1000

    async def wait_until(self, waiter: asyncio.Event, alarm_s: float) -> None:
        """Wait as a long poll, until this time of the event loop at most."""
        self.waiting_count += 1
        alarm = asyncio.get_running_loop().call_at(alarm_s, waiter.set)
        try:
            await waiter.wait()
        finally:
            alarm.cancel()
            self.waiting_count -= 1

    async def _wait(self, waiter: asyncio.Event, alarm_s: float, result: ReadResult) -> None:
        loop = asyncio.get_running_loop()
        began_s = loop.time()
        await self.wait_until(waiter, alarm_s)
        if result.blocking_pointer is not None:
            self._observe("blocked_reader_seconds", loop.time() - began_s)

    def _is_expired(self, poll: Poll, query: Query, archived: "ArchiveRead | None") -> bool:
        """Whether messages may have expired that this reader has not received, neither from the log
        nor from the archive."""
        if time_in(query.start) > query.live_from.timestamp_ms or (
            archived is not None and archived.is_complete
        ):
            return False  # the usual case
        start = poll.start
        if not (start.publish_timestamp_ms if isinstance(start, MessageId) else start):
            return False  # the beginning
        number = MessageId.from_int(min(query.start, LAST_NUMBER))
        if number.offset >= query.live_from:
            return False
        if not isinstance(start, MessageId) or poll.inclusive:
            return True
        # A reply contained this id if it is right before a row, or that of a message which is a row
        # by itself. Such a reader missed nothing if no row was written before `live_from`.
        at_row = MessageId(*number.offset)
        if number.to_int() - at_row.to_int() > 1:
            return True
        unread = number.offset if number == at_row else offset_after(number.offset)
        return self._state.idle_intervals.may_contain_rows(unread, stop=query.live_from)

    def _result(self, generation: int, result: ReadResult, *, is_expired: bool) -> PollResult:
        holder = self._holder(result.blocking_pointer)
        return PollResult(
            messages=result.messages,
            generation=generation,
            next_id=result.next_id,
            caught_up=result.caught_up,
            blocked_by=holder,
            expired=is_expired,
            prepared=None if holder is None else self._state.transactions.preparation(holder),
        )

    def _holder(self, pointer: int | None) -> int | None:
        return None if pointer is None else self._state.transactions.holder(pointer)


def _starts_in_archive(poll: Poll, query: Query) -> bool:
    """Whether a read asks for messages before the log. One without a start begins with the log. One
    in a fixed snapshot can't continue in the archive, which does not have the transaction of a
    message. One with tags does not: older files lack them."""
    if poll.start is None or poll.is_fixed or poll.tags is not None:
        return False
    return query.start < first_live_number(query)


def _is_overtaken(topic: Topic, query: Query) -> bool:
    """Whether the log begins behind the first message that the query could deliver by now."""
    record = topic.durable
    return record is not None and record.log_start.to_int() > first_number(query)


def _archived_result(
    generation: int, query: Query, archived: "ArchiveRead", *, is_expired: bool
) -> PollResult:
    messages = archived.messages
    return PollResult(
        messages=messages,
        generation=generation,
        next_id=messages.last_id if messages else query.through.to_bytes(),
        caught_up=archived.caught_up,
        blocked_by=None,
        expired=is_expired,
        archived=True,
    )


def query_of(
    state: StoreState,
    settings: MessagingSettings,
    topic: Topic,
    record: TopicRecord,
    poll: Poll,
    number: int,
    snapshot: Transaction | None,
) -> Query:
    """The query of a poll from the id with this number on, as of now, in its snapshot."""
    limit_max = settings.poll_limit_max
    now_ms = state.expiry_ms()
    return Query(
        prefix=topic.prefix(record.generation),
        start=number,
        through=poll.through or LAST_ID,
        high_water_mark=state.high_water_mark,
        log_start=record.log_start,
        live_from=topic.rule_of(record).live_from(now_ms=now_ms),
        now_ms=now_ms,
        limit=min(poll.limit or limit_max, limit_max),
        bytes_max=settings.poll_bytes_max,
        snapshot=snapshot,
        undecided=poll.undecided,
        tags=poll.tags,
    )


def require_generation(topic: Topic, generation: int) -> TopicRecord:
    """The topic's record. Raises: TopicNotFoundError: the topic was deleted meanwhile."""
    record = topic.require_durable()
    if record.generation != generation:
        raise topic_was_replaced(topic.id)
    return record


async def snapshot_for(transactions: TransactionView, poll: Poll) -> Transaction | None:
    """The snapshot of a poll; None if it reads everything. Raises: TransactionsUnavailableError,
    and what `TransactionView.snapshot_of` raises."""
    if poll.transaction is not None:
        return poll.transaction
    if poll.tx is not None:
        return await transactions.snapshot_of(poll.tx)
    return await transactions.snapshot() if poll.isolation is Isolation.COMMITTED else None


def _restarted(query: Query, asked: int, live_from: Offset) -> Query:
    """The query from the start of the poll, if messages that had expired at its last read may be
    live again: by a longer time to live, or a clock that was set back."""
    return replace(query, start=asked) if query.live_from < live_from else query


def routes(polls: Polls) -> list[Route]:
    """The HTTP routes of poll and browse."""
    handlers = _Routes(polls)
    return [
        Route("POST", f"{TOPIC_PATH}/poll", handlers.poll),
        Route("GET", f"{TOPIC_PATH}/messages", handlers.browse),
    ]


class _Routes:
    def __init__(self, polls: Polls) -> None:
        self._polls = polls

    async def poll(self, request: Request) -> Reply:
        topic = topic_of(request, parameters=_READ_PARAMETERS)
        body = request.body
        asked_in = body_form(request.content_type, body).media_type
        if asked_in is MediaType.AVRO:
            consume = avro.decode_consume_request(body)
        else:
            consume = json_forms.consume_request_from_json(request.value())
        poll = _poll(dict(request.query), consume)
        if request.members is not None:
            asked_in = MediaType.AVRO  # a session has no JSON
        form = reply_form(request.accept, asked_in=asked_in, offered=POLL_TYPES)
        if form.media_type is MediaType.ARROW:
            await self._polls.load_arrow()
        return _polled(await self._polls.poll(topic, poll), form)

    async def browse(self, request: Request) -> Reply:
        topic = topic_of(request, parameters=_BROWSE_PARAMETERS)
        query = dict(request.query)
        limit = query.get("limit")
        consume = ConsumeRequest(
            inclusive=boolean(query.get("inclusive", "true"), what="inclusive"),
            limit=None if limit is None else whole_digits(limit, what="limit"),
        )
        poll = _poll(query, consume)
        form = reply_form(request.accept, asked_in=MediaType.JSON, offered=BROWSE_TYPES)
        if form.media_type is MediaType.ARROW:
            await self._polls.load_arrow()
        start = query.get("from", "earliest")
        if start == "latest":
            # Taken before the read, so that messages published meanwhile are delivered.
            newest = self._polls.latest(topic)
            result = await self._polls.poll(topic, replace(poll, start=newest, inclusive=False))
        else:
            result = await self._polls.poll(topic, replace(poll, start=start_from(start)))
        return _polled(result, form)


def _poll(query: Mapping[str, str], consume: ConsumeRequest) -> Poll:
    isolation, tx = choice(query, "isolation", Isolation), transaction_named(query)
    if sum(given is not None for given in (isolation, tx, consume.transaction)) > 1:
        raise BadRequestError("give at most one of isolation, tx and a transaction in the body")
    undecided = choice(query, "undecided", Undecided) or Undecided.HOLD
    if undecided is Undecided.SKIP and tx is None and consume.transaction is None:
        raise BadRequestError(
            "undecided=skip needs a fixed snapshot: tx, or a transaction in the body"
        )
    if consume.limit is not None and consume.limit <= 0:
        raise BadRequestError(f"limit is greater than 0, not {consume.limit}")
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
    )


def _polled(result: PollResult, form: Form) -> Reply:
    headers: tuple[tuple[str, str], ...] = (
        ("Tuff-Next", result.next_id.hex()),
        ("Tuff-Caught-Up", "true" if result.caught_up else "false"),
    )
    if result.blocked_by is not None:
        headers += (("Tuff-Blocked-By", json_forms.pointer_to_json(result.blocked_by)),)
    if result.prepared is not None:
        database, at_ms = result.prepared
        headers += (("Tuff-Blocked-Database", database), ("Tuff-Blocked-Since", str(at_ms)))
    if result.expired:
        headers += (("Tuff-Expired", "true"),)
    if result.archived:
        headers += (("Tuff-Archive", "true"),)
    body = result.messages.encoded(form, generation=result.generation)
    return Reply(200, form.content_type, body, headers)


def choice(query: Mapping[str, str], name: str, kind: type[Choice]) -> Choice | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        known = " or ".join(choice.value for choice in kind)
        raise BadRequestError(f"{name} is {known}, not {shown(text)}") from None


def transaction_named(query: Mapping[str, str]) -> int | None:
    text = query.get("tx")
    if text is None:
        return None
    try:
        return json_forms.pointer_from_json(text, what="tx")
    except BadRequestError:
        raise TransactionUnknownError(f"there is no transaction {shown(text)}") from None


def tags_in(query: Mapping[str, str]) -> TagFilter | None:
    tags = query.get("tags")
    return None if tags is None else TagFilter.parse(tags)


def wait_in(query: Mapping[str, str]) -> float:
    """The seconds that the parameter `wait` names, 0 without it. Raises: BadRequestError."""
    text = query.get("wait")
    if text is None:
        return 0.0
    wait_s = float(text) if _SECONDS.fullmatch(text) else math.nan
    if not 0 <= wait_s <= WAIT_S_MAX:
        raise BadRequestError(f"wait is 0 to {WAIT_S_MAX:.0f} seconds, not {shown(text)}")
    return wait_s


def boolean(text: str, *, what: str) -> bool:
    if text not in ("true", "false"):
        raise BadRequestError(f"{what} is true or false, not {shown(text)}")
    return text == "true"


def id_or_time_from(value: object, *, what: str) -> MessageId | int:
    """A message id or a publish time in ms, as a JSON body names it.

    Raises:
        BadRequestError (its kinds): it is neither.
    """
    if isinstance(value, str):
        return MessageId.from_hex(value)
    return start_time(json_forms.clamped_number(value, what=what))


def start_from(text: str) -> MessageId | int | None:
    """The start that `from` of a browse names, None for the oldest live message.

    Raises:
        BadRequestError (its kinds): it names none.
    """
    if text == "earliest":
        return None
    if len(text) == 2 * MESSAGE_ID_SIZE:
        return MessageId.from_hex(text)
    if text.removeprefix("-").isdigit():
        return start_time(whole_digits(text, what="from"))
    try:
        time_ms = json_forms.time_ms_from_iso(text)
    except ValueError:
        plus = ", in which + is written %2B, as a plain + means a space" if " " in text else ""
        raise BadRequestError(
            "from is earliest, latest, a message id in hex, ms since the epoch, or an ISO 8601 "
            f"time{plus}, not {shown(text)}"
        ) from None
    return start_time(time_ms)


def start_time(timestamp_ms: int) -> int:
    """Raises: BadRequestError: before the epoch."""
    if timestamp_ms < 0:
        raise BadRequestError(f"a publish time is 0 or more ms, not {timestamp_ms}")
    return timestamp_ms


def whole_digits(text: str, *, what: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise BadRequestError(f"{what} is a whole number, not {shown(text)}")
    # Python reads no more than 4,300 digits.
    return json_forms.clamped_number(int(text[:DIGITS_MAX]), what=what)
