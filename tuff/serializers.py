"""Serializers: the values of a program as payloads, and back; and messages with their values."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from io import BytesIO
from typing import Any, Generic, Protocol, TypeVar, overload

from tuff.errors import DeserializationError
from tuff.optional_packages import Extra
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Message

V = TypeVar("V")

AvroSchema = str | dict[str, Any] | list[Any]  # a name, a record, or a union


class Serializer(Protocol[V]):
    """Converts values of one type. Any object with these two methods is one."""

    def to_bytes(self, value: V, /) -> bytes: ...
    def from_bytes(self, data: bytes, /) -> V: ...


class _Bytes:
    def to_bytes(self, value: bytes, /) -> bytes:
        if not isinstance(value, bytes | bytearray | memoryview):
            raise _wrong_type("tuff.BYTES", "bytes", value)
        return bytes(value)

    def from_bytes(self, data: bytes, /) -> bytes:
        return data


class _Str:
    def to_bytes(self, value: str, /) -> bytes:
        if not isinstance(value, str):
            raise _wrong_type("tuff.STR", "a str", value)
        return value.encode()

    def from_bytes(self, data: bytes, /) -> str:
        return data.decode()


def _wrong_type(serializer: str, taken: str, value: object) -> TypeError:
    return TypeError(
        f"{serializer} takes {taken}, and not {type(value).__name__}; "
        "client.topic(topic, tuff.json_serializer()) takes values that JSON has"
    )


BYTES: Serializer[bytes] = _Bytes()
STR: Serializer[str] = _Str()  # as UTF-8


def checked_serializer(serializer: Serializer[V]) -> Serializer[V]:
    """Raises: TypeError: it is no object with the methods of a serializer."""
    methods = (getattr(serializer, name, None) for name in ("to_bytes", "from_bytes"))
    if isinstance(serializer, type) or not all(map(callable, methods)):
        raise TypeError(
            "a serializer is an object with the methods to_bytes and from_bytes, and not "
            f"{serializer!r:.100}; tuff.json_serializer(to_json, from_json) makes one of functions"
        )
    return serializer


@dataclass(frozen=True, slots=True)
class _Json(Generic[V]):
    to_json: Callable[[V], object]
    from_json: Callable[[Any], V]

    def to_bytes(self, value: V, /) -> bytes:
        form = self.to_json(value)
        # NaN is no JSON, and other readers would refuse it.
        try:
            text = json.dumps(form, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        except TypeError as error:
            raise TypeError(
                f"{error}; give tuff.json_serializer the functions to_json and from_json, which "
                "convert such values"
            ) from error
        return text.encode()

    def from_bytes(self, data: bytes, /) -> V:
        return self.from_json(json.loads(data))


@overload
def json_serializer() -> Serializer[Any]: ...
@overload
def json_serializer(
    to_json: Callable[[V], object], from_json: Callable[[Any], V]
) -> Serializer[V]: ...
def json_serializer(
    to_json: Callable[[Any], object] = lambda value: value,
    from_json: Callable[[Any], Any] = lambda form: form,
) -> Serializer[Any]:
    """Values as JSON in UTF-8: without arguments what `json.loads` returns, else a type of yours.

        tuff.json_serializer(dataclasses.asdict, lambda form: Order(**form))

    `to_json`: the JSON form of a value: dicts with str keys, lists, str, numbers, bool, None.
    `from_json`: the value of such a form. What they raise is raised where a value is published, and
    is the cause of a `tuff.errors.DeserializationError` where one is read.
    """
    return _Json(to_json, from_json)


def avro_serializer(schema: AvroSchema) -> Serializer[Any]:
    """Values as Avro: raw binary datums of one schema, without a header; a record is a dict.

    Readers need the same schema: nothing in the payload names it. A change of a schema needs
    another topic, or a header that names the schema.

    Raises:
        ModuleNotFoundError: fastavro is not installed (the extra `avro`).
        ValueError: this is no schema.
    """
    with Extra("avro_serializer", "avro"):
        import fastavro
        from fastavro.schema import SchemaParseException, UnknownType
    try:
        parsed = fastavro.parse_schema(schema)
    except (SchemaParseException, UnknownType, TypeError, KeyError) as error:
        raise ValueError(f"this is no Avro schema: {error}") from error
    return _Avro(parsed, fastavro.schemaless_writer, fastavro.schemaless_reader)


@dataclass(frozen=True, slots=True)
class _Avro:
    schema: Any
    write: Callable[..., None] = field(repr=False)
    read: Callable[[BytesIO, Any, None], Any] = field(repr=False)

    def to_bytes(self, value: object, /) -> bytes:
        buffer = BytesIO()
        # A member of a record that the schema does not have would be left out silently.
        self.write(buffer, self.schema, value, strict_allow_default=True)
        return buffer.getvalue()

    def from_bytes(self, data: bytes, /) -> Any:
        buffer = BytesIO(data)
        value = self.read(buffer, self.schema, None)
        if rest := len(data) - buffer.tell():
            raise ValueError(f"{rest} bytes follow the datum, so it is of another schema")
        return value


@dataclass(frozen=True)
class TypedMessage(Generic[V]):
    """A message of a `tuff.TypedTopic`; `message` is the message itself."""

    topic: TopicId
    message: Message
    serializer: Serializer[V] = field(repr=False)

    @cached_property
    def value(self) -> V:
        """The value of the payload.

        Raises:
            DeserializationError: the serializer can't read the payload. Other messages are not
                affected: skip this one, or publish `error.message` elsewhere.
        """
        try:
            return self.serializer.from_bytes(self.message.payload)
        except Exception as error:
            raise DeserializationError(self.topic, self.message, error) from error

    @property
    def id(self) -> MessageId:
        return self.message.id

    @property
    def timestamp_ms(self) -> int:
        """The publish time."""
        return self.message.timestamp_ms

    @property
    def key(self) -> bytes | None:
        return self.message.key

    @property
    def tags(self) -> tuple[str, ...]:
        return self.message.tags

    def header(self, name: str) -> bytes | None:
        """The last value of a header; see `tuff.Message.header`."""
        return self.message.header(name)
