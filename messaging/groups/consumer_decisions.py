"""The state of a consumer group, and the decisions of its coordinator: from the state and a request
to records. Pure.

`GroupState.apply` is the only code that changes the state, for live traffic and for loading.

The protocol is that of Kafka's consumer groups (KIP-848). Members only heartbeat. The coordinator
computes a target assignment for each group epoch, and brings each member to it (reconciliation):
it takes partitions away first, and gives one out once its former member has reported that it
released it, or was fenced. Partitions that do not move are not interrupted: a member commits with
any epoch since which it has had the partition.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from messaging.groups.assignors import ASSIGNORS, PartitionNames
from messaging.groups.group_log_records import (
    LEFT_STATIC,
    AssignmentRecord,
    BegunRecord,
    ConsumerRecord,
    MemberLeftRecord,
    MemberRecord,
    OffsetRecord,
    ResetRecord,
    StartRecord,
    SummaryRecord,
    TargetRecord,
)
from tuff.protocol.errors import (
    FencedMemberEpochError,
    GroupNotEmptyError,
    PartitionNotAssignedError,
    StaleMemberEpochError,
    TooManyMembersError,
    UnknownMemberError,
    UnreleasedInstanceIdError,
)
from tuff.protocol.ids import MessageId

MEMBERS_COUNT_MAX = 1_000  # of a group; a target is computed on the event loop


@dataclass(slots=True)
class GroupState:
    """Members, assignments and offsets of a group. Members are by id."""

    epoch: int = 0
    assignor: str = ""
    partitions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    target: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    members: dict[str, MemberRecord] = field(default_factory=dict)
    current: dict[str, AssignmentRecord] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)  # the member that has a partition
    instances: dict[str, str] = field(default_factory=dict)  # the static member of an instance id
    # The committed offset of each partition, without a pointer.
    offsets: dict[str, OffsetRecord] = field(default_factory=dict)
    started: set[str] = field(default_factory=set)  # topics in which the start is decided
    # The message that a partition's member has begun, or that the last one began and vanished.
    begun: dict[str, BegunRecord] = field(default_factory=dict)
    # Offsets in transactions that may still commit, by write pointer.
    undecided: dict[int, list[OffsetRecord]] = field(default_factory=dict)

    def apply(self, record: ConsumerRecord) -> None:  # noqa: C901 - one branch for each kind of record
        """Change the state by a record. Never refuses one that a decision made. An offset within a
        transaction stays undecided until `end_transaction`."""
        match record:
            case MemberRecord():
                self._add(record)
            case MemberLeftRecord():
                self._remove(record.member_id)
            case StartRecord():
                self._start(record)
            case TargetRecord():
                self.epoch, self.assignor = record.epoch, record.assignor
                self.partitions, self.target = record.partitions, record.target
            case AssignmentRecord():
                self._assign(record)
            case OffsetRecord() if (pointer := record.pointer) is not None:
                self.undecided.setdefault(pointer, []).append(record)
            case OffsetRecord():
                self._commit(record)
            case ResetRecord():
                self._reset(record)
            case BegunRecord():
                self.begun[record.partition] = record
            case SummaryRecord():
                self._clear()

    def forget_incomplete_members(self) -> None:
        """Forget the members of which records are missing: those at the beginning of a log expire
        if the group has no request for long. Such a member joins again."""
        for member_id in self.members.keys() ^ self.current.keys():
            self._remove(member_id)

    def end_transaction(self, pointer: int, *, is_committed: bool) -> None:
        """The transaction of undecided offsets has ended."""
        for record in self.undecided.pop(pointer, ()):
            if is_committed:
                self._commit(record)

    def after(self, partition: str) -> MessageId | None:
        """The committed offset of a partition; None if there is none."""
        offset = self.offsets.get(partition)
        return None if offset is None else offset.after

    def undecided_partitions(self) -> set[str]:
        """The partitions with an offset in a transaction that may still commit."""
        return {each.partition for records in self.undecided.values() for each in records}

    def copy_of_members(self) -> GroupState:
        """A copy to which records of members and assignments can be applied. It has the same
        offsets and starts, and not a copy of them."""
        return replace(
            self,
            members=dict(self.members),
            current=dict(self.current),
            owners=dict(self.owners),
            instances=dict(self.instances),
            begun=dict(self.begun),
        )

    def summary(self) -> Iterator[ConsumerRecord]:
        """Records that make an equal state from any other, without undecided offsets: their own
        records are still needed."""
        yield SummaryRecord()
        yield from self.members.values()
        yield TargetRecord(
            epoch=self.epoch,
            assignor=self.assignor,
            partitions=self.partitions,
            target=self.target,
        )
        yield from self.current.values()
        if self.started:
            yield StartRecord(topics=tuple(sorted(self.started)), offsets={}, at_ms=0)
        yield from self.offsets.values()
        yield from self.begun.values()

    def _add(self, record: MemberRecord) -> None:
        self._release_instance(record.member_id)
        self.members[record.member_id] = record
        if record.instance_id is not None:
            self.instances[record.instance_id] = record.member_id

    def _remove(self, member_id: str) -> None:
        self._release_instance(member_id)
        self.members.pop(member_id, None)
        # It vanished with what it had begun: one that leaves has released its partitions before.
        for each in self._begun_by(member_id):
            self.begun[each.partition] = replace(each, member_id="", lost=each.lost + 1)
        self._release(member_id)
        self.current.pop(member_id, None)

    def _release_instance(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None and self.instances.get(member.instance_id or "") == member_id:
            del self.instances[member.instance_id or ""]

    def _assign(self, record: AssignmentRecord) -> None:
        self._release(record.member_id)
        kept = record.assigned if record.epoch != LEFT_STATIC else {}
        for each in self._begun_by(record.member_id):
            if each.partition not in kept:
                self._give_back(each)
        self.current[record.member_id] = record
        for partition in record.assigned:
            assert partition not in self.owners, "a partition has one owner"
            self.owners[partition] = record.member_id

    def _release(self, member_id: str) -> None:
        before = self.current.get(member_id)
        if before is not None:
            for partition in before.assigned:
                del self.owners[partition]

    def _begun_by(self, member_id: str) -> list[BegunRecord]:
        return [each for each in self.begun.values() if each.member_id == member_id]

    def _give_back(self, begun: BegunRecord) -> None:
        """Its member is alive, and does not go on with the message."""
        if begun.lost:
            self.begun[begun.partition] = replace(begun, member_id="")
        else:
            del self.begun[begun.partition]

    def _start(self, record: StartRecord) -> None:
        self.started.update(record.topics)
        for partition, after in record.offsets.items():
            # Where earlier records have expired, one of a later commit may be left.
            self.offsets.setdefault(partition, _without_member(partition, after, record.at_ms))

    def _commit(self, record: OffsetRecord) -> None:
        begun = self.begun.get(record.partition)
        if begun is not None and begun.after <= record.after:
            del self.begun[record.partition]
        before = self.offsets.get(record.partition)
        # Requests may overtake each other, and a transaction may commit late.
        if before is None or before.after < record.after:
            self.offsets[record.partition] = replace(record, pointer=None)

    def _reset(self, record: ResetRecord) -> None:
        # While the log is loaded, earlier commits are still undecided here. They had been decided
        # when the reset was.
        for records in self.undecided.values():
            records[:] = [each for each in records if each.partition != record.partition]
        self.offsets.pop(record.partition, None)
        self.begun.pop(record.partition, None)
        if record.after is not None:
            offset = _without_member(record.partition, record.after, record.at_ms)
            self.offsets[record.partition] = offset

    def _clear(self) -> None:
        self.epoch, self.assignor, self.partitions, self.target = 0, "", {}, {}
        for each in (self.members, self.current, self.owners, self.instances, self.offsets):
            each.clear()
        self.started.clear()
        self.begun.clear()


@dataclass(frozen=True, slots=True, kw_only=True)
class Heartbeat:
    """A member is alive, and has exactly the partitions `owned`, less than it is assigned once it
    released some. `group_epoch` is that of the last reply that it has acted on: a late heartbeat
    must not release what it had not received yet. `begun`: the message of each partition that it
    has begun, and not committed."""

    member_id: str
    epoch: int
    group_epoch: int
    owned: frozenset[str]
    begun: Mapping[str, MessageId] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MemberSessions:
    """When members were heard of. Not durable: a new coordinator gives each a whole session.

    `ends_ms` has the end of each session, and `releases_ms` the time by which a member has to have
    released the partitions that are taken from it.
    """

    session_timeout_ms: int
    rebalance_timeout_ms: int
    ends_ms: dict[str, int] = field(default_factory=dict)
    releases_ms: dict[str, int] = field(default_factory=dict)

    def begin(self, state: GroupState, *, now_ms: int) -> None:
        """Every member was heard of now."""
        for member_id in state.members:
            self.heard(state, member_id, now_ms=now_ms)

    def heard(self, state: GroupState, member_id: str, *, now_ms: int) -> None:
        """The member sent a request, which has been applied."""
        self.ends_ms[member_id] = now_ms + self.session_timeout_ms
        current = state.current.get(member_id)
        if current is not None and current.revoking:
            self.releases_ms.setdefault(member_id, now_ms + self.rebalance_timeout_ms)
        else:
            self.releases_ms.pop(member_id, None)

    def forget_others(self, state: GroupState) -> None:
        """Forget members that are in the group no more."""
        for times in (self.ends_ms, self.releases_ms):
            for member_id in [each for each in times if each not in state.members]:
                del times[member_id]

    def over(self, state: GroupState, *, now_ms: int) -> list[str]:
        """The members to be fenced, by id."""
        ends = (self.ends_ms, self.releases_ms)
        return sorted(
            each
            for each in state.members
            if any(times.get(each, now_ms + 1) <= now_ms for times in ends)
        )

    @property
    def next_end_ms(self) -> int | None:
        """When a member may have to be fenced; None without members."""
        return min((*self.ends_ms.values(), *self.releases_ms.values()), default=None)


def join(
    state: GroupState, request: MemberRecord, partitions: PartitionNames
) -> list[ConsumerRecord]:
    """A member joins, under an id that it chose: `request` is its record. Repeating it changes
    nothing.

    Raises:
        UnreleasedInstanceIdError: another member has that instance id.
        TooManyMembersError: the group is full.
    """
    former_id = state.instances.get(request.instance_id or "")
    if (
        former_id is not None
        and former_id != request.member_id
        and state.current[former_id].epoch != LEFT_STATIC
    ):
        raise UnreleasedInstanceIdError(
            f"the member {former_id} has the instance id {request.instance_id}; close it, or wait "
            "until its session is over"
        )
    known = state.members.get(request.member_id)
    if known is not None and state.current[request.member_id].epoch != LEFT_STATIC:
        return _changed(state, known, request, partitions)
    draft = _Draft(state)
    if former_id is not None:
        _take_over(draft, former_id, request)
    elif len(state.members) >= MEMBERS_COUNT_MAX:
        raise TooManyMembersError(f"the group has {MEMBERS_COUNT_MAX} members, which is the most")
    draft.add(request)
    if request.member_id not in draft.state.current:
        draft.add(
            AssignmentRecord(
                member_id=request.member_id, epoch=0, previous_epoch=0, assigned={}, revoking={}
            )
        )
    if former_id is None or _is_other(state.members[former_id], request):
        _retarget(draft, partitions)
    _reconcile(draft, request.member_id)
    return draft.records


def topics_to_start(state: GroupState, request: MemberRecord) -> list[str]:
    """The topics that the group has never subscribed to before this request."""
    return sorted({*request.topics} - state.started)


def start(
    topics: Sequence[str], offsets: Mapping[str, MessageId], *, now_ms: int
) -> list[ConsumerRecord]:
    """Where a group begins in topics that it subscribes to for the first time: behind `offsets`,
    and at the beginning of all other partitions, also of those that are added later."""
    return [StartRecord(topics=tuple(topics), offsets=offsets, at_ms=now_ms)] if topics else []


def heartbeat(
    state: GroupState, request: Heartbeat, partitions: PartitionNames
) -> list[ConsumerRecord]:
    """
    Raises:
        UnknownMemberError: the member has to join again.
        FencedMemberEpochError: it has another epoch; it gives up its partitions, and joins again.
    """
    current = _require_member(state, request.member_id)
    is_present = request.epoch == current.epoch
    # The reply to its last heartbeat may have been lost.
    missed_reply = request.epoch == current.previous_epoch and (
        request.owned <= current.assigned.keys()
    )
    if not (is_present or missed_reply):
        raise FencedMemberEpochError(
            f"the member {request.member_id} has the epoch {current.epoch}, and not "
            f"{request.epoch}; give up all partitions, and join again"
        )
    kept = {each: message for each, message in request.begun.items() if each in request.owned}
    begun = begin(state, request.member_id, kept)
    if _has_target(state, current) and state.partitions == _subscribed(state, partitions):
        return begun
    draft = _Draft(state)
    if state.partitions != _subscribed(state, partitions):
        _retarget(draft, partitions)
    _reconcile(draft, request.member_id, request)
    return draft.records + begun


def leave(
    state: GroupState, member_id: str, partitions: PartitionNames, *, keeps_assignment: bool
) -> list[ConsumerRecord]:
    """The member closed. `keeps_assignment`: a static member, which is expected back within a
    session. Raises: UnknownMemberError."""
    current = _require_member(state, member_id)
    draft = _Draft(state)
    if keeps_assignment and state.members[member_id].instance_id is not None:
        draft.add(
            AssignmentRecord(
                member_id=member_id,
                epoch=LEFT_STATIC,
                previous_epoch=LEFT_STATIC,
                assigned=current.kept,
                revoking={},  # it consumes nothing any more
            )
        )
        return draft.records
    if any(each.member_id == member_id for each in state.begun.values()):
        # It closed, and did not vanish with the messages that it had begun.
        draft.add(replace(current, assigned={}, revoking={}))
    draft.add(MemberLeftRecord(member_id=member_id))
    _retarget(draft, partitions)
    return draft.records


def begin(
    state: GroupState, member_id: str, begun: Mapping[str, MessageId]
) -> list[ConsumerRecord]:
    """A member has begun these messages of its partitions. Late reports count as little as those of
    partitions that it does not have: a message is begun once by each member that has it."""
    records: list[ConsumerRecord] = []
    for partition, message in begun.items():
        before, offset = state.begun.get(partition), state.offsets.get(partition)
        if state.owners.get(partition) != member_id:
            continue
        if offset is not None and message <= offset.after:
            continue
        lost = 0
        if before is not None:
            if message < before.after or (message, member_id) == (before.after, before.member_id):
                continue
            lost = before.lost if message == before.after else 0
        records.append(
            BegunRecord(partition=partition, after=message, member_id=member_id, lost=lost)
        )
    return records


def fence(
    state: GroupState, member_ids: Iterable[str], partitions: PartitionNames
) -> list[ConsumerRecord]:
    """Remove members, whose partitions are free at once."""
    draft = _Draft(state)
    for member_id in member_ids:
        draft.add(MemberLeftRecord(member_id=member_id))
    _retarget(draft, partitions)
    return draft.records


def commit(
    state: GroupState,
    member_id: str,
    epoch: int,
    offsets: Mapping[str, MessageId],
    *,
    now_ms: int,
    pointer: int | None = None,
) -> list[ConsumerRecord]:
    """Commit offsets of partitions that the member has had since this epoch, or before.

    Raises:
        UnknownMemberError, StaleMemberEpochError: the member never had this epoch.
        PartitionNotAssignedError: it does not have a partition, or lost it after this epoch.
    """
    current = _require_member(state, member_id)
    if not 0 < epoch <= current.epoch:
        raise StaleMemberEpochError(
            f"the member {member_id} has the epoch {current.epoch}, and not {epoch}",
            members={"memberEpoch": current.epoch},
        )
    lost = sorted(each for each in offsets if current.assigned.get(each, epoch + 1) > epoch)
    if lost:
        raise PartitionNotAssignedError(
            f"the member {member_id} does not have {', '.join(lost[:10])} in the epoch {epoch}",
            members={"partitions": lost},
        )
    return [
        OffsetRecord(
            partition=partition, after=after, member_id=member_id, at_ms=now_ms, pointer=pointer
        )
        for partition, after in offsets.items()
    ]


def reset(
    state: GroupState,
    offsets: Mapping[str, MessageId | None],
    *,
    now_ms: int,
) -> list[ConsumerRecord]:
    """Set or forget (None) offsets.

    Raises:
        GroupNotEmptyError: a member has one of the partitions, or its offset is undecided.
    """
    taken = sorted(each for each in offsets if each in state.owners)
    if taken:
        raise GroupNotEmptyError(
            f"members have {', '.join(taken[:10])}; close them first, or wait until their session "
            "is over"
        )
    waiting = sorted(offsets.keys() & state.undecided_partitions())
    if waiting:
        raise GroupNotEmptyError(
            f"a transaction in progress commits offsets of {', '.join(waiting[:10])}; wait until "
            "it has ended"
        )
    return [
        ResetRecord(partition=partition, after=after, at_ms=now_ms)
        for partition, after in offsets.items()
    ]


def _without_member(partition: str, after: MessageId, at_ms: int) -> OffsetRecord:
    return OffsetRecord(partition=partition, after=after, member_id="", at_ms=at_ms)


class _Draft:
    """A copy of a state, and the records that were applied to it."""

    def __init__(self, state: GroupState) -> None:
        self.state = state.copy_of_members()
        self.records: list[ConsumerRecord] = []

    def add(self, record: ConsumerRecord) -> None:
        self.state.apply(record)
        self.records.append(record)


def _require_member(state: GroupState, member_id: str) -> AssignmentRecord:
    current = state.current.get(member_id)
    if current is None or current.epoch == LEFT_STATIC:
        raise UnknownMemberError(
            f"the group has no member {member_id}: it left, or its session is over; join again"
        )
    return current


def _is_other(member: MemberRecord, request: MemberRecord) -> bool:
    return (set(member.topics), member.assignor) != (set(request.topics), request.assignor)


def _changed(
    state: GroupState, known: MemberRecord, request: MemberRecord, partitions: PartitionNames
) -> list[ConsumerRecord]:
    """A member that joins again: its first join was executed already, or it gave up all partitions
    after it was fenced. The next heartbeat says which it has."""
    draft = _Draft(state)
    if request != known:
        draft.add(request)
    if _is_other(known, request):
        _retarget(draft, partitions)
        _reconcile(draft, request.member_id)
    return draft.records


def _take_over(draft: _Draft, former_id: str, request: MemberRecord) -> None:
    """Give the assignment and the target of a static member that left to its next process."""
    former = draft.state.current[former_id]
    target = {
        request.member_id if member_id == former_id else member_id: each
        for member_id, each in draft.state.target.items()
    }
    draft.add(MemberLeftRecord(member_id=former_id))
    draft.add(
        TargetRecord(
            epoch=draft.state.epoch,
            assignor=draft.state.assignor,
            partitions=draft.state.partitions,
            target=target,
        )
    )
    draft.add(
        AssignmentRecord(
            member_id=request.member_id,
            epoch=draft.state.epoch,
            previous_epoch=0,
            assigned=former.assigned,
            revoking={},
        )
    )


def _subscribed(state: GroupState, partitions: PartitionNames) -> dict[str, tuple[str, ...]]:
    topics = {topic for member in state.members.values() for topic in member.topics}
    return {topic: tuple(partitions.get(topic, ())) for topic in sorted(topics)}


def _retarget(draft: _Draft, partitions: PartitionNames) -> None:
    """Begin the next group epoch, with a target for the present members and partitions."""
    state = draft.state
    votes = Counter(member.assignor for member in state.members.values())
    assignor = min(votes, key=lambda name: (-votes[name], name), default="")
    subscribed = _subscribed(state, partitions)
    subscriptions = {member_id: member.topics for member_id, member in state.members.items()}
    target: dict[str, tuple[str, ...]] = {}
    if assignor:
        # What each member would have if the last target were reached sticks to it.
        previous = {member_id: state.target.get(member_id, ()) for member_id in state.members}
        target = ASSIGNORS[assignor](subscriptions, subscribed, previous)
    draft.add(
        TargetRecord(epoch=state.epoch + 1, assignor=assignor, partitions=subscribed, target=target)
    )


def _has_target(state: GroupState, current: AssignmentRecord) -> bool:
    """Whether a member has reached the target."""
    return (
        current.epoch == state.epoch
        and not current.revoking
        and current.assigned.keys() == set(state.target.get(current.member_id, ()))
    )


def _reconcile(draft: _Draft, member_id: str, reported: Heartbeat | None = None) -> None:
    """Bring a member nearer to the target: as long as it has partitions to release, it gets no
    others."""
    state = draft.state
    current, target = state.current[member_id], set(state.target.get(member_id, ()))
    released = {
        partition
        for partition, epoch in current.revoking.items()
        if reported is not None
        and reported.group_epoch >= epoch
        and partition not in reported.owned
    }
    assigned = {each: since for each, since in current.assigned.items() if each not in released}
    revoking = {each: since for each, since in current.revoking.items() if each not in released}
    for partition in assigned.keys() - target:
        revoking.setdefault(partition, state.epoch)
    epoch = current.epoch
    if not revoking:
        epoch = state.epoch
        free = [each for each in sorted(target - assigned.keys()) if each not in state.owners]
        assigned |= dict.fromkeys(free, epoch)
    changed = AssignmentRecord(
        member_id=member_id,
        epoch=epoch,
        previous_epoch=current.epoch if epoch != current.epoch else current.previous_epoch,
        assigned=assigned,
        revoking=revoking,
    )
    if changed != current:
        draft.add(changed)
