"""What a member of a consumer group knows of attempts: which messages wait for their retry, have
failed before, or were begun by members that vanished (decision 0043 §6)."""

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tuff.consumer_options import Batch
from tuff.dead_letters import (
    Cause,
    DeadLetter,
    cause_of_deaths,
    read_dead_letter,
    retry_topic_of,
)
from tuff.errors import NotADeadLetterError
from tuff.flows_and_repeated_calls import Flow
from tuff.group_calls import GroupId, LostBeginning
from tuff.protocol.group_preferences import RetryPolicy
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Message
from tuff.retry_or_dead_letter import Failure, Letters, failure_of

DEATHS_ALONE_COUNT = 500  # messages; a batch has no more by default
LETTERS_COUNT_MAX = 50  # read at once from a retry topic, whose letters are of several groups


@dataclass(slots=True)
class _Waiting:
    """The first message of a partition, which waits in its place until a time in seconds."""

    letter: DeadLetter
    until_s: float


@dataclass(slots=True)
class _Deaths:
    """So many members vanished after they had begun the message `id` of a partition. As the cause
    may be one behind it, this and the next `alone_count` messages are processed one by one."""

    id: MessageId
    count: int
    alone_count: int = DEATHS_ALONE_COUNT


@dataclass(slots=True)
class ConsumerRetries:
    """The retries of one member. `elapsed_s`: a clock that never goes back, in seconds. Without a
    `policy` nothing is tried again."""

    group: GroupId
    topics: Collection[TopicId]
    letters: Letters
    elapsed_s: Callable[[], float]
    policy: RetryPolicy | None = None
    dead_letters: TopicId | None = None  # in place of those of each topic
    # What the member reads beside its topics. With any policy: dead letters that are replayed come
    # this way. Also after the policy was taken away, as messages may wait in them.
    retry_topics: tuple[TopicId, ...] = ()
    _waiting: dict[TopicId, _Waiting] = field(default_factory=dict)
    _reported: set[TopicId] = field(default_factory=set)  # the coordinator knows of a beginning
    _deaths: dict[TopicId, _Deaths] = field(default_factory=dict)

    def follow(self, policy: RetryPolicy | None, dead_letters: TopicId | None) -> None:
        """Let this policy decide from now on. Raises: InvalidNameError: the name of a topic is too
        long for a retry topic."""
        if policy is not None:
            self.retry_topics = tuple(map(retry_topic_of, self.topics))
        self.policy, self.dead_letters = policy, dead_letters

    @property
    def all_topics(self) -> list[TopicId]:
        """The topics and their retry topics."""
        return [*self.topics, *self.retry_topics]

    def create_topic_of(self, topic: TopicId, partition_count: int) -> Flow[None]:
        """Create the retry topic of a topic with so many partitions, if the member reads it and it
        does not exist yet. It has as many, so that all members of the group share the retries."""
        if self.retry_topics:
            yield from self.letters.create(retry_topic_of(topic), partition_count)

    def is_retry(self, partition: TopicId) -> bool:
        """Whether the messages of this partition are dead letters that are tried again."""
        return partition.base in self.retry_topics

    def hear_deaths(self, lost: Collection[LostBeginning]) -> None:
        """Members vanished that had begun messages of partitions which this member gets now."""
        if self.policy is not None:
            for each in lost:
                self._deaths[each.partition] = _Deaths(each.id, each.count)

    def has_to_report(self, partition: TopicId) -> bool:
        """Whether the coordinator has to know of a beginning before the program gets it: the first
        one of a partition, and each one while messages are processed one by one. Nothing would
        follow from it without a policy."""
        is_first = partition not in self._reported
        return self.policy is not None and (is_first or partition in self._deaths)

    def may_begin(self, batch: Batch) -> bool:
        """Whether the policy has an attempt left for the first message. What failed by an error was
        given up with that error, so this is about messages of which members died."""
        died = self._deaths_of(batch) is not None and batch.letter is not None
        return not died or self.policy is None or self.policy.delay_s(batch.attempt - 1) is not None

    def begin(self, batch: Batch) -> MessageId:
        """The program gets the batch; returns the id of its first message in the partition."""
        begun, deaths = self.first_id(batch), self._deaths.get(batch.partition)
        self._reported.add(batch.partition)
        if deaths is not None and begun >= deaths.id:
            deaths.alone_count -= 1
            if deaths.alone_count < 0:
                del self._deaths[batch.partition]
        return begun

    def first_id(self, batch: Batch) -> MessageId:
        """The id of the first message of a batch in the partition that it is read from."""
        return batch.next_id if self.is_retry(batch.partition) else batch[0].id

    def _deaths_of(self, batch: Batch) -> _Deaths | None:
        """The deaths of the first message."""
        deaths = self._deaths.get(batch.partition)
        return deaths if deaths is not None and deaths.id == self.first_id(batch) else None

    def limit(self, partition: TopicId, batch: int) -> int:
        """How many messages to read at once."""
        if partition in self._waiting or partition in self._deaths:
            return 1
        return min(batch, LETTERS_COUNT_MAX) if self.is_retry(partition) else batch

    def waits(self, partition: TopicId) -> bool:
        """Whether the first message of the partition is not to be tried yet."""
        waiting = self._waiting.get(partition)
        return waiting is not None and self.elapsed_s() < waiting.until_s

    def soonest_s(self, partitions: Collection[TopicId]) -> float:
        """In how many seconds the first of these is to be tried that waits in its place."""
        now_s = self.elapsed_s()
        waiting = [self._waiting[each].until_s - now_s for each in partitions if self.waits(each)]
        return min(waiting, default=math.inf)

    def wait(self, partition: TopicId, failure: Failure) -> None:
        """Try the message again in its place, after its delay."""
        assert failure.delay_s is not None
        until_s = self.elapsed_s() + failure.delay_s
        self._waiting[partition] = _Waiting(failure.letter, until_s)

    def with_letter(self, batch: Batch) -> Batch:
        """The next batch of a partition, with the failed attempts of its first message: those of
        its letter, the failure for which it has waited in its place, and the deaths of members."""
        waited = self._waited(batch.partition, batch[0])
        if waited is not None:
            return replace(batch, letter=waited)
        deaths = self._deaths_of(batch)
        if deaths is None:
            return batch
        cause = cause_of_deaths(deaths.count, batch.attempt - 1 + deaths.count)
        return replace(batch, letter=self._letter(batch, batch[0], cause, deaths.count))

    def _waited(self, partition: TopicId, message: Message) -> DeadLetter | None:
        waiting = self._waiting.get(partition)
        if waiting is not None and waiting.letter.message.id == message.id:
            return waiting.letter
        self._waiting.pop(partition, None)  # it is done
        return None

    def forget(self, partitions: Collection[TopicId]) -> None:
        """The member has lost these."""
        for partition in partitions:
            self._waiting.pop(partition, None)
            self._deaths.pop(partition, None)
            self._reported.discard(partition)

    def own_letter(self, messages: Sequence[Message]) -> tuple[Message, DeadLetter] | None:
        """The first of these messages of a retry topic that is of this group, with its content.
        The others are of other groups, or of a program that uses the topic by itself."""
        for message in messages:
            with suppress(NotADeadLetterError):
                letter = read_dead_letter(message)
                name = self.group.name_for(letter.topic)
                if letter.group == name and letter.size_bytes is None:
                    return message, letter
        return None

    def failure(
        self, batch: Batch, message: Message, cause: Cause, *, delay_s: float | None = None
    ) -> Failure:
        """What follows from one more failed attempt of a message of a batch. `delay_s`: instead of
        the delay of the policy, unless that was the last attempt."""
        letter = self._letter(batch, message, cause, 1)
        assert self.policy is not None, "the caller has looked"
        return failure_of(self.policy, letter, self.dead_letters, delay_s=delay_s)

    def _letter(self, batch: Batch, message: Message, cause: Cause, count: int) -> DeadLetter:
        """A message after `count` more failed attempts."""
        group = self.group.name_for(batch.partition)
        first = DeadLetter(
            topic=batch.partition, message=message, reason="", attempts=0, group=group
        )
        return (batch.letter or first).with_failure(cause, count=count)
