"""Consumers of a topic: `subscribe` reads continuously, `subscriber` processes each message exactly
once.

    step := poll from the stored position; in one transaction: check that the stored position has
            not moved, process, store the new position

Exactly once is with respect to one participant. If two subscribers have the same name, or one is
killed and started again, only one of them can take a batch: the second finds that the stored
position has moved, or its commit conflicts with that of the first.
"""

import logging
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from inspect import iscoroutinefunction
from typing import Generic, Protocol, TypeVar

from tuff import calls
from tuff.calls import LATEST, Call, PollQuestion
from tuff.client_errors import OutcomeUnknownError, WrongStateError
from tuff.commit_protocol import Opened, during
from tuff.dead_letters import DeadLetter, dead_letter_topic_of, reason_of
from tuff.flows import Backoff, Flow, Hook, Stop, StoppedError, ask, paused, unless
from tuff.participant import AsyncPositions, Positions, TransactionAware
from tuff.protocol.errors import (
    RequestTooLargeError,
    TopicExistsError,
    TopicNotFoundError,
    TransactionConflictError,
    TransactionInvalidatedError,
    TuffError,
)
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Message
from tuff.protocol.transaction import InvalidReason
from tuff.replies import Offsets, Poll
from tuff.retries import Retries, is_passing
from tuff.tracing import processing

log = logging.getLogger(__name__)

C = TypeVar("C")
T = TypeVar("T")
C_contra = TypeVar("C_contra", contravariant=True)

RECONNECT_FIRST_S = 0.1  # seconds; a server that restarts is back within one or two
RECONNECT_S_MAX = 5.0  # seconds; what a reader adds to the time that a server is away
BACKOFF_FIRST_S = 0.5  # seconds; five attempts take up to eight, so a temporary cause can pass
BACKOFF_S_MAX = 5.0  # seconds
POLL_WAIT_S_MAX = (
    30.0  # seconds of one poll; a server accepts 60, and a longer wait is several polls
)
ROW_PREFIX = b"\x00tuff:position:"  # begins with a zero, so that it sorts before rows of programs
PARTITION_ROW_PREFIX = b"\x00tuff:partition-position:"


class Subscription:
    """Reads continuously from a position, by long polls and over restarts of the server (protocol
    §3.4). Belongs to one thread or task.

    The position after each reply is its `Tuff-Next`, and a poll whose reply is lost is repeated. So
    no message is skipped, and none comes twice.
    """

    def __init__(
        self,
        topic: TopicId,
        question: PollQuestion,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._topic = topic
        self._question = question
        self._outages = Outages(f"the subscription of {topic}", chance)

    def poll(self) -> Flow[Poll]:
        """The next messages, or none when the wait was over; however long the server is away."""
        poll = yield from self._outages.outlast(self._poll)
        self._question = replace(self._question, start=poll.next_id, inclusive=False)
        return poll

    def _poll(self) -> Flow[Poll]:
        self._question = yield from with_fixed_start(self._topic, self._question, ask)
        return (yield from ask(calls.poll(self._topic, self._question)))


class Outages:
    """Repeats what a reader asks while the server is away. Belongs to one thread or task."""

    def __init__(self, reader: str, chance: Callable[[], float]) -> None:
        self._backoff = Backoff(RECONNECT_FIRST_S, RECONNECT_S_MAX, chance)
        self._outage = _Outage(reader)

    def outlast(self, make: Callable[[], Flow[T]]) -> Flow[T]:
        """The result of such a flow, which only reads."""
        failed_count = 0
        while True:
            try:
                result = yield from make()
            except TuffError as error:
                if not is_passing(error):
                    raise
                self._outage.begin(error)
                failed_count += 1
                at_least_s = min(error.retry_after_s, RECONNECT_S_MAX)
            else:
                self._outage.end()
                return result
            yield self._backoff.pause(failed_count, at_least_s=at_least_s)


class _Save(Protocol[C_contra]):
    def __call__(self, id: MessageId, tx: C_contra, /) -> object: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberPlan(Generic[C]):
    """What a subscriber reads and does. `open_one` makes a transaction context in which the
    participant of `load` and `save` takes part."""

    topic: TopicId
    question: PollQuestion
    process: Callable[[Sequence[Message], C], object]
    open_one: Callable[[], Opened[C]]
    load: Callable[[], object]
    save: _Save[C]
    attempts: int
    dead_letters: TopicId | None

    def __post_init__(self) -> None:
        calls.checked_topic(self.topic)
        if self.dead_letters is not None:
            calls.checked_topic(self.dead_letters)
        if self.attempts < 1:
            raise ValueError(f"attempts is a number from 1 on, not {self.attempts}")


class SubscriberFlows(Generic[C]):
    """The work of a subscriber as flows. Belongs to one thread or task; `stop` may be called from
    any."""

    def __init__(
        self,
        plan: SubscriberPlan[C],
        retries: Retries,
        *,
        chance: Callable[[], float] = random.random,
    ) -> None:
        self._plan = plan
        self._retries = retries
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_S_MAX, chance)
        self._dead_letters = plan.dead_letters or dead_letter_topic_of(plan.topic)
        # Where to begin while no position is stored. `latest` is looked up once: looked up again
        # after a batch that failed, it would skip that batch.
        self._beginning = plan.question
        self._question: PollQuestion | None = None  # the next poll; None: load the position first
        self._stored: MessageId | None = None  # the position, as this subscriber knows it
        self._alone_through: MessageId | None = None  # up to this id each message is a batch
        self._failed_count = 0  # attempts of the current batch
        self._outage = _Outage(f"the subscriber of {plan.topic}")
        self._is_working = False
        self._stop = Stop()

    def stop(self) -> None:
        """Let `run` return after its batch, and at once while it waits for messages, for the
        server, or for the next attempt. The stop is cleared when it has ended a run or a step."""
        self._stop.set()

    def refuse_coroutines(self) -> None:
        """Raises: TypeError: a function of the plan is a coroutine function. A blocking driver does
        not await it, so it would do nothing."""
        for function in (self._plan.process, self._plan.load, self._plan.save):
            if iscoroutinefunction(function) or iscoroutinefunction(type(function).__call__):
                raise TypeError(
                    f"{function!r} is a coroutine function, which only a subscriber of "
                    "tuff.AsyncClient runs"
                )

    def run(self) -> Flow[None]:
        """Step after step, until `stop`; waits while the server can't be reached.

        Raises: WrongStateError: a run or a step is in progress.
        """
        yield from self._exclusively(self._run())

    def _exclusively(self, work: Flow[T]) -> Flow[T]:
        if self._is_working:
            raise WrongStateError(
                f"the subscriber of {self._plan.topic} is at work already, in another thread or "
                "task or in its own `process`; create one subscriber for each"
            )
        self._is_working = True
        try:
            return (yield from work)
        finally:
            self._is_working = False

    def _run(self) -> Flow[None]:
        away_count = 0
        if self._stop.is_set:
            # For example by a signal before the thread ran, or between two runs.
            log.warning(
                "the subscriber of %s was stopped before this run began, so it did nothing; the "
                "next run works again",
                self._plan.topic,
            )
        while not self._stop.is_set:
            try:
                yield from self._one_step()
            except TuffError as error:
                # The program must learn that it is unknown whether a batch was committed.
                is_unknown = isinstance(error, OutcomeUnknownError)
                if is_unknown or not (is_passing(error) or is_unrelated_to_messages(error)):
                    raise
                if is_passing(error):
                    self._outage.begin(error)
                away_count += 1
                at_least_s = min(error.retry_after_s, BACKOFF_S_MAX)
            else:
                self._outage.end()
                away_count = 0
                continue
            yield from self._pause(away_count, at_least_s=at_least_s)
        self._stop.clear()

    def step(self) -> Flow[int]:
        """One batch, with all its attempts; returns the number of messages that are done, 0 if none
        came.

        Raises: WrongStateError: a run or a step is in progress.
        """
        count = yield from self._exclusively(self._one_step())
        if not count:
            self._stop.clear()
        return count

    def _one_step(self) -> Flow[int]:
        try:
            return (yield from self._step())
        except StoppedError:
            return 0

    def _step(self) -> Flow[int]:
        while True:
            if self._question is None:
                self._question = yield from self._find_start()
            poll = yield from self._wait_for_messages(self._question)
            if not poll:
                return 0
            count = yield from self._try(poll)
            if count or self._stop.is_set:
                return count

    def _find_start(self) -> Flow[PollQuestion]:
        opened = self._plan.open_one()
        stored = yield from during(opened.protocol, self._load(), self._stop)
        if stored != self._stored:
            # Another subscriber of this name has processed the batch that failed here.
            self._alone_through = None
            self._failed_count = 0
        self._stored = stored
        if self._stored is None:
            looking_up = with_fixed_start(self._plan.topic, self._beginning, self._retries.ask)
            found = yield from unless(self._stop, looking_up)
            if found is None:
                raise StoppedError
            self._beginning = found
            return found
        return replace(self._plan.question, start=self._stored, inclusive=False)

    def _wait_for_messages(self, question: PollQuestion) -> Flow[Poll | None]:
        left_s = question.wait_s
        limit = 1 if self._alone_through is not None else question.limit
        while True:
            wait_s = min(left_s, POLL_WAIT_S_MAX)
            call = calls.poll(self._plan.topic, replace(question, limit=limit, wait_s=wait_s))
            poll = yield from unless(self._stop, self._retries.ask(call))
            if poll is None or poll:
                return poll
            left_s -= wait_s
            # A selection by tags may pass over many messages: then a poll ends before all are read.
            has_more = not poll.caught_up and poll.next_id != question.start
            question = self._question = replace(question, start=poll.next_id, inclusive=False)
            if left_s <= 0 and not has_more:
                return poll

    def _try(self, poll: Poll) -> Flow[int]:
        try:
            error = yield from self._attempt(poll)
            if error is None:
                return self._advance(poll)
            return (yield from self._failed(poll, error))
        except _PositionMovedError:
            self._question = None
        except TuffError as error:
            if not is_unrelated_to_messages(error):
                raise
            self._question = None
            yield from self._pause(1)
        return 0

    def _attempt(self, poll: Poll) -> Flow[Exception | None]:
        """Process a batch in a transaction; returns the error that counts as a failed attempt."""
        opened = self._plan.open_one()
        try:
            yield from during(opened.protocol, self._process(poll, opened), self._stop)
        except (StoppedError, _PositionMovedError):
            raise
        except TuffError as error:
            if is_passing(error) or is_unrelated_to_messages(error):
                raise
            return error
        except Exception as error:  # noqa: BLE001 - an error of `process`; the dead letter has it
            return error
        return None

    def _process(self, poll: Poll, opened: Opened[C]) -> Flow[None]:
        yield from self._require_position()
        work = partial(self._plan.process, poll.messages, opened.context)
        yield Hook(processing(self._plan.topic, poll.messages, work))
        if not opened.protocol.is_in_transaction:
            raise RuntimeError("process ended its transaction, by tx.abort()")
        yield Hook(partial(self._plan.save, poll.next_id, opened.context))

    def _require_position(self) -> Flow[None]:
        if (yield from self._load()) != self._stored:
            raise _PositionMovedError

    def _failed(self, poll: Poll, error: Exception) -> Flow[int]:
        self._failed_count += 1
        if self._alone_through is None and len(poll) > 1:
            # The messages of this batch are now processed one by one, so that only the one that
            # fails goes to the dead letters.
            self._alone_through = poll[-1].id
        elif self._failed_count >= self._plan.attempts:
            return (yield from self._give_up_message(poll, error))
        yield from self._pause(self._failed_count)
        return 0

    def _give_up_message(self, poll: Poll, error: Exception) -> Flow[int]:
        letter = DeadLetter(
            topic=self._plan.topic,
            message=poll[0],
            reason=reason_of(error),
            attempts=self._failed_count,
        )
        try:
            yield from self._deliver(poll, letter)
        except RequestTooLargeError:
            # Without a dead letter it would be retried for ever, and block its topic.
            yield from self._deliver(poll, letter.without_payload())
        return self._advance(poll)

    def _deliver(self, poll: Poll, letter: DeadLetter) -> Flow[None]:
        try:
            yield from self._publish_dead_letter(poll, letter)
        except TopicNotFoundError:
            with suppress(TopicExistsError):  # another subscriber was faster
                yield from self._retries.ask(calls.create_topic(self._dead_letters, {}))
            yield from self._publish_dead_letter(poll, letter)

    def _publish_dead_letter(self, poll: Poll, letter: DeadLetter) -> Flow[None]:
        opened = self._plan.open_one()
        replacing = self._replace_by_dead_letter(poll, letter, opened)
        yield from during(opened.protocol, replacing, self._stop)

    def _replace_by_dead_letter(
        self, poll: Poll, letter: DeadLetter, opened: Opened[C]
    ) -> Flow[None]:
        yield from self._require_position()
        yield from opened.protocol.publish(self._dead_letters, [letter.publishable()], ttl_s=None)
        yield Hook(partial(self._plan.save, poll.next_id, opened.context))

    def _pause(self, failed_count: int, *, at_least_s: float = 0.0) -> Flow[None]:
        pause = self._backoff.pause(failed_count, at_least_s=at_least_s)
        yield from unless(self._stop, paused(pause))

    def _load(self) -> Flow[MessageId | None]:
        stored: MessageId | None = yield Hook(self._plan.load)
        return stored

    def _advance(self, poll: Poll) -> int:
        self._stored = poll.next_id
        self._question = replace(self._plan.question, start=poll.next_id, inclusive=False)
        if self._alone_through is not None and poll[-1].id >= self._alone_through:
            self._alone_through = None
        # The batch that failed counts as the first attempt of each of its messages.
        self._failed_count = 0 if self._alone_through is None else 1
        return len(poll)


class Table(TransactionAware, Protocol):
    """A participant with rows, for example a `tuff.TransactionalTable`."""

    def get(self, key: bytes, /) -> bytes | None: ...
    def put(self, key: bytes, value: bytes, /) -> None: ...


class TablePositions:
    """The position of the subscriber `name` in one topic, as a row of `table`.

    A program that reads several topics makes one of these for each topic; they may have the same
    name, as each topic has a row of its own.

    The table takes part in the transaction of each batch: the rows that `process` writes commit
    together with the position.
    """

    def __init__(self, table: Table, name: str) -> None:
        self.name = f"position of {name} in {table.name}"
        self._table = table
        self._name = name
        self._topic: TopicId | None = None
        self.start_tx = table.start_tx
        self.update_tx = table.update_tx
        self.tx_changes = table.tx_changes
        self.commit_tx = table.commit_tx
        self.post_commit = table.post_commit
        self.rollback_tx = table.rollback_tx
        self.leave_tx = getattr(table, "leave_tx", None)

    def keep_for(self, topic: TopicId) -> None:
        """Keep the position in this topic; `client.subscriber` calls this.

        Raises: ValueError: it keeps the position of another topic already.
        """
        if self._topic not in (None, topic):
            raise ValueError(
                f"{self.name} is kept for {self._topic}, and a position in one topic is none in "
                f"{topic}; make a tuff.TablePositions for each"
            )
        self._topic = topic

    def load(self) -> MessageId | None:
        """The position that the current transaction sees; None: there is none yet."""
        stored = self._table.get(self._key())
        return None if stored is None else MessageId.from_bytes(stored)

    def save(self, id: MessageId, tx: object) -> None:
        """Keep the position, as a row that the current transaction writes."""
        self._table.put(self._key(), id.to_bytes())

    def _key(self) -> bytes:
        if self._topic is None:
            raise WrongStateError(f"{self.name} is for no topic yet; call `keep_for(topic)` first")
        # The name of a topic has no colon, and one of a partition has its prefix for itself, so the
        # keys of two of them differ.
        prefix = ROW_PREFIX if self._topic.number is None else PARTITION_ROW_PREFIX
        return prefix + f"{self._topic}:{self._name}".encode()


def keep_for(topic: TopicId, positions: Positions | AsyncPositions) -> None:
    """Tell positions that have a `keep_for` the topic whose position they keep."""
    keep = getattr(positions, "keep_for", None)
    if keep is not None:
        keep(topic)


def check_positions(positions: object) -> None:
    """Raises: TypeError: it has no `load` and `save`."""
    if not (hasattr(positions, "load") and hasattr(positions, "save")):
        raise TypeError(
            "positions is the participant that keeps the position, as "
            f"tuff.TablePositions(table, name), and not {positions!r:.100}"
        )


def with_fixed_start(
    topic: TopicId, question: PollQuestion, ask: Callable[[Call[Offsets]], Flow[Offsets]]
) -> Flow[PollQuestion]:
    """The question, with `latest` replaced by the end of what this reader can read now. A message
    that was published before and is committed later is still read."""
    if question.start != LATEST:
        return question
    offsets = yield from ask(calls.offsets(topic, isolation=question.isolation))
    return replace(question, start=offsets.end, inclusive=offsets.end is None)


def is_unrelated_to_messages(error: TuffError) -> bool:
    """Whether the transaction ended for a reason outside of the batch: a conflict with another
    transaction, an invalidation by a client, or a crash of the server (protocol §5.2)."""
    if isinstance(error, TransactionInvalidatedError):
        reasons = {InvalidReason.INVALIDATED, InvalidReason.LOST_IN_CRASH}
        return error.members.get("reason") in reasons
    return isinstance(error, TransactionConflictError)


class _Outage:
    """Logs one line when a reader begins to wait for the server, and one when it continues."""

    def __init__(self, reader: str) -> None:
        self._reader = reader
        self._is_logged = False

    def begin(self, error: TuffError) -> None:
        if not self._is_logged:
            log.warning("%s waits for the server: %s", self._reader, error.detail)
            self._is_logged = True

    def end(self) -> None:
        if self._is_logged:
            log.info("%s continues: the server answers again", self._reader)
            self._is_logged = False


class _PositionMovedError(Exception):
    """Another subscriber of this name took the batch."""
