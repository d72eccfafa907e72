"""Share groups: consumers lease single messages, and acknowledge each by itself.

A share group of a topic with several partitions is one group for each of them, and a lease takes
messages of one. Its log belongs to the partition, as that of delayed messages does: one server
reads the messages and leases them (decision 0043, section 4). Which messages are done is in that
log. So are the attempts and delays of those that are not. Leases are in memory, and a server that
loads the group begins without any.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from kernel.requests_and_replies import Caller
from messaging.groups.group_log_records import SHARE_RECORDS, DamagedRecordOfGroupError
from messaging.groups.group_logs import GroupLogs, damaged_record
from messaging.groups.share_decisions import (
    Acknowledgement,
    Lease,
    ProcessingOrder,
    ShareProperties,
    ShareState,
)
from messaging.groups.share_reads import AHEAD_COUNT_MIN, ShareGroup, WindowReader
from messaging.log.state_in_memory import OpenStore, StoreState, require_log, require_topic
from messaging.log.topics import TTL_S_MAX, Topic, created
from messaging.model.visibility import before_row, first_id, id_before, start_after
from messaging.read.counts import MessageCount
from messaging.read.lost_messages import GroupKind, GroupName, Loss, LossCause, LostMessages
from messaging.read.offsets_and_splits import TopicOffsets
from messaging.read.poll import Poll, Polls
from messaging.settings import MessagingSettings
from messaging.topic_changes import TopicChanges, deleted
from messaging.write.publish import Publisher
from messaging.write.write_batch import WriteBatch
from messaging.write.write_queue import Write, WriteQueue
from tuff.protocol.attributes import Attributes
from tuff.protocol.errors import (
    GroupExistsError,
    GroupNotFoundError,
    LeaseLostError,
    TooManyGroupsError,
    TuffError,
)
from tuff.protocol.ids import FIRST_ID, MessageId, Offset, TopicId, past_group
from tuff.protocol.leases import LeaseAction, LeaseOutcome

log = logging.getLogger(__name__)

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
    """How much a consumer takes at once. `bytes_max`: None for as much as a reply to a poll has;
    `lease_ms`: None for that of the group."""

    count: int
    bytes_max: int | None = None
    lease_ms: int | None = None


class Leased(NamedTuple):
    """The messages that were given out, and the partition that has all of them."""

    partition: TopicId
    messages: list[Given]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareGroupView:
    """A share group for people. `end`: the last message of its partitions; `behind_ms`: how much
    later that was published than the oldest message of the same partition that is not done. All
    messages through `low` are done."""

    name: str
    properties: ShareProperties
    counts: dict[str, int]
    low: MessageId
    oldest: MessageId | None
    end: MessageId | None
    behind_ms: int


class ShareGroups:
    """The share groups of the topics that this server owns. Lives on the event loop."""

    def __init__(
        self,
        store: OpenStore,
        state: StoreState,
        committer: WriteQueue,
        publisher: Publisher,
        polls: Polls,
        topics: TopicChanges,
        offsets: TopicOffsets,
        lost_messages: LostMessages,
        settings: MessagingSettings,
        *,
        window: int,
    ) -> None:
        """`window`: the most messages of a group that were read and are not done."""
        self._store = store
        self._state = state
        self._committer = committer
        self._polls = polls
        self._offsets = offsets
        self._lost_messages = lost_messages
        self._settings = settings
        self.window = window
        self._logs = GroupLogs(
            "share group",
            SHARE_RECORDS,
            _new_state,
            lambda topic, _state: _properties_of(topic),
            state=state,
            committer=committer,
            publisher=publisher,
            polls=polls,
            topics=topics,
        )
        self._leases_count = 0  # decides which partition a lease looks at first

    async def create(
        self,
        topic: TopicId,
        group: str,
        *,
        start: MessageId | int | str,
        order: ProcessingOrder,
        tags: str | None = None,
        lease_ms: int,
    ) -> None:
        """Create a group of a topic or partition. `start`: earliest, latest, a message id, or a
        publish time in ms; both are inclusive. `tags`: an expression that selects its messages,
        None for all. The same again changes nothing.

        Raises: TopicNotFoundError, GroupExistsError, TooManyGroupsError, FuturePositionError.
        """
        self._committer.require_ready()
        partitions = self._partitions(topic)
        if not isinstance(start, str):
            self._state.require_past(first_id(start))
        self._require_room(partitions, group)  # before anything of it is kept in memory
        first = self._state.topics.find_or_add(partitions[0].share_log(group))

        def decide(batch: WriteBatch) -> None:
            first.require_readable()
            asked = ShareProperties(
                start=start.hex() if isinstance(start, MessageId) else str(start),
                after=_before(start, batch.last),
                order=order,
                tags=tags,
                lease_ms=lease_ms,
            )
            if (record := first.decided) is not None and record.generation > 0:
                _require_same(ShareProperties.from_texts(record.properties), asked, group)
            else:
                self._create_logs(batch, partitions, group, asked)
                for each in partitions:
                    self._lost_messages.begin(GroupName.of(each.share_log(group)), each)

        await self._committer.submit(Write(decide))

    def _create_logs(
        self,
        batch: WriteBatch,
        partitions: Sequence[TopicId],
        group: str,
        properties: ShareProperties,
    ) -> None:
        """Create the logs that do not exist, in one write."""
        self._require_room(partitions, group)  # of others that were decided meanwhile
        # A log never expires: its log start follows the low mark.
        texts = {"ttl": str(TTL_S_MAX), **properties.to_texts()}
        for each in partitions:
            self._state.topics.find(each).require_decided()
            group_log = self._state.topics.find_or_add(each.share_log(group))
            group_log.require_readable()
            if (record := group_log.decided) is None or record.generation < 0:
                batch.change_topic(group_log, created(record, group_log.id, texts))

    def _partitions(self, topic: TopicId) -> list[TopicId]:
        """What a call is for: the partitions of a topic that can be read, or the one it names.
        Raises: TopicNotFoundError."""
        record = require_topic(self._store, self._state, topic)[1]
        if topic.number is not None:
            return [topic]
        return [topic.partition(each) for each in record.partitions.readable]

    async def _partitions_of(self, topic: TopicId, group: str) -> list[TopicId]:
        """The partitions that the group has. Those that were added to the topic join the group, and
        are read from their beginning.

        Raises: TopicNotFoundError, GroupNotFoundError.
        """
        partitions = self._partitions(topic)
        first = self._find_log(partitions[0], group)
        if all(self._logs.exists(each.share_log(group)) for each in partitions):
            return partitions

        def decide(batch: WriteBatch) -> None:
            properties = ShareProperties.from_texts(first.require_decided().properties)
            earliest = replace(properties, start=_EARLIEST, after=FIRST_ID)
            self._create_logs(batch, partitions, group, earliest)

        await self._committer.submit(Write(decide))
        return partitions

    def _require_room(self, partitions: Sequence[TopicId], group: str) -> None:
        others = Counter(
            each.id.home
            for each in self._state.topics.unit(partitions[0].unit)
            if each.id.share_group not in (None, group)
            if each.decided is not None and each.decided.generation > 0
        )
        home = max((each.log for each in partitions), key=others.__getitem__)
        if others[home] >= GROUPS_COUNT_MAX:
            raise TooManyGroupsError(
                f"{home} has {GROUPS_COUNT_MAX} share groups, which is the most; delete those that "
                f"no worker uses: `tuff share ls {home}` lists them"
            )

    async def delete(self, topic: TopicId, group: str) -> None:
        """Delete a group with what it knows. Raises: TopicNotFoundError, GroupNotFoundError."""
        partitions = self._partitions(topic)
        first = self._find_log(partitions[0], group).id
        async with AsyncExitStack() as turns:
            logs = {}
            for each in partitions:  # in their order, so two deletions do not wait for each other
                if (log_id := each.share_log(group)) == first or self._logs.exists(log_id):
                    found = await turns.enter_async_context(self._turn(each, group))
                    logs[found.topic] = found.topic.require_durable()
                    self._logs.forget(log_id)

            def decide(batch: WriteBatch) -> None:
                for each, record in logs.items():
                    if each.require_decided() is record:
                        batch.change_topic(each, deleted(record))
                        batch.touch(each)

            await self._committer.submit_making_room(decide)

    def names(self, topic: TopicId) -> list[str]:
        """The share groups of a topic or partition, in byte order. Raises: TopicNotFoundError."""
        home = self._partitions(topic)[0].log
        live = self._live(self._state.topics.unit(home.unit))
        return [name for group_home, name in live if group_home == home]

    def _live(self, topics: Iterable[Topic]) -> list[tuple[TopicId, str]]:
        """The share groups whose logs are among these topics, by topic and name."""
        return sorted(
            (each.id.home, name)
            for each in topics
            if (name := each.id.share_group) is not None and self._logs.exists(each.id)
        )

    async def show(self, topic: TopicId, group: str) -> ShareGroupView:
        """A group of a topic or partition. Raises: TopicNotFoundError, GroupNotFoundError."""
        partitions = await self._partitions_of(topic, group)
        return _sum_of([await self._show(each, group) for each in partitions])

    async def _show(self, topic: TopicId, group: str) -> ShareGroupView:
        async with self._turn(topic, group) as found:
            await self._bring_up_to_date(topic, found)
            state = found.state
            await self._reader(found).read_on(AHEAD_COUNT_MIN)
            end = (await self._offsets.offsets(topic)).end
            oldest = None if state.oldest is None else MessageId.from_bytes(state.oldest)
            low = MessageId.from_bytes(state.low)
            behind_ms = 0
            if end is not None:
                first_ms = (oldest or low).publish_timestamp_ms
                behind_ms = max(0, end.publish_timestamp_ms - first_ms)
            return ShareGroupView(
                name=group,
                properties=found.memory,
                counts=state.counts(),
                low=low,
                oldest=oldest,
                end=end,
                behind_ms=behind_ms,
            )

    async def all_views(self, *, count_max: int) -> list[tuple[TopicId, ShareGroupView]]:
        """The first `count_max` share groups, by topic and name, of the topics of this server.
        Groups that can't be read now are left out. A group that had no request since the start is
        loaded."""
        found = []
        for topic, name in self._live(self._state.topics)[:count_max]:
            with suppress(TuffError):
                found.append((topic, await self.show(topic, name)))
        return found

    async def note_lost(self) -> list[GroupName]:
        """Count what share groups have lost since the last call; the names of all of them. One that
        can't be read now is left to the next call."""
        groups = self._live(self._state.topics)
        for topic, name in groups:
            await asyncio.sleep(0)  # there may be thousands
            partition = topic.partition(topic.number or 0)  # also of a topic with several
            with suppress(TuffError):
                async with self._turn(partition, name) as found:
                    await self._bring_up_to_date(partition, found)
        return [GroupName(GroupKind.SHARE, topic.namespace, name) for topic, name in groups]

    async def lease(
        self, topic: TopicId, group: str, request: LeaseRequest, *, wait_s: float = 0.0
    ) -> Leased:
        """Give messages of one partition out, and wait up to `wait_s` if there is none. Leases look
        at the partitions in turn.

        Raises: TopicNotFoundError, GroupNotFoundError, TransactionsUnavailableError,
            DamagedRecordError.
        """
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + wait_s
        waiter, watched = asyncio.Event(), set[Topic]()
        try:
            while True:
                waiter.clear()
                partitions = await self._partitions_of(topic, group)
                # Before the first look, so that no message is missed in between.
                watched |= self._wakers(topic, group, partitions)
                for each in watched:
                    each.waiters[waiter] = None
                leased, next_ms = await self._lease_in_turn(partitions, group, request)
                if leased.messages or self._polls.is_stopping or loop.time() >= deadline_s:
                    return leased
                alarm_s = deadline_s
                if next_ms is not None:
                    left_ms = max(0, next_ms - self._state.now_ms())
                    alarm_s = min(deadline_s, loop.time() + left_ms / 1000)
                await self._polls.wait_until(waiter, alarm_s)
        finally:
            for each in watched:
                each.waiters.pop(waiter, None)

    def _wakers(self, topic: TopicId, group: str, partitions: Iterable[TopicId]) -> set[Topic]:
        """What is woken by messages, by releases and by added partitions."""
        topics = {self._state.topics.find(each) for each in (topic.base, *partitions)}
        return topics | {self._find_log(each, group) for each in partitions}

    async def _lease_in_turn(
        self, partitions: Sequence[TopicId], group: str, request: LeaseRequest
    ) -> tuple[Leased, int | None]:
        """Messages of the first partition that has some. One that can't be read, as it is damaged,
        does not hold up the others."""
        self._leases_count += 1
        first = self._leases_count % len(partitions)
        refusal: TuffError | None = None
        ends_ms: list[int] = []
        for each in (*partitions[first:], *partitions[:first]):
            try:
                given, next_ms = await self._lease_now(each, group, request)
            except TuffError as error:
                refusal = error
                continue
            if given:
                return Leased(each, given), None
            if next_ms is not None:
                ends_ms.append(next_ms)
        if refusal is not None:
            raise refusal
        return Leased(partitions[first], []), min(ends_ms, default=None)

    async def acknowledge(
        self,
        topic: TopicId,
        group: str,
        request: Sequence[Acknowledgement],
        *,
        pointer: int | None = None,
        caller: Caller | None = None,
    ) -> list[LeaseOutcome]:
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
            await self._reader(found).read_through(max(earlier, default=b""))
            now_ms = self._state.now_ms()
            outcomes, records = found.state.acknowledge(
                request,
                now_ms=now_ms,
                lease_ms=found.memory.lease_ms,
                pointer=pointer,
                expiring=await self._expiring(topic, request, now_ms=now_ms),
            )
            if pointer is not None:
                _require_all(request, outcomes)
            self._write_attempts(found)
            if records:
                await self._logs.append(found, records, caller=caller)
                found.state.remember(request, outcomes)
                await self._logs.summarize_if_due(found)
            found.topic.wake()  # for those that were released
            return outcomes

    def forget_moved(self) -> None:
        """Forget the groups whose topics other servers own now."""
        self._logs.forget_moved()

    def write_attempts(self) -> None:
        """Write the attempts that changed with the next batch, before the server stops."""
        for found in self._logs.loaded.values():
            self._write_attempts(found)

    async def _lease_now(
        self, topic: TopicId, group: str, request: LeaseRequest
    ) -> tuple[list[Given], int | None]:
        """The messages that are given out now, and when a lease or a delay ends next. From the last
        wait on, the caller gets them: if it is cancelled, none are given out."""
        async with self._turn(topic, group) as found:
            await self._bring_up_to_date(topic, found)
            reader = self._reader(found, request.bytes_max)
            ids = await reader.take(request.count)
            given = self._give(found, request, ids, reader)
            for each in ids[len(given) :]:
                found.state.put_back(each)
            if any(each.lease.attempts > 1 for each in given):
                self._write_attempts(found)
            self._log_lost(found)
            return given, found.state.next_ms()

    def _give(
        self,
        found: ShareGroup,
        request: LeaseRequest,
        ids: Sequence[bytes],
        reader: WindowReader,
    ) -> list[Given]:
        until_ms = self._state.now_ms() + (request.lease_ms or found.memory.lease_ms)
        given: list[Given] = []
        size_bytes = 0
        for message_id in ids:
            payload, attributes = reader.messages[message_id]
            size_bytes += len(payload)
            if given and size_bytes > reader.bytes_max:
                break
            lease = found.state.lease(message_id, until_ms=until_ms, is_begun=not given)
            given.append(Given(lease, payload, attributes))
        return given

    def _reader(self, found: ShareGroup, bytes_max: int | None = None) -> WindowReader:
        most = self._settings.poll_bytes_max
        if bytes_max is not None:
            most = min(bytes_max, most)
        return WindowReader(self._polls, found, window=self.window, bytes_max=most)

    async def _bring_up_to_date(self, topic: TopicId, found: ShareGroup) -> None:
        """Take note of ended transactions, of ended leases, and of messages that expired."""
        await self._logs.end_transactions(found)
        home, record = require_log(self._store, self._state, topic)
        stops = self._lost_messages.stops(home, record)
        first = max(record.log_start, MessageId(*stops[LossCause.EXPIRED])).to_bytes()
        found.state.end_leases(now_ms=self._state.now_ms())
        if found.state.low < id_before(first):
            await self._note_lost(found, first, stops)
        found.state.forget_before(first)
        self._log_lost(found)

    async def _note_lost(
        self, found: ShareGroup, first: bytes, stops: Mapping[LossCause, Offset]
    ) -> None:
        """Count the messages before this id that are not done, and that no worker has."""
        partition, state = found.topic.id.home, found.state
        name = GroupName.of(found.topic.id)
        after = state.low
        for cause, stop in stops.items():
            through = min(before_row(stop), id_before(first))
            if after < through:
                loss = Loss(name, cause, after, through)
                unread = MessageCount(state.unread_in(after, through))
                self._lost_messages.add(partition, loss, unread)
                after = through
        await self._lost_messages.note(
            name, partition, state.read_to, tags=found.memory.tags, done=state.ahead
        )

    async def _expiring(
        self, topic: TopicId, request: Sequence[Acknowledgement], *, now_ms: int
    ) -> set[bytes]:
        """The messages to be released that will have expired when their delay is over."""
        found = set[bytes]()
        for each in request:
            if each.action is not LeaseAction.RELEASE or not each.ms:
                continue
            place = MessageId.from_bytes(each.id)
            poll = Poll(start=place, through=place, limit=1, live_at_ms=now_ms + each.ms)
            if not (await self._polls.poll(topic, poll)).messages:
                found.add(each.id)
        return found

    def _log_lost(self, found: ShareGroup) -> None:
        lost = found.state.take_lost()
        if lost:
            log.warning(
                "%d messages that workers of the share group %s had begun expired, or were "
                "truncated, before they were done, the first of them %s: give the topic a longer "
                "time to live, or start more workers",
                len(lost), found.topic.id, lost[0].hex(),
            )  # fmt: skip

    def _write_attempts(self, found: ShareGroup) -> None:
        """Write the attempts that changed with the next batch, and wait for nothing: if that is
        lost in a crash, the newest attempt of a message may not be counted."""
        self._logs.append_soon(found, found.state.take_unwritten())

    def _find_log(self, topic: TopicId, group: str) -> Topic:
        """Raises: TopicNotFoundError, PartitionRequiredError, GroupNotFoundError."""
        home = require_log(self._store, self._state, topic)[0].id
        found = self._state.topics.maybe_find(home.share_log(group))
        if found is not None:
            found.require_readable()
        if found is None or found.durable is None or found.durable.generation < 0:
            raise GroupNotFoundError(
                f"there is no share group {group} of {topic}: create it first; or it was deleted"
            )
        return found

    def _turn(self, topic: TopicId, group: str) -> AbstractAsyncContextManager[ShareGroup]:
        """The group, for one request at a time.

        Raises: TopicNotFoundError, PartitionRequiredError, GroupNotFoundError.
        """
        return self._logs.turn(partial(self._find_log, topic, group))


def _sum_of(views: Sequence[ShareGroupView]) -> ShareGroupView:
    """The group of a topic, of its groups in the partitions."""
    oldest = [each.oldest for each in views if each.oldest is not None]
    ends = [each.end for each in views if each.end is not None]
    counts = Counter[str]()
    for each in views:
        counts.update(each.counts)
    return replace(
        views[0],
        counts=dict(counts),
        low=min(each.low for each in views),
        oldest=min(oldest, default=None),
        end=max(ends, default=None),
        behind_ms=max(each.behind_ms for each in views),
    )


def _before(start: MessageId | int | str, last: Offset) -> MessageId:
    """The id behind which a group begins."""
    if start == _EARLIEST:
        return FIRST_ID
    if start == _LATEST:
        return past_group(last)
    assert not isinstance(start, str)
    return MessageId.from_bytes(start_after(start, inclusive=True))


def _require_same(before: ShareProperties, asked: ShareProperties, group: str) -> None:
    if not before.is_same(asked):
        raise GroupExistsError(
            f"the share group {group} exists already, with start {before.start}, order "
            f"{before.order}, tags {before.tags} and lease {before.lease_ms / 1000:g} s; name the "
            "same, or delete it"
        )


def _require_all(request: Sequence[Acknowledgement], outcomes: Sequence[LeaseOutcome]) -> None:
    lost = [
        each.id.hex()
        for each, outcome in zip(request, outcomes, strict=True)
        if outcome is LeaseOutcome.LEASE_LOST
    ]
    if lost:
        raise LeaseLostError(
            f"the leases of {len(lost)} messages are lost, since other workers have got them: "
            f"{', '.join(lost[:3])}; abort the transaction",
            members={"ids": lost},
        )


def _new_state(topic: Topic, batch: WriteBatch) -> ShareState:
    batch.force()
    epoch = batch.next_offsets(1)[0]  # no other load gets it
    properties = _properties_of(topic)
    after = properties.after.to_bytes()
    return ShareState(after, order=properties.order, epoch=epoch.to_int())


def _properties_of(topic: Topic) -> ShareProperties:
    try:
        return ShareProperties.from_texts(topic.require_durable().properties)
    except DamagedRecordOfGroupError as error:
        raise damaged_record(topic.id, FIRST_ID.to_bytes(), error) from None
