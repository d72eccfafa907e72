"""What readers leave with a topic: retention holds and named positions (protocol §3.8, §3.9).

    hold row     := flags(1) crc(4) first(20) set_at_ms(8) expires_at_ms(8)
    position row := flags(1) crc(4) position(20) updated_at_ms(8)

Their keys hold the generation, so that none outlives its topic, and the name. A hold keeps messages
from the topic's time to live, up to a time of its own; a position keeps nothing.
"""

import struct
from dataclasses import dataclass
from typing import Any

from messaging.rows import DamagedRowError, frame, unframe_plain
from tuff.protocol.ids import MESSAGE_ID_SIZE, MessageId
from tuff.protocol.names import TopicId

HOLDS_COUNT_MAX = 100  # of a topic; each is looked at by every read of it
POSITIONS_COUNT_MAX = 1_000  # of a topic; a page of them is one reply

_HOLD = struct.Struct(f">{MESSAGE_ID_SIZE}sQQ")
_POSITION = struct.Struct(f">{MESSAGE_ID_SIZE}sQ")
assert (_HOLD.size, _POSITION.size) == (36, 28)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """What a reader asks to keep: until `expires_at_ms` the topic's time to live takes nothing from
    the place of `first` on."""

    first: MessageId
    set_at_ms: int
    expires_at_ms: int

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key."""
        body = _HOLD.pack(self.first.to_bytes(), self.set_at_ms, self.expires_at_ms)
        return frame(key, 0, body)

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> "Hold":
        """Raises: DamagedRowError."""
        first, set_at_ms, expires_at_ms = _unpack(_HOLD, key, value)
        first_id = MessageId.from_bytes(first)
        return cls(first=first_id, set_at_ms=set_at_ms, expires_at_ms=expires_at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """How far somebody says to have read."""

    position: MessageId
    updated_at_ms: int

    def to_bytes(self, key: bytes) -> bytes:
        """The stored value under this key."""
        return frame(key, 0, _POSITION.pack(self.position.to_bytes(), self.updated_at_ms))

    @classmethod
    def from_bytes(cls, key: bytes, value: bytes) -> "Position":
        """Raises: DamagedRowError."""
        position, updated_at_ms = _unpack(_POSITION, key, value)
        return cls(position=MessageId.from_bytes(position), updated_at_ms=updated_at_ms)


@dataclass(frozen=True, slots=True, kw_only=True)
class PositionLag:
    """How far a named position lies behind the end of its topic: ms between their publish times, 0
    at the end or where nothing is live. A position before all that is live counts from there."""

    topic: TopicId
    name: str
    behind_ms: int
    updated_at_ms: int


def behind_ms(position: MessageId, *, end: MessageId | None, live_from_ms: int) -> int:
    """As `PositionLag` has it."""
    if end is None or end <= position:
        return 0
    return end.publish_timestamp_ms - max(position.publish_timestamp_ms, live_from_ms)


def _unpack(layout: struct.Struct, key: bytes, value: bytes) -> tuple[Any, ...]:
    body = unframe_plain(key, value)
    if len(body) != layout.size:
        raise DamagedRowError(f"its body has {layout.size} bytes, not {len(body)}")
    return layout.unpack(body)
