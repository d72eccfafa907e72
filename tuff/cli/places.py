"""From where to read, as a person says it: `earliest`, `latest`, an id, `10m`, a time."""

import re
from dataclasses import dataclass
from datetime import datetime

from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import MESSAGE_ID_SIZE, MessageId

_MS_PER = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d)")
_MILLISECONDS = re.compile(r"[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class Latest:
    """Behind all that is there now."""


Place = MessageId | int | Latest | None


def parse_place(text: str, *, now_ms: int) -> Place:
    """Where to start: a message id, a publish time in ms, `Latest`, or None for the oldest.

    Raises:
        BadRequestError: the text is none of the forms.
    """
    if text == "earliest":
        return None
    if text == "latest":
        return Latest()
    if len(text) == 2 * MESSAGE_ID_SIZE:
        return MessageId.from_hex(text)
    if (ago := _AGO.fullmatch(text)) is not None:
        return max(0, now_ms - round(float(ago[1]) * _MS_PER[ago[2]]))
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    return _moment_ms(text)


def _moment_ms(text: str) -> int:
    try:
        # Without a zone a person means the clock on the wall.
        return max(0, round(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise BadRequestError(
            f"{text!r} is no place to start from: use earliest, latest, a message id of 40 hex "
            "digits, a time ago like 10m or 2h, ms since the epoch, or a time like "
            "2026-01-31T12:00:00"
        ) from None
