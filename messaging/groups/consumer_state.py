"""The state of a consumer group, which the records of its log make. Pure.

`GroupState.apply` is the only code that changes the state, for live traffic and for loading.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

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
from tuff.protocol.ids import MessageId


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

    def copy_of_members(self) -> "GroupState":
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


def _without_member(partition: str, after: MessageId, at_ms: int) -> OffsetRecord:
    return OffsetRecord(partition=partition, after=after, member_id="", at_ms=at_ms)
