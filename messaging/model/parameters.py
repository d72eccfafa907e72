"""The parameters of requests, as values: starts, times to wait, tags, choices and numbers. Pure."""

import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import TypeVar

from kernel import request_bodies
from tuff.protocol import json_bodies
from tuff.protocol.attributes import TagFilter
from tuff.protocol.errors import BadRequestError, TransactionUnknownError
from tuff.protocol.ids import MESSAGE_ID_SIZE, MessageId
from tuff.protocol.json_bodies import shown

WAIT_S_MAX = 60.0  # seconds a poll may wait; proxies cut longer silences
DIGITS_MAX = 100  # of a number in a query; its first ones are far beyond 64 bits by then

Choice = TypeVar("Choice", bound=Enum)

_SECONDS = re.compile(r"(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")


def choice(query: Mapping[str, str], name: str, kind: type[Choice]) -> Choice | None:
    text = query.get(name)
    if text is None:
        return None
    try:
        return kind(text)
    except ValueError:
        known = " or ".join(choice.value for choice in kind)
        raise BadRequestError(f"{name} is {known}, not {shown(text)}") from None


def transaction_named(query: Mapping[str, str]) -> int | None:
    text = query.get("tx")
    if text is None:
        return None
    try:
        return json_bodies.pointer_from_json(text, what="tx")
    except BadRequestError:
        raise TransactionUnknownError(f"there is no transaction {shown(text)}") from None


def tags_in(query: Mapping[str, str]) -> TagFilter | None:
    tags = query.get("tags")
    return None if tags is None else TagFilter.parse(tags)


def wait_in(query: Mapping[str, str]) -> float:
    """The seconds that the parameter `wait` names, 0 without it. Raises: BadRequestError."""
    text = query.get("wait")
    if text is None:
        return 0.0
    wait_s = float(text) if _SECONDS.fullmatch(text) else math.nan
    if not 0 <= wait_s <= WAIT_S_MAX:
        raise BadRequestError(f"wait is 0 to {WAIT_S_MAX:.0f} seconds, not {shown(text)}")
    return wait_s


def boolean(text: str, *, what: str) -> bool:
    if text not in ("true", "false"):
        raise BadRequestError(f"{what} is true or false, not {shown(text)}")
    return text == "true"


def id_or_time_from(value: object, *, what: str) -> MessageId | int:
    """A message id or a publish time in ms, as a JSON body names it.

    Raises:
        BadRequestError (its kinds): it is neither.
    """
    if isinstance(value, str):
        return MessageId.from_hex(value)
    return start_time(request_bodies.clamped_number(value, what=what))


def start_from(text: str) -> MessageId | int | None:
    """The start that `from` of a browse names, None for the oldest live message.

    Raises:
        BadRequestError (its kinds): it names none.
    """
    if text == "earliest":
        return None
    if len(text) == 2 * MESSAGE_ID_SIZE:
        return MessageId.from_hex(text)
    if text.removeprefix("-").isdigit():
        return start_time(whole_digits(text, what="from"))
    try:
        time_ms = request_bodies.time_ms_from_iso(text)
    except ValueError:
        plus = ", in which + is written %2B, as a plain + means a space" if " " in text else ""
        raise BadRequestError(
            "from is earliest, latest, a message id in hex, ms since the epoch, or an ISO 8601 "
            f"time{plus}, not {shown(text)}"
        ) from None
    return start_time(time_ms)


def start_time(timestamp_ms: int) -> int:
    """Raises: BadRequestError: before the epoch."""
    if timestamp_ms < 0:
        raise BadRequestError(f"a publish time is 0 or more ms, not {timestamp_ms}")
    return timestamp_ms


def whole_digits(text: str, *, what: str) -> int:
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit()):
        raise BadRequestError(f"{what} is a whole number, not {shown(text)}")
    # Python reads no more than 4,300 digits.
    return request_bodies.clamped_number(int(text[:DIGITS_MAX]), what=what)
