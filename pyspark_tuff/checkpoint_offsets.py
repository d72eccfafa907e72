"""The offset of a stream, in one canonical JSON form, because Spark compares offsets as text.

    {"topics":{"ns:topic":{"gen":"1","id":"<40 hex digits>"}},"v":"1"}

`id` is the last message id that was read, and the next batch begins after it. "" is before the
first message. A partition is named as its log is: `ns:topic` is partition 0, also of a topic with
several, so a checkpoint from before further partitions were added stays valid. In memory partition
0 has its own name, `ns:topic:0`, which is valid in requests whatever the topic has by then. Spark
runs a batch if the texts of two offsets differ. So members are sorted, and all values are strings
(decision 0024).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from pyspark_tuff.errors import OffsetError
from tuff.protocol.errors import InvalidMessageIdError
from tuff.protocol.ids import FIRST_ID, MessageId, TopicId

VERSION = "1"
BEGINNING = ""  # sorts before every id


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The last id that was read of one generation of a topic, as hex digits, or BEGINNING."""

    generation: int
    id: str


Positions = Mapping[TopicId, Position]


def partition_of(topic: TopicId) -> TopicId:
    """The partition whose log a name is: partition 0 for the name of a topic."""
    return topic.partition(topic.number or 0)


def continued(position: Position | None, *, generation: int) -> Position:
    """Where the read of a generation continues: at its beginning if another one was read before."""
    if position is None or position.generation != generation:
        return Position(generation=generation, id=BEGINNING)
    return position


def before(id: MessageId) -> str:
    """The largest id below `id`: a read that begins after it includes `id`."""
    return BEGINNING if id == FIRST_ID else MessageId.from_int(id.to_int() - 1).hex()


def before_time(time_ms: int) -> str:
    """The largest id below all ids of a publish time."""
    return before(MessageId(time_ms, 0))


def to_json(positions: Positions) -> dict[str, object]:
    """The offset as Spark stores it; equal positions give equal text."""
    topics = {
        str(topic.log): {"gen": str(position.generation), "id": position.id}
        for topic, position in sorted(positions.items(), key=lambda pair: str(pair[0].log))
    }
    return {"topics": topics, "v": VERSION}


def from_json(offset: object) -> dict[TopicId, Position]:
    """Raises: OffsetError: a later version wrote it, or another source."""
    match offset:
        case {"v": "1", "topics": dict() as topics}:
            return dict(_position(name, value) for name, value in topics.items())
        case _:
            raise OffsetError(
                f"the checkpoint's offset {str(offset)[:200]!r} is not in the format of this "
                "version of pyspark_tuff; use the version that wrote it, or begin a new checkpoint"
            )


def _position(name: str, value: object) -> tuple[TopicId, Position]:
    try:
        match value:
            case {"gen": str() as generation, "id": str() as id} if generation.isdecimal():
                if id != BEGINNING:
                    MessageId.from_hex(id)
                topic = partition_of(TopicId(*name.split(":", 1)))
                return topic, Position(generation=int(generation), id=id)
    except (InvalidMessageIdError, TypeError):
        pass
    raise OffsetError(
        f"the checkpoint's offset has {value!r} for topic {name}, which is not a position"
    )
