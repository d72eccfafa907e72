"""How far a stream has read, in the one JSON form that Spark may compare as text.

    {"topics":{"ns:topic":{"gen":"1","id":"<40 hex digits>"}},"v":"1"}

`id` is the last place that was read, so the next batch begins behind it; "" is before the first
message. Spark takes two offsets for equal if their texts are, and runs a batch if they are not: so
members are sorted, and all of them are strings (decision 0024).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from tuff.protocol.errors import InvalidMessageIdError, TuffError
from tuff.protocol.ids import FIRST_ID, MessageId
from tuff.protocol.names import TopicId

VERSION = "1"
BEGINNING = ""  # sorts before every id


class OffsetError(TuffError):
    """A checkpoint holds an offset that this version can't read."""

    code = "bad_offset"


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The last place that was read of one generation of a topic, as hex digits, or BEGINNING."""

    generation: int
    id: str


Positions = Mapping[TopicId, Position]


def before(id: MessageId) -> str:
    """The last place before an id: as a position, it leads to that id."""
    return BEGINNING if id == FIRST_ID else MessageId.from_int(id.to_int() - 1).hex()


def before_time(time_ms: int) -> str:
    """The last place before a publish time."""
    return before(MessageId(time_ms, 0))


def to_json(positions: Positions) -> dict[str, object]:
    """The offset as Spark keeps it; equal positions give equal text."""
    topics = {
        str(topic): {"gen": str(position.generation), "id": position.id}
        for topic, position in sorted(positions.items(), key=lambda pair: str(pair[0]))
    }
    return {"topics": topics, "v": VERSION}


def from_json(offset: object) -> dict[TopicId, Position]:
    """Raises: OffsetError: it is of a later version, or of something else."""
    match offset:
        case {"v": "1", "topics": dict() as topics}:
            return dict(_position(name, value) for name, value in topics.items())
        case _:
            raise OffsetError(
                f"the checkpoint's offset {str(offset)[:200]!r} is none that this version of "
                "pyspark_tuff wrote; use the version that did, or begin a new checkpoint"
            )


def _position(name: str, value: object) -> tuple[TopicId, Position]:
    try:
        match value:
            case {"gen": str() as generation, "id": str() as id} if generation.isdecimal():
                if id != BEGINNING:
                    MessageId.from_hex(id)
                return TopicId(*name.split(":")), Position(generation=int(generation), id=id)
    except (InvalidMessageIdError, TypeError):
        pass
    raise OffsetError(f"the checkpoint's offset has {value!r} for topic {name}, which is no place")
