"""What follows when the function of a consumer, a share consumer or a subscriber fails.

    attempt -> done
             | failed for a reason outside of the messages, or what the function works with is away:
               give the messages back, wait, and try them again; no attempt is counted
             | failed: a warning with the traceback, and by the policy
               -> another attempt after a delay
                | a dead letter: an error in the log, with its id and how to look at it
    messages fail in a row -> a growing pause before the next one

A letter, and the offset or acceptance of its message, are one transaction. So a crash neither loses
a message nor lets it be tried again while it is also done.
"""

import inspect
import logging
import random
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

from tuff import topic_calls
from tuff.commit_protocol import Block, Opened, during
from tuff.dead_letters import DeadLetter, dead_letter_topic_of, retry_topic_of
from tuff.errors import OutcomeUnknownError
from tuff.flows_and_repeated_calls import (
    Backoff,
    Call,
    Flow,
    Pause,
    Retries,
    is_passing,
    paused,
    unless,
)
from tuff.protocol.errors import (
    ForbiddenError,
    RequestTooLargeError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionConflictError,
    TransactionInvalidatedError,
    TransactionTimedOutError,
    TuffError,
)
from tuff.protocol.group_preferences import RetryPolicy
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Delay
from tuff.protocol.transaction import InvalidReason
from tuff.publish_calls import Addition, all_checked
from tuff.server_outages import Outages
from tuff.stop_signals import Stop
from tuff.tracebacks import from_program

log = logging.getLogger(__name__)

C = TypeVar("C")
ErrorTypes = tuple[type[BaseException], ...]
Offsets = Callable[[int], Call[None]]  # commits offsets in the transaction of a pointer
# Makes a transaction of a client: its participants, the commit of offsets, and its timeout. The
# blocking client takes fewer kinds of participants than the asyncio one.
Open = Callable[[Collection[Any], Offsets, float | None], Opened[C]]

AGAIN_S = 0.1  # seconds before messages are tried again that failed for a reason outside of them
_UNRELATED_REASONS = frozenset(
    {InvalidReason.INVALIDATED, InvalidReason.LOST_IN_CRASH, InvalidReason.LEASE_EXPIRED}
)
ROW_COUNT = 5  # messages that fail in a row; a single bad message is no reason to stop
PAUSE_FIRST_S = 1.0  # seconds before the next message
PAUSE_S_MAX = 60.0  # seconds; a cause that is not the messages becomes one letter per minute


@dataclass(frozen=True, slots=True)
class Attempt:
    """How a call of the function ended. `error`: None if it succeeded. `counts`: the messages may
    be the cause; otherwise they are tried again, whatever the policy is."""

    error: Exception | None = None
    counts: bool = True


@dataclass(frozen=True, slots=True)
class Failure:
    """A message that is to be tried again in `delay_s`; None: it is given up. `target`: the topic
    that takes the letter."""

    letter: DeadLetter
    delay_s: float | None
    target: TopicId


def failure_of(
    policy: RetryPolicy,
    letter: DeadLetter,
    dead_letters: TopicId | None = None,
    *,
    delay_s: float | None = None,
) -> Failure:
    """What follows from the attempts of a letter. `dead_letters`: the topic for those that are
    given up, in place of that of the topic; `delay_s`: instead of the delay of the policy, unless
    that was the last attempt."""
    by_policy_s = policy.delay_s(letter.attempts)
    if by_policy_s is None:
        return given_up(letter, dead_letters)
    chosen_s = by_policy_s if delay_s is None else delay_s
    return Failure(letter, chosen_s, retry_topic_of(letter.topic))


def given_up(letter: DeadLetter, dead_letters: TopicId | None = None) -> Failure:
    """A message that is not tried again."""
    return Failure(letter, None, dead_letters or dead_letter_topic_of(letter.topic))


@dataclass(slots=True)
class Failures:
    """The failures of one consumer, which `consumer` names in the log. `outage`: the errors by
    which the function says that what it works with is away. Belongs to one thread or task."""

    consumer: object
    outage: ErrorTypes = ()
    stop: Stop = field(default_factory=Stop)
    chance: Callable[[], float] = random.random
    _outages: Outages = field(init=False)
    _backoff: Backoff = field(init=False)
    _last_id: MessageId | None = None
    _row_count: int = 0  # messages that failed one after the other

    def __post_init__(self) -> None:
        self._outages = Outages(
            self.consumer,
            waits_for=lambda error: isinstance(error, self.outage),
            awaited="what its function works with",
            chance=self.chance,
        )
        self._backoff = Backoff(PAUSE_FIRST_S, PAUSE_S_MAX, self.chance)

    def attempt(self, work: Flow[None], is_outside: Callable[[TuffError], bool]) -> Flow[Attempt]:
        """Call the function, with what belongs to it. `is_outside`: whether an error has a reason
        outside of the messages. If the attempt does not count, give the messages back, and call
        `before_again`.

        Raises: OutcomeUnknownError: of the transaction of the messages.
        """
        try:
            yield from work
        except OutcomeUnknownError:
            raise
        except Exception as error:  # noqa: BLE001 - of the function; the dead letter has it
            if isinstance(error, TuffError) and is_outside(error):
                return Attempt(error, counts=False)
            return Attempt(error, counts=not self.is_outage(error))
        self.succeeded()
        return Attempt()

    def before_again(self, error: Exception | None) -> Flow[None]:
        """Wait before the messages of an attempt that does not count are tried again."""
        if isinstance(error, self.outage):
            yield from self.wait()
            return
        log.warning("%s tries messages again: %s", self.consumer, error)
        yield Pause(AGAIN_S)

    def is_outage(self, error: Exception) -> bool:
        """Whether nothing was wrong with the messages; then `wait`, and try them again."""
        return self._outages.is_outage(error)

    def wait(self) -> Flow[None]:
        """Wait before an outage may be over, or until the stop."""
        yield from self._outages.wait(self.stop)

    def succeeded(self) -> None:
        """The function has processed something."""
        self._outages.end()
        self._row_count, self._last_id = 0, None

    def failed_batch(
        self, topic: TopicId, ids: tuple[MessageId, MessageId], error: Exception
    ) -> None:
        """Log that a batch failed, whose messages are tried one by one."""
        log.warning(
            "%s: its function failed at the messages %s to %s of %s, which are tried one by one",
            self.consumer,
            ids[0].hex(),
            ids[1].hex(),
            topic,
            exc_info=_shown(error),
        )

    def failed(self, topic: TopicId, id: MessageId, attempt: int, error: Exception) -> None:
        """Log one failed attempt of a message."""
        if id != self._last_id:
            self._row_count, self._last_id = self._row_count + 1, id
        log.warning(
            "%s: attempt %d of message %s of %s failed",
            self.consumer,
            attempt,
            id.hex(),
            topic,
            exc_info=_shown(error),
        )

    def gave_up(self, letter: DeadLetter, dead: TopicId) -> None:
        """Log a dead letter that is in the topic `dead`."""
        base = letter.topic.base
        how = (
            f"`tuff dlq ls {base}` lists it"
            if dead == dead_letter_topic_of(base)
            else f"`tuff tail {dead}` shows it"
        )
        log.error(
            "%s gave up message %s of %s after %d attempts: %s; it is a dead letter in %s, %s",
            self.consumer,
            letter.message.id.hex(),
            letter.topic,
            letter.attempts,
            letter.reason,
            dead,
            how,
        )

    def pause(self) -> Flow[None]:
        """Wait after several messages that failed one after the other: then the cause is rather not
        the messages, and without a pause all of the topic became dead letters."""
        over = self._row_count - ROW_COUNT
        if over < 0:
            return
        if over == 0:
            log.warning(
                "%s pauses between messages: %d failed in a row", self.consumer, self._row_count
            )
        yield from unless(self.stop, paused(self._backoff.pause(over + 1)))


def _shown(error: Exception) -> tuple[type[Exception], Exception, TracebackType | None]:
    """What a line of the log shows of an error: its traceback begins in the program's function."""
    return type(error), error, from_program(error)


@dataclass(slots=True)
class Letters:
    """Publishes messages that failed to their retry topics and dead-letter topics, which are looked
    up, and created, with these retries."""

    retries: Retries = field(default_factory=partial(Retries, 0))
    _created: set[TopicId] = field(default_factory=set)

    def create(self, topic: TopicId, partition_count: int = 1) -> Flow[None]:
        """Create the topic, if it does not exist yet, and let it have at least so many partitions,
        if this program may change it."""
        if topic in self._created and partition_count == 1:
            return
        partitions = topic_calls.topic_properties(None, None, partition_count)
        try:
            info = yield from self.retries.ask(topic_calls.get_topic(topic))
        except TopicNotFoundError:
            # Only then: a consumer need not have the right to create topics.
            with suppress(TopicExistsError):
                properties = partitions if partition_count > 1 else {}
                yield from self.retries.ask(topic_calls.create_topic(topic, properties))
        else:
            if len(info.partitions) < partition_count:
                more = topic_calls.update_topic(topic, partitions, dry_run=False)
                with suppress(ForbiddenError):
                    yield from self.retries.ask(more)
        self._created.add(topic)

    def publish(self, protocol: Block, failures: Collection[Failure]) -> Flow[None]:
        """Publish the letters in this transaction."""
        for each in failures:
            yield from self.create(each.target)
            delay_ms = round((each.delay_s or 0.0) * 1000)
            delay = Delay(delay_ms, is_time=False) if delay_ms else None
            messages = all_checked(each.target, [each.letter.publishable()])
            yield from protocol.publish(Addition(each.target, messages, delay=delay))

    def give(
        self,
        open_one: Callable[[], Opened[C]],
        failures: Sequence[Failure],
        dead_letters: TopicId | None = None,
        *,
        beside: Callable[[C], Flow[None]] | None = None,
        stop: Stop | None = None,
    ) -> Flow[Sequence[Failure]]:
        """Publish the letters in one transaction, which also ends their messages: by itself, or by
        `beside`. Returns what was published.

        Raises: StoppedError: `stop` was set before it began.

        A letter that is too large for the server has its payload as it is. One that still is has
        none, and can't be tried again: without the letter the message would be repeated for ever.
        """
        was_missing = False
        while True:
            try:
                opened = open_one()
                work = self._give(opened, failures, beside)
                yield from during(opened.protocol, work, stop)
            except TopicNotFoundError:
                if was_missing:
                    raise
                was_missing = True
                self._created.clear()  # somebody has deleted one of them
            except RequestTooLargeError:
                if all(each.letter.size_bytes is not None for each in failures):
                    raise
                failures = _with_largest_cut(failures, dead_letters)
            else:
                return failures

    def _give(
        self,
        opened: Opened[C],
        failures: Sequence[Failure],
        beside: Callable[[C], Flow[None]] | None,
    ) -> Flow[None]:
        if beside is not None:
            yield from beside(opened.context)
        yield from self.publish(opened.protocol, failures)


def _with_largest_cut(
    failures: Sequence[Failure], dead_letters: TopicId | None
) -> Sequence[Failure]:
    # Those that are in JSON first: a payload as it is takes less.
    largest = max(
        (each for each in failures if each.letter.size_bytes is None),
        key=lambda each: (not each.letter.is_raw, len(each.letter.message.payload)),
    )
    if largest.letter.is_raw:
        cut = given_up(largest.letter.without_payload(), dead_letters)
    else:
        cut = replace(largest, letter=replace(largest.letter, is_raw=True))
    return [cut if each is largest else each for each in failures]


def is_outside(error: Exception) -> bool:
    """Whether messages failed for a reason outside of them, which passes: the server is away, or it
    ended their transaction."""
    return is_passing(error) or is_unrelated_to_messages(error)


def is_unrelated_to_messages(error: Exception) -> bool:
    """Whether the transaction ended for a reason outside of the batch: a conflict with another
    transaction, an invalidation by a client, a crash of the server, or a lease that nothing could
    renew in time (protocol §5.2)."""
    if isinstance(error, TransactionInvalidatedError):
        return error.members.get("reason") in _UNRELATED_REASONS
    return isinstance(error, TransactionConflictError)


def is_out_of_time(error: Exception) -> bool:
    """Whether the transaction took longer than its time-out. That is never counted as a failure of
    a message: the next attempt may be faster, as that of a smaller batch. (One that blocked readers
    for too long is: it published messages before its commit, and would do so again.)"""
    return isinstance(error, TransactionTimedOutError)


def check_signature(function: Callable[..., object], *parameters: str) -> None:
    """Raises: TypeError: the function can't be called with these arguments."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return  # of some built-in functions it is unknown
    try:
        signature.bind(*parameters)
    except TypeError as error:
        given = ", ".join(parameters)
        raise TypeError(
            f"the function is called with ({given}), and {function!r:.100} takes {signature}: "
            f"{error}"
        ) from None
