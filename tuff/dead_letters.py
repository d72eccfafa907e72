"""Dead letters: messages that could not be processed, and where they go (decision 0043 §6).

    dead letter := {"topic", "id", "timestamp", "payload", "reason", "attempts", ["group"]}
                 | {"topic", "id", "timestamp", "size", "reason", "attempts", ["group"]}

A dead letter is JSON in UTF-8, with the key, the tags and the headers of its message. The second
form is for a message that does not fit into a dead letter. `payload` is text, or `{"base64": …}`
where it is not UTF-8, or where base64 is shorter: a control character takes six bytes of JSON.
`group` is the consumer group that failed; a share group is `share:` and its name.

A message that is to be tried again waits as a dead letter in `<topic>.retry`; one that was given up
is in `<topic>.dlq`.
"""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace

from tuff.calls import Duration, seconds_of
from tuff.new_messages import NewMessage
from tuff.protocol.errors import BadRequestError, InvalidMessageIdError, InvalidNameError
from tuff.protocol.ids import MessageId, TopicId, topic_id
from tuff.protocol.json_forms import payload_from_json, payload_to_json
from tuff.protocol.requests import Message

RETRY_SUFFIX = ".retry"
DEAD_SUFFIX = ".dlq"
SHARE_PREFIX = "share:"  # no consumer group has a name with a colon
REASON_LENGTH_MAX = 4_000  # characters; a dead letter needs no whole stack trace
DELAY_COUNT_MAX = 100
DELAY_S_MAX = 86_400.0 * 7  # seconds; a message waits no longer than topics keep theirs by default


def retry_topic_of(topic: TopicId) -> TopicId:
    """The retry topic of a topic or partition. Raises: InvalidNameError: its name is too long."""
    return TopicId(topic.namespace, f"{topic.base.name}{RETRY_SUFFIX}")


def dead_letter_topic_of(topic: TopicId) -> TopicId:
    """The dead-letter topic of a topic or partition.

    Raises: InvalidNameError: its name is too long.
    """
    return TopicId(topic.namespace, f"{topic.base.name}{DEAD_SUFFIX}")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """What a consumer does with a message that it could not process.

    It tries the message again after each of the `delays` (seconds, 0 to seven days, up to 100 of
    them), and gives it up after the last: it becomes a dead letter in `<topic>.dlq`. So there are
    `len(delays) + 1` attempts. The message waits in `<topic>.retry`, and holds nothing up.

    `in_order`: it waits in its place instead, and its partition with it. So the messages of each
    key are processed in their order, and none while an earlier one has to be tried again.
    """

    delays: Sequence[Duration] = (10, 30, 60, 300, 600)
    in_order: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.delays, str | bytes) or not isinstance(self.delays, Sequence):
            raise TypeError(f"delays are seconds in a list, as (10, 60, 600), not {self.delays!r}")
        if len(self.delays) > DELAY_COUNT_MAX:
            raise ValueError(f"there are {DELAY_COUNT_MAX} delays at most, not {len(self.delays)}")
        for each in self.delays:
            if seconds_of(each, what="a delay") > DELAY_S_MAX:
                raise ValueError(f"a delay is at most {DELAY_S_MAX:.0f} seconds, not {each}")

    def delay_s(self, attempts: int) -> float | None:
        """How long to wait after so many failed attempts; None: give the message up."""
        if attempts > len(self.delays):
            return None
        return seconds_of(self.delays[attempts - 1], what="a delay")


class NotADeadLetterError(ValueError):
    """A message of a retry or dead-letter topic has another form."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A message that could not be processed: where it was, and why. `message` has no payload (it is
    empty) if that did not fit; `size` has its length in bytes."""

    topic: TopicId  # or the partition that it was in
    message: Message
    reason: str
    attempts: int
    group: str | None = None
    size: int | None = None  # None: the payload is here

    @property
    def has_retry_topic(self) -> bool:
        """Whether its group reads the retry topic, as consumer groups do."""
        return self.group is not None and not self.group.startswith(SHARE_PREFIX)

    def with_failure(self, reason: str) -> "DeadLetter":
        """After one more failed attempt."""
        return replace(self, reason=reason, attempts=self.attempts + 1)

    def without_payload(self) -> "DeadLetter":
        """The message can be read from its topic by its id until it expires."""
        message = replace(self.message, payload=b"")
        return replace(self, message=message, size=len(self.message.payload))

    def publishable(self) -> NewMessage[bytes]:
        """As a message, with the attributes of the one that failed."""
        failed = self.message
        return NewMessage(self._text(), key=failed.key, tags=failed.tags, headers=failed.headers)

    def _text(self) -> bytes:
        # A file name in the reason may contain half a surrogate pair, which has no UTF-8.
        shown = self.reason[:REASON_LENGTH_MAX].encode("utf-8", "backslashreplace").decode("utf-8")
        payload = {"payload": _form(self.message.payload)}
        return _json(
            {
                "topic": str(self.topic),
                "id": self.message.id.hex(),
                "timestamp": self.message.timestamp,
                **(payload if self.size is None else {"size": self.size}),
                "reason": shown,
                "attempts": self.attempts,
                **({} if self.group is None else {"group": self.group}),
            }
        )


def read_dead_letter(message: Message) -> DeadLetter:
    """Raises: NotADeadLetterError: the payload of the message has another form."""
    try:
        form = json.loads(message.payload)
        namespace, _, name = form["topic"].partition(":")
        size = form.get("size")
        payload = b"" if size is not None else payload_from_json(form["payload"])
        attempts, reason, group = form["attempts"], form["reason"], form.get("group")
        is_plain = type(attempts) is int and type(reason) is str and type(size) in {int, type(None)}
        if not is_plain or type(group) not in {str, type(None)}:
            raise NotADeadLetterError("a member of the dead letter has the wrong type")
        return DeadLetter(
            topic=topic_id(namespace, name),
            message=replace(message, id=MessageId.from_hex(form["id"]), payload=payload),
            reason=reason,
            attempts=attempts,
            group=group,
            size=size,
        )
    except (
        ValueError, KeyError, TypeError, AttributeError, RecursionError,
        BadRequestError, InvalidMessageIdError, InvalidNameError,
    ) as error:  # fmt: skip
        raise NotADeadLetterError(
            f"message {message.id.hex()} is no dead letter: {type(error).__name__}: {error}"
        ) from None


def reason_of(error: BaseException) -> str:
    """The reason of a dead letter after this error."""
    return f"{type(error).__name__}: {error}".rstrip(": ")


def _form(payload: bytes) -> object:
    plain = payload_to_json(payload)
    base64 = {"base64": b64encode(payload).decode("ascii")}
    return plain if len(_json(plain)) <= len(_json(base64)) else base64


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False).encode("utf-8")
