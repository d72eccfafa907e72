"""The records in the log of a share group, and the group's properties. Pure (formats §18).

The properties are in the row of the log's topic. Each record is the payload of one message: a JSON
object whose `type` names the kind.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import orjson

from messaging.groups.state import DamagedRecordOfGroupError
from tuff.protocol.errors import TuffError
from tuff.protocol.ids import MessageId

IDS_COUNT_MAX = 1_000  # in one record; a larger summary is several records of one batch
LEASE_MS_MIN = 100  # ms; a round trip and some work
LEASE_MS_MAX = 12 * 3600 * 1000  # ms
LEASE_MS_DEFAULT = 30_000  # ms


class Order(StrEnum):
    """In which order a share group processes messages: none, or those of a key one by one."""

    NONE = "none"
    KEY = "key"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShareProperties:
    """What a share group was created with. `start` is what the request named; the group begins
    behind `after`, the id that this meant then."""

    start: str
    after: MessageId
    order: Order = Order.NONE
    lease_ms: int = LEASE_MS_DEFAULT

    def is_same(self, other: "ShareProperties") -> bool:
        """Whether both are of the same request."""
        return (self.start, self.order, self.lease_ms) == (
            other.start,
            other.order,
            other.lease_ms,
        )

    def to_texts(self) -> dict[str, str]:
        """As properties of the log's topic."""
        return {
            "start": self.start,
            "after": self.after.hex(),
            "order": self.order,
            "lease_ms": str(self.lease_ms),
        }

    @classmethod
    def from_texts(cls, texts: Mapping[str, str]) -> "ShareProperties":
        """Raises: DamagedRecordOfGroupError."""
        try:
            return cls(
                start=texts["start"],
                after=MessageId.from_hex(texts["after"]),
                order=Order(texts["order"]),
                lease_ms=int(texts["lease_ms"]),
            )
        except (KeyError, ValueError, TuffError) as error:
            raise DamagedRecordOfGroupError(f"no share group has these: {error}") from None


@dataclass(frozen=True, slots=True, kw_only=True)
class DoneRecord:
    """Messages that were accepted, or rejected. In a message with a write pointer it counts once
    that transaction has committed; `pointer` is the same number."""

    ids: tuple[bytes, ...]
    is_rejection: bool = False
    pointer: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LowMarkRecord:
    """Begins a summary: all messages up to this id are done. The records behind it, of the same
    publish, have those above it that are."""

    low: bytes


ShareRecord = DoneRecord | LowMarkRecord


def to_bytes(record: ShareRecord) -> bytes:
    """The payload of a record in the log."""
    if isinstance(record, LowMarkRecord):
        return orjson.dumps({"type": "summary", "low": record.low.hex()})
    form: dict[str, object] = {
        "type": "rejected" if record.is_rejection else "accepted",
        "ids": [each.hex() for each in record.ids],
    }
    if record.pointer is not None:
        form["pointer"] = str(record.pointer)
    return orjson.dumps(form)


def from_bytes(payload: bytes) -> ShareRecord:
    """Raises: DamagedRecordOfGroupError: it is no record, or one of a later version."""
    try:
        form = orjson.loads(payload)
        if form["type"] == "summary":
            return LowMarkRecord(low=_id(form["low"]))
        pointer = form.get("pointer")
        return DoneRecord(
            ids=tuple(map(_id, form["ids"])),
            is_rejection={"accepted": False, "rejected": True}[form["type"]],
            pointer=None if pointer is None else int(pointer),
        )
    except (ValueError, TypeError, KeyError, AttributeError, TuffError) as error:
        raise DamagedRecordOfGroupError(f"no record has this form: {error}") from None


def summary_of(low: bytes, done: Sequence[bytes]) -> list[ShareRecord]:
    """A low mark, and the messages above it that are done, as records."""
    return [
        LowMarkRecord(low=low),
        *(
            DoneRecord(ids=tuple(done[start : start + IDS_COUNT_MAX]))
            for start in range(0, len(done), IDS_COUNT_MAX)
        ),
    ]


def _id(digits: object) -> bytes:
    if not isinstance(digits, str):
        raise TypeError(f"{digits!r} is no text")
    return MessageId.from_hex(digits).to_bytes()
