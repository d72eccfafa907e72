"""The records in the logs of groups. Pure (formats §17, §18).

A log contains the records in the order in which they were decided. Each is the payload of one
message: a JSON object whose `type` names the kind of the record.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from operator import attrgetter
from typing import Any, Generic, TypeVar

import orjson

from tuff.protocol.errors import TuffError
from tuff.protocol.ids import MessageId

R = TypeVar("R")

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
class BegunRecord:
    """A member began to process the message `after` of a partition, of which no offset is
    committed; `lost` members before it began the message and vanished."""

    partition: str
    after: MessageId
    member_id: str
    lost: int


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

    ids: tuple[bytes, ...]
    pointer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RejectedRecord:
    """Messages that were rejected. They are done, as accepted ones are."""

    ids: tuple[bytes, ...]
    pointer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRecord:
    """The first record of a summary: the records behind it, of the same publish, have all messages
    up to this id that are not done, and what is known of later ones."""

    read_to: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowRecord:
    """Messages of a key that are not done; without `key`, of no key, or of a group whose order is
    none. `behind`: nor are those of the key behind this id that were read, `further` of them."""

    ids: tuple[bytes, ...]
    key: bytes | None = None
    behind: bytes | None = None
    further: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tries:
    """What is known of the attempts of a message. `attempts`: how often consumers began it, without
    the present attempt; `lost`: how many of these never ended, as the consumer vanished;
    `is_begun`: a consumer has begun it now; `due_ms`: it waits for its retry until this time, 0 if
    it does not.
    """

    id: bytes
    attempts: int
    lost: int = 0
    is_begun: bool = False
    due_ms: int = 0


@dataclass(frozen=True, slots=True)
class TriedRecord:
    """The attempts of messages that are not done. The last record about a message counts."""

    messages: tuple[Tries, ...]


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
            return _read(self._kinds[form.pop("type")], form)
        except (ValueError, TypeError, KeyError, AttributeError, TuffError) as error:
            raise DamagedRecordOfGroupError(f"no record has this form: {error}") from None

    def pointer_of(self, record: R) -> int | None:
        """The write pointer of the transaction that a record is part of."""
        pointer: int | None = _pointer(record) if isinstance(record, _OF_TRANSACTIONS) else None
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
_OF_TRANSACTIONS = (OffsetRecord, AcceptedRecord, RejectedRecord)
_pointer = attrgetter("pointer")


def _form(record: Any) -> dict[str, object]:
    form: dict[str, object] = {}
    for each in fields(record):
        name, encode, _ = _FIELDS[each.name]
        value = getattr(record, each.name)
        if value != each.default:
            form[name] = encode(value)
    return form


def _read(kind: type[R], form: Mapping[str, object]) -> R:
    values: dict[str, Any] = {}
    for name, value in form.items():
        field_name, decode = _READERS[name]
        values[field_name] = decode(value)
    return kind(**values)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _number(value: object) -> int:
    if type(value) is not int:
        raise TypeError(f"{value!r} is no whole number")
    return value


def _count(value: object) -> int:
    if _number(value) < 0:
        raise ValueError(f"{value!r} is no count")
    return _number(value)


def _true(value: object) -> bool:
    if value is not True:
        raise ValueError(f"{value!r} is not true")
    return True


def _id(value: object) -> bytes:
    return MessageId.from_hex(_text(value)).to_bytes()


def _list(value: object) -> list[object]:
    if not isinstance(value, list):
        raise TypeError(f"{value!r} is no list")
    return value


def _texts(value: object) -> tuple[str, ...]:
    return tuple(map(_text, _list(value)))


def _by_name(decode: Callable[[object], R]) -> Callable[[object], dict[str, R]]:
    return lambda value: {_text(name): decode(each) for name, each in dict(value).items()}  # type: ignore[call-overload]  # refuses what is no object


# The name of each field in JSON, and how its value is written and read.
_FIELDS: Mapping[str, tuple[str, Callable[[Any], object], Callable[[object], object]]] = {
    "member_id": ("memberId", str, _text),
    "instance_id": ("instanceId", str, _text),
    "client": ("client", str, _text),
    "topics": ("topics", list, _texts),
    "assignor": ("assignor", str, _text),
    "epoch": ("epoch", int, _number),
    "previous_epoch": ("previousEpoch", int, _number),
    "partitions": ("partitions", dict, _by_name(_texts)),
    "target": ("target", dict, _by_name(_texts)),
    "assigned": ("assigned", dict, _by_name(_number)),
    "revoking": ("revoking", dict, _by_name(_number)),
    "partition": ("partition", str, _text),
    "offsets": (
        "offsets",
        lambda offsets: {name: after.hex() for name, after in offsets.items()},
        _by_name(lambda value: MessageId.from_hex(_text(value))),
    ),
    "after": ("after", MessageId.hex, lambda value: MessageId.from_hex(_text(value))),
    "at_ms": ("at", int, _number),
    "lost": ("lost", int, _count),
    "pointer": ("pointer", str, lambda value: int(_text(value))),
    # Of share groups, which have ids as bytes.
    "id": ("id", bytes.hex, _id),
    "ids": (
        "ids",
        lambda ids: [each.hex() for each in ids],
        lambda value: tuple(map(_id, _list(value))),
    ),
    "read_to": ("readTo", bytes.hex, _id),
    "key": ("key", bytes.hex, lambda value: bytes.fromhex(_text(value))),
    "behind": ("behind", bytes.hex, _id),
    "further": ("further", int, _count),
    "attempts": ("attempts", int, _count),
    "is_begun": ("begun", bool, _true),
    "due_ms": ("due", int, _count),
    "messages": (
        "messages",
        lambda messages: [*map(_form, messages)],
        lambda value: tuple(_read(Tries, dict(each)) for each in _list(value)),  # type: ignore[call-overload]  # refuses what is no object
    ),
}
_READERS = {name: (each, decode) for each, (name, _, decode) in _FIELDS.items()}
