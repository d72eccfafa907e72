"""The state of a consumer group, and the records from which it is made. Pure.

The group's log contains the records in the order in which they were decided. Each is the payload of
one message: a JSON object whose `type` names the kind. `GroupState.apply` is the only code that
changes the state, for live traffic and for loading.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import orjson

from tuff.protocol.errors import TuffError
from tuff.protocol.ids import MessageId

LEFT_STATIC = -2  # the epoch of a static member that closed and keeps its assignment for a session


class DamagedRecordOfGroupError(Exception):
    """A record of a group's log can't be read; the message says why."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRecord:
    """A member joined, or changed what it subscribes to. A static member has an `instance_id`."""

    member_id: str
    topics: tuple[str, ...]
    assignor: str
    instance_id: str | None = None
    client: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLeftRecord:
    """A member left, or was fenced: its session or the time to release partitions was over."""

    member_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetRecord:
    """The group epoch, and the target assignment that was computed for it. `partitions` has the
    partitions of each subscribed topic at that time."""

    epoch: int
    assignor: str
    partitions: Mapping[str, tuple[str, ...]]
    target: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentRecord:
    """The partitions of a member. `assigned` has each with the group epoch in which the member got
    it. `revoking` has those of them that the member shall release, with the group epoch in which
    that was decided. Until the member has reported that it released them, they stay assigned."""

    member_id: str
    epoch: int
    previous_epoch: int
    assigned: Mapping[str, int]
    revoking: Mapping[str, int]

    @property
    def kept(self) -> dict[str, int]:
        """The assigned partitions that the member need not release."""
        return {each: epoch for each, epoch in self.assigned.items() if each not in self.revoking}


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetRecord:
    """A member committed an offset: it has processed the partition through the message `after`.
    With a `pointer` it counts once that transaction has committed."""

    partition: str
    after: MessageId
    member_id: str
    at_ms: int
    pointer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRecord:
    """An operator set the offset of a partition; `after` None: it was forgotten."""

    partition: str
    at_ms: int
    after: MessageId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRecord:
    """Begins a summary: the records behind it, of the same publish, are the whole state."""


Record = (
    MemberRecord
    | MemberLeftRecord
    | TargetRecord
    | AssignmentRecord
    | OffsetRecord
    | ResetRecord
    | SummaryRecord
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedOffset:
    """The committed offset of a partition; `member_id` is empty after a reset."""

    after: MessageId
    at_ms: int
    member_id: str


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
    offsets: dict[str, CommittedOffset] = field(default_factory=dict)
    # Offsets in transactions that may still commit, by write pointer.
    undecided: dict[int, list[OffsetRecord]] = field(default_factory=dict)

    def apply(self, record: Record) -> None:
        """Change the state by a record. Never refuses one that a decision made. An offset within a
        transaction stays undecided until `end_transaction`."""
        match record:
            case MemberRecord():
                self._add(record)
            case MemberLeftRecord():
                self._remove(record.member_id)
            case TargetRecord():
                self.epoch, self.assignor = record.epoch, record.assignor
                self.partitions, self.target = record.partitions, record.target
            case AssignmentRecord():
                self._assign(record)
            case OffsetRecord():
                self._publish(record)
            case ResetRecord():
                self._reset(record)
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

    def undecided_partitions(self) -> set[str]:
        """The partitions with an offset in a transaction that may still commit."""
        return {each.partition for records in self.undecided.values() for each in records}

    def copy_of_members(self) -> "GroupState":
        """A copy to which records of members and assignments can be applied. It has the same
        offsets, and not a copy of them."""
        return replace(
            self,
            members=dict(self.members),
            current=dict(self.current),
            owners=dict(self.owners),
            instances=dict(self.instances),
        )

    def summary(self) -> Iterator[Record]:
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
        for partition, offset in self.offsets.items():
            yield OffsetRecord(
                partition=partition,
                after=offset.after,
                member_id=offset.member_id,
                at_ms=offset.at_ms,
            )

    def _add(self, record: MemberRecord) -> None:
        self._release_instance(record.member_id)
        self.members[record.member_id] = record
        if record.instance_id is not None:
            self.instances[record.instance_id] = record.member_id

    def _remove(self, member_id: str) -> None:
        self._release_instance(member_id)
        self.members.pop(member_id, None)
        self._release(member_id)
        self.current.pop(member_id, None)

    def _release_instance(self, member_id: str) -> None:
        member = self.members.get(member_id)
        if member is not None and self.instances.get(member.instance_id or "") == member_id:
            del self.instances[member.instance_id or ""]

    def _assign(self, record: AssignmentRecord) -> None:
        self._release(record.member_id)
        self.current[record.member_id] = record
        for partition in record.assigned:
            assert partition not in self.owners, "a partition has one owner"
            self.owners[partition] = record.member_id

    def _release(self, member_id: str) -> None:
        before = self.current.get(member_id)
        if before is not None:
            for partition in before.assigned:
                del self.owners[partition]

    def _publish(self, record: OffsetRecord) -> None:
        if record.pointer is None:
            self._commit(record)
        else:
            self.undecided.setdefault(record.pointer, []).append(record)

    def _commit(self, record: OffsetRecord) -> None:
        before = self.offsets.get(record.partition)
        # Requests may overtake each other, and a transaction may commit late.
        if before is None or before.after < record.after:
            self.offsets[record.partition] = CommittedOffset(
                after=record.after, at_ms=record.at_ms, member_id=record.member_id
            )

    def _reset(self, record: ResetRecord) -> None:
        # While the log is loaded, earlier commits are still undecided here. They had been decided
        # when the reset was.
        for records in self.undecided.values():
            records[:] = [each for each in records if each.partition != record.partition]
        self.offsets.pop(record.partition, None)
        if record.after is not None:
            self.offsets[record.partition] = CommittedOffset(
                after=record.after, at_ms=record.at_ms, member_id=""
            )

    def _clear(self) -> None:
        self.epoch, self.assignor, self.partitions, self.target = 0, "", {}, {}
        for each in (self.members, self.current, self.owners, self.instances, self.offsets):
            each.clear()


def to_bytes(record: Record) -> bytes:
    """The payload of a record in the group's log."""
    form: dict[str, object] = {"type": _NAMES[type(record)]}
    for each in fields(record):
        name, encode, _ = _FIELDS[each.name]
        value = getattr(record, each.name)
        if value is not None:
            form[name] = encode(value)
    return orjson.dumps(form)


def from_bytes(payload: bytes) -> Record:
    """Raises: DamagedRecordOfGroupError: it is no record, or one of a later version."""
    try:
        form = orjson.loads(payload)
        kind = _KINDS[form.pop("type")]
        values: dict[str, Any] = {}
        for name, value in form.items():
            field_name, decode = _READERS[name]
            values[field_name] = decode(value)
        return kind(**values)
    except (ValueError, TypeError, KeyError, AttributeError, TuffError) as error:
        raise DamagedRecordOfGroupError(f"no record has this form: {error}") from None


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{value!r} is no whole number")
    return value


def _texts(value: object) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return tuple(_text(each) for each in value)


def _numbers_of(value: object) -> dict[str, int]:
    return {_text(name): _number(each) for name, each in dict(value).items()}  # type: ignore[call-overload]  # refuses what is no object


def _texts_of(value: object) -> dict[str, tuple[str, ...]]:
    return {_text(name): _texts(each) for name, each in dict(value).items()}  # type: ignore[call-overload]  # refuses what is no object


_KINDS: Mapping[str, type[Record]] = {
    "member": MemberRecord,
    "left": MemberLeftRecord,
    "target": TargetRecord,
    "assignment": AssignmentRecord,
    "offset": OffsetRecord,
    "reset": ResetRecord,
    "summary": SummaryRecord,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
# The name of each field in JSON, and how its value is written and read.
_FIELDS: Mapping[str, tuple[str, Callable[[Any], object], Callable[[object], object]]] = {
    "member_id": ("memberId", str, _text),
    "instance_id": ("instanceId", str, _text),
    "client": ("client", str, _text),
    "topics": ("topics", list, _texts),
    "assignor": ("assignor", str, _text),
    "epoch": ("epoch", int, _number),
    "previous_epoch": ("previousEpoch", int, _number),
    "partitions": ("partitions", dict, _texts_of),
    "target": ("target", dict, _texts_of),
    "assigned": ("assigned", dict, _numbers_of),
    "revoking": ("revoking", dict, _numbers_of),
    "partition": ("partition", str, _text),
    "after": ("after", MessageId.hex, lambda value: MessageId.from_hex(_text(value))),
    "at_ms": ("at", int, _number),
    "pointer": ("pointer", str, lambda value: int(_text(value))),
}
_READERS = {name: (each, decode) for each, (name, _, decode) in _FIELDS.items()}
