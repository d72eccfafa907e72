"""The JSON of values in bodies, read and written (protocol §1, §3, §5.1)."""

import json
import math
from base64 import b64decode, b64encode
from binascii import Error as Base64Error
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from enum import StrEnum
from typing import NoReturn, TypeVar

import orjson

from tuff.protocol.attributes import Attributes, checked_attributes
from tuff.protocol.avro import rollback_detail
from tuff.protocol.errors import (
    BadRequestError,
    InvalidTransactionError,
    TuffError,
)
from tuff.protocol.ids import Offset
from tuff.protocol.pointer_list import POINTER_MAX
from tuff.protocol.requests import (
    Delay,
    PublishEntry,
    RollbackDetail,
)
from tuff.protocol.transaction import (
    NO_SHORT_IN_PROGRESS,
    Transaction,
    TransactionType,
    VisibilityLevel,
)

Choice = TypeVar("Choice", bound=StrEnum)
SHOWN_LENGTH_MAX = 100  # characters of a bad value in an error text
POINTER_DIGITS_MAX = 20  # characters; a 64-bit number has at most 19 digits and a sign
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


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON number")


def integer(text: str) -> int | float:
    try:
        return int(text)
    except ValueError:  # Python reads no more than 4,300 digits
        return float(text)


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, parse_int=integer)


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
        case str() if value.isascii() and len(value) <= POINTER_DIGITS_MAX:
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


def publish_entry_to_json(entry: PublishEntry) -> dict[str, object]:
    body: dict[str, object] = {
        "namespace": entry.topic.namespace,
        "topic": entry.topic.name,
        "messages": _messages_to_json(entry),
    }
    if entry.pointer is not None:
        body["pointer"] = pointer_to_json(entry.pointer)
    return body


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
