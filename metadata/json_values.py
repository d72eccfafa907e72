"""The values that the managers store: JSON objects with a format number. And their keys.

    value := JSON object with the member `format` and those of its kind, keys sorted, UTF-8

A value that a later version of the software wrote has a higher format number, and is not read.
"""

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from metadata.keys import encode_key
from metadata.store_interface import DamagedEntryError, Key, MetadataStore, Versioned
from tuff.protocol.errors import BadRequestError, InvalidNameError, TuffError
from tuff.protocol.ids import TopicId

T = TypeVar("T")

FORMAT = 1  # of the values of every kind


class Fields:
    """The members of a JSON object, read with their types. Its methods, and the constructor for
    another value than an object, raise BadRequestError: a member is missing or has another type."""

    def __init__(self, value: object, *, what: str = "the value") -> None:
        self._members: Mapping[str, object] = _typed(value, dict, what, "an object")

    def has(self, name: str) -> bool:
        """Whether there is such a member, and it is not null."""
        return self._members.get(name) is not None

    def integer(self, name: str) -> int:
        return self._typed(name, int, "an integer")

    def text(self, name: str) -> str:
        return self._typed(name, str, "text")

    def flag(self, name: str) -> bool:
        return self._typed(name, bool, "true or false")

    def topic(self, name: str) -> TopicId:
        """The topic `ns:topic`. Raises also InvalidNameError."""
        return topic_from(self.text(name))

    def nested(self, name: str) -> "Fields":
        return Fields(self._member(name), what=name)

    def values(self, name: str) -> list[object]:
        return self._typed(name, list, "a list")

    def integers(self, name: str) -> list[int]:
        what = f"a member of {name}"
        return [_typed(each, int, what, "an integer") for each in self.values(name)]

    def objects(self, name: str) -> "list[Fields]":
        return [Fields(each, what=f"a member of {name}") for each in self.values(name)]

    def maybe_text(self, name: str) -> str | None:
        return None if self._member(name) is None else self.text(name)

    def maybe_integer(self, name: str) -> int | None:
        return None if self._member(name) is None else self.integer(name)

    def all_integers(self) -> dict[str, int]:
        """All members, which are integers."""
        return {name: self.integer(name) for name in self._members}

    def _typed(self, name: str, kind: type[T], noun: str) -> T:
        return _typed(self._member(name), kind, name, noun)

    def _member(self, name: str) -> object:
        if name not in self._members:
            raise BadRequestError(f"{name} is missing")
        return self._members[name]


@dataclass(frozen=True, slots=True)
class RecordKind(Generic[T]):
    """A kind of stored value; `what` names it in errors, as in "owner record". `made` returns the
    value for the members that `members` returned. It raises ValueError for those out of range."""

    what: str
    members: Callable[[T], Mapping[str, object]]
    made: Callable[[Fields], T]

    def to_bytes(self, value: T) -> bytes:
        whole = {"format": FORMAT, **self.members(value)}
        return json.dumps(whole, sort_keys=True, separators=(",", ":")).encode()

    def from_bytes(self, key: Key, data: bytes) -> T:
        """Raises: DamagedEntryError: the bytes are not such a value; the message has the key."""
        try:
            fields = Fields(json.loads(data))
            _require_format(fields.integer("format"))
            return self.made(fields)
        except (ValueError, RecursionError, TuffError) as error:  # of json: the first two
            raise DamagedEntryError(
                f"the {self.what} under the key {encode_key(key)} can't be read: {error}"
            ) from None

    def get(self, store: MetadataStore, key: Key) -> Versioned[T] | None:
        """The value under the key, or None. Raises: DamagedEntryError."""
        found = store.get(key)
        return None if found is None else self.versioned(key, found)

    def versioned(self, key: Key, found: Versioned[bytes]) -> Versioned[T]:
        """The value of these bytes. Raises: DamagedEntryError."""
        return Versioned(self.from_bytes(key, found.value), found.version)

    def of_topics(
        self, store: MetadataStore, prefix: Key
    ) -> Iterator[tuple[TopicId, Versioned[T]]]:
        """The values below the prefix, which have keys of `topic_key`. It is no snapshot. Raises:
        DamagedEntryError: also for a key that names no topic."""
        for key, found in store.scan(prefix):
            try:
                _, namespace, name = key
                topic = TopicId(namespace, name)
            except (ValueError, InvalidNameError):
                raise DamagedEntryError(f"the key {encode_key(key)} names no topic") from None
            yield topic, self.versioned(key, found)


def topic_key(kind: str, topic: TopicId) -> Key:
    """The key of the value of this kind that belongs to the topic."""
    return (kind, topic.namespace, topic.name)


def topic_from(text: str) -> TopicId:
    """The topic `ns:topic`. Raises: InvalidNameError."""
    namespace, _, name = text.partition(":")
    return TopicId(namespace, name)


def _typed(found: object, kind: type[T], name: str, noun: str) -> T:
    if isinstance(found, kind) and type(found) is kind:  # for isinstance alone, true is an int
        return found
    raise BadRequestError(f"{name} is not {noun}")


def _require_format(found: int) -> None:
    if found != FORMAT:
        raise ValueError(f"its format is {found}, and this version reads {FORMAT}")
