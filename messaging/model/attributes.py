"""The stored bytes of a message's attributes (formats §8.1).

attributes := [key: bin | nil, [tag: str ...], [[name: str, value: bin] ...]]    MessagePack
"""

import re
from collections.abc import Callable
from functools import lru_cache

import msgpack

from tuff.protocol.attributes import NO_ATTRIBUTES, Attributes, TagFilter

_CACHED_COUNT_MAX = 1_024  # decoded attributes; messages of one kind often have the same
_CACHED_BYTES_MAX = 256  # of an encoding; with the count it bounds the memory to about 1 MiB


def encode_attributes(attributes: Attributes) -> bytes:
    packed: bytes = msgpack.packb(attributes)
    return packed


def decode_attributes(stored: bytes) -> Attributes:
    """The attributes; none if the bytes are not of this form, which an older program may have
    written."""
    return _decode_short(stored) if len(stored) <= _CACHED_BYTES_MAX else _decode(stored)


def _decode(stored: bytes) -> Attributes:
    try:
        found = msgpack.unpackb(stored, use_list=False)
    except (ValueError, msgpack.UnpackException):
        return NO_ATTRIBUTES
    match found:
        case (bytes() | None as key, tuple() as tags, tuple() as headers):
            is_valid = all(isinstance(tag, str) for tag in tags) and all(map(_is_header, headers))
            return Attributes(key, tags, headers) if is_valid else NO_ATTRIBUTES
        case _:
            return NO_ATTRIBUTES


_decode_short = lru_cache(_CACHED_COUNT_MAX)(_decode)


def _is_header(value: object) -> bool:
    match value:
        case (str(), bytes()):
            return True
        case _:
            return False


class StoredTagFilter:
    """A tag filter over stored attributes. Those that can't match are not decoded.

    `may_select` is a quick test of bytes that contain attributes: its result is falsy only if the
    filter does not select them.
    """

    def __init__(self, tags: TagFilter) -> None:
        self._tags = tags
        # Attributes with all tags of an alternative contain the bytes of its longest one.
        needed = sorted({max(each, key=len).encode() for each in tags.alternatives})
        self.may_select: Callable[[bytes], object] = re.compile(
            b"|".join(map(re.escape, needed))
        ).search

    def selects(self, attributes: bytes) -> bool:
        """Whether the filter selects a message with these attributes."""
        if not self.may_select(attributes):
            return False
        return self._tags.selects(decode_attributes(attributes).tags)
