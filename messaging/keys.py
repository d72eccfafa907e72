"""Row keys of every table, big-endian, so that byte order is the order of reading (design §5).

    store key   := table(1) row key
    prefix      := UTF8("ns:topic:") generation(4)
    message row := prefix publish_ts(8) seq(2)
    payload row := prefix write_pointer(8) write_ts(8) seq(2)
    topic row   := UTF8("ns:topic:")
    index row   := write_pointer(8) kind(1) prefix first_ts(8) first_seq(2)
    fact row    := its name
    hold row    := prefix UTF8(name)            a position row likewise

One physical store holds all tables under a one-byte tag, because one batch must span them all.
`:` is no legal character of a name, so no topic's prefix can begin another's.
"""

import struct

from tuff.protocol.errors import InvalidNameError
from tuff.protocol.ids import Place
from tuff.protocol.names import TopicId, check_name

MESSAGES = b"m"
PAYLOADS = b"p"
TOPICS = b"t"
INDEX = b"i"
FACTS = b"s"
HOLDS = b"h"
POSITIONS = b"r"
ALL_TABLES = (FACTS, HOLDS, INDEX, MESSAGES, PAYLOADS, POSITIONS, TOPICS)
# Messages and payloads stand side by side, so that one scan passes over both.
ROWS_STOP = b"q"

MARK_KEY = FACTS + b"mark"
FACTS_KEY = FACTS + b"facts"

_GENERATION = struct.Struct(">I")
_PLACE = struct.Struct(">QH")
_POINTER = struct.Struct(">Q")
assert (_GENERATION.size, _PLACE.size, _POINTER.size) == (4, 10, 8)

PLACE_SIZE = _PLACE.size
SEQ_SIZE = 2  # bytes; the end of a place, the number of a row in its millisecond
pack_place = _PLACE.pack


def topic_bytes(topic: TopicId) -> bytes:
    """What every key of the topic begins with, after the table's tag."""
    return f"{topic.namespace}:{topic.name}:".encode()


def topic_key(topic: TopicId) -> bytes:
    """The key of the topic's metadata row."""
    return TOPICS + topic_bytes(topic)


def prefix_of(topic: TopicId, generation: int) -> bytes:
    """What every row key of one generation begins with, after the table's tag."""
    return topic_bytes(topic) + _GENERATION.pack(generation)


def message_key(prefix: bytes, place: Place) -> bytes:
    """The key of the message row at a place."""
    return MESSAGES + prefix + _PLACE.pack(*place)


def message_keys(prefix: bytes, first: Place, count: int) -> list[bytes]:
    """The keys of so many message rows that are neighbours."""
    return _neighbours(MESSAGES + prefix, first, count)


def pointer_prefix(prefix: bytes, pointer: int) -> bytes:
    """What the keys of all payload rows stored under one write pointer begin with."""
    return PAYLOADS + prefix + _POINTER.pack(pointer)


def payload_key(prefix: bytes, pointer: int, place: Place) -> bytes:
    """The key of the payload row written at a place."""
    return pointer_prefix(prefix, pointer) + _PLACE.pack(*place)


def payload_keys(prefix: bytes, pointer: int, first: Place, count: int) -> list[bytes]:
    """The keys of so many payload rows that were written at places that are neighbours."""
    return _neighbours(pointer_prefix(prefix, pointer), first, count)


def _neighbours(start: bytes, first: Place, count: int) -> list[bytes]:
    if count == 1:
        return [start + _PLACE.pack(*first)]
    numbers = range(first.to_int(), first.to_int() + count)
    return [start + each.to_bytes(PLACE_SIZE, "big") for each in numbers]


def index_key(pointer: int, kind: bytes, prefix: bytes, first: Place) -> bytes:
    """The key of an index row: a range of rows that one write left under a pointer."""
    return INDEX + _POINTER.pack(pointer) + kind + prefix + _PLACE.pack(*first)


def bookmark_key(table: bytes, prefix: bytes, name: str) -> bytes:
    """The key of a hold or a named position."""
    return table + prefix + name.encode("ascii")


def split_bookmark(key: bytes) -> tuple[TopicId, int, str]:
    """The topic, the generation and the name in the key of a hold or a named position.

    Raises:
        ValueError: none has these bytes.
    """
    namespace, colon, rest = key[1:].partition(b":")
    name, second, tail = rest.partition(b":")
    topic, generation = split_prefix(namespace + colon + name + second + tail[: _GENERATION.size])
    try:
        return topic, generation, check_name(tail[_GENERATION.size :].decode("ascii"), what="name")
    except (UnicodeDecodeError, InvalidNameError) as error:
        raise ValueError(f"{key!r} has no name at its end") from error


def place_in(key: bytes) -> Place:
    """The place that ends the key of a message, payload or index row."""
    return Place(*_PLACE.unpack_from(key, len(key) - _PLACE.size))


def place_number(key: bytes) -> int:
    """The same as a number: neighbours differ by one."""
    return int.from_bytes(key[-PLACE_SIZE:], "big")


def pointer_in(key: bytes) -> int:
    """The write pointer in the key of a payload row."""
    (pointer,) = _POINTER.unpack_from(key, len(key) - _PLACE.size - _POINTER.size)
    return int(pointer)


def first_place(front: bytes, key: bytes) -> Place | None:
    """The first place whose row, behind this front of its key, is not before a key; None where none
    is."""
    if key <= front:
        return Place(0, 0)
    rest = key[len(front) :]
    number = int.from_bytes(rest[:PLACE_SIZE].ljust(PLACE_SIZE, b"\x00"), "big")
    number += len(rest) > PLACE_SIZE
    if not key.startswith(front) or number >> (8 * PLACE_SIZE):
        return None
    return Place.from_int(number)


def split_prefix(prefix: bytes) -> tuple[TopicId, int]:
    """The topic and the generation of a prefix.

    Raises:
        ValueError: no prefix has these bytes.
    """
    names, generation = prefix[: -_GENERATION.size], prefix[-_GENERATION.size :]
    if len(generation) != _GENERATION.size:
        raise ValueError(f"{prefix!r} is too short for a topic and a generation")
    return split_topic(names), int(_GENERATION.unpack(generation)[0])


def split_topic(names: bytes) -> TopicId:
    """The topic whose keys begin with these bytes.

    Raises:
        ValueError: no topic's do.
    """
    try:
        namespace, name, rest = names.decode("ascii").split(":")
        if rest:
            raise ValueError(f"{names!r} does not end with a colon")
        return TopicId(namespace, name)
    except (UnicodeDecodeError, InvalidNameError) as error:
        raise ValueError(f"{names!r} names no topic") from error


def row_prefix(key: bytes) -> bytes:
    """The prefix in the store key of a message or a payload row."""
    tail = _PLACE.size + (_POINTER.size if key.startswith(PAYLOADS) else 0)
    return key[1:-tail]


def prefix_stop(start: bytes) -> bytes:
    """The first key behind all that begin with these bytes."""
    assert start
    assert start[-1] < 0xFF, "no key part that is scanned by prefix ends in 0xff"
    return start[:-1] + bytes((start[-1] + 1,))


def place_after(place: Place, count: int = 1) -> Place:
    """The place that is `count` rows further on: a full millisecond runs over into the next."""
    return Place.from_int(place.to_int() + count)


def count_between(first: Place, last: Place) -> int:
    """How many places there are from the first to the last, both included."""
    return last.to_int() - first.to_int() + 1
