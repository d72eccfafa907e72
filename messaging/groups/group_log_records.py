"""The records in the logs of groups. Pure (formats §17, §18).

A log contains the records in the order in which they were decided. Each is the payload of one
message: a JSON object whose `type` names the kind of the record.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any, Generic, TypeVar

import orjson

from tuff.protocol.errors import TuffError
from tuff.protocol.ids import MessageId
from tuff.protocol.json_bodies import object_from_json, text_from_json, whole_number
from tuff.protocol.json_objects import Codec, MemberField, fields_of
from tuff.protocol.values import Member, Pointer

R = TypeVar("R")


def _count(value: object, what: str, _namespace: object) -> int:
    if (number := whole_number(value, what=what)) < 0:
        raise ValueError(f"{what} is no count: {number}")
    return number


def _id(value: object, what: str, _namespace: object) -> bytes:
    return MessageId.from_hex(text_from_json(value, what)).to_bytes()


Count = Annotated[int, Codec(_count, lambda count, _: count)]
# Share groups have ids as bytes.
Id = Annotated[bytes, Codec(_id, lambda id, _: id.hex())]
Key = Annotated[
    bytes,
    Codec(
        lambda value, what, _: bytes.fromhex(text_from_json(value, what)), lambda key, _: key.hex()
    ),
]

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
class StartRecord:
    """The group subscribed to `topics` for the first time. `offsets` has where it begins in the
    partitions that existed then; it begins in all others, and in those that are added later, at
    their beginning. Decided once for each topic."""

    topics: tuple[str, ...]
    offsets: Mapping[str, MessageId]
    at_ms: int


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
    With a `pointer` it counts once that transaction has committed. `member_id` is empty for an
    offset of a reset, or of the start of the group, in a summary."""

    partition: str
    after: MessageId
    member_id: str
    at_ms: int
    pointer: Pointer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResetRecord:
    """An operator set the offset of a partition; `after` None: it was forgotten."""

    partition: str
    at_ms: int
    after: MessageId | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunRecord:
    """A member began to process the message `after` of a partition, of which no offset is
    committed; `lost` members before it began the message and vanished."""

    partition: str
    after: MessageId
    member_id: str
    lost: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryRecord:
    """Begins a summary: the records behind it, of the same publish, are the whole state."""


ConsumerRecord = (
    MemberRecord
    | MemberLeftRecord
    | StartRecord
    | TargetRecord
    | AssignmentRecord
    | OffsetRecord
    | ResetRecord
    | BegunRecord
    | SummaryRecord
)


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedRecord:
    """Messages of a share group that were accepted. In a message with a write pointer it counts
    once that transaction has committed; `pointer` is the same number."""

    ids: tuple[Id, ...]
    pointer: Pointer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRecord:
    """Messages that were rejected. They are done, as accepted ones are."""

    ids: tuple[Id, ...]
    pointer: Pointer | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """The first record of a summary: the records behind it, of the same publish, have all messages
    up to this id that are not done, and what is known of later ones."""

    read_to: Id


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRecord:
    """Messages of a key that are not done; without `key`, of no key, or of a group whose order is
    none. `behind`: nor are those of the key behind this id that were read, `further` of them."""

    ids: tuple[Id, ...]
    key: Key | None = None
    behind: Id | None = None
    further: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tries:
    """What is known of the attempts of a message. `attempts`: how often consumers began it, without
    the present attempt; `lost`: how many of these never ended, as the consumer vanished;
    `is_begun`: a consumer has begun it now; `due_ms`: it waits for its retry until this time, 0 if
    it does not.
    """

    id: Id
    attempts: Count
    lost: Count = 0
    is_begun: Annotated[bool, Member("begun")] = False
    due_ms: Count = 0


@dataclass(frozen=True, slots=True)
class TriedRecord:
    """The attempts of messages that are not done. The last record about a message counts."""

    messages: tuple[
        Annotated[
            Tries,
            Codec(
                lambda value, what, _: _read(Tries, object_from_json(value, what)),
                lambda tries, _: _form(tries),
            ),
        ],
        ...,
    ]


ShareRecord = AcceptedRecord | RejectedRecord | ReadRecord | WindowRecord | TriedRecord


class RecordFormat(Generic[R]):
    """How the records of one kind of log are written, by the names of their types. Fields that have
    their default are left out."""

    def __init__(self, kinds: Mapping[str, type[R]]) -> None:
        self._kinds = kinds
        self._names = {kind: name for name, kind in kinds.items()}

    def to_bytes(self, record: R) -> bytes:
        """The payload of a record in the log."""
        return orjson.dumps({"type": self._names[type(record)], **_form(record)})

    def from_bytes(self, payload: bytes) -> R:
        """Raises: DamagedRecordOfGroupError: it is no record, or one of a later version."""
        try:
            form = orjson.loads(payload)
            record: R = _read(self._kinds[form.pop("type")], form)
        except (ValueError, TypeError, KeyError, AttributeError, TuffError) as error:
            raise DamagedRecordOfGroupError(f"no record has this form: {error}") from None
        return record

    def pointer_of(self, record: R) -> int | None:
        """The write pointer of the transaction that a record is part of."""
        pointer: int | None = getattr(record, "pointer", None)
        return pointer


CONSUMER_RECORDS: RecordFormat[ConsumerRecord] = RecordFormat(
    {
        "member": MemberRecord,
        "left": MemberLeftRecord,
        "start": StartRecord,
        "target": TargetRecord,
        "assignment": AssignmentRecord,
        "offset": OffsetRecord,
        "reset": ResetRecord,
        "begun": BegunRecord,
        "summary": SummaryRecord,
    }
)
SHARE_RECORDS: RecordFormat[ShareRecord] = RecordFormat(
    {
        "accepted": AcceptedRecord,
        "rejected": RejectedRecord,
        "tried": TriedRecord,
        "summary": ReadRecord,
        "window": WindowRecord,
    }
)


def _form(record: Any) -> dict[str, object]:
    form: dict[str, object] = {}
    kind: Any = type(record)
    for name, each in _members(kind).items():
        value = getattr(record, each.name)
        if each.default is None or value != each.default():
            form[name] = each.codec.write(value, None)
    return form


def _read(kind: Any, form: Mapping[str, object]) -> Any:
    members, found = _members(kind), {}
    for name, value in form.items():
        each = members[name]
        found[each.name] = each.codec.read(value, name, None)
    return kind(**found)


@cache
def _members(kind: Any) -> dict[str, MemberField]:
    return {each.path[0]: each for each in fields_of(kind)}
