"""Attributes of a message: key, tags and headers; and tag filters (protocol §3.1, §3.4). Pure."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tuff.protocol.errors import BadRequestError

KEY_BYTES_MAX = 65_535
TAGS_COUNT_MAX = 16
TAG_LENGTH_MAX = 64  # characters
HEADERS_COUNT_MAX = 64
HEADER_NAME_LENGTH_MAX = 128  # characters
# Bytes of all attributes of a message in stored form. A reply is limited by its payloads, so this
# bounds what attributes add to a message of it.
ATTRIBUTES_BYTES_MAX = 65_536
ALTERNATIVES_COUNT_MAX = 16  # of a filter; each has at most `TAGS_COUNT_MAX` tags

_SHOWN_LENGTH_MAX = 100  # characters of a bad value in an error text
_TAG = re.compile(f"[A-Za-z0-9._-]{{1,{TAG_LENGTH_MAX}}}")
# Printable ASCII without the comma.
_HEADER_NAME = re.compile(rf"[\x20-\x2b\x2d-\x7e]{{1,{HEADER_NAME_LENGTH_MAX}}}")


class Attributes(NamedTuple):
    """The attributes of one message. A header's name may repeat, as in Kafka."""

    key: bytes | None = None
    tags: tuple[str, ...] = ()
    headers: tuple[tuple[str, bytes], ...] = ()


NO_ATTRIBUTES = Attributes()


def checked_attributes(
    key: bytes | None, tags: Sequence[str], headers: Sequence[tuple[str, bytes]]
) -> Attributes | None:
    """The attributes of a message to publish; None if it has none.

    Raises:
        BadRequestError: one of them is beyond a limit, or malformed.
    """
    if key is None and not tags and not headers:
        return None
    if key is not None and len(key) > KEY_BYTES_MAX:
        raise BadRequestError(f"a key has at most {KEY_BYTES_MAX} bytes, not {len(key)}")
    check_tags(tags, what="a message")
    repeated = next((tag for tag in tags if tags.count(tag) > 1), None)
    if repeated is not None:
        raise BadRequestError(f"a message has the tag {_shown(repeated)} more than once")
    _check_headers(headers)
    attributes = Attributes(key, tuple(tags), tuple(headers))
    size_bytes = stored_size(attributes)
    if size_bytes > ATTRIBUTES_BYTES_MAX:
        raise BadRequestError(
            f"the key, tags and headers of a message take at most {ATTRIBUTES_BYTES_MAX} bytes as "
            f"stored, not {size_bytes}"
        )
    return attributes


def check_tags(tags: Sequence[str], *, what: str) -> None:
    """Raises: BadRequestError: too many tags, or one is malformed."""
    if len(tags) > TAGS_COUNT_MAX:
        raise BadRequestError(f"{what} has at most {TAGS_COUNT_MAX} tags, not {len(tags)}")
    for tag in tags:
        if not _TAG.fullmatch(tag):
            raise BadRequestError(
                f"a tag has 1 to {TAG_LENGTH_MAX} characters of A-Z a-z 0-9 . _ -, and "
                f"{_shown(tag)} has not"
            )


def _check_headers(headers: Sequence[tuple[str, bytes]]) -> None:
    if len(headers) > HEADERS_COUNT_MAX:
        raise BadRequestError(
            f"a message has at most {HEADERS_COUNT_MAX} headers, not {len(headers)}"
        )
    for name, _ in headers:
        if not _HEADER_NAME.fullmatch(name):
            raise BadRequestError(
                f"the name of a header has 1 to {HEADER_NAME_LENGTH_MAX} printable ASCII "
                f"characters without a comma, and {_shown(name)} has not"
            )


def stored_size(attributes: Attributes) -> int:
    """The bytes that the stored form takes (formats §8.1), of attributes within all other limits:
    an array has a head of one byte up to 15 members, else of three; a text of one byte up to 31
    characters, else of two; bytes have a head of two bytes up to 255, of three up to 65,535, else
    of five."""
    key, tags, headers = attributes
    size = 1 + (1 if key is None else _size_of_bytes(key))
    size += _size_of_array(tags) + sum(map(_size_of_text, tags))
    size += _size_of_array(headers)
    return size + sum(1 + _size_of_text(name) + _size_of_bytes(value) for name, value in headers)


def _size_of_array(members: Sequence[object]) -> int:
    return 1 if len(members) < 16 else 3


def _size_of_text(text: str) -> int:
    return len(text) + (1 if len(text) < 32 else 2)


def _size_of_bytes(data: bytes) -> int:
    size = len(data)
    return size + (2 if size < 1 << 8 else 3 if size < 1 << 16 else 5)


@dataclass(frozen=True, slots=True)
class TagFilter:
    """Selects the messages that have all tags of one alternative at least."""

    alternatives: tuple[frozenset[str], ...]

    @classmethod
    def parse(cls, text: str) -> "TagFilter":
        """The filter that an expression such as `a,b|c` stands for: (a and b) or c.

        Raises:
            BadRequestError: the expression is malformed, or too large.
        """
        alternatives = text.split("|")
        if len(alternatives) > ALTERNATIVES_COUNT_MAX:
            raise BadRequestError(
                f"tags has at most {ALTERNATIVES_COUNT_MAX} alternatives, not {len(alternatives)}"
            )
        parsed = [alternative.split(",") for alternative in alternatives]
        for tags in parsed:
            check_tags(tags, what="an alternative of tags")
        return cls(tuple(map(frozenset, parsed)))

    def selects(self, tags: Sequence[str]) -> bool:
        return any(alternative.issubset(tags) for alternative in self.alternatives)


def _shown(text: str) -> str:
    return json.dumps(text if len(text) <= _SHOWN_LENGTH_MAX else text[:_SHOWN_LENGTH_MAX] + "…")
