"""Requests and responses as values; how arguments are checked, and replies are read (protocol §2).

A request is an operation with its parameters. A session sends these; HTTP makes an address of them.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote, urlencode

from tuff.protocol.durations import Duration, seconds_of
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import MessageId
from tuff.protocol.json_bodies import (
    array_from_json,
    object_from_json,
    pointer_from_json,
    text_from_json,
)
from tuff.protocol.json_objects import from_json, list_from_json
from tuff.protocol.operations import Effect, Operation

K = TypeVar("K")
T = TypeVar("T")
V = TypeVar("V")
Query = Mapping[str, str | float | None]  # what is None is not sent
IdOrHex = MessageId | str


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An operation, and what it is called with. `parameters` are those of its path, in their order.
    The `body` is a value that the transport encodes, in JSON over HTTP, or bytes of `content_type`.

    `accept`: the media type of the reply, if it is not JSON. `wait_s`: how long the server may wait
    before it answers. `has_id`: it has an id, by which the server recognises a repetition.
    `trace_headers`: the trace context, for a server that records spans.
    """

    operation: Operation
    parameters: tuple[str, ...] = ()
    query: Query = field(default_factory=dict)
    body: object = None
    content_type: str | None = None
    accept: str | None = None
    wait_s: float = 0.0
    has_id: bool = False
    trace_headers: tuple[tuple[str, str], ...] = ()

    @property
    def is_read(self) -> bool:
        """Whether it changes nothing, so that a lost reply leaves no doubt."""
        return self.operation.effect is Effect.NONE

    @property
    def is_repeatable(self) -> bool:
        """Whether sending it twice has the effect of sending it once (protocol §1, Idempotence)."""
        return self.has_id or self.operation.effect is not Effect.ONCE

    @property
    def path(self) -> str:
        """The path of its address, with escapes and the query."""
        values = {
            f"{{{name}}}": quote(value, safe=":")
            for name, value in zip(self.operation.parameters, self.parameters, strict=True)
        }
        segments = (values.get(each, each) for each in self.operation.path.split("/"))
        query = urlencode(self.sent_query)
        return "/".join(segments) + (f"?{query}" if query else "")

    @property
    def sent_query(self) -> dict[str, str | float]:
        return {name: value for name, value in self.query.items() if value is not None}

    @property
    def content(self) -> bytes | None:
        """The body as HTTP sends it; None without one. Half a surrogate pair in a string is
        escaped, for the server to refuse."""
        if self.body is None or isinstance(self.body, bytes):
            return self.body
        return json.dumps(self.body, separators=(",", ":")).encode("ascii")


@dataclass(frozen=True, slots=True)
class Response:
    """One response; header names are in lower case. `form`: the body of a reply of a session, as a
    value in place of JSON."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    form: object = None

    @property
    def problem(self) -> Mapping[str, object]:
        """The problem document of a Tuff server; empty for any other body, such as a proxy's."""
        try:
            body = json.loads(self.body) if self.form is None else self.form
        except ValueError:
            return {}
        return body if isinstance(body, dict) else {}

    @property
    def retry_after_s(self) -> float:
        """How long the client should wait before the next attempt, in seconds."""
        value = self.headers.get("retry-after", "")
        # A proxy may send a date here, which is ignored.
        return float(value) if value.isascii() and value.isdigit() else 0.0


def reply(
    kind: type[V], *, namespace: str | None = None, **known: object
) -> Callable[[Response], V]:
    """Reads a reply that is the object of a value; the parameters are those of `from_json`."""
    return lambda response: from_json(kind, reply_json(response), namespace=namespace, **known)


def reply_list(kind: type[V], member: str) -> Callable[[Response], list[V]]:
    """Reads a reply with a list of values as this member."""
    return lambda response: list_from_json(kind, reply_object(response)[member])


def reply_object(response: Response) -> Mapping[str, object]:
    """The members of a reply. Raises: BadRequestError: it is not a JSON object."""
    return object_from_json(reply_json(response))


def reply_texts(response: Response) -> list[str]:
    """A reply that is a list. Raises: BadRequestError: it is not an array of strings."""
    return [text_from_json(each) for each in array_from_json(reply_json(response))]


def reply_json(response: Response) -> object:
    """The body of a reply as a value. Raises: BadRequestError: it is not JSON."""
    if response.form is not None:
        return response.form
    try:
        value: object = json.loads(response.body)
    except ValueError as error:
        raise BadRequestError(f"the body is not JSON: {error}") from None
    return value


def nothing(response: Response) -> None:
    """Reads an empty body. Raises: BadRequestError: the body is not JSON."""
    if response.body:
        reply_json(response)


def maybe_pointer(value: object, *, what: str) -> int | None:
    """A pointer, or None for null. Raises: BadRequestError: neither."""
    return None if value is None else pointer_from_json(value, what=what)


def maybe_seconds_of(duration: Duration | None, *, what: str) -> float | None:
    """The seconds of a duration; None for None."""
    return None if duration is None else seconds_of(duration, what=what)


def of_type(value: object, kind: type[T], what: str) -> T:
    """The value itself. Raises: TypeError: it is of another type; a bool is no int."""
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise TypeError(f"{what} has the type {kind.__name__}, and not {value!r:.100}")
    return value


def number_of(value: object, what: str, *, at_least: int = 1, at_most: int | None = None) -> int:
    """The whole number itself.

    Raises:
        TypeError: it is no int.
        ValueError: it is out of its range.
    """
    number = of_type(value, int, what)
    if number < at_least or (at_most is not None and number > at_most):
        upper = "on" if at_most is None else f"to {at_most}"
        raise ValueError(f"{what} is a number from {at_least} {upper}, not {number}")
    return number


def maybe_number_of(value: object, what: str) -> int | None:
    """The whole number itself, or None. Raises as `number_of`."""
    return None if value is None else number_of(value, what)


def members(values: Iterable[T], what: str) -> list[T]:
    """The values of a collection. Raises: TypeError: it is none, or a string."""
    given: object = values
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise TypeError(f"{what} is a collection, as a list, and not {given!r:.100}")
    return list(values)


def mapping(values: Mapping[K, T], what: str) -> Mapping[K, T]:
    """The mapping itself. Raises: TypeError: it is none."""
    given: object = values
    if not isinstance(given, Mapping):
        raise TypeError(f"{what} is a mapping, as a dict, and not {given!r:.100}")
    return values
