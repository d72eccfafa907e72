"""Share groups: workers lease single messages of one log, and acknowledge each by itself.

The log of a share group belongs to its topic, as that of delayed messages does: one server reads
the messages and leases them (decision 0043, section 4). Which messages are done is in that log.
Leases are in memory, and a server that loads the group begins without any. Requests of one group
take turns.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakValueDictionary

from messaging.groups.share_reads import AHEAD_COUNT_MIN, Read, WindowReader
from messaging.groups.share_records import (
    DoneRecord,
    Order,
    ShareProperties,
    ShareRecord,
    from_bytes,
    to_bytes,
)
from messaging.groups.share_state import Acknowledgement, Lease, Outcome, ShareState
from messaging.groups.state import DamagedRecordOfGroupError
from messaging.groups.undecided import damaged_record, ended_transactions
from messaging.read.offsets_and_splits import TopicOffsets
from messaging.read.poll import Poll, Polls
from messaging.read.visibility import start_number
from messaging.settings import MessagingSettings
from messaging.storage.store_state import OpenStore, StoreState, require_log
from messaging.topic_changes import TopicChanges, deleted
from messaging.topics import TTL_S_MAX, Topic, created
from messaging.write.group_commit import GroupCommitter, Write, WriteBatch
from messaging.write.publish import Publisher
from tuff.disk.event_loop import FutureTask
from tuff.protocol.attributes import Attributes
from tuff.protocol.errors import (
    GroupExistsError,
    GroupNotFoundError,
    LeaseLostError,
    StorageUnavailableError,
    TooManyGroupsError,
    TuffError,
    UnavailableError,
)
from tuff.protocol.exchange import Caller
from tuff.protocol.ids import FIRST_ID, MessageId, Offset, TopicId, past_group
from tuff.protocol.requests import PublishRequest

log = logging.getLogger(__name__)

SUMMARY_IDS_MIN = 5_000  # acknowledged messages, or records, before the next summary
GROUPS_COUNT_MAX = 100  # of a topic or partition; each may fill `groups.share_window` in memory
_LATEST = "latest"
_EARLIEST = "earliest"


class Given(NamedTuple):
    """A message that was given out."""

    lease: Lease
    payload: bytes
    attributes: Attributes


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRequest:
    """How much a worker takes at once. `bytes_max`: None for as much as a reply to a poll has;
    `lease_ms`: None for that of the group."""

    count: int
    bytes_max: int | None = None
    lease_ms: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupView:
    """A share group for people. `end`: the last message of the partition; `behind_ms`: how much
    later that was published than the oldest message that is not done."""

    name: str
    properties: ShareProperties
    counts: dict[str, int]
    low: MessageId
    oldest: MessageId | None
    end: MessageId | None
    behind_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupLag:
    """A share group of a topic or partition for monitoring; `behind_ms` as of `ShareGroupView`."""

    topic: TopicId
    name: str
    behind_ms: int


@dataclass(slots=True)
class _Group:
    """A group in memory, made from the log that is this topic, in this generation. `rows` has the
    id of the first record in the log of each undecided transaction."""

    log: Topic
    generation: int
    properties: ShareProperties
    state: ShareState
    rows: dict[int, MessageId] = field(default_factory=dict)
    unsummarized_count: int = 0


@dataclass(slots=True)
class _Caller:
    """Who asked for messages; none are given out to one that has gone."""

    is_gone: bool = False


class ShareGroups:
    """The share groups of the topics that this server owns. Lives on the event loop."""

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        committer: GroupCommitter,
        publisher: Publisher,
        polls: Polls,
        topics: TopicChanges,
        offsets: TopicOffsets,
        settings: MessagingSettings,
        *,
        window: int,
    ) -> None:
        """`window`: the most messages of a group between the oldest that is not done and the newest
        that was read."""
        self._store = store
        self._state = state
        self._committer = committer
        self._publisher = publisher
        self._polls = polls
        self._topics = topics
        self._offsets = offsets
        self._settings = settings
        self.window = window
        self._groups: dict[TopicId, _Group] = {}
        # A lock is there as long as a request has it, or waits for it.
        self._turns: WeakValueDictionary[TopicId, asyncio.Lock] = WeakValueDictionary()
        self._is_stopping = False
        self.waiting_count = 0  # requests that wait for messages now

    async def create(
        self,
        topic: TopicId,
        group: str,
        *,
        start: MessageId | int | str,
        order: Order,
        lease_ms: int,
    ) -> None:
        """Create a group of one partition. `start`: earliest, latest, a message id, or a publish
        time in ms; both are inclusive. The same again changes nothing.

        Raises: TopicNotFoundError, PartitionRequiredError, GroupExistsError, TooManyGroupsError.
        """
        self._committer.require_ready()
        found = require_log(self._store, self._state, topic)[0]
        self._require_room(found.id, group)  # before anything of the group is kept in memory
        group_log = self._state.topics.find_or_add(topic.share_log(group))

        def decide(batch: WriteBatch) -> None:
            found.require_decided()
            group_log.require_readable()
            asked = ShareProperties(
                start=start.hex() if isinstance(start, MessageId) else str(start),
                after=_before(start, batch.last),
                order=order,
                lease_ms=lease_ms,
            )
            record = group_log.decided
            if record is not None and record.generation > 0:
                _require_same(ShareProperties.from_texts(record.properties), asked, group)
                return
            self._require_room(found.id, group)  # of others that were decided meanwhile
            # The log never expires: its log start follows the low mark.
            texts = {"ttl": str(TTL_S_MAX), **asked.to_texts()}
            batch.change_topic(group_log, created(record, group_log.id, texts))

        await self._committer.submit(Write(decide))

    def _require_room(self, home: TopicId, group: str) -> None:
        others = [
            name
            for each in self._state.topics.unit(home.unit)
            if (name := each.id.share_group) not in (None, group) and each.id.home == home
            if each.decided is not None and each.decided.generation > 0
        ]
        if len(others) >= GROUPS_COUNT_MAX:
            raise TooManyGroupsError(
                f"{home} has {GROUPS_COUNT_MAX} share groups, which is the most; delete those that "
                f"no worker uses: `tuff share ls {home}` lists them"
            )

    async def delete(self, topic: TopicId, group: str) -> None:
        """Delete a group with what it knows. Raises: TopicNotFoundError, PartitionRequiredError,
        GroupNotFoundError."""
        async with self._turn(topic, group) as found:
            record = found.log.require_durable()
            del self._groups[found.log.id]

            def decide(batch: WriteBatch) -> None:
                if found.log.require_decided() is record:
                    batch.change_topic(found.log, deleted(record))
                    batch.touch(found.log)

            await self._committer.submit(Write(decide))

    def names(self, topic: TopicId) -> list[str]:
        """The share groups of a partition, in byte order. Raises: TopicNotFoundError,
        PartitionRequiredError."""
        home = require_log(self._store, self._state, topic)[0].id
        return sorted(
            name
            for each in self._state.topics.unit(home.unit)
            if (name := each.id.share_group) is not None and each.id.home == home
            if each.durable is not None and each.durable.generation > 0
        )

    async def show(self, topic: TopicId, group: str) -> ShareGroupView:
        """Raises: TopicNotFoundError, PartitionRequiredError, GroupNotFoundError,
        TransactionsUnavailableError."""
        async with self._turn(topic, group) as found:
            await self._bring_up_to_date(topic, found)
            state = found.state
            await self._reader(topic, found).read_on(AHEAD_COUNT_MIN)
            end = (await self._offsets.offsets(topic)).end
            oldest = None if state.oldest is None else MessageId.from_bytes(state.oldest)
            low = MessageId.from_bytes(state.low)
            behind_ms = 0
            if end is not None:
                first_ms = (oldest or low).publish_timestamp_ms
                behind_ms = max(0, end.publish_timestamp_ms - first_ms)
            return ShareGroupView(
                name=group,
                properties=found.properties,
                counts=state.counts(),
                low=low,
                oldest=oldest,
                end=end,
                behind_ms=behind_ms,
            )

    async def all_lags(self, *, count_max: int) -> list[ShareGroupLag]:
        """The lags of the first `count_max` share groups, by topic and name, of the topics of this
        server. Groups that can't be read now are left out. A group that had no request since the
        start is loaded."""
        groups = sorted(
            (each.id.home, name)
            for each in self._state.topics
            if (name := each.id.share_group) is not None
            if each.durable is not None and each.durable.generation > 0
        )
        found = []
        for topic, name in groups[:count_max]:
            with suppress(TuffError):
                behind_ms = (await self.show(topic, name)).behind_ms
                found.append(ShareGroupLag(topic=topic, name=name, behind_ms=behind_ms))
        return found

    async def lease(
        self, topic: TopicId, group: str, request: LeaseRequest, *, wait_s: float = 0.0
    ) -> list[Given]:
        """Give messages out, and wait up to `wait_s` if there is none.

        Raises: TopicNotFoundError, PartitionRequiredError, GroupNotFoundError,
            TransactionsUnavailableError, DamagedRecordError.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        found = require_log(self._store, self._state, topic)[0]
        group_log = self._find_log(topic, group)
        waiter, caller = asyncio.Event(), _Caller()
        for each in (found, group_log):
            each.waiters[waiter] = None
        try:
            while True:
                waiter.clear()
                # It runs to its end even if the caller goes: the next turn depends on that.
                task = FutureTask(
                    self._lease_now(topic, group, request, caller), refusals=TuffError
                )
                task.go_on()
                given, next_ms = await task.done
                if given or self._is_stopping or loop.time() >= deadline_s:
                    return given
                await self._wait(waiter, deadline_s, next_ms)
        finally:
            caller.is_gone = True
            for each in (found, group_log):
                del each.waiters[waiter]

    async def acknowledge(
        self,
        topic: TopicId,
        group: str,
        request: Sequence[Acknowledgement],
        *,
        pointer: int | None = None,
        caller: Caller | None = None,
    ) -> list[Outcome]:
        """Acknowledge messages, of which each is there once; with a write pointer, acceptances and
        rejections are part of that transaction of the caller, all of them or none.

        Raises: TopicNotFoundError, PartitionRequiredError, GroupNotFoundError,
            TransactionsUnavailableError, TransactionError (its kinds). StorageUnavailableError: it
            may be done. LeaseLostError: within a transaction, one does not count.
        """
        async with self._turn(topic, group) as found:
            await self._bring_up_to_date(topic, found)
            # After a load, the window is read as far as messages were given out before.
            earlier = [each.id for each in request if each.token.epoch < found.state.epoch]
            await self._reader(topic, found).read_through(max(earlier, default=b""))
            outcomes, records = found.state.acknowledge(
                request,
                now_ms=self._state.now_ms(),
                lease_ms=found.properties.lease_ms,
                pointer=pointer,
            )
            if pointer is not None:
                _require_all(request, outcomes)
            if records:
                await self._write(found, records, pointer, caller)
                found.state.remember(request, outcomes)
                await self._summarize_if_due(found)
            found.log.wake()  # for those that were released
            return outcomes

    def forget_moved(self) -> None:
        """Forget the groups whose topics other servers own now."""
        for log_id, group in list(self._groups.items()):
            if self._state.topics.maybe_find(log_id) is not group.log:
                del self._groups[log_id]

    def stop_waiting(self) -> None:
        """Answer every request that waits, now and from now on. They wake with the polls."""
        self._is_stopping = True

    async def _lease_now(
        self, topic: TopicId, group: str, request: LeaseRequest, caller: _Caller
    ) -> tuple[list[Given], int | None]:
        """The messages that can be given out, and when a lease or delay ends next."""
        async with self._turn(topic, group) as found:
            await self._bring_up_to_date(topic, found)
            reader = self._reader(topic, found, bytes_max=request.bytes_max)
            ids, given = await reader.take(request.count), list[Given]()
            if not caller.is_gone:
                given = self._give(found, request, ids, reader.messages)
            for each in ids[len(given) :]:
                found.state.put_back(each)
            return given, found.state.next_ms()

    def _give(
        self,
        found: _Group,
        request: LeaseRequest,
        ids: Sequence[bytes],
        messages: Mapping[bytes, Read],
    ) -> list[Given]:
        until_ms = self._state.now_ms() + (request.lease_ms or found.properties.lease_ms)
        bytes_max = self._bytes_max(request.bytes_max)
        given: list[Given] = []
        size_bytes = 0
        for message_id in ids:
            payload, attributes = messages[message_id]
            size_bytes += len(payload)
            if given and size_bytes > bytes_max:
                break
            lease = found.state.lease(message_id, until_ms=until_ms)
            given.append(Given(lease, payload, attributes))
        return given

    def _reader(
        self, topic: TopicId, found: _Group, *, bytes_max: int | None = None
    ) -> WindowReader:
        return WindowReader(
            self._polls,
            topic,
            found.state,
            self.window,
            bytes_max=self._bytes_max(bytes_max),
            is_by_key=found.properties.order is Order.KEY,
        )

    def _bytes_max(self, asked: int | None) -> int:
        most = self._settings.poll_bytes_max
        return most if asked is None else min(asked, most)

    async def _bring_up_to_date(self, topic: TopicId, found: _Group) -> None:
        """Take note of ended transactions, of ended leases, and of messages that expired."""
        ended = await ended_transactions(
            found.log.id, found.rows, self._polls, self._state.transactions
        )
        for pointer, is_committed in ended.items():
            del found.rows[pointer]
            found.state.end_transaction(pointer, is_committed=is_committed)
        home, record = require_log(self._store, self._state, topic)
        live_from = home.rule_of(record).live_from(now_ms=self._state.expiry_ms())
        # Time alone must not move the window past the high-water mark: if the clock goes back, the
        # next message gets an id before what is live now.
        end = MessageId.from_int(past_group(self._state.high_water_mark).to_int() + 1)
        first = min(max(record.log_start, MessageId(*live_from)), end)
        found.state.forget_before(first.to_bytes())
        found.state.end_leases(now_ms=self._state.now_ms())

    def _find_log(self, topic: TopicId, group: str) -> Topic:
        """Raises: TopicNotFoundError, PartitionRequiredError, GroupNotFoundError."""
        home = require_log(self._store, self._state, topic)[0].id
        found = self._state.topics.maybe_find(home.share_log(group))
        if found is not None:
            found.require_readable()
        if found is None or found.durable is None or found.durable.generation < 0:
            raise _group_not_found(topic, group)
        return found

    @asynccontextmanager
    async def _turn(self, topic: TopicId, group: str) -> AsyncIterator[_Group]:
        """The group, for one request at a time.

        Raises: TopicNotFoundError, PartitionRequiredError, GroupNotFoundError.
        """
        log_id = self._find_log(topic, group).id
        turn = self._turns.setdefault(log_id, asyncio.Lock())
        async with turn:
            found = self._find_log(topic, group)
            generation = found.require_durable().generation
            loaded = self._groups.get(log_id)
            if loaded is None or loaded.log is not found or loaded.generation != generation:
                self._groups.pop(log_id, None)
                loaded = self._groups[log_id] = await self._load(found, generation)
            yield loaded

    async def _load(self, found: Topic, generation: int) -> _Group:
        # An offset that no other load gets. A write whose caller is gone may be under way, too;
        # this one is behind it.
        epoch = await self._committer.submit(Write(_next_offset, internal=True))
        properties = _properties_of(found)
        after = properties.after.to_bytes()
        state = ShareState(after, order=properties.order, epoch=epoch.to_int())
        group = _Group(found, generation, properties, state)
        poll = Poll()
        while True:
            result = await self._polls.poll(found.id, poll)
            for message_id, payload in result.items:
                _apply(group, _decoded(found.id, message_id, payload), message_id)
            if result.caught_up:
                break
            poll = Poll(start=MessageId.from_bytes(result.next_id), inclusive=False)
        log.debug("loaded the share group %s from %d ids", found.id, group.unsummarized_count)
        return group

    async def _write(
        self,
        found: _Group,
        records: Sequence[DoneRecord],
        pointer: int | None,
        caller: Caller | None,
    ) -> None:
        """Append records to the log, and apply them once they are durable."""
        try:
            published = await self._publisher.publish(
                found.log.id,
                PublishRequest(pointer, [to_bytes(each) for each in records]),
                caller=caller,
            )
        except BaseException as error:
            if not isinstance(error, TuffError) or isinstance(error, StorageUnavailableError):
                # Whether they are in the log is not known: the next request reads it again.
                self._groups.pop(found.log.id, None)
            raise
        for record in records:
            _apply(found, record, published.first.to_bytes())

    async def _summarize_if_due(self, found: _Group) -> None:
        """Write what is done as one batch, and truncate the log before it. Of transactions in
        progress, the records before it are still needed."""
        if found.unsummarized_count < max(SUMMARY_IDS_MIN, found.state.window_count):
            return
        try:
            records = [to_bytes(each) for each in found.state.summary()]
            published = await self._publisher.publish(found.log.id, PublishRequest(None, records))
            found.unsummarized_count = 0
            await self._topics.truncate(found.log.id, min([published.first, *found.rows.values()]))
        except UnavailableError as error:
            log.warning("the log of the share group %s has no new summary: %s", found.log.id, error)

    async def _wait(self, waiter: asyncio.Event, deadline_s: float, next_ms: int | None) -> None:
        loop = asyncio.get_running_loop()
        alarm_s = deadline_s
        if next_ms is not None:
            left_s = max(0, next_ms - self._state.now_ms()) / 1000
            alarm_s = min(deadline_s, loop.time() + left_s)
        self.waiting_count += 1
        alarm = loop.call_at(alarm_s, waiter.set)
        try:
            await waiter.wait()
        finally:
            alarm.cancel()
            self.waiting_count -= 1


def _before(start: MessageId | int | str, last: Offset) -> MessageId:
    """The id behind which a group begins."""
    if start == _EARLIEST:
        return FIRST_ID
    if start == _LATEST:
        return past_group(last)
    assert not isinstance(start, str)
    return MessageId.from_int(max(0, start_number(start, inclusive=True) - 1))


def _require_same(before: ShareProperties, asked: ShareProperties, group: str) -> None:
    if not before.is_same(asked):
        raise GroupExistsError(
            f"the share group {group} exists already, with start {before.start}, order "
            f"{before.order} and lease {before.lease_ms / 1000:g} s; name the same, or delete it"
        )


def _require_all(request: Sequence[Acknowledgement], outcomes: Sequence[Outcome]) -> None:
    lost = [
        each.id.hex()
        for each, outcome in zip(request, outcomes, strict=True)
        if outcome is Outcome.LEASE_LOST
    ]
    if lost:
        raise LeaseLostError(
            f"the leases of {len(lost)} messages are lost, since other workers have got them: "
            f"{', '.join(lost[:3])}; abort the transaction",
            members={"ids": lost},
        )


def _next_offset(batch: WriteBatch) -> Offset:
    batch.force()
    return batch.next_offsets(1)[0]


def _properties_of(found: Topic) -> ShareProperties:
    try:
        return ShareProperties.from_texts(found.require_durable().properties)
    except DamagedRecordOfGroupError as error:
        raise damaged_record(found.id, FIRST_ID.to_bytes(), error) from None


def _apply(group: _Group, record: ShareRecord, message_id: bytes) -> None:
    group.state.apply(record)
    if isinstance(record, DoneRecord):
        group.unsummarized_count += len(record.ids)
        if record.pointer is not None:
            group.rows.setdefault(record.pointer, MessageId.from_bytes(message_id))


def _decoded(log_id: TopicId, message_id: bytes, payload: bytes) -> ShareRecord:
    try:
        return from_bytes(payload)
    except DamagedRecordOfGroupError as error:
        raise damaged_record(log_id, message_id, error) from None


def _group_not_found(topic: TopicId, group: str) -> GroupNotFoundError:
    return GroupNotFoundError(
        f"there is no share group {group} of {topic}: create it first; or it was deleted"
    )
