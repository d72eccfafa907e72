"""The JSON of requests, as the server reads it, and of transactions, as it writes them (protocol
§3, §5.1). `tuff.protocol.json_bodies` has what clients read and write, too.
"""

import json
import math
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

import orjson

from tuff.protocol.attributes import Attributes
from tuff.protocol.errors import (
    BadRequestError,
    InvalidDelayError,
    InvalidTtlError,
)
from tuff.protocol.ids import MessageId, topic_id
from tuff.protocol.json_bodies import (
    POINTER_DIGITS_MAX,
    attributes_from_json,
    check_object,
    flag_from_json,
    payload_from_json,
    pointer_from_json,
    pointer_to_json,
    shown,
    transaction_from_json,
    whole_number,
)
from tuff.protocol.pointer_list import POINTER_MAX, PointerList
from tuff.protocol.requests import (
    DELAY_MS_MAX,
    MESSAGES_COUNT_MAX,
    WITH_ATTRIBUTES_COUNT_MAX,
    ConsumeRequest,
    Delay,
    PublishEntry,
    PublishRequest,
    too_many_messages,
    too_many_with_attributes,
)
from tuff.protocol.transaction import (
    Transaction,
)

Member = TypeVar("Member")
_BYTES = frozenset({bytes})
TTL_S_MAX = (1 << 31) - 1  # seconds
_SECONDS = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_PUBLISH_MEMBERS = frozenset({"transactionWritePointer", "messages"})
_ATTRIBUTES = frozenset({"key", "tags", "headers"})
_MESSAGE_MEMBERS = _ATTRIBUTES | {"payload", "ttl", "delay", "at"}
_ENTRY_MEMBERS = frozenset({"namespace", "topic", "messages", "pointer", "delay", "at"})
_CONSUME_MEMBERS = frozenset({"startFrom", "inclusive", "limit", "transaction"})


class _Written(str):
    """A number as it is written."""

    __slots__ = ()


_AS_WRITTEN = json.JSONDecoder(parse_int=_Written, parse_float=_Written)


def numbers_as_written(body: bytes) -> dict[str, str]:
    """The numbers among the members of a JSON object, each as its text in the body: a float would
    lose `1.10`, or thirty digits. Only for a body that `parse_json` found to be an object."""
    try:
        members = _AS_WRITTEN.decode(body.decode("utf-8"))
    except RecursionError:  # such a body is refused for its depth, whatever its numbers
        return {}
    return {name: str(each) for name, each in members.items() if isinstance(each, _Written)}


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
    if _BYTES.issuperset(map(type, value)):
        return value  # type: ignore[return-value]  # bytes only
    try:
        return list(map(str.encode, value))  # type: ignore[arg-type]  # anything but a string raises
    except (TypeError, UnicodeEncodeError):
        return None


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
            is_digits = value.isascii() and value.isdigit() and len(value) <= POINTER_DIGITS_MAX
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
    entries = list(map(_entry_from_json, value))
    if len(entries) > 1:
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
    delays = None
    if own is not None or "delay" in entry or "at" in entry:
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
    if len(value) > WITH_ATTRIBUTES_COUNT_MAX:
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
    objects = [each for each in messages if isinstance(each, dict)]
    named = (any(each.get(name) is not None for name in _ATTRIBUTES) for each in objects)
    if sum(named) > WITH_ATTRIBUTES_COUNT_MAX:
        raise too_many_with_attributes()


def _unless_all_none(column: list[Member | None]) -> list[Member | None] | None:
    return column if any(each is not None for each in column) else None


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
