"""Messages to publish: payload, key, tags, headers and time to live, checked and in columns."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from tuff.calls import Duration, checked_topic, ttl_of
from tuff.protocol.attributes import Attributes, checked_attributes, stored_size
from tuff.protocol.errors import EmptyPublishError
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import PublishRequest
from tuff.tracing import traced

V_co = TypeVar("V_co", covariant=True)

Payload = str | bytes | bytearray | memoryview
Headers = Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]]


@dataclass(frozen=True, slots=True)
class NewMessage(Generic[V_co]):
    """A message to publish, with its attributes. A str is its UTF-8.

        client.publish(orders, tuff.NewMessage("sold", key="apple", tags=["retail"]))

    `tags`: up to 16 different texts of 1 to 64 characters of `A-Za-z0-9._-`; consumers can select
    by them. `headers`: a mapping, or pairs if a name repeats; up to 64. `ttl`: its time to live in
    whole seconds, at most that of the topic. The payload is a str or bytes, or in a
    `tuff.TypedTopic` a value of its type.
    """

    payload: V_co
    key: str | bytes | None = None
    tags: Iterable[str] = ()
    headers: Headers = ()
    ttl: Duration | None = None


Publishable = Payload | NewMessage[Payload]


class CheckedMessage(NamedTuple):
    """A message with attributes, or with a time to live of its own in seconds."""

    payload: bytes
    attributes: Attributes | None = None
    ttl_s: int | None = None


Checked = bytes | CheckedMessage  # most messages are only a payload, and then nothing is made


class Columns(NamedTuple):
    """As the fields of these names in `PublishRequest`."""

    payloads: Sequence[bytes]
    ttls_s: Sequence[int | None] | None
    attributes: Sequence[Attributes | None] | None


def checked(message: object) -> Checked:
    """The message in the form that is sent.

    Raises:
        TypeError: it is neither a str nor bytes, nor a NewMessage of these, or an attribute has the
            wrong type.
        ValueError: a string has half a surrogate pair, so it has no UTF-8; or an attribute is
            beyond its limits.
    """
    # The quick way of most messages.
    if type(message) is bytes:
        return message
    if type(message) is str and message.isascii():
        return message.encode()
    if not isinstance(message, NewMessage):
        return _bytes_of(message, "a message", _hint)
    payload = _bytes_of(message.payload, "a payload", _hint)
    key = None if message.key is None else _bytes_of(message.key, "a key")
    attributes = checked_attributes(key, _tags_of(message.tags), _headers_of(message.headers))
    ttl_s = ttl_of(message.ttl)
    if attributes is None and ttl_s is None:
        return payload
    return CheckedMessage(payload, attributes, ttl_s)


def all_checked(topic: TopicId, messages: Sequence[object]) -> list[Checked]:
    """The messages for one topic.

    Raises:
        EmptyPublishError: there are none.
        TypeError, ValueError: as `checked`.
    """
    checked_topic(topic)
    if not messages:
        raise EmptyPublishError(f"nothing to publish to {topic}; give at least one message")
    return traced(topic, list(map(checked, messages)))


def size_bytes(message: Checked) -> int:
    """The bytes of its payload and its attributes."""
    if isinstance(message, bytes):
        return len(message)
    return len(message.payload) + (stored_size(message.attributes) if message.attributes else 0)


def publish_request(
    messages: Sequence[Checked], *, pointer: int | None, ttl_s: int | None
) -> PublishRequest:
    """The request that publishes or stores the messages. `ttl_s` is for those without their own."""
    payloads, ttls_s, attributes = columns(messages)
    return PublishRequest(pointer, payloads, ttls_s, ttl_s, attributes)


def columns(messages: Sequence[Checked]) -> Columns:
    """The messages by column."""
    payloads = [each for each in messages if type(each) is bytes]
    if len(payloads) == len(messages):
        return Columns(payloads, None, None)
    rows = [CheckedMessage(each) if isinstance(each, bytes) else each for each in messages]
    ttls_s = [row.ttl_s for row in rows]
    attributes = [row.attributes for row in rows]
    return Columns(
        [row.payload for row in rows],
        None if all(each is None for each in ttls_s) else ttls_s,
        None if all(each is None for each in attributes) else attributes,
    )


def with_ttl(message: Checked, ttl_s: int | None) -> Checked:
    """The message with this time to live, unless it has its own."""
    if ttl_s is None:
        return message
    if isinstance(message, bytes):
        return CheckedMessage(message, ttl_s=ttl_s)
    return message if message.ttl_s is not None else message._replace(ttl_s=ttl_s)


def _bytes_of(value: object, what: str, hint: Callable[[object], str] | None = None) -> bytes:
    match value:
        case str():
            try:
                return value.encode("utf-8")
            except UnicodeEncodeError as error:
                raise ValueError(f"{what} has half a surrogate pair: {error}") from None
        case bytes() | bytearray() | memoryview():
            return bytes(value)
        case _:
            advice = "" if hint is None else hint(value)
            raise TypeError(f"{what} is str or bytes, not {type(value).__name__}{advice}")


def _hint(value: object) -> str:
    if isinstance(value, list | tuple | set | frozenset | Iterator):
        return "; publish several messages with publish(topic, *messages)"
    return "; encode it first, for example with json.dumps, or use client.topic(topic, serializer)"


def _tags_of(tags: Iterable[str]) -> list[str]:
    if isinstance(tags, str | bytes) or not isinstance(tags, Iterable):
        raise TypeError(f"tags are strings in a list, as tags=['retail'], and not {tags!r:.100}")
    found = list(tags)
    for tag in found:
        if not isinstance(tag, str):
            raise TypeError(f"a tag is a str, not {type(tag).__name__}")
    return found


def _headers_of(headers: object) -> list[tuple[str, bytes]]:
    pairs = list(headers.items()) if isinstance(headers, Mapping) else headers
    if isinstance(pairs, str | bytes) or not isinstance(pairs, Iterable):
        raise TypeError(
            "headers are a mapping of names to values, as headers={'traceparent': '00-…'}, or "
            f"pairs, and not {headers!r:.100}"
        )
    return list(map(_header_of, pairs))


def _header_of(pair: object) -> tuple[str, bytes]:
    match pair:
        case (str() as name, value):
            return name, _bytes_of(value, f"the value of the header {name}")
        case _:
            raise TypeError(
                f"a header is a name (str) and a value (str or bytes), not {pair!r:.100}"
            )
