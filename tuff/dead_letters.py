"""Dead letters: messages that could not be processed, and where they go (decision 0043 §6).

    dead letter := {"topic", "id", "timestamp", "payload" | "size" | "payloadBytes", "reason",
                    "attempts", ["group"], ["traceback"]} [newline, the bytes of the payload]

A dead letter is JSON in UTF-8, with the key, the tags and the headers of its message. `size` is for
a message that does not fit into a dead letter. A payload that fits only as it is follows behind the
JSON and a newline, and `payloadBytes` is its length. `payload` is text, or `{"base64": …}` where it
is not UTF-8, or where base64 is shorter: a control character takes six bytes of JSON. `group` is
the consumer group that failed, `namespace/name` where it has another namespace than the topic; a
share group is `share:` and its name.

A message that is to be tried again waits as a dead letter in `<topic>.retry`; one that was given up
is in `<topic>.dlq`.
"""

import json
from base64 import b64encode
from dataclasses import dataclass, replace
from traceback import format_exception
from typing import Annotated, Any

from tuff.errors import NotADeadLetterError
from tuff.protocol.errors import (
    BadRequestError,
    InvalidMessageIdError,
    InvalidNameError,
    TuffError,
)
from tuff.protocol.ids import MessageId, TopicId, topic_id
from tuff.protocol.json_bodies import payload_from_json, payload_to_json
from tuff.protocol.requests import Message
from tuff.protocol.values import Member
from tuff.publish_calls import NewMessage
from tuff.tracebacks import from_program

RETRY_SUFFIX = ".retry"
DEAD_SUFFIX = ".dlq"
SHARE_PREFIX = "share:"  # no consumer group has a name with a colon
REASON_LENGTH_MAX = 4_000  # characters; a dead letter needs no whole stack trace
TRACEBACK_LINES_MAX = 20  # of the traceback; its end has the line that failed
TRACEBACK_LENGTH_MAX = 4_000  # characters


def retry_topic_of(topic: TopicId) -> TopicId:
    """The retry topic of a topic or partition. Raises: InvalidNameError: its name is too long."""
    return TopicId(topic.namespace, f"{topic.base.name}{RETRY_SUFFIX}")


def dead_letter_topic_of(topic: TopicId) -> TopicId:
    """The dead-letter topic of a topic or partition.

    Raises: InvalidNameError: its name is too long.
    """
    return TopicId(topic.namespace, f"{topic.base.name}{DEAD_SUFFIX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that could not be processed: where it was, and why. `message` has no payload (it is
    empty) if that did not fit; `size_bytes` has its length."""

    topic: TopicId  # or the partition that it was in
    message: Message
    reason: str
    attempts: int
    group: str | None = None
    # None: the payload is here.
    size_bytes: Annotated[int | None, Member("size")] = None
    traceback: str | None = None  # the last lines of that of the newest error
    is_raw: bool = False  # the payload follows behind the JSON

    @property
    def has_retry_topic(self) -> bool:
        """Whether its group reads the retry topic, as consumer groups do."""
        return self.group is not None and not self.group.startswith(SHARE_PREFIX)

    def with_failure(self, cause: "Cause", *, count: int = 1) -> "DeadLetter":
        """After so many more failed attempts."""
        attempts = self.attempts + count
        return replace(self, reason=cause.reason, traceback=cause.traceback, attempts=attempts)

    def without_payload(self) -> "DeadLetter":
        """The message can be read from its topic by its id until it expires."""
        message = replace(self.message, payload=b"")
        size_bytes = len(self.message.payload)
        return replace(self, message=message, size_bytes=size_bytes, is_raw=False)

    def publishable(self) -> NewMessage[bytes]:
        """The message that carries the letter, with the attributes of the one that failed."""
        failed = self.message
        return NewMessage(self._text(), key=failed.key, tags=failed.tags, headers=failed.headers)

    def _text(self) -> bytes:
        if self.size_bytes is not None:
            payload: dict[str, object] = {"size": self.size_bytes}
        elif self.is_raw:
            payload = {"payloadBytes": len(self.message.payload)}
        else:
            payload = {"payload": _form(self.message.payload)}
        text = _json(
            {
                "topic": str(self.topic),
                "id": self.message.id.hex(),
                "timestamp": self.message.timestamp_ms,
                **payload,
                "reason": _shown(self.reason[:REASON_LENGTH_MAX]),
                "attempts": self.attempts,
                **({} if self.group is None else {"group": self.group}),
                **({} if self.traceback is None else {"traceback": _shown(self.traceback)}),
            }
        )
        return text + b"\n" + self.message.payload if self.is_raw else text


def read_dead_letter(message: Message) -> DeadLetter:
    """Raises: NotADeadLetterError: the payload of the message has another form."""
    try:
        form, raw = _parts(message.payload)
        namespace, _, name = form["topic"].partition(":")
        size = form.get("size")
        if raw is not None:
            payload = raw
        else:
            payload = b"" if size is not None else payload_from_json(form["payload"])
        attempts, reason, group = form["attempts"], form["reason"], form.get("group")
        is_plain = type(attempts) is int and type(reason) is str and type(size) in {int, type(None)}
        traceback = form.get("traceback")
        if not is_plain or not {type(group), type(traceback)} <= {str, type(None)}:
            raise NotADeadLetterError("a member has the wrong type")
        return DeadLetter(
            topic=topic_id(namespace, name),
            message=replace(message, id=MessageId.from_hex(form["id"]), payload=payload),
            reason=reason,
            attempts=attempts,
            group=group,
            size_bytes=size,
            traceback=traceback,
            is_raw=raw is not None,
        )
    except (
        ValueError, KeyError, TypeError, AttributeError, RecursionError,
        BadRequestError, InvalidMessageIdError, InvalidNameError,
    ) as error:  # fmt: skip
        raise NotADeadLetterError(
            f"message {message.id.hex()} is no dead letter: {_why(error)}"
        ) from None


def _why(error: Exception) -> str:
    match error:
        case TuffError():
            return error.detail
        case KeyError():
            return f"it has no member {error}"
        case json.JSONDecodeError() | UnicodeDecodeError() | RecursionError():
            return "its payload is no JSON object"
        case _:
            return "a member has the wrong type"


def _parts(text: bytes) -> tuple[Any, bytes | None]:
    """The object of a dead letter, and the payload behind it, if it is there. Raises:
    NotADeadLetterError, ValueError: it has another form."""
    first, _, rest = text.partition(b"\n")
    try:
        form = json.loads(text)
    except ValueError:
        form = json.loads(first)
        if not isinstance(form, dict) or "payloadBytes" not in form:
            raise
    if not isinstance(form, dict):
        raise NotADeadLetterError("its payload is no JSON object")
    if "payloadBytes" not in form:
        return form, None
    if form["payloadBytes"] != len(rest):
        raise NotADeadLetterError(
            f"the payload behind it has {len(rest)} bytes, and not {form['payloadBytes']}"
        )
    return form, rest


@dataclass(frozen=True, slots=True)
class Cause:
    """Why an attempt failed: the `reason` of a dead letter, and the last lines of the traceback."""

    reason: str
    traceback: str | None = None


def cause_of(error: BaseException | str) -> Cause:
    """The cause that an error, or the program's own words, say."""
    if isinstance(error, str):
        return Cause(error)
    lines = "".join(format_exception(type(error), error, from_program(error))).splitlines()
    text = "\n".join(lines[-TRACEBACK_LINES_MAX:])[-TRACEBACK_LENGTH_MAX:]
    return Cause(f"{type(error).__name__}: {error}".rstrip(": "), text)


def cause_of_deaths(lost: int, attempts: int) -> Cause:
    """The cause of a message that is given up after so many attempts, of which `lost` ended with
    the process that made them."""
    return Cause(
        f"ConsumerLostError: {lost} of {attempts} attempts did not end: the consumers vanished "
        "while they processed the message"
    )


def _shown(text: str) -> str:
    # A file name in it may contain half a surrogate pair, which has no UTF-8.
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _form(payload: bytes) -> object:
    plain = payload_to_json(payload)
    base64 = {"base64": b64encode(payload).decode("ascii")}
    return plain if len(_json(plain)) <= len(_json(base64)) else base64


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8")
