"""A letter: what becomes of a message that could not be processed, as JSON in UTF-8.

    letter := {"topic", "id", "timestamp", "payload", "reason", "attempts"}
            | {"topic", "id", "timestamp", "size", "reason", "attempts"}

The second is for a message that does not fit into a letter. `payload` is text, or `{"base64": …}`
where it is no text, or where that is shorter: a control character takes six bytes of JSON.
"""

import json
from base64 import b64encode
from collections.abc import Mapping

from tuff.protocol.forms import payload_to_json
from tuff.protocol.names import TopicId
from tuff.protocol.requests import Message

REASON_LENGTH_MAX = 4_000  # characters; a letter is about the message, not about a stack


def letter(topic: TopicId, message: Message, *, reason: str, attempts: int) -> bytes:
    """A letter that holds the message."""
    return _letter(topic, message, {"payload": _form(message.payload)}, reason, attempts)


def letter_without_payload(
    topic: TopicId, message: Message, *, reason: str, attempts: int
) -> bytes:
    """A letter that says how many bytes the message has; it can be read from its topic by its id,
    until its time to live is over."""
    return _letter(topic, message, {"size": len(message.payload)}, reason, attempts)


def _letter(
    topic: TopicId, message: Message, told: Mapping[str, object], reason: str, attempts: int
) -> bytes:
    # Half a surrogate pair, as a file name in a reason may have, has no UTF-8.
    shown = reason[:REASON_LENGTH_MAX].encode("utf-8", "backslashreplace").decode("utf-8")
    return _json(
        {
            "topic": str(topic),
            "id": message.id.hex(),
            "timestamp": message.timestamp,
            **told,
            "reason": shown,
            "attempts": attempts,
        }
    )


def _form(payload: bytes) -> object:
    plain = payload_to_json(payload)
    base64 = {"base64": b64encode(payload).decode("ascii")}
    return plain if len(_json(plain)) <= len(_json(base64)) else base64


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8")
