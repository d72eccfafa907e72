"""The JSON of values in bodies, read and written (protocol §1, §3, §5.1)."""

import json
import math
import re
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from enum import StrEnum
from typing import NoReturn, TypeVar

import orjson

from tuff.protocol.attributes import Attributes, checked_attributes
from tuff.protocol.avro import rollback_detail
from tuff.protocol.errors import (
    BadRequestError,
    InvalidDelayError,
    InvalidTransactionError,
    InvalidTtlError,
    TuffError,
)
from tuff.protocol.ids import MessageId, Offset, topic_id
from tuff.protocol.pointer_list import POINTER_MAX, PointerList
from tuff.protocol.requests import (
    DELAY_MS_MAX,
    MESSAGES_COUNT_MAX,
    WITH_ATTRIBUTES_COUNT_MAX,
    ConsumeRequest,
    Delay,
    PublishEntry,
    PublishRequest,
    RollbackDetail,
    too_many_messages,
    too_many_with_attributes,
)
from tuff.protocol.transaction import (
    NO_SHORT_IN_PROGRESS,
    Transaction,
    TransactionType,
    VisibilityLevel,
)

Member = TypeVar("Member")
Choice = TypeVar("Choice", bound=StrEnum)
TTL_S_MAX = (1 << 31) - 1  # seconds
SHOWN_LENGTH_MAX = 100  # characters of a bad value in an error text
_POINTER_DIGITS_MAX = 20  # characters; a 64-bit number has at most 19 digits and a sign
_SECONDS = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_PUBLISH_MEMBERS = frozenset({"transactionWritePointer", "messages"})
_ATTRIBUTES = frozenset({"key", "tags", "headers"})
_MESSAGE_MEMBERS = _ATTRIBUTES | {"payload", "ttl", "delay", "at"}
_ENTRY_MEMBERS = frozenset({"namespace", "topic", "messages", "pointer", "delay", "at"})
_CONSUME_MEMBERS = frozenset({"startFrom", "inclusive", "limit", "transaction"})
_ROLLBACK_MEMBERS = frozenset(
    {"transactionWritePointer", "startTimestamp", "startSequenceId", "endTimestamp",
     "endSequenceId"}
)  # fmt: skip
_TRANSACTION_MEMBERS = frozenset(
    {"transactionId", "writePointer", "readPointer", "invalids", "inProgress",
     "firstShortInProgress", "type", "checkpointWritePointers", "visibilityLevel", "encoded",
     "state", "client", "timeout", "startedAt", "expiresAt", "lease", "leaseExpiresAt"}
)  # fmt: skip


def parse_json(body: bytes) -> object:
    """The value of a body. An integer of more than 64 bits may become a float, which no number of
    the protocol is.

    Raises:
        BadRequestError: the body is not one JSON value in UTF-8.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        pass  # the other parser accepts half a surrogate pair, and its errors name the position
    try:
        return _DECODER.decode(body.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise BadRequestError(f"the body is not JSON: {reason}") from None


class _Written(str):
    """A number as it is written."""

    __slots__ = ()


def numbers_as_written(body: bytes) -> dict[str, str]:
    """The numbers among the members of a JSON object, each as its text in the body: a float would
    lose `1.10`, or thirty digits. Only for a body that `parse_json` found to be an object."""
    try:
        members = _AS_WRITTEN.decode(body.decode("utf-8"))
    except RecursionError:  # such a body is refused for its depth, whatever its numbers
        return {}
    return {name: str(each) for name, each in members.items() if isinstance(each, _Written)}


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def _integer(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:  # Python reads no more than 4,300 digits
        return float(text)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=_integer)
_AS_WRITTEN = json.JSONDecoder(parse_int=_Written, parse_float=_Written)


def check_object(value: object, *, members: Collection[str], what: str) -> Mapping[str, object]:
    """Returns the value if it is an object with no other than these members.

    Raises:
        BadRequestError: it is not; the text names the wrong member.
    """
    found = value if isinstance(value, dict) else object_from_json(value, what=what)
    if not all(map(members.__contains__, found)):
        name = next(each for each in found if each not in members)
        known = ", ".join(sorted(members)) or "no members"
        raise BadRequestError(f"{what} has no member {shown(name)}; it takes {known}")
    return found


def shown(value: object) -> str:
    """A bad value as an error text quotes it: in JSON, truncated if it is long."""
    try:
        text = json.dumps(value, ensure_ascii=True, default=str)
    except RecursionError:
        text = "a value that is nested too deeply to be shown"
    return text if len(text) <= SHOWN_LENGTH_MAX else text[:SHOWN_LENGTH_MAX] + "…"


def object_from_json(value: object, what: str = "the reply") -> Mapping[str, object]:
    """Raises: BadRequestError: no object."""
    if not isinstance(value, dict):
        raise BadRequestError(f"{what} is a JSON object, not {shown(value)}")
    return value


def array_from_json(value: object, what: str = "the reply") -> list[object]:
    """Raises: BadRequestError: no array."""
    if not isinstance(value, list):
        raise BadRequestError(f"{what} is a JSON array, not {shown(value)}")
    return value


def text_from_json(value: object, what: str = "the reply") -> str:
    """Raises: BadRequestError: no string."""
    if not isinstance(value, str):
        raise BadRequestError(f"{what} is a string, not {shown(value)}")
    return value


def flag_from_json(value: object, *, what: str) -> bool:
    """Raises: BadRequestError: neither true nor false."""
    if not isinstance(value, bool):
        raise BadRequestError(f"{what} is true or false, not {shown(value)}")
    return value


def choice_from_json(kind: type[Choice], value: object, *, what: str) -> Choice:
    """A member of an enumeration. Raises: BadRequestError: it has no such value."""
    if isinstance(value, str):
        with suppress(ValueError):
            return kind(value)
    *others, last = kind
    raise BadRequestError(f"{what} is {', '.join(others)} or {last}, not {shown(value)}")


def payload_to_json(payload: bytes) -> object:
    """A string if the payload is UTF-8, else `{"base64": …}`."""
    try:
        return payload.decode("utf-8")
    except UnicodeDecodeError:
        return {"base64": b64encode(payload).decode("ascii")}


def payload_from_json(value: object, *, what: str = "a payload") -> bytes:
    """Of a session, a payload may also be bytes.

    Raises: BadRequestError: neither a string nor `{"base64": …}`.
    """
    match value:
        case bytes():
            return value
        case str():
            try:
                return value.encode("utf-8")
            except UnicodeEncodeError:
                raise BadRequestError(f"{what} {shown(value)} has half a surrogate pair") from None
        case {"base64": str() as text, **others} if not others:
            try:
                return b64decode(text.encode("ascii"), validate=True)
            except (Base64Error, UnicodeEncodeError):
                raise BadRequestError(f"{what} has bad base64: {shown(text)}") from None
        case _:
            raise BadRequestError(
                f'{what} is a string or {{"base64": "…"}} (over a session: a string or bytes), '
                f"not {shown(value)}"
            )


def payloads_from_json(value: object, *, what: str) -> list[bytes]:
    """Raises: BadRequestError: no array of payloads."""
    if not isinstance(value, list):
        raise BadRequestError(f"{what} is an array of payloads, not {shown(value)}")
    plain = _plain_payloads(value)
    if plain is not None:
        return plain
    return [payload_from_json(item, what=f"an element of {what}") for item in value]


def _plain_payloads(value: list[object]) -> list[bytes] | None:
    """The payloads if all of them are valid strings, as nearly always, or bytes; else None."""
    if value and type(value[0]) is bytes:
        payloads = [each for each in value if type(each) is bytes]
        return payloads if len(payloads) == len(value) else None
    try:
        return list(map(str.encode, value))  # type: ignore[arg-type]  # anything but a string raises
    except (TypeError, UnicodeEncodeError):
        return None


pointer_to_json: Callable[[int], str] = str


def pointer_from_json(value: object, *, what: str) -> int:
    """A 64-bit pointer from a decimal string or an integer.

    Raises:
        BadRequestError: neither, or out of range.
    """
    number: int | None = None
    match value:
        case bool():
            pass
        case int():
            number = value
        case str() if value.isascii() and len(value) <= _POINTER_DIGITS_MAX:
            digits = value.removeprefix("-")
            number = int(value) if digits.isdigit() else None
    if number is None or not -POINTER_MAX <= number <= POINTER_MAX:
        raise BadRequestError(f"{what} is a 64-bit number in decimal digits, not {shown(value)}")
    return number


def pointers_from_json(value: object, *, what: str) -> tuple[int, ...]:
    """An ascending list of pointers. Raises: BadRequestError: no array of them."""
    if not isinstance(value, list):
        raise BadRequestError(f"{what} is an array of pointers, not {shown(value)}")
    return tuple(sorted(pointer_from_json(item, what=f"an element of {what}") for item in value))


def whole_number(value: object, *, what: str) -> int:
    """Raises: BadRequestError: no integer of at most 64 bits."""
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > POINTER_MAX:
        raise BadRequestError(f"{what} is a whole number, not {shown(value)}")
    return value


def clamped_number(value: object, *, what: str) -> int:
    """A whole number; a larger one than 64 bits can hold becomes the largest. `parse_json` may
    have read it as a float.

    Raises: BadRequestError: it is no whole number, or is below zero with more than 64 bits.
    """
    if not isinstance(value, int | float) or -POINTER_MAX <= value <= POINTER_MAX:
        return whole_number(value, what=what)
    if value < 0:
        raise BadRequestError(f"{what} is not below zero, as {shown(value)} is")
    return POINTER_MAX


def seconds_from_json(value: object, *, what: str) -> float:
    """Seconds, fractions allowed. Raises: BadRequestError: no finite number."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadRequestError(f"{what} is a number of seconds, not {shown(value)}")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise BadRequestError(f"{what} is a number of seconds, not {shown(value)}")
    return seconds


def ttl_from_json(value: object) -> int:
    """A time to live in whole seconds, 1 to 2^31-1, of one message or one request.

    Raises:
        InvalidTtlError: anything else.
    """
    number = value
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 10:
        number = int(value)
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= TTL_S_MAX:
        raise InvalidTtlError(
            f"a ttl is a whole number of seconds from 1 to {TTL_S_MAX}, not {shown(value)}"
        )
    return number


def time_ms_from_iso(text: str) -> int:
    """The time in ms since the epoch that an ISO 8601 text names; without an offset it is UTC.
    Raises: ValueError."""
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return math.floor(moment.timestamp() * 1000)


def delay_from_json(members: Mapping[str, object]) -> Delay | None:
    """The delay that the members `delay` (seconds) or `at` (ms, or an ISO 8601 time) name.

    Raises:
        InvalidDelayError: one is out of range or malformed, or both are there.
    """
    seconds, at = members.get("delay"), members.get("at")
    if seconds is None:
        return None if at is None else Delay(_time_ms(at), is_time=True)
    if at is not None:
        raise InvalidDelayError("a message is delayed by either delay or at, and not by both")
    number = seconds
    if isinstance(seconds, str) and _SECONDS.fullmatch(seconds):
        number = float(seconds)
    match number:
        case bool():
            pass
        case int() | float() if 0.001 <= number <= DELAY_MS_MAX // 1000:
            return Delay(round(number * 1000), is_time=False)
    raise InvalidDelayError(
        f"a delay is 0.001 to {DELAY_MS_MAX // 1000} seconds, not {shown(seconds)}"
    )


def _time_ms(value: object) -> int:
    number = value
    if isinstance(value, str):
        try:
            is_digits = value.isascii() and value.isdigit() and len(value) <= _POINTER_DIGITS_MAX
            number = int(value) if is_digits else max(0, time_ms_from_iso(value))
        except (ValueError, OverflowError):
            number = None
    if isinstance(number, int) and not isinstance(number, bool) and 0 <= number <= POINTER_MAX:
        return number
    raise InvalidDelayError(
        f"at is a time in ms since the epoch or in ISO 8601, not {shown(value)}"
    )


def all_delayed(
    own: Sequence[Delay | None] | None, of_all: Delay | None, *, count: int
) -> list[Delay] | None:
    """The delays of `count` messages: each its own, or else that of all; None if there are none.

    Raises:
        InvalidDelayError: some messages are delayed, and others are not.
    """
    if own is None:
        return None if of_all is None else [of_all] * count
    delays = [of_all if each is None else each for each in own]
    delayed = [each for each in delays if each is not None]
    if len(delayed) < len(delays):
        raise InvalidDelayError(
            f"{len(delayed)} of {count} messages are delayed; send the others in a request or an "
            "entry of their own"
        )
    return delayed


def publish_request_from_json(
    value: object, *, what: str = "the request", of_all: Delay | None = None
) -> PublishRequest:
    """`of_all`: the delay of messages without one of their own.

    Raises: BadRequestError (its kinds): malformed; the text says where.
    """
    body = check_object(value, members=_PUBLISH_MEMBERS, what=what)
    named = body.get("transactionWritePointer")
    pointer = None if named is None else pointer_from_json(named, what="transactionWritePointer")
    payloads, ttls_s, attributes, own = _messages_from_json(body.get("messages"))
    delays = all_delayed(own, of_all, count=len(payloads))
    return PublishRequest(pointer, payloads, ttls_s, None, attributes, delays)


def publish_entries_from_json(value: object) -> list[PublishEntry]:
    """The `publish` member of a commit. Raises: BadRequestError (its kinds): malformed."""
    if not isinstance(value, list):
        raise BadRequestError(f"publish is an array of entries, not {shown(value)}")
    entries = [_entry_from_json(item) for item in value]
    count = sum(len(entry.payloads) for entry in entries)
    if count > MESSAGES_COUNT_MAX:
        raise too_many_messages(count)
    return entries


def _entry_from_json(value: object) -> PublishEntry:
    entry = check_object(value, members=_ENTRY_MEMBERS, what="an entry of publish")
    names = [entry.get("namespace"), entry.get("topic")]
    if not isinstance(names[0], str) or not isinstance(names[1], str):
        raise BadRequestError(
            f"an entry of publish names its namespace and its topic, not {shown(names)}"
        )
    payloads, ttls_s, attributes, own = _messages_from_json(entry.get("messages"))
    delays = all_delayed(own, delay_from_json(entry), count=len(payloads))
    if delays is not None and not payloads:
        raise no_delay_of_stored()
    pointer = entry.get("pointer")
    return PublishEntry(
        topic=topic_id(names[0], names[1]),
        payloads=payloads,
        ttls_s=ttls_s,
        pointer=None if pointer is None else pointer_from_json(pointer, what="pointer"),
        attributes=attributes,
        delays=delays,
    )


def publish_entry_to_json(entry: PublishEntry) -> dict[str, object]:
    body: dict[str, object] = {
        "namespace": entry.topic.namespace,
        "topic": entry.topic.name,
        "messages": _messages_to_json(entry),
    }
    if entry.pointer is not None:
        body["pointer"] = pointer_to_json(entry.pointer)
    return body


def no_delay_of_stored() -> InvalidDelayError:
    """The refusal to delay messages that are or were stored."""
    return InvalidDelayError(
        "messages that are stored can't be delayed; publish them under the transaction instead"
    )


def _messages_from_json(
    value: object,
) -> tuple[
    list[bytes],
    list[int | None] | None,
    list[Attributes | None] | None,
    list[Delay | None] | None,
]:
    if value is None:
        raise BadRequestError("messages is missing or null; it is an array of payloads")
    if not isinstance(value, list):
        raise BadRequestError(f"messages is an array of payloads, not {shown(value)}")
    _check_count(value)
    plain = _plain_payloads(value)
    if plain is not None:
        return plain, None, None, None
    payloads: list[bytes] = []
    ttls_s: list[int | None] = []
    attributes: list[Attributes | None] = []
    delays: list[Delay | None] = []
    for item in value:
        ttl_s = attributes_of_item = delay = None
        if isinstance(item, dict) and "base64" not in item:
            check_object(item, members=_MESSAGE_MEMBERS, what="a message")
            if "payload" not in item:
                raise BadRequestError(f"a message has a payload, and {shown(item)} has none")
            ttl_s = None if item.get("ttl") is None else ttl_from_json(item["ttl"])
            attributes_of_item = attributes_from_json(item)
            delay = delay_from_json(item)
            item = item["payload"]
        payloads.append(payload_from_json(item, what="a message"))
        ttls_s.append(ttl_s)
        attributes.append(attributes_of_item)
        delays.append(delay)
    return (
        payloads,
        _unless_all_none(ttls_s),
        _unless_all_none(attributes),
        _unless_all_none(delays),
    )


def _check_count(messages: Sequence[object]) -> None:
    if len(messages) > MESSAGES_COUNT_MAX:
        raise too_many_messages(len(messages))
    if len(messages) > WITH_ATTRIBUTES_COUNT_MAX:
        objects = [each for each in messages if isinstance(each, dict)]
        named = (any(each.get(name) is not None for name in _ATTRIBUTES) for each in objects)
        if sum(named) > WITH_ATTRIBUTES_COUNT_MAX:
            raise too_many_with_attributes()


def _unless_all_none(column: list[Member | None]) -> list[Member | None] | None:
    return column if any(each is not None for each in column) else None


def attributes_from_json(message: Mapping[str, object]) -> Attributes | None:
    """The members `key`, `tags` and `headers` of a message; None if it has none of them. Raises:
    BadRequestError: a value is not valid."""
    key, tags, headers = message.get("key"), message.get("tags"), message.get("headers")
    if key is None and tags is None and headers is None:
        return None
    if tags is not None and not isinstance(tags, list):
        raise BadRequestError(f"tags is an array of strings, not {shown(tags)}")
    return checked_attributes(
        None if key is None else payload_from_json(key, what="a key"),
        [text_from_json(each, what="an element of tags") for each in tags or ()],
        () if headers is None else headers_from_json(headers),
    )


def headers_from_json(value: object) -> tuple[tuple[str, bytes], ...]:
    """The names and values of headers. Raises: BadRequestError: they have another form."""
    if not isinstance(value, dict | list):
        raise BadRequestError(f"headers is a JSON object or an array, not {shown(value)}")
    pairs = value.items() if isinstance(value, dict) else map(_header_pair, value)
    return tuple(pair for name, each in pairs for pair in _headers_of(name, each))


def _header_pair(pair: object) -> tuple[str, object]:
    match pair:
        case [str() as name, value] if not isinstance(value, list):
            return name, value
        case _:
            raise BadRequestError(f"a header in an array is [name, value], not {shown(pair)}")


def _headers_of(name: str, value: object) -> list[tuple[str, bytes]]:
    values = value if isinstance(value, list) else [value]
    if not values:
        raise BadRequestError(f"the header {shown(name)} has an array without a value")
    return [(name, payload_from_json(each, what="the value of a header")) for each in values]


def attributes_to_json(attributes: Attributes) -> dict[str, object]:
    """The members `key`, `tags` and `headers` of a message."""
    key = None if attributes.key is None else payload_to_json(attributes.key)
    tags = list(attributes.tags)
    return {"key": key, "tags": tags, "headers": headers_to_json(attributes.headers)}


def headers_to_json(headers: Iterable[tuple[str, bytes]]) -> dict[str, object]:
    """The headers as an object. Those of one name are together, in their order."""
    found: dict[str, object] = {}
    for name, value in headers:
        body, earlier = payload_to_json(value), found.get(name)
        if earlier is None:
            found[name] = body
        elif isinstance(earlier, list):
            earlier.append(body)
        else:
            found[name] = [earlier, body]
    return found


def _attributes_in_order(attributes: Attributes) -> dict[str, object]:
    """The JSON of attributes; headers that an object would reorder are pairs."""
    body = attributes_to_json(attributes)
    names = [name for name, _ in attributes.headers]
    if names != sorted(names, key=names.index):
        body["headers"] = [[name, payload_to_json(value)] for name, value in attributes.headers]
    return body


def delay_to_json(delay: Delay) -> dict[str, float]:
    """The member that `delay_from_json` reads."""
    return {"at": delay.ms} if delay.is_time else {"delay": delay.ms / 1000}


def _messages_to_json(entry: PublishEntry) -> list[object]:
    bodies: list[object] = [payload_to_json(payload) for payload in entry.payloads]
    if entry.ttls_s is None and entry.attributes is None and entry.delays is None:
        return bodies
    members: list[dict[str, object]] = [{} for _ in bodies]
    for found, ttl_s in zip(members, entry.ttls_s or (), strict=False):
        found |= {} if ttl_s is None else {"ttl": ttl_s}
    for found, attributes in zip(members, entry.attributes or (), strict=False):
        found |= {} if attributes is None else _attributes_in_order(attributes)
    for found, delay in zip(members, entry.delays or (), strict=False):
        found |= delay_to_json(delay)
    return [
        {"payload": body, **found} if found else body
        for body, found in zip(bodies, members, strict=True)
    ]


def rollback_detail_to_json(detail: RollbackDetail) -> dict[str, object]:
    """The `PublishResponse`."""
    return {
        "transactionWritePointer": pointer_to_json(detail.pointer),
        "startTimestamp": detail.first.timestamp_ms,
        "startSequenceId": detail.first.seq_id,
        "endTimestamp": detail.last.timestamp_ms,
        "endSequenceId": detail.last.seq_id,
    }


def rollback_detail_from_json(value: object) -> RollbackDetail:
    """Raises: BadRequestError: malformed, or without a pointer."""
    body = check_object(value, members=_ROLLBACK_MEMBERS, what="a PublishResponse")
    pointer = body.get("transactionWritePointer")
    names = ("startTimestamp", "startSequenceId", "endTimestamp", "endSequenceId")
    first_ms, first_seq, last_ms, last_seq = (
        whole_number(body.get(name), what=name) for name in names
    )
    return rollback_detail(
        None if pointer is None else pointer_from_json(pointer, what="transactionWritePointer"),
        Offset(first_ms, first_seq),
        Offset(last_ms, last_seq),
    )


def consume_request_from_json(value: object) -> ConsumeRequest:
    """Raises: BadRequestError (its kinds): malformed; the text says where."""
    body = check_object(value, members=_CONSUME_MEMBERS, what="the request")
    limit, transaction = body.get("limit"), body.get("transaction")
    return ConsumeRequest(
        start=_start_from_json(body.get("startFrom")),
        inclusive=flag_from_json(body.get("inclusive", True), what="inclusive"),
        limit=None if limit is None else clamped_number(limit, what="limit"),
        transaction=None if transaction is None else transaction_from_json(transaction),
    )


def _start_from_json(value: object) -> MessageId | int | None:
    if value is None:
        return None
    if isinstance(value, str):
        return MessageId.from_hex(value)
    return clamped_number(value, what="startFrom")


def transaction_to_json(transaction: Transaction, *, lists: bool) -> dict[str, object]:
    """The members of the transaction object of protocol §5.1 that are part of the value. A
    `PointerList` is a fragment that only orjson can write."""
    body: dict[str, object] = {
        "transactionId": pointer_to_json(transaction.transaction_id),
        "writePointer": pointer_to_json(transaction.write_pointer),
        "readPointer": pointer_to_json(transaction.read_pointer),
        "firstShortInProgress": pointer_to_json(transaction.first_short_in_progress),
        # As `value` and `name`, which are descriptors in Python, and cost as much as the rest.
        "type": transaction.type._value_,
        "checkpointWritePointers": list(
            map(pointer_to_json, transaction.checkpoint_write_pointers)
        ),
        "visibilityLevel": transaction.visibility_level._name_,
    }
    if lists:
        body["invalids"] = _pointers_to_json(transaction.invalids)
        body["inProgress"] = _pointers_to_json(transaction.in_progress)
        body["encoded"] = b64encode(transaction.to_bytes()).decode("ascii")
    return body


def _pointers_to_json(pointers: Sequence[int]) -> object:
    if isinstance(pointers, PointerList):  # its chunks cache their JSON
        return orjson.Fragment(pointers.json())
    return list(map(pointer_to_json, pointers))


def _bytes_of(transaction: bytes | str) -> bytes:
    if isinstance(transaction, bytes):
        return transaction
    try:
        return b64decode(transaction.encode("ascii"), validate=True)
    except (Base64Error, UnicodeEncodeError):
        raise InvalidTransactionError(
            f"transaction is base64 of TTransaction bytes, not {shown(transaction)}"
        ) from None


def transaction_from_json(value: object) -> Transaction:
    """A transaction from base64 of its TTransaction bytes, or from its object; of a session, from
    the bytes themselves.

    Raises:
        InvalidTransactionError: malformed, or an object without its lists.
        BadRequestError: the object has an unknown member.
    """
    if isinstance(value, bytes | str):
        return Transaction.from_bytes(_bytes_of(value))
    if not isinstance(value, dict):
        raise InvalidTransactionError(
            f"transaction is base64 or a transaction object, not {shown(value)}"
        )
    body = check_object(value, members=_TRANSACTION_MEMBERS, what="a transaction object")
    for name in ("transactionId", "readPointer", "writePointer", "invalids", "inProgress"):
        if name not in body:
            raise InvalidTransactionError(
                f"the transaction object has no {name}; start it with lists:true, or send what "
                "`encoded` holds"
            )
    try:
        return _transaction_from_members(body)
    except InvalidTransactionError:
        raise
    except TuffError as error:
        raise InvalidTransactionError(f"in the transaction object {error.detail}") from None


def _transaction_from_members(body: Mapping[str, object]) -> Transaction:
    def pointer(name: str) -> int:
        return pointer_from_json(body[name], what=name)

    level = body.get("visibilityLevel", "SNAPSHOT")
    if not isinstance(level, str) or level not in VisibilityLevel.__members__:
        raise BadRequestError(f"visibilityLevel is not {shown(level)}")
    first_short = body.get("firstShortInProgress", NO_SHORT_IN_PROGRESS)
    return Transaction(
        transaction_id=pointer("transactionId"),
        read_pointer=pointer("readPointer"),
        write_pointer=pointer("writePointer"),
        invalids=pointers_from_json(body["invalids"], what="invalids"),
        in_progress=pointers_from_json(body["inProgress"], what="inProgress"),
        first_short_in_progress=pointer_from_json(first_short, what="firstShortInProgress"),
        type=choice_from_json(TransactionType, body.get("type", "short"), what="type"),
        checkpoint_write_pointers=pointers_from_json(
            body.get("checkpointWritePointers", []), what="checkpointWritePointers"
        ),
        visibility_level=VisibilityLevel[level],
    )
