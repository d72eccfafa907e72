"""What a consumer of a group is asked to do, checked, and the batches that it returns."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Literal, overload
from uuid import uuid4  # noqa: TID251 - a member chooses its own id

from tuff import calls
from tuff.calls import EARLIEST, LATEST, PollQuestion
from tuff.dead_letters import DeadLetter, RetryPolicy, dead_letter_topic_of, retry_topic_of
from tuff.group_calls import GroupId
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Message


class DeliveryMode(StrEnum):
    """When the offset of a batch is committed: before it is handed out, after it was processed, or
    by the transaction that processes it."""

    AT_MOST_ONCE = "at_most_once"
    AT_LEAST_ONCE = "at_least_once"
    EXACTLY_ONCE = "exactly_once"


DeliveryModeLike = DeliveryMode | Literal["at_most_once", "at_least_once", "exactly_once"]
Assignor = Literal["range", "round_robin", "sticky"]
FirstStart = Literal["earliest", "latest"]
Callback = Callable[[list[TopicId]], object]  # with partitions, in order


@dataclass(frozen=True, slots=True)
class Batch(Sequence[Message]):
    """Consecutive messages of one partition. `next_id`: the partition is processed through it once
    these are. `expired`: messages before these may have been missed, as they had expired.

    `letter`: the failed attempts of its only message, which is tried again. If its partition is one
    of a retry topic, the message has the id that it has in the topic it came from, `letter.topic`.
    """

    partition: TopicId
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerPlan:
    """What a consumer joins and reads."""

    group: GroupId
    topics: tuple[TopicId, ...]
    mode: DeliveryMode
    assignor: str
    instance_id: str | None
    client: str
    question: PollQuestion
    on_assigned: Callback | None
    on_revoked: Callback | None
    on_lost: Callback | None
    retry: RetryPolicy | None = None


def new_member_id() -> str:
    """An id that no other member has, of this or an earlier start."""
    return uuid4().hex


def plan_of(
    name: str,
    topics: TopicId | Collection[TopicId],
    *,
    mode: DeliveryModeLike,
    start: FirstStart,
    question: PollQuestion,
    assignor: Assignor,
    instance_id: str | None,
    client: str,
    callbacks: tuple[Callback | None, Callback | None, Callback | None],
    retry: RetryPolicy | None = None,
) -> ConsumerPlan:
    """`callbacks`: for assigned, revoked and lost partitions.

    Raises: ValueError: the topics are none, partitions, or of several namespaces; or there is no
        such mode or start, or the mode excludes retries. InvalidNameError: the name of a topic is
        too long for a retry topic.
    """
    chosen = (topics,) if isinstance(topics, TopicId) else tuple(calls.members(topics, "topics"))
    for topic in chosen:
        if calls.checked_topic(topic).is_internal:
            raise ValueError(f"{topic} is a partition; a group subscribes to whole topics")
    namespaces = {each.namespace for each in chosen}
    if len(namespaces) != 1:
        raise ValueError("a consumer has one topic or more, all of one namespace")
    if mode not in tuple(DeliveryMode):
        raise ValueError(f"mode is at_most_once, at_least_once or exactly_once, not {mode!r}")
    _check_retry(retry, chosen, mode)
    if start not in (EARLIEST, LATEST):
        raise ValueError(f"start is earliest or latest, not {start!r}")
    return ConsumerPlan(
        group=GroupId(namespace=namespaces.pop(), name=name),
        topics=chosen,
        mode=DeliveryMode(mode),
        assignor=assignor,
        instance_id=instance_id,
        client=client,
        question=replace(question, start=start),
        on_assigned=callbacks[0],
        on_revoked=callbacks[1],
        on_lost=callbacks[2],
        retry=retry,
    )


def _check_retry(
    retry: RetryPolicy | None, topics: Sequence[TopicId], mode: DeliveryModeLike
) -> None:
    if retry is None:
        return
    if not isinstance(retry, RetryPolicy):
        raise TypeError(f"retry is a tuff.RetryPolicy, not {retry!r:.100}")
    if mode == DeliveryMode.AT_MOST_ONCE:
        raise ValueError("at_most_once never processes a message again, so it has no retry")
    for topic in topics:  # both names must be legal, which are longer
        retry_topic_of(topic)
        dead_letter_topic_of(topic)
