"""The group coordinator: decides requests of members, and appends the records to the group's log.

The server that owns the log of a group is its coordinator, so elections, fencing and failover are
those of topics (decision 0043, section 4).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from types import MappingProxyType
from typing import Protocol

from kernel.log_events import event
from kernel.requests_and_replies import Caller
from messaging.groups import consumer_decisions
from messaging.groups.consumer_decisions import GroupState, Heartbeat, MemberSessions
from messaging.groups.group_log_records import (
    CONSUMER_RECORDS,
    BegunRecord,
    ConsumerRecord,
    MemberRecord,
    SummaryRecord,
)
from messaging.groups.group_logs import GroupLogs, LoadedGroup
from messaging.log.state_in_memory import StoreState
from messaging.log.topics import Topic
from messaging.model.visibility import BEGINNING
from messaging.read.counts import MessageCount, MessageCounts
from messaging.read.lags import Lag, lags_of
from messaging.read.lost_messages import GroupName, LostMessages
from messaging.read.offsets_and_splits import TopicOffsets
from messaging.read.poll import Polls
from messaging.settings import GroupSettings
from messaging.topic_changes import PropertyChange, TopicChanges
from messaging.write.publish import Publisher
from messaging.write.write_queue import WriteQueue
from tuff.protocol.errors import (
    DamagedRecordError,
    GroupNotEmptyError,
    GroupNotFoundError,
    TooManyGroupsError,
    TopicExistsError,
    TopicNotFoundError,
    TuffError,
    UnavailableError,
)
from tuff.protocol.group_preferences import GroupPreferences, GroupStart
from tuff.protocol.ids import (
    GROUP_LOG,
    MessageId,
    PartitionId,
    TopicId,
    name_in,
    partition_in,
    topic_in,
)
from tuff.protocol.json_bodies import payload_from_json
from tuff.protocol.requests import Isolation
from tuff.protocol.sentences import counted

log = logging.getLogger(__name__)

FOREIGN_MS = 1_000  # between two questions to another server about one topic
OWNERS_SKEW_MS = 60_000  # by which the clock of another server may be ahead
FOREIGN_COUNT_MAX = 10_000  # topics of which the answer is remembered
GROUPS_COUNT_MAX = 10_000  # of a namespace; each is a topic and some KB in memory
# A group that no member joins within an hour of a start is deleted at the earliest: its consumers
# may have been stopped for as long as the server.
RETURN_MS = 3_600_000
PREFERENCES = "preferences"  # the property of the log's topic that has them


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """What a member has after a heartbeat: its epoch, the group's, and the partitions that it shall
    consume, and how. Those that it has and that are not here it shall release. `lost`: the messages
    of them that members began before they vanished."""

    member_id: str
    epoch: int
    group_epoch: int
    assigned: tuple[str, ...]
    preferences: GroupPreferences
    lost: tuple[BegunRecord, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLags:
    """A group for monitoring, with its lags by the names of the partitions. Those that another
    server owns are left out."""

    group: GroupName
    members_count: int
    lags: Mapping[str, Lag]


# The committed offset of a group in a partition, and its lag: None where it is not known, since
# another server owns the partition and does not answer, or the partition does not exist any more.
Progress = tuple[MessageId | None, Lag | None]
# The partitions of a group by their names in it, and the committed offset of each.
_Afters = dict[str, tuple[PartitionId, MessageId | None]]
_ConsumerGroup = LoadedGroup[GroupState, MemberSessions]


class OwnersOfPartitions(Protocol):
    """The topics of the other servers of a cluster. Both raise TopicNotFoundError, and
    UnavailableError (its kinds): nobody can tell now."""

    async def partitions(self, topic: TopicId) -> list[int]:
        """The numbers of the partitions that can be read, ascending."""

    async def ends(
        self, partition: TopicId, isolation: Isolation
    ) -> tuple[MessageId | None, MessageId | None]:
        """The ids of the earliest and the last message for a reader with this isolation."""

    async def count(self, partition: TopicId, after: MessageId | None) -> MessageCount:
        """The messages behind an id, or all."""


class GroupCoordinator:
    """Coordinates the groups whose logs this server owns. Lives on the event loop."""

    def __init__(
        self,
        state: StoreState,
        committer: WriteQueue,
        publisher: Publisher,
        polls: Polls,
        topics: TopicChanges,
        offsets: TopicOffsets,
        lost_messages: LostMessages,
        counts: MessageCounts,
        settings: GroupSettings,
        *,
        log_ttl_s: int,
    ) -> None:
        """`log_ttl_s`: seconds after which the records of a group expire that has no request for so
        long."""
        self.settings = settings
        self._state = state
        self._committer = committer
        self._topics = topics
        self._offsets = offsets
        self._lost_messages = lost_messages
        self._counts = counts
        self._log_ttl_s = log_ttl_s
        # Called when the log of a group was created or deleted: the servers of a cluster list them.
        self.log_changed: Callable[[TopicId], Awaitable[None]] = _ignore
        self.other_owners: OwnersOfPartitions | None = None  # None: this is a single server
        self._logs = GroupLogs(
            "group",
            CONSUMER_RECORDS,
            lambda _topic, _batch: GroupState(),
            self._new_sessions,
            state=state,
            committer=committer,
            publisher=publisher,
            polls=polls,
            topics=topics,
        )
        # The partitions of other servers' topics, and until when, in ms, they are not asked again.
        self._foreign: dict[TopicId, tuple[list[TopicId], int]] = {}

    def now_ms(self) -> int:
        """The time of the server."""
        return self._state.now_ms()

    async def tick(self) -> None:
        """Fence members whose session is over; call it several times a second."""
        now_ms = self._state.now_ms()
        for group_log, group in list(self._logs.loaded.items()):
            end_ms = group.memory.next_end_ms
            if end_ms is None or end_ms > now_ms:
                continue
            try:
                async with self._turn(group_log) as current:
                    await self._fence(current)
            except TuffError as error:
                # Another server may coordinate it now. If not, the next request loads it again.
                self._logs.forget(group_log)
                log.warning("no member of the group %s is fenced now: %s", group_log, error)

    async def join(
        self, group_log: TopicId, request: MemberRecord, start: GroupStart | None = None
    ) -> MemberView:
        """`start`: where the group begins in the partitions of topics that it subscribes to for the
        first time. `latest` is behind all messages that are decided now. None: as the group's
        preferences say, or `earliest`.

        Raises: BadRequestError: the client's name is no Unicode. UnreleasedInstanceIdError,
            TooManyGroupsError, TooManyMembersError. UnavailableError (its kinds): the start can't
            be known now.
        """
        payload_from_json(request.client, what="client")  # the log is UTF-8
        await self._create_log(group_log)
        async with self._turn(group_log) as group:
            partitions = await self._partitions(group, request.topics)
            records = consumer_decisions.join(group.state, request, partitions)
            topics = consumer_decisions.topics_to_start(group.state, request)
            chosen = start or _preferences_of(group).start
            is_latest = chosen == GroupStart.LATEST
            ends = await self._ends_of(group_log, topics, partitions) if is_latest else {}
            records += consumer_decisions.start(topics, ends, now_ms=self._state.now_ms())
            self._begin(group, [each for topic in topics for each in partitions[topic]])
            await self._write(group, records)
            return self._heard(group, request.member_id)

    async def heartbeat(self, group_log: TopicId, request: Heartbeat) -> MemberView:
        """Raises: GroupNotFoundError, UnknownMemberError, FencedMemberEpochError."""
        async with self._turn(group_log) as group:
            partitions = await self._partitions(group)
            records = consumer_decisions.heartbeat(group.state, request, partitions)
            await self._write(group, records)
            return self._heard(group, request.member_id)

    async def leave(self, group_log: TopicId, member_id: str, *, keeps_assignment: bool) -> None:
        """Raises: GroupNotFoundError, UnknownMemberError."""
        async with self._turn(group_log) as group:
            partitions = await self._partitions(group)
            records = consumer_decisions.leave(
                group.state, member_id, partitions, keeps_assignment=keeps_assignment
            )
            await self._write(group, records)
            if member_id in group.state.members:
                group.memory.heard(group.state, member_id, now_ms=self._state.now_ms())

    async def commit(
        self,
        group_log: TopicId,
        member_id: str,
        epoch: int,
        offsets: Mapping[str, MessageId],
        *,
        pointer: int | None,
        begun: Mapping[str, MessageId] = MappingProxyType({}),
        caller: Caller | None = None,
    ) -> None:
        """Commit offsets; with a write pointer as messages of that transaction of the caller, which
        count once it has committed. `begun`: the next message of each partition, which the member
        has begun.

        Raises: GroupNotFoundError, UnknownMemberError, StaleMemberEpochError,
            PartitionNotAssignedError, TransactionError (its kinds).
        """
        async with self._turn(group_log) as group:
            now_ms = self._state.now_ms()
            records = consumer_decisions.commit(
                group.state, member_id, epoch, offsets, now_ms=now_ms, pointer=pointer
            )
            records += consumer_decisions.begin(group.state, member_id, begun)
            with suppress(TuffError):  # the commit does not depend on it
                await self._note_lost(group, offsets)
            await self._write(group, records, caller=caller)

    async def committed(self, group_log: TopicId) -> GroupState:
        """The state, in which every offset is decided whose transaction has ended.

        Raises: GroupNotFoundError.
        """
        async with self._turn(group_log) as group:
            await self._logs.end_transactions(group)
            return group.state

    async def reset(self, group_log: TopicId, offsets: Mapping[str, MessageId | None]) -> None:
        """Set or forget (None) offsets of partitions that no member has.

        Raises: FuturePositionError; GroupNotFoundError, GroupNotEmptyError.
        """
        self._committer.require_ready()
        for name, after in offsets.items():
            if after is not None:
                is_foreign = self._is_foreign(partition_in(group_log.namespace, name))
                self._state.require_past(after, skew_ms=OWNERS_SKEW_MS if is_foreign else 0)
        async with self._turn(group_log) as group:
            await self._logs.end_transactions(group)
            records = consumer_decisions.reset(group.state, offsets, now_ms=self._state.now_ms())
            self._begin(group, offsets)
            await self._write(group, records)

    async def preferences(self, group_log: TopicId) -> GroupPreferences:
        """How the members consume. Raises: GroupNotFoundError, DamagedRecordError."""
        async with self._turn(group_log) as group:
            return _preferences_of(group)

    async def change_preferences(
        self, group_log: TopicId, change: Callable[[GroupPreferences], GroupPreferences]
    ) -> GroupPreferences:
        """Change the preferences, durably, and create the group if there is none. Members learn
        them by their next heartbeat.

        Raises: TooManyGroupsError; what `change` raises.
        """
        await self._create_log(group_log)
        async with self._turn(group_log) as group:
            changed = change(_preferences_of(group))
            # In the row of the topic: records in the log expire if the group is not used.
            given = PropertyChange({PREFERENCES: changed.to_text()})
            await self._topics.change(group_log, given, is_dry_run=False)
            return changed

    async def delete(self, group_log: TopicId) -> None:
        """Delete a group without members, with its offsets. Raises: GroupNotFoundError,
        GroupNotEmptyError."""
        async with self._turn(group_log) as group:
            if group.state.members:
                raise GroupNotEmptyError(
                    f"the group has {len(group.state.members)} members; close them first, or wait "
                    "until their sessions are over"
                )
            await self._delete(group)

    async def _delete(self, group: _ConsumerGroup) -> None:
        group_log = group.topic.id
        self._logs.forget(group_log)
        await self._topics.delete(group_log)
        await self.log_changed(group_log)

    async def note_lost_and_expire(self) -> list[GroupName]:
        """Count what groups have lost of the partitions of this server since the last call, and
        delete those that had no member for `groups.retention`. The names of all of them. A group
        that can't be read now is left to the next call. Call it only while the clock is not
        doubtful."""
        logs = self._live_logs()
        for group_log in logs:
            await asyncio.sleep(0)  # there may be thousands
            with suppress(TuffError):
                async with self._turn(group_log) as group:
                    with suppress(TuffError):
                        await self._note_lost(group, self._read_by(group))
                    if not group.state.members:
                        await self._logs.end_transactions(group)
                    if self._is_unused(group):
                        await self._expire(group)
        return [*map(GroupName.of, logs)]

    async def _expire(self, group: _ConsumerGroup) -> None:
        """Delete a group; one that has preferences keeps these, and forgets its offsets."""
        if has_preferences := _preferences_of(group) != GroupPreferences():
            await self._write(group, [SummaryRecord()])
        else:
            await self._delete(group)
        name = GroupName.of(group.topic.id).full_name
        log.info(
            "%s the consumer group %s, which had no member for %.0f s",
            "forgot the offsets of" if has_preferences else "deleted",
            name,
            self.settings.retention_s,
            extra=event("group_expired", group=name),
        )

    def _is_unused(self, group: _ConsumerGroup) -> bool:
        state, retention_ms = group.state, round(self.settings.retention_s * 1000)
        if state.members or state.undecided:
            return False
        if _preferences_of(group) != GroupPreferences() and not state.started:
            return False  # its offsets are forgotten already
        now_ms = self._state.now_ms()
        last_ms = group.last_ms or group.loaded_ms
        has_waited = now_ms - group.loaded_ms >= min(retention_ms, RETURN_MS)
        return has_waited and now_ms - last_ms >= retention_ms

    def _live_logs(self) -> list[TopicId]:
        """The logs of the groups that this server coordinates, in byte order."""
        return [each for each in self._state.topics.live() if each.name.endswith(GROUP_LOG)]

    def names(self, namespace: str) -> list[str]:
        """The groups of a namespace whose logs this server owns, in byte order."""
        return [
            GroupName.of(each).name for each in self._live_logs() if each.namespace == namespace
        ]

    def _read_by(self, group: _ConsumerGroup) -> Iterable[str]:
        """The partitions whose messages are for the group. Without members, these are all that it
        has consumed: its next member may go on with them."""
        state = group.state
        if state.members:
            return [each for partitions in state.partitions.values() for each in partitions]
        return self._afters(group.topic.id, state)

    def _begin(self, group: _ConsumerGroup, partitions: Iterable[str]) -> None:
        for each in self._owned_among(group, partitions).values():
            self._lost_messages.begin(GroupName.of(group.topic.id), each)

    async def _note_lost(self, group: _ConsumerGroup, partitions: Iterable[str]) -> None:
        name = GroupName.of(group.topic.id)
        behind = {}
        for each, partition in self._owned_among(group, partitions).items():
            with suppress(TopicNotFoundError):
                if self._lost_messages.is_behind(name, partition, _read_to(group.state, each)):
                    behind[each] = partition
        if not behind:  # the usual case
            return
        await self._logs.end_transactions(group)
        undecided = group.state.undecided_partitions()
        tags = _preferences_of(group).tags
        for each, partition in behind.items():
            if each not in undecided:
                read_to = _read_to(group.state, each)
                await self._lost_messages.note(name, partition, read_to, tags=tags)

    def _owned_among(self, group: _ConsumerGroup, partitions: Iterable[str]) -> dict[str, TopicId]:
        """The partitions among these that no other server owns, by their names."""
        ids = {each: partition_in(group.topic.id.namespace, each) for each in partitions}
        return {name: each for name, each in ids.items() if not self._is_foreign(each)}

    async def lags(self, group_log: TopicId, state: GroupState) -> dict[str, Progress]:
        """Where the group is in each partition that it has an offset of, or shall consume."""
        afters = self._afters(group_log, state)
        (owned,) = await lags_of(self._offsets, self._counts, [self._owned(afters)])
        return {
            name: (after, owned.get(name) or await self._foreign_lag(partition, after))
            for name, (partition, after) in afters.items()
        }

    async def all_lags(self, *, count_max: int) -> list[GroupLags]:
        """The lags of the groups whose logs this server owns, by name, with `count_max` partitions
        at most. A group that can't be read now is left out. Raises: StorageUnavailableError."""
        found: list[tuple[GroupName, int]] = []
        afters: list[_Afters] = []
        left_count = count_max
        for group_log in self._live_logs():
            if left_count <= 0:
                break
            with suppress(TuffError):
                async with self._turn(group_log) as group:
                    owned = self._owned(self._afters(group_log, group.state))
                    found.append((GroupName.of(group_log), len(group.state.members)))
                afters.append(dict(islice(owned.items(), left_count)))
                left_count -= max(1, len(owned))  # a group without partitions counts, too
        lags = await lags_of(self._offsets, self._counts, afters)
        return [
            GroupLags(group=name, members_count=members_count, lags=each)
            for (name, members_count), each in zip(found, lags, strict=True)
        ]

    async def _foreign_lag(self, partition: TopicId, after: MessageId | None) -> Lag | None:
        if self.other_owners is not None:
            with suppress(TopicNotFoundError, UnavailableError):
                earliest, end = await self.other_owners.ends(partition, Isolation.ALL)
                unread = await self.other_owners.count(partition, after)
                live_from_ms = 0 if earliest is None else earliest.publish_timestamp_ms
                return Lag.of(after or earliest, end, unread, live_from_ms=live_from_ms)
        return None

    def _afters(self, group_log: TopicId, state: GroupState) -> _Afters:
        """The committed offsets, or None, of the partitions that the group has an offset of, or
        shall consume, by name; without members also of the topics that it has consumed, whose
        messages wait for the next member."""
        names = {each for partitions in state.partitions.values() for each in partitions}
        names |= state.offsets.keys()
        for topic in () if state.members else state.started:
            found = partitions_of(self._state, topic_in(group_log.namespace, topic))
            names |= {name_in(group_log.namespace, each) for each in found}
        return {
            name: (partition_in(group_log.namespace, name), state.after(name))
            for name in sorted(names)
        }

    def _owned(self, afters: _Afters) -> _Afters:
        """The partitions among these that no other server owns."""
        return {name: each for name, each in afters.items() if not self._is_foreign(each[0])}

    def _is_foreign(self, topic: TopicId) -> bool:
        """Whether another server of a cluster owns it."""
        return self.other_owners is not None and self._state.topics.is_foreign(topic)

    async def _create_log(self, group_log: TopicId) -> None:
        if self._logs.exists(group_log):
            return
        self._require_room(group_log.namespace)
        with suppress(TopicExistsError):
            await self._topics.create(group_log, {"ttl": str(self._log_ttl_s)})
        await self.log_changed(group_log)

    def _require_room(self, namespace: str) -> None:
        count = sum(
            record.generation > 0
            for each in self._state.topics
            if each.id.namespace == namespace and each.id.name.endswith(GROUP_LOG)
            if (record := each.decided) is not None
        )
        if count >= GROUPS_COUNT_MAX:
            raise TooManyGroupsError(
                f"the namespace {namespace} has {GROUPS_COUNT_MAX} consumer groups on this server, "
                f"which is the most; delete those without members: `tuff groups ls {namespace}` "
                "lists them; those that are not used any more end after groups.retention"
            )

    async def _ends_of(
        self, group_log: TopicId, topics: Iterable[str], partitions: Mapping[str, Sequence[str]]
    ) -> dict[str, MessageId]:
        """The last decided messages of partitions; those without one are left out."""
        found: dict[str, MessageId] = {}
        for topic in topics:
            names = partitions[topic]
            ids = [partition_in(group_log.namespace, each) for each in names]
            ends = await asyncio.gather(*map(self._decided_end, ids))
            found |= {each: end for each, end in zip(names, ends, strict=True) if end is not None}
        return found

    async def _decided_end(self, partition: TopicId) -> MessageId | None:
        try:
            if self.other_owners is not None and self._is_foreign(partition):
                return (await self.other_owners.ends(partition, Isolation.COMMITTED))[1]
            return (await self._offsets.offsets(partition, isolation=Isolation.COMMITTED)).end
        except TopicNotFoundError:  # it was deleted meanwhile
            return None

    async def _partitions(
        self, group: _ConsumerGroup, more: Iterable[str] = ()
    ) -> dict[str, list[str]]:
        """The partitions to be assigned of all subscribed topics, and of `more`. Raises:
        OwnershipMovingError: those of a new topic are not known now."""
        topics = {*more, *(each for one in group.state.members.values() for each in one.topics)}
        namespace = group.topic.id.namespace
        found: dict[str, Sequence[TopicId]] = {}
        foreign = []
        for name in sorted(topics):
            topic = topic_in(namespace, name)
            if self.other_owners is not None and self._is_foreign(topic):
                names = group.state.partitions.get(name)
                known = None if names is None else [partition_in(namespace, each) for each in names]
                foreign.append((name, self._foreign_partitions(self.other_owners, topic, known)))
            else:
                found[name] = partitions_of(self._state, topic)
        if foreign:  # their owners answer at the same time
            names, asked = zip(*foreign, strict=True)
            found |= zip(names, await asyncio.gather(*asked), strict=True)
        return {name: [name_in(namespace, each) for each in ids] for name, ids in found.items()}

    async def _foreign_partitions(
        self, owners: OwnersOfPartitions, topic: TopicId, known: Sequence[TopicId] | None
    ) -> list[TopicId]:
        """The partitions of a topic of another server, which is asked once a second at most. While
        the server can't answer: the partitions in `known`, those of the group."""
        now_ms = self._state.now_ms()
        partitions, until_ms = self._foreign.get(topic, ([], 0))
        if now_ms < until_ms <= now_ms + FOREIGN_MS:
            return partitions
        try:
            partitions = [topic.partition(each) for each in await owners.partitions(topic)]
        except TopicNotFoundError:
            partitions = []
        except UnavailableError:
            if known is None:
                raise
            partitions = list(known)
        if len(self._foreign) >= FOREIGN_COUNT_MAX:
            self._foreign.clear()
        self._foreign[topic] = partitions, now_ms + FOREIGN_MS
        return partitions

    @asynccontextmanager
    async def _turn(self, group_log: TopicId) -> AsyncIterator[_ConsumerGroup]:
        """The group, for one request at a time. Raises: GroupNotFoundError: it has no log."""
        try:
            async with self._logs.turn(partial(self._state.topics.find, group_log)) as group:
                yield group
        except TopicNotFoundError:
            self._logs.forget(group_log)
            name = str(group_log).removesuffix(GROUP_LOG)
            raise GroupNotFoundError(
                f"there is no group {name}: it was never joined, or it was deleted"
            ) from None

    def _new_sessions(self, _topic: Topic, state: GroupState) -> MemberSessions:
        state.forget_incomplete_members()
        sessions = MemberSessions(
            session_timeout_ms=round(self.settings.session_timeout_s * 1000),
            rebalance_timeout_ms=round(self.settings.rebalance_timeout_s * 1000),
        )
        sessions.begin(state, now_ms=self._state.now_ms())
        return sessions

    async def _fence(self, group: _ConsumerGroup) -> None:
        over = group.memory.over(group.state, now_ms=self._state.now_ms())
        if over:
            partitions = await self._partitions(group)
            await self._write(group, consumer_decisions.fence(group.state, over, partitions))
            fenced, group_log = counted(len(over), "member"), group.topic.id
            extra = event("members_fenced", group=group_log, count=len(over))
            log.info("fenced %s of the group %s", fenced, group_log, extra=extra)

    def _heard(self, group: _ConsumerGroup, member_id: str) -> MemberView:
        group.memory.heard(group.state, member_id, now_ms=self._state.now_ms())
        current = group.state.current[member_id]
        return MemberView(
            member_id=member_id,
            epoch=current.epoch,
            group_epoch=group.state.epoch,
            assigned=tuple(sorted(current.kept)),
            preferences=_preferences_of(group),
            lost=tuple(
                each
                for partition, each in sorted(group.state.begun.items())
                if each.lost and partition in current.kept
            ),
        )

    async def _write(
        self,
        group: _ConsumerGroup,
        records: Sequence[ConsumerRecord],
        *,
        caller: Caller | None = None,
    ) -> None:
        """Also without records, it keeps the log short, and its records from expiring."""
        await self._logs.append(group, records, caller=caller)
        group.memory.forget_others(group.state)
        await self._logs.summarize_if_due(group)


def partitions_of(state: StoreState, topic: TopicId) -> list[TopicId]:
    """The partitions of a topic that can be read, in the order of their numbers; none if the topic
    does not exist."""
    found = state.topics.maybe_find(topic)
    record = None if found is None else found.durable
    if record is None or record.generation < 0:
        return []
    return [topic.partition(number) for number in record.partitions.readable]


def group_log_of(namespace: str, group: str) -> TopicId:
    """The log of a group. Raises: InvalidNameError."""
    return TopicId(namespace, f"{group}{GROUP_LOG}")


def _read_to(state: GroupState, partition: str) -> bytes:
    after = state.after(partition)
    return BEGINNING if after is None else after.to_bytes()


def _preferences_of(group: _ConsumerGroup) -> GroupPreferences:
    text = group.topic.require_durable().properties.get(PREFERENCES)
    if text is None:
        return GroupPreferences()
    try:
        return GroupPreferences.from_text(text)
    except ValueError as error:
        raise DamagedRecordError(f"the group {group.topic.id} can't be read: {error}") from None


async def _ignore(_group_log: TopicId) -> None:
    pass
