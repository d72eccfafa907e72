"""What a consumer does with messages that it could not process: it tries them again later, or gives
them up (decision 0043 §6).

The message and the committed offset are one transaction. So a crash neither loses a message nor
lets it be tried again while it is also done.
"""

from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from tuff import calls
from tuff.calls import Call
from tuff.commit_protocol import Block, Opened, during
from tuff.dead_letters import (
    DeadLetter,
    NotADeadLetterError,
    RetryPolicy,
    dead_letter_topic_of,
    read_dead_letter,
    retry_topic_of,
)
from tuff.flows import Flow, ask
from tuff.protocol.errors import RequestTooLargeError, TopicExistsError, TopicNotFoundError
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import Delay, Message

C = TypeVar("C")

LETTERS_COUNT_MAX = 50  # read at once from a retry topic, whose letters are of several groups

Offsets = Callable[[int], Call[None]]  # commits offsets in the transaction of a pointer


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that is to be tried again in `delay_s`; None: it is given up."""

    letter: DeadLetter
    delay_s: float | None

    @property
    def target(self) -> TopicId:
        """The topic that takes the letter."""
        if self.delay_s is None:
            return dead_letter_topic_of(self.letter.topic)
        return retry_topic_of(self.letter.topic)


@dataclass(slots=True)
class _Waiting:
    """The first message of a partition, which waits in its place until a time in seconds."""

    letter: DeadLetter
    until_s: float


@dataclass(slots=True)
class ConsumerRetries(Generic[C]):
    """The retries of one member. `open_one` makes a transaction that commits offsets; `elapsed_s`
    is a clock that never goes back, in seconds."""

    policy: RetryPolicy
    group: str
    topics: Collection[TopicId]
    open_one: Callable[[Offsets], Opened[C]]
    elapsed_s: Callable[[], float]
    _created: set[TopicId] = field(default_factory=set)
    _waiting: dict[TopicId, _Waiting] = field(default_factory=dict)

    @property
    def retry_topics(self) -> list[TopicId]:
        """What the member reads beside its topics. With any policy: dead letters that are replayed
        come this way."""
        return [retry_topic_of(topic) for topic in self.topics]

    @property
    def all_topics(self) -> list[TopicId]:
        """The topics and their retry topics."""
        return [*self.topics, *self.retry_topics]

    def create_topics(self) -> Flow[None]:
        """Create the retry topics that do not exist yet."""
        for topic in self.retry_topics:
            yield from self._create(topic)

    def _create(self, topic: TopicId) -> Flow[None]:
        if topic in self._created:
            return
        try:
            yield from ask(calls.get_topic(topic))
        except TopicNotFoundError:
            # Only then: a member need not have the right to create topics.
            with suppress(TopicExistsError):
                yield from ask(calls.create_topic(topic, {}))
        self._created.add(topic)

    def is_retry(self, partition: TopicId) -> bool:
        """Whether the messages of this partition are dead letters that are tried again."""
        return partition.base in self.retry_topics

    def limit(self, partition: TopicId, batch: int) -> int:
        """How many messages to read at once."""
        if partition in self._waiting:
            return 1
        return min(batch, LETTERS_COUNT_MAX) if self.is_retry(partition) else batch

    def waits(self, partition: TopicId) -> bool:
        """Whether the first message of the partition is not to be tried yet."""
        waiting = self._waiting.get(partition)
        return waiting is not None and self.elapsed_s() < waiting.until_s

    def wait(self, partition: TopicId, failure: Failure) -> None:
        """Try the message again in its place, after its delay."""
        assert failure.delay_s is not None
        until_s = self.elapsed_s() + failure.delay_s
        self._waiting[partition] = _Waiting(failure.letter, until_s)

    def failed_before(self, partition: TopicId, message: Message) -> DeadLetter | None:
        """The failure for which this message, the next one of the partition, has waited."""
        waiting = self._waiting.get(partition)
        if waiting is not None and waiting.letter.message.id == message.id:
            return waiting.letter
        self._waiting.pop(partition, None)  # it is done
        return None

    def forget(self, partitions: Collection[TopicId]) -> None:
        """The member has lost these."""
        for partition in partitions:
            self._waiting.pop(partition, None)

    def own_letter(self, messages: Sequence[Message]) -> tuple[Message, DeadLetter] | None:
        """The first of these messages of a retry topic that is of this group, with its content.
        The others are of other groups, or of a program that uses the topic by itself."""
        for message in messages:
            with suppress(NotADeadLetterError):
                letter = read_dead_letter(message)
                if letter.group == self.group and letter.size is None:
                    return message, letter
        return None

    def failure(
        self,
        partition: TopicId,
        message: Message,
        before: DeadLetter | None,
        *,
        reason: str,
        delay_s: float | None = None,
    ) -> Failure:
        """What follows from one more failed attempt. `before`: the attempts until now; `delay_s`:
        instead of the delay of the policy, unless that was the last attempt."""
        if before is not None:
            letter = before.with_failure(reason)
        else:
            letter = DeadLetter(
                topic=partition, message=message, reason=reason, attempts=1, group=self.group
            )
        by_policy_s = self.policy.delay_s(letter.attempts)
        if by_policy_s is None:
            return Failure(letter, None)
        return Failure(letter, by_policy_s if delay_s is None else delay_s)

    def publish(self, protocol: Block, failures: Collection[Failure]) -> Flow[None]:
        """Publish the letters in this transaction."""
        for each in failures:
            yield from self._create(each.target)
            delay_ms = round((each.delay_s or 0.0) * 1000)
            delay = Delay(delay_ms, is_time=False) if delay_ms else None
            message = each.letter.publishable()
            yield from protocol.publish(each.target, [message], ttl_s=None, delay=delay)

    def give(self, offsets: Offsets, failures: Sequence[Failure]) -> Flow[None]:
        """Publish the letters and commit the offsets, in one transaction.

        A letter that is too large for the server has no payload, and can't be tried again. Without
        it the message would be repeated for ever.
        """
        left, was_missing = list(failures), False
        while True:
            try:
                yield from self._give(offsets, left)
            except TopicNotFoundError:
                if was_missing:
                    raise
                was_missing = True
                self._created.clear()  # somebody has deleted one of them
            except RequestTooLargeError:
                if all(each.letter.size is not None for each in left):
                    raise
                left = _with_largest_cut(left)
            else:
                return

    def _give(self, offsets: Offsets, failures: Sequence[Failure]) -> Flow[None]:
        opened = self.open_one(offsets)
        yield from during(opened.protocol, self.publish(opened.protocol, failures))


def _with_largest_cut(failures: Sequence[Failure]) -> list[Failure]:
    largest = max(failures, key=lambda each: len(each.letter.message.payload))
    cut = Failure(largest.letter.without_payload(), None)
    return [cut if each is largest else each for each in failures]
