"""Where a read or a truncation begins, as requests name it (protocol §2, §3.4, §3.5)."""

import math
from datetime import UTC, datetime

from tuff.protocol import forms
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import MESSAGE_ID_SIZE, MessageId
from tuff.protocol.media import shown

DIGITS_MAX = 100  # of a number in a query; its first ones are far beyond 64 bits by then


def place_from(value: object, *, what: str) -> MessageId | int:
    """A message id or a publish time in ms, as a JSON body names it.

    Raises:
        BadRequestError (its kinds): it is neither.
    """
    if isinstance(value, str):
        return MessageId.from_hex(value)
    return start_time(forms.clamped_number(value, what=what))


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
        moment = datetime.fromisoformat(text)
    except ValueError:
        plus = ", in which + is written %2B, as a plain + means a space" if " " in text else ""
        raise BadRequestError(
            "from is earliest, latest, a message id in hex, ms since the epoch, or an ISO 8601 "
            f"time{plus}, not {shown(text)}"
        ) from None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return start_time(math.floor(moment.timestamp() * 1000))


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
    return forms.clamped_number(int(text[:DIGITS_MAX]), what=what)
