"""What a consumer of a group is asked to do, checked, and the batches that it returns."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, overload
from uuid import uuid4  # noqa: TID251 - a member chooses its own id

from tuff.dead_letters import DeadLetter, dead_letter_topic_of, retry_topic_of
from tuff.flows_and_repeated_calls import Call
from tuff.group_calls import GroupId
from tuff.protocol.group_preferences import GroupPreferences
from tuff.protocol.ids import MessageId, PartitionId, TopicId, TopicLike, topic_of
from tuff.protocol.requests import Message
from tuff.requests_and_responses import members, number_of


class DeliveryMode(StrEnum):
    """When the offset of a batch is committed: before it is handed out, after it was processed, or
    by the transaction that processes it."""

    AT_MOST_ONCE = "at_most_once"
    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


DeliveryModeLike = DeliveryMode | Literal["at_most_once", "at_least_once", "exactly_once"]
Assignor = Literal["range", "round_robin", "sticky"]
Callback = Callable[[list[PartitionId]], object]  # with partitions, in order


@dataclass(frozen=True, slots=True)
class Batch(Sequence[Message]):
    """Consecutive messages of one partition. `next_id`: the partition is processed through it once
    these are. `expired`: messages between the group's position and these had expired, or may have.
    It is false where the group begins: what was gone before is no loss of it.

    `letter`: the failed attempts of its only message, which is tried again. If its partition is one
    of a retry topic, the message has the id that it has in the topic it came from, `letter.topic`.
    """

    partition: PartitionId
    messages: tuple[Message, ...]
    next_id: MessageId
    expired: bool = False
    letter: DeadLetter | None = None

    @property
    def attempt(self) -> int:
        """1 for messages that have not failed before."""
        return 1 if self.letter is None else self.letter.attempts + 1

    def __len__(self) -> int:
        return len(self.messages)

    @overload
    def __getitem__(self, index: int) -> Message: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Message, ...]: ...
    def __getitem__(self, index: int | slice) -> Message | tuple[Message, ...]:
        return self.messages[index]


@dataclass(frozen=True, slots=True)
class BatchEnd:
    """The offset of a batch, which its transaction commits. A call of it returns the commit as part
    of the transaction of Tuff with that write pointer."""

    partition: PartitionId
    next_id: MessageId
    commit: Callable[[int], Call[None]]

    def __call__(self, pointer: int) -> Call[None]:
        return self.commit(pointer)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPlan:
    """What a consumer joins and reads. `preferences` are those that its program names.

    Raises:
        ValueError: the mode excludes retries.
        InvalidNameError: the name of a topic is too long for a retry topic.
    """

    name: str  # of the group
    topics: tuple[TopicId, ...]
    mode: DeliveryMode
    preferences: GroupPreferences
    batch: int
    assignor: str
    instance_id: str | None
    client: str
    on_assigned: Callback | None
    on_revoked: Callback | None
    on_lost: Callback | None
    attempts_max: int | None = None  # to reach the server, in a row; None: it waits for it
    attempts_min: int = 0  # that fail before a poll whose wait is over raises

    @property
    def group(self) -> GroupId:
        namespace, colon, name = self.name.partition(":")
        if colon:
            return GroupId(namespace=namespace, name=name)
        return GroupId(namespace=self.topics[0].namespace, name=self.name)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"group is a string, not {self.name!r:.100}")
        number_of(self.batch, "batch")
        namespaces = sorted({each.namespace for each in self.topics})
        if len(namespaces) > 1 and ":" not in self.name:
            raise ValueError(
                f"the topics are of the namespaces {', '.join(namespaces)}; name that of the group "
                f"as well, as in group='{namespaces[0]}:{self.name}'"
            )
        if self.preferences.retry is None:
            return
        if self.mode is DeliveryMode.AT_MOST_ONCE:
            raise ValueError("at_most_once never processes a message again, so it has no retry")
        for topic in self.topics:  # both names must be legal, which are longer
            retry_topic_of(topic)
            dead_letter_topic_of(topic)


def new_member_id() -> str:
    """An id that no other member has, of this or an earlier start."""
    return uuid4().hex


def mode_of(mode: DeliveryModeLike | None, *, has_database: bool) -> DeliveryMode:
    """The mode of a consumer; None: exactly once with a database that has its positions, and else
    at least once.

    Raises: ValueError: there is no such mode, or a database is combined with another one.
    """
    if mode is None:
        return DeliveryMode.EXACTLY_ONCE if has_database else DeliveryMode.AT_LEAST_ONCE
    if mode not in tuple(DeliveryMode):
        raise ValueError(f"mode is at_most_once, at_least_once or exactly_once, not {mode!r}")
    if has_database and mode != DeliveryMode.EXACTLY_ONCE:
        raise ValueError(f"with a database the mode is exactly_once, not {mode!r}")
    return DeliveryMode(mode)


def topics_of(topics: TopicLike | Collection[TopicLike]) -> tuple[TopicId, ...]:
    """The topics of a consumer. Raises: ValueError: they are none, or partitions."""
    named = (topics,) if isinstance(topics, TopicLike) else members(topics, "topics")
    chosen = tuple(map(topic_of, named))
    for topic in chosen:
        if topic.is_internal:
            raise ValueError(f"{topic} is a partition; a group subscribes to whole topics")
    if not chosen:
        raise ValueError("a consumer has one topic or more")
    return chosen
