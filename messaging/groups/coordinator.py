"""The group coordinator: decides requests of members, and appends the records to the group's log.

The log of a group is an internal topic. The server that owns it is the coordinator, so elections,
fencing and failover are those of topics (decision 0043, section 4). The state is in memory and is
made from the log at the first request. A request is decided on that state, its records are written
as one batch, and they are applied once they are durable. Requests of one group take turns.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol
from weakref import WeakValueDictionary

from messaging.groups import decisions
from messaging.groups.decisions import Heartbeat, Sessions
from messaging.groups.settings import GroupSettings
from messaging.groups.state import (
    DamagedRecordOfGroupError,
    GroupState,
    MemberRecord,
    OffsetRecord,
    Record,
    from_bytes,
    to_bytes,
)
from messaging.groups.undecided import damaged_record, ended_transactions
from messaging.read.offsets_and_splits import TopicOffsets
from messaging.read.poll import Poll, Polls
from messaging.retention.holds_and_positions import behind_ms
from messaging.storage.store_state import StoreState
from messaging.topic_changes import TopicChanges
from messaging.topics import Topic
from messaging.write.group_commit import GroupCommitter, Write, WriteBatch
from messaging.write.publish import Publisher
from tuff.log_events import event
from tuff.protocol.errors import (
    GroupNotEmptyError,
    GroupNotFoundError,
    TooManyGroupsError,
    TopicExistsError,
    TopicNotFoundError,
    TuffError,
    UnavailableError,
)
from tuff.protocol.exchange import Caller
from tuff.protocol.ids import GROUP_LOG, MessageId, TopicId
from tuff.protocol.json_forms import payload_from_json
from tuff.protocol.requests import PublishRequest

log = logging.getLogger(__name__)

FOREIGN_MS = 1_000  # between two questions to another server about one topic
FOREIGN_COUNT_MAX = 10_000  # topics of which the answer is remembered
GROUPS_COUNT_MAX = 10_000  # of a namespace; each is a topic and some KB in memory
RECORDS_COUNT_MAX = 5_000  # of a log behind its summary; a coordinator reads them in some 100 ms


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """What a member has after a heartbeat: its epoch, the group's, and the partitions that it shall
    consume. Those that it has and that are not here it shall release."""

    member_id: str
    epoch: int
    group_epoch: int
    assigned: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionLag:
    """A partition of a group for people: `end` and `behind_ms` are None where they are not known,
    since another server owns the partition or it does not exist any more."""

    partition: str
    member_id: str | None
    after: MessageId | None
    end: MessageId | None
    behind_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLags:
    """A group for monitoring: how many ms each of its partitions is behind, by the partition's
    name. Partitions that another server owns are left out."""

    namespace: str
    name: str
    members_count: int
    behind_ms: Mapping[str, int]


@dataclass(slots=True)
class _Group:
    """A group in memory, made from the log that is this topic, in this generation. `rows` has the
    id of the first message in the log of each undecided transaction."""

    topic: Topic
    generation: int
    state: GroupState
    sessions: Sessions
    rows: dict[int, MessageId]
    records_count: int = 0  # in the log, behind the summary
    first_ms: int | None = None  # the time of the oldest record in the log


class OtherOwners(Protocol):
    """The topics of the other servers of a cluster. Both raise TopicNotFoundError, and
    UnavailableError (its kinds): nobody can tell now."""

    async def partitions(self, topic: TopicId) -> list[int]:
        """The numbers of the partitions that can be read, ascending."""

    async def ends(self, partition: TopicId) -> tuple[MessageId | None, MessageId | None]:
        """The ids of the earliest and the last message."""


class GroupCoordinator:
    """Coordinates the groups whose logs this server owns. Lives on the event loop."""

    def __init__(
        self,
        state: StoreState,
        committer: GroupCommitter,
        publisher: Publisher,
        polls: Polls,
        topics: TopicChanges,
        offsets: TopicOffsets,
        settings: GroupSettings,
        *,
        log_ttl_s: int,
    ) -> None:
        """`log_ttl_s`: seconds after which the records of a group expire that has no request for so
        long."""
        self.settings = settings
        self._state = state
        self._committer = committer
        self._publisher = publisher
        self._polls = polls
        self._topics = topics
        self._offsets = offsets
        self._log_ttl_s = log_ttl_s
        # Called when the log of a group was created or deleted: the servers of a cluster list them.
        self.log_changed: Callable[[TopicId], Awaitable[None]] = _ignore
        self.other_owners: OtherOwners | None = None  # None: this is a single server
        self._groups: dict[TopicId, _Group] = {}
        # The partitions of other servers' topics, and until when, in ms, they are not asked again.
        self._foreign: dict[TopicId, tuple[list[str], int]] = {}
        # A lock is there as long as a request has it, or waits for it.
        self._turns: WeakValueDictionary[TopicId, asyncio.Lock] = WeakValueDictionary()

    async def tick(self) -> None:
        """Fence members whose session is over; call it several times a second."""
        now_ms = self._state.now_ms()
        for group_log, group in list(self._groups.items()):
            end_ms = group.sessions.next_end_ms
            if end_ms is None or end_ms > now_ms:
                continue
            try:
                async with self._turn(group_log) as current:
                    await self._fence(group_log, current)
            except TuffError as error:
                # Another server may coordinate it now. If not, the next request loads it again.
                self._groups.pop(group_log, None)
                log.warning("no member of the group %s is fenced now: %s", group_log, error)

    async def join(self, group_log: TopicId, request: MemberRecord) -> MemberView:
        """Raises: BadRequestError: the client's name is no Unicode. UnreleasedInstanceIdError,
        TooManyGroupsError, TooManyMembersError."""
        payload_from_json(request.client, what="client")  # the log is UTF-8
        await self._create_log(group_log)
        async with self._turn(group_log) as group:
            partitions = await self._partitions(group_log, group, request.topics)
            records = decisions.join(group.state, request, partitions)
            await self._write(group_log, group, records)
            return self._heard(group, request.member_id)

    async def heartbeat(self, group_log: TopicId, request: Heartbeat) -> MemberView:
        """Raises: GroupNotFoundError, UnknownMemberError, FencedMemberEpochError."""
        async with self._turn(group_log) as group:
            partitions = await self._partitions(group_log, group)
            records = decisions.heartbeat(group.state, request, partitions)
            await self._write(group_log, group, records)
            return self._heard(group, request.member_id)

    async def leave(self, group_log: TopicId, member_id: str, *, keeps_assignment: bool) -> None:
        """Raises: GroupNotFoundError, UnknownMemberError."""
        async with self._turn(group_log) as group:
            partitions = await self._partitions(group_log, group)
            records = decisions.leave(
                group.state, member_id, partitions, keeps_assignment=keeps_assignment
            )
            await self._write(group_log, group, records)
            if member_id in group.state.members:
                group.sessions.heard(group.state, member_id, now_ms=self._state.now_ms())
            group.sessions.forget_others(group.state)

    async def commit(
        self,
        group_log: TopicId,
        member_id: str,
        epoch: int,
        offsets: Mapping[str, MessageId],
        *,
        pointer: int | None,
        caller: Caller | None = None,
    ) -> None:
        """Commit offsets; with a write pointer as messages of that transaction of the caller, which
        count once it has committed.

        Raises: GroupNotFoundError, UnknownMemberError, StaleMemberEpochError,
            PartitionNotAssignedError, TransactionError (its kinds).
        """
        async with self._turn(group_log) as group:
            now_ms = self._state.now_ms()
            records = decisions.commit(
                group.state, member_id, epoch, offsets, now_ms=now_ms, pointer=pointer
            )
            await self._write(group_log, group, records, pointer=pointer, caller=caller)

    async def committed(self, group_log: TopicId) -> GroupState:
        """The state, in which every offset is settled whose transaction has ended.

        Raises: GroupNotFoundError; TransactionsUnavailableError: there are such offsets.
        """
        async with self._turn(group_log) as group:
            await self._settle(group_log, group)
            return group.state

    async def reset(self, group_log: TopicId, offsets: Mapping[str, MessageId | None]) -> None:
        """Set or forget (None) offsets of partitions that no member has.

        Raises: GroupNotFoundError, GroupNotEmptyError; TransactionsUnavailableError.
        """
        async with self._turn(group_log) as group:
            await self._settle(group_log, group)
            records = decisions.reset(
                group.state,
                offsets,
                now_ms=self._state.now_ms(),
                undecided=group.state.undecided_partitions(),
            )
            await self._write(group_log, group, records)

    async def delete(self, group_log: TopicId) -> None:
        """Delete a group without members, with its offsets. Raises: GroupNotFoundError,
        GroupNotEmptyError."""
        async with self._turn(group_log) as group:
            if group.state.members:
                raise GroupNotEmptyError(
                    f"the group has {len(group.state.members)} members; close them first, or wait "
                    "until their sessions are over"
                )
            del self._groups[group_log]
            await self._topics.delete(group_log)
        await self.log_changed(group_log)

    def names(self, namespace: str) -> list[str]:
        """The groups of a namespace whose logs this server owns, in byte order."""
        return [
            each.name.removesuffix(GROUP_LOG)
            for each in self._state.topics.live()
            if each.namespace == namespace and each.name.endswith(GROUP_LOG)
        ]

    async def lags(self, group_log: TopicId, state: GroupState) -> list[PartitionLag]:
        """Where the group is in each partition that it has an offset of, or shall consume."""
        return [await self._lag(partition, state) for partition in _partitions_of(group_log, state)]

    async def all_lags(self, *, count_max: int) -> list[GroupLags]:
        """The lags of the groups whose logs this server owns, by name, with `count_max` partitions
        at most. A group that can't be read now is left out. Raises: StorageUnavailableError."""
        found: dict[TopicId, tuple[int, dict[TopicId, MessageId | None]]] = {}
        left_count = count_max
        logs = [each for each in self._state.topics.live() if each.name.endswith(GROUP_LOG)]
        for group_log in sorted(logs):
            if left_count <= 0:
                break
            with suppress(TuffError):
                async with self._turn(group_log) as group:
                    afters = self._owned_offsets(group_log, group.state, count_max=left_count)
                    found[group_log] = len(group.state.members), afters
                left_count -= max(1, len(afters))  # a group without partitions counts, too
        bounds = await self._offsets.bounds(
            {each for _, afters in found.values() for each in afters}
        )
        return [
            GroupLags(
                namespace=group_log.namespace,
                name=group_log.name.removesuffix(GROUP_LOG),
                members_count=members_count,
                behind_ms={
                    partition.name: await self._behind_ms(partition, after, *bounds[partition])
                    for partition, after in afters.items()
                    if partition in bounds
                },
            )
            for group_log, (members_count, afters) in found.items()
        ]

    def _owned_offsets(
        self, group_log: TopicId, state: GroupState, *, count_max: int
    ) -> dict[TopicId, MessageId | None]:
        """The committed offsets of the partitions that no other server owns."""
        owned = [
            each
            for each in _partitions_of(group_log, state)
            if self.other_owners is None or not self._state.topics.is_foreign(each)
        ]
        offsets = state.offsets
        return {
            each: offsets[each.name].after if each.name in offsets else None
            for each in owned[:count_max]
        }

    async def _behind_ms(
        self, partition: TopicId, after: MessageId | None, live_from_ms: int, end: MessageId | None
    ) -> int:
        if after is None and end is not None:
            after = await self._offsets.earliest(partition)
        return 0 if after is None else behind_ms(after, end=end, live_from_ms=live_from_ms)

    async def _create_log(self, group_log: TopicId) -> None:
        found = self._state.topics.maybe_find(group_log)
        if found is not None and found.durable is not None and found.durable.generation > 0:
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
                "lists them"
            )

    async def _lag(self, partition: TopicId, state: GroupState) -> PartitionLag:
        name = partition.name
        after = state.offsets[name].after if name in state.offsets else None
        end = behind_ms = None
        try:
            earliest, end = await self._ends(partition)
        except (TopicNotFoundError, UnavailableError):
            pass
        else:
            behind_ms = 0
            if end is not None and earliest is not None:
                first = earliest if after is None else max(after, earliest)
                behind_ms = max(0, end.publish_timestamp_ms - first.publish_timestamp_ms)
        return PartitionLag(
            partition=name,
            member_id=state.owners.get(name),
            after=after,
            end=end,
            behind_ms=behind_ms,
        )

    async def _ends(self, partition: TopicId) -> tuple[MessageId | None, MessageId | None]:
        if self.other_owners is not None and self._state.topics.is_foreign(partition):
            return await self.other_owners.ends(partition)
        found = await self._offsets.offsets(partition)
        return found.earliest, found.end

    async def _partitions(
        self, group_log: TopicId, group: _Group, more: Iterable[str] = ()
    ) -> dict[str, list[str]]:
        """The partitions to be assigned of all subscribed topics, and of `more`. Raises:
        OwnershipMovingError: those of a new topic are not known now."""
        topics = {*more, *(each for one in group.state.members.values() for each in one.topics)}
        found, foreign = {}, []
        for name in sorted(topics):
            topic = TopicId(group_log.namespace, name)
            if self.other_owners is not None and self._state.topics.is_foreign(topic):
                known = group.state.partitions.get(name)
                foreign.append((name, self._foreign_partitions(self.other_owners, topic, known)))
            else:
                found[name] = partitions_of(self._state, topic)
        if foreign:  # their owners answer at the same time
            names, asked = zip(*foreign, strict=True)
            found |= zip(names, await asyncio.gather(*asked), strict=True)
        return found

    async def _foreign_partitions(
        self, owners: OtherOwners, topic: TopicId, known: Sequence[str] | None
    ) -> list[str]:
        """Asked for each second at most. While nobody can tell: those that the group `known`."""
        now_ms = self._state.now_ms()
        partitions, until_ms = self._foreign.get(topic, ([], 0))
        if now_ms < until_ms <= now_ms + FOREIGN_MS:
            return partitions
        try:
            partitions = [topic.partition(each).name for each in await owners.partitions(topic)]
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
    async def _turn(self, group_log: TopicId) -> AsyncIterator[_Group]:
        """The group, for one request at a time.

        Raises:
            GroupNotFoundError: it has no log.
        """
        try:
            self._state.topics.find(group_log)
        except TopicNotFoundError:
            raise _group_not_found(group_log) from None
        turn = self._turns.setdefault(group_log, asyncio.Lock())
        async with turn:
            try:
                topic = self._state.topics.find(group_log)
                generation = topic.require_durable().generation
                group = self._groups.get(group_log)
                if group is None or group.topic is not topic or group.generation != generation:
                    self._groups.pop(group_log, None)
                    group = await self._load(group_log, topic, generation)
                    self._groups[group_log] = group
                yield group
            except TopicNotFoundError:
                self._groups.pop(group_log, None)
                raise _group_not_found(group_log) from None

    async def _load(self, group_log: TopicId, topic: Topic, generation: int) -> _Group:
        # A write whose caller is gone may be under way. This one is behind it.
        await self._committer.submit(Write(_nothing, internal=True))
        sessions = Sessions(
            session_timeout_ms=round(self.settings.session_timeout_s * 1000),
            rebalance_timeout_ms=round(self.settings.rebalance_timeout_s * 1000),
        )
        group = _Group(topic, generation, GroupState(), sessions, {})
        poll = Poll()
        while True:
            result = await self._polls.poll(group_log, poll)
            for message_id, payload in result.items:
                _apply(group, _decoded(group_log, message_id, payload), message_id)
            if result.caught_up:
                break
            poll = Poll(start=MessageId.from_bytes(result.next_id), inclusive=False)
        group.state.forget_incomplete_members()
        group.sessions.begin(group.state, now_ms=self._state.now_ms())
        log.debug(
            "loaded the group %s from %d records: %d members, %d offsets",
            group_log,
            group.records_count,
            len(group.state.members),
            len(group.state.offsets),
        )
        return group

    async def _fence(self, group_log: TopicId, group: _Group) -> None:
        over = group.sessions.over(group.state, now_ms=self._state.now_ms())
        if over:
            partitions = await self._partitions(group_log, group)
            await self._write(group_log, group, decisions.fence(group.state, over, partitions))
            group.sessions.forget_others(group.state)
            extra = event("members_fenced", group=group_log, count=len(over))
            log.info("fenced %d members of the group %s", len(over), group_log, extra=extra)

    def _heard(self, group: _Group, member_id: str) -> MemberView:
        group.sessions.heard(group.state, member_id, now_ms=self._state.now_ms())
        group.sessions.forget_others(group.state)
        current = group.state.current[member_id]
        return MemberView(
            member_id=member_id,
            epoch=current.epoch,
            group_epoch=group.state.epoch,
            assigned=tuple(sorted(current.kept)),
        )

    async def _write(
        self,
        group_log: TopicId,
        group: _Group,
        records: list[Record],
        *,
        pointer: int | None = None,
        caller: Caller | None = None,
    ) -> None:
        """Append records to the log, and apply them once they are durable. Also without records, it
        keeps the log short, and its records from expiring."""
        if records:
            try:
                published = await self._publisher.publish(
                    group_log,
                    PublishRequest(pointer, [to_bytes(each) for each in records]),
                    caller=caller,
                )
            except BaseException:
                # Whether they are in the log is not known: the next request reads it again.
                self._groups.pop(group_log, None)
                raise
            for record in records:
                _apply(group, record, published.first.to_bytes())
        if group.records_count >= RECORDS_COUNT_MAX or self._is_old(group):
            await self._summarize(group_log, group)

    def _is_old(self, group: _Group) -> bool:
        """Whether half of the time to live of its oldest record is over."""
        half_ms = self._log_ttl_s * 500
        return group.first_ms is not None and self._state.now_ms() - group.first_ms > half_ms

    async def _summarize(self, group_log: TopicId, group: _Group) -> None:
        """Write the state as one batch, and truncate the log before it. Of transactions in
        progress, the records before it are still needed."""
        try:
            await self._settle(group_log, group)
            records = [to_bytes(each) for each in group.state.summary()]
            published = await self._publisher.publish(group_log, PublishRequest(None, records))
            group.records_count, group.first_ms = 0, published.first.publish_timestamp_ms
            await self._topics.truncate(group_log, min([published.first, *group.rows.values()]))
        except UnavailableError as error:
            log.warning("the log of the group %s has no new summary: %s", group_log, error)

    async def _settle(self, group_log: TopicId, group: _Group) -> None:
        """Apply or drop the offsets of transactions that have ended."""
        rows = {each: group.rows[each] for each in group.state.undecided}
        transactions = self._state.transactions
        ended = await ended_transactions(group_log, rows, self._polls, transactions)
        for pointer, is_committed in ended.items():
            group.state.end_transaction(pointer, is_committed=is_committed)
            del group.rows[pointer]


def partitions_of(state: StoreState, topic: TopicId) -> list[str]:
    """The names of the partitions of a topic that can be read, in the order of their numbers; none
    if the topic does not exist."""
    found = state.topics.maybe_find(topic)
    record = None if found is None else found.durable
    if record is None or record.generation < 0:
        return []
    return [topic.partition(number).name for number in record.partitions.readable]


def group_log_of(namespace: str, group: str) -> TopicId:
    """The log of a group. Raises: InvalidNameError."""
    return TopicId(namespace, f"{group}{GROUP_LOG}")


async def _ignore(_group_log: TopicId) -> None:
    pass


def _nothing(_batch: WriteBatch) -> None:
    pass


def _apply(group: _Group, record: Record, message_id: bytes) -> None:
    group.state.apply(record)
    group.records_count += 1
    if group.first_ms is None:
        group.first_ms = MessageId.from_bytes(message_id).publish_timestamp_ms
    if isinstance(record, OffsetRecord) and record.pointer is not None:
        group.rows.setdefault(record.pointer, MessageId.from_bytes(message_id))


def _decoded(group_log: TopicId, message_id: bytes, payload: bytes) -> Record:
    try:
        return from_bytes(payload)
    except DamagedRecordOfGroupError as error:
        raise damaged_record(group_log, message_id, error) from None


def _group_not_found(group_log: TopicId) -> GroupNotFoundError:
    name = str(group_log).removesuffix(GROUP_LOG)
    return GroupNotFoundError(f"there is no group {name}: it was never joined, or it was deleted")


def _partitions_of(group_log: TopicId, state: GroupState) -> list[TopicId]:
    """What the group has an offset of, or shall consume, by name."""
    subscribed = {each for partitions in state.partitions.values() for each in partitions}
    names = sorted(subscribed | state.offsets.keys())
    return [TopicId(group_log.namespace, name) for name in names]
