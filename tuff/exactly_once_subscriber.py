"""`subscriber`: processes each message of a topic exactly once.

    step := poll a partition from its stored position; in one transaction: check that the stored
            position has not moved, process, store the new position

Exactly once is with respect to one participant. If two subscribers have the same name, or one is
killed and started again, only one of them can take a batch: the second finds that the stored
position has moved, or its commit conflicts with that of the first.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from inspect import iscoroutinefunction
from time import perf_counter
from typing import Generic, Protocol, TypeVar

from tuff import read_calls, topic_calls
from tuff.commit_protocol import RENEW_S, Opened, during, renewed
from tuff.dead_letters import DeadLetter, cause_of, dead_letter_topic_of
from tuff.errors import OutcomeUnknownError, WrongStateError
from tuff.flows_and_repeated_calls import (
    Backoff,
    Call,
    Flow,
    Hook,
    Pause,
    Retries,
    ask,
    paused,
    unless,
)
from tuff.group_calls import partition_of
from tuff.participant import TransactionAware
from tuff.protocol.errors import (
    TopicNotFoundError,
    TuffError,
)
from tuff.protocol.group_preferences import check_outage
from tuff.protocol.ids import FIRST_ID, MessageId, PartitionId, TopicId, TopicLike
from tuff.protocol.requests import Message
from tuff.read_calls import LATEST, PollQuestion
from tuff.replies import Poll
from tuff.requests_and_responses import number_of
from tuff.retry_or_dead_letter import (
    Failures,
    Letters,
    check_signature,
    given_up,
    is_out_of_time,
    is_outside,
    is_unrelated_to_messages,
)
from tuff.server_outages import Outages
from tuff.stop_signals import Stop, StoppedError
from tuff.tracing import processing

log = logging.getLogger(__name__)

C = TypeVar("C")
T = TypeVar("T")

BACKOFF_FIRST_S = 0.5  # seconds; five attempts take up to eight, so a temporary cause can pass
BACKOFF_S_MAX = 5.0  # seconds
REPORT_S = 5.0  # seconds between two reports of a position, each of which is a write of the server
LIST_S = 5.0  # seconds between two looks for partitions that were added, while messages come
POLL_WAIT_S_MAX = (
    30.0  # seconds of one poll; a server accepts 60, and a longer wait is several polls
)
ROW_PREFIX = b"\x00tuff:position:"  # begins with a zero, so that it sorts before rows of programs


_Positions = dict[PartitionId, MessageId | None]  # None: there is none yet


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberPlan(Generic[C]):
    """What a subscriber reads and does. `topic`: all partitions of a topic, or one of them.
    `open_one` makes a transaction context in which the participant of `load` and `save` takes part.
    The server learns the positions by `name`."""

    topic: TopicId
    question: PollQuestion
    process: Callable[[Sequence[Message], C], object]
    open_one: Callable[[], Opened[C]]
    load: Callable[[PartitionId], object]
    save: Callable[[PartitionId, MessageId, C], object]
    attempts: int
    dead_letters: TopicId | None
    outage: tuple[type[BaseException], ...]  # errors of `process` that say that something is away
    name: str | None  # of the positions that show how far the subscriber is; None: none does

    def __post_init__(self) -> None:
        check_outage(self.outage)
        check_signature(self.process, "messages", "tx")
        number_of(self.attempts, "attempts")
        if self.dead_letters is None:
            dead_letter_topic_of(self.topic)  # raises: the name is too long


@dataclass(slots=True)
class _Partition:
    """How far the subscriber is in one partition."""

    id: PartitionId
    question: PollQuestion | None = None  # the next poll; None: load the position first
    stored: MessageId | None = None  # the position, as this subscriber knows it
    reported: MessageId | None = None  # the position that the server knows
    alone_through: MessageId | None = None  # up to this id each message is a batch
    failed_count: int = 0  # attempts of the current batch
    batch_failed_count: int = 0  # attempts that a failed batch counts for each of its messages

    def begin(self, stored: MessageId | None, question: PollQuestion) -> None:
        """Continue behind the stored position; None: as the question says."""
        if stored != self.stored:
            # Another subscriber of this name has processed the batch that failed here.
            self.alone_through, self.failed_count = None, 0
        self._continue_at(stored, question)

    def advance(self, poll: Poll, question: PollQuestion) -> None:
        """The messages of the poll are done, and its end is stored."""
        self._continue_at(poll.next_id, question)
        if self.alone_through is not None and poll[-1].id >= self.alone_through:
            self.alone_through = None
        self.failed_count = 0 if self.alone_through is None else self.batch_failed_count

    def _continue_at(self, stored: MessageId | None, question: PollQuestion) -> None:
        self.stored = stored
        self.question = (
            question if stored is None else replace(question, start=stored, inclusive=False)
        )


class SubscriberFlows(Generic[C]):
    """The work of a subscriber as flows. Each partition has its own position, and a batch is of one
    partition; the partitions take turns. Belongs to one thread or task; `stop` may be called from
    any."""

    def __init__(
        self,
        plan: SubscriberPlan[C],
        retries: Retries,
        *,
        chance: Callable[[], float] = random.random,
        elapsed_s: Callable[[], float] = perf_counter,
    ) -> None:
        self._plan = plan
        self._question = replace(plan.question, wait_s=0.0)  # of each partition, at the beginning
        self._elapsed_s = elapsed_s
        self._report_due_s = 0.0
        self._is_report_refused = False
        self._retries = retries
        self._backoff = Backoff(BACKOFF_FIRST_S, BACKOFF_S_MAX, chance)
        self._letters = Letters(retries)
        self._partitions: dict[int, _Partition] = {}
        self._list_due_s = 0.0
        self._turn = 0  # which partition is read first
        consumer = f"the subscriber of {plan.topic}"
        self._outages = Outages(consumer, chance=chance)
        self._is_working = False
        self._opened: Opened[C] | None = None  # the transaction of the newest batch
        self._stop = Stop()
        self._failures = Failures(consumer, plan.outage, self._stop, chance)

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

    def renewals(self, is_done: Stop) -> Flow[None]:
        """Renew the lease of the transaction of each batch, beside `run` or `step`."""
        while not is_done.is_set:
            yield from unless(is_done, paused(Pause(RENEW_S)))
            if self._opened is not None:
                yield from unless(is_done, renewed([self._opened.protocol]))

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
        if self._stop.is_set:
            # For example by a signal before the thread ran, or between two runs.
            log.warning(
                "the subscriber of %s was stopped before this run began, so it did nothing; the "
                "next run works again",
                self._plan.topic,
            )
        unrelated_count = 0
        while not self._stop.is_set:
            try:
                yield from self._one_step()
            except OutcomeUnknownError:
                raise  # the program must learn that it is unknown whether a batch was committed
            except TuffError as error:
                if self._outages.is_outage(error):
                    yield from self._outages.wait(self._stop)
                    continue
                if not is_unrelated_to_messages(error):
                    raise
                unrelated_count += 1
                yield from self._pause(unrelated_count)
            else:
                self._outages.end()
                unrelated_count = 0
        self._report_due_s = 0.0
        yield from self._report()
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
            yield from self._report()
            found = yield from self._wait_for_messages()
            if found is None:
                return 0
            count = yield from self._try(*found)
            yield from self._report()
            if count or self._stop.is_set:
                return count

    def _report(self) -> Flow[None]:
        """Let the server know the stored positions, for its lag, every few seconds. The stored ones
        are what counts, so a report that fails is only logged."""
        name, now_s = self._plan.name, self._elapsed_s()
        moved = [each for each in self._partitions.values() if each.stored != each.reported]
        if name is None or not moved or now_s < self._report_due_s:
            return
        self._report_due_s = now_s + REPORT_S
        try:
            for each in moved:
                if (stored := each.stored) is not None:
                    yield from ask(topic_calls.set_position(each.id, name, stored))
                each.reported = stored
        except TuffError as error:
            if not self._is_report_refused:
                log.warning(
                    "the lag of the subscriber %s of %s is not shown: %s",
                    name,
                    self._plan.topic,
                    error.detail,
                )
            self._is_report_refused = True
        else:
            self._is_report_refused = False

    def _wait_for_messages(self) -> Flow[tuple[_Partition, Poll] | None]:
        """The messages of a partition, and None after the wait of the plan."""
        left_s = self._plan.question.wait_s
        while True:
            yield from self._list_partitions()
            yield from self._find_starts()
            wait_s = min(left_s, POLL_WAIT_S_MAX)
            left_s -= wait_s
            found = yield from self._read_within(wait_s)
            if found is not None or self._stop.is_set or left_s <= 0:
                return found

    def _read_within(self, wait_s: float) -> Flow[tuple[_Partition, Poll] | None]:
        if len(self._partitions) == 1:
            return (yield from self._read(wait_s))
        found = yield from self._read(0.0)
        if found is None and wait_s > 0 and not self._stop.is_set:
            yield from self._wait(wait_s)
            yield from self._list_partitions()
            yield from self._find_starts()
            found = yield from self._read(0.0)
        return found

    def _list_partitions(self) -> Flow[None]:
        """Take the partitions that were added, and leave those that were deleted."""
        topic = self._plan.topic
        if topic.number is not None:
            self._set_partitions({topic.number})
        elif self._elapsed_s() >= self._list_due_s:
            info = yield from self._asked(topic_calls.get_topic(topic))
            self._list_due_s = self._elapsed_s() + LIST_S
            self._set_partitions({*info.partitions, *info.retired})

    def _set_partitions(self, numbers: set[int]) -> None:
        before, base = self._partitions, self._plan.topic.base
        self._partitions = {
            number: before.get(number) or _Partition(base.partition(number))
            for number in sorted(numbers)
        }

    def _find_starts(self) -> Flow[None]:
        missing = [each for each in self._partitions.values() if each.question is None]
        if not missing:
            return
        positions = yield from self._stored_of(missing)
        if self._question.start == LATEST:
            positions |= yield from self._starts_at_end(missing, positions)
        question = self._question
        if question.start == LATEST:
            question = replace(question, start=None)  # of a partition that was added since
        for each in missing:
            each.begin(positions[each.id], question)

    def _stored_of(self, partitions: Sequence[_Partition]) -> Flow[_Positions]:
        """The stored positions, by a transaction of its own."""
        opened = self._plan.open_one()
        return (yield from during(opened.protocol, self._load_all(partitions), self._stop))

    def _load_all(self, partitions: Sequence[_Partition]) -> Flow[_Positions]:
        positions: _Positions = {}
        for each in partitions:
            positions[each.id] = yield from self._load(each)
        return positions

    def _starts_at_end(
        self, missing: Sequence[_Partition], positions: _Positions
    ) -> Flow[_Positions]:
        """Store the ends of what can be read now as the positions of all partitions, if none has
        one, and return them. Looked up again after a restart, or after a batch that failed, they
        would skip messages. A partition that has none beside others that do was added later."""
        is_first = all(each.stored is None for each in self._partitions.values())
        if not is_first or any(positions.values()):
            return {}
        ends: dict[PartitionId, MessageId] = {}
        for each in missing:
            call = read_calls.offsets(each.id, isolation=self._question.isolation)
            ends[each.id] = (yield from self._asked(call)).end or FIRST_ID
        opened = self._plan.open_one()
        storing = self._store_starts(missing, ends, opened.context)
        try:
            return (yield from during(opened.protocol, storing, self._stop))
        except StoppedError:
            raise
        except Exception:
            # Another subscriber of this name may have stored its starts first.
            found = yield from self._stored_of(missing)
            if not any(found.values()):
                raise
            return found

    def _store_starts(
        self, missing: Sequence[_Partition], ends: Mapping[PartitionId, MessageId], context: C
    ) -> Flow[_Positions]:
        stored = yield from self._load_all(missing)
        if any(stored.values()):
            return stored
        for partition, end in ends.items():
            yield Hook(partial(self._plan.save, partition, end, context))
        return dict(ends)

    def _read(self, wait_s: float) -> Flow[tuple[_Partition, Poll] | None]:
        """Messages of the first partition in turn that has some; each waits for them."""
        partitions = list(self._partitions.values())
        for _ in partitions:
            self._turn += 1
            partition = partitions[self._turn % len(partitions)]
            poll = yield from self._poll(partition, wait_s)
            if poll or self._stop.is_set:
                return None if poll is None else (partition, poll)
        return None

    def _poll(self, partition: _Partition, wait_s: float) -> Flow[Poll | None]:
        assert partition.question is not None, "its position was loaded"
        question = replace(partition.question, wait_s=wait_s)
        if partition.alone_through is not None:
            question = replace(question, limit=1)
        while True:
            try:
                poll = yield from self._asked(read_calls.poll(partition.id, question))
            except TopicNotFoundError:
                yield from self._require_deleted(partition)
                return None
            if poll:
                return poll
            # A selection by tags may pass over many messages: then a poll ends before all are read.
            has_more = not poll.caught_up and poll.next_id != question.start
            partition.question = replace(partition.question, start=poll.next_id, inclusive=False)
            if not has_more:
                return None
            question = replace(question, start=poll.next_id, inclusive=False)

    def _require_deleted(self, partition: _Partition) -> Flow[None]:
        """A retired partition is deleted once its messages are gone.

        Raises: TopicNotFoundError: the topic itself is gone, or never had this partition.
        """
        self._list_due_s = 0.0
        yield from self._list_partitions()
        if partition.id.number in self._partitions:
            raise TopicNotFoundError(f"there is no topic {partition.id}; subscribe to another one")

    def _wait(self, wait_s: float) -> Flow[None]:
        """Wait until one of several partitions has messages, or one was added."""
        after = {
            number: each.question.start
            for number, each in self._partitions.items()
            if each.question is not None and isinstance(each.question.start, MessageId)
        }
        question = replace(self._question, wait_s=wait_s)
        call = read_calls.wait_for_partitions(self._plan.topic, after, question, added=True)
        try:
            found = yield from self._asked(call)
        except TopicNotFoundError:
            found = []
        if not found or found[0] not in self._partitions:
            self._list_due_s = 0.0
        else:
            self._turn = list(self._partitions).index(found[0]) - 1  # it is the next one

    def _asked(self, call: Call[T]) -> Flow[T]:
        """The answer to a call that a stop ends. Raises: StoppedError."""
        answer = yield from unless(self._stop, self._retries.ask(call))
        if answer is None:
            raise StoppedError
        return answer

    def _try(self, partition: _Partition, poll: Poll) -> Flow[int]:
        try:
            error = yield from self._attempt(partition, poll)
            if error is None:
                self._failures.succeeded()
                partition.advance(poll, self._question)
                return len(poll)
            if self._failures.is_outage(error):
                yield from self._failures.wait()
                return 0
            return (yield from self._failed(partition, poll, error))
        except _PositionMovedError:
            partition.question = None
        except TuffError as error:
            if not is_unrelated_to_messages(error) and not is_out_of_time(error):
                raise
            if is_out_of_time(error):
                log.warning("the subscriber of %s tries a message again: %s", partition.id, error)
            partition.question = None
            yield from self._pause(1)
        return 0

    def _attempt(self, partition: _Partition, poll: Poll) -> Flow[Exception | None]:
        """Process a batch in a transaction; returns the error that counts as a failed attempt."""
        self._opened = opened = self._plan.open_one()
        try:
            work = self._process(partition, poll, opened)
            yield from during(opened.protocol, work, self._stop)
        except (StoppedError, _PositionMovedError):
            raise
        except Exception as error:
            if is_outside(error) or (is_out_of_time(error) and len(poll) == 1):
                raise
            return error  # of `process`; the dead letter has it
        return None

    def _process(self, partition: _Partition, poll: Poll, opened: Opened[C]) -> Flow[None]:
        yield from self._require_position(partition)
        work = partial(self._plan.process, poll.messages, opened.context)
        yield Hook(processing(partition.id, poll.messages, work))
        if not opened.protocol.is_in_transaction:
            raise RuntimeError("process ended its transaction, by tx.abort()")
        yield Hook(partial(self._plan.save, partition.id, poll.next_id, opened.context))

    def _require_position(self, partition: _Partition) -> Flow[None]:
        if (yield from self._load(partition)) != partition.stored:
            raise _PositionMovedError

    def _failed(self, partition: _Partition, poll: Poll, error: Exception) -> Flow[int]:
        partition.failed_count += not is_out_of_time(error)
        if len(poll) > 1:
            self._failures.failed_batch(partition.id, (poll[0].id, poll[-1].id), error)
        else:
            self._failures.failed(partition.id, poll[0].id, partition.failed_count, error)
        if partition.alone_through is None and len(poll) > 1:
            # The messages of this batch are now processed one by one, so that only the one that
            # fails goes to the dead letters.
            partition.alone_through = poll[-1].id
            partition.batch_failed_count = partition.failed_count
        elif partition.failed_count >= self._plan.attempts:
            yield from self._give_up_message(partition, poll, error)
            return len(poll)
        yield from self._pause(partition.failed_count)
        return 0

    def _give_up_message(self, partition: _Partition, poll: Poll, error: Exception) -> Flow[None]:
        cause = cause_of(error)
        letter = DeadLetter(
            topic=partition.id,
            message=poll[0],
            reason=cause.reason,
            attempts=partition.failed_count,
            traceback=cause.traceback,
        )
        (given,) = yield from self._letters.give(
            self._plan.open_one,
            [given_up(letter, self._plan.dead_letters)],
            self._plan.dead_letters,
            beside=partial(self._store_end, partition, poll),
            stop=self._stop,
        )
        self._failures.gave_up(given.letter, given.target)
        yield from self._failures.pause()
        partition.advance(poll, self._question)

    def _store_end(self, partition: _Partition, poll: Poll, context: C) -> Flow[None]:
        yield from self._require_position(partition)
        yield Hook(partial(self._plan.save, partition.id, poll.next_id, context))

    def _pause(self, failed_count: int) -> Flow[None]:
        yield from unless(self._stop, paused(self._backoff.pause(failed_count)))

    def _load(self, partition: _Partition) -> Flow[MessageId | None]:
        stored: MessageId | None = yield Hook(partial(self._plan.load, partition.id))
        return stored


class Table(TransactionAware, Protocol):
    """A participant with rows, for example a `tuff.TransactionalTable`."""

    def get(self, key: bytes, /) -> bytes | None: ...
    def put(self, key: bytes, value: bytes, /) -> None: ...


class TablePositions:
    """The positions of the subscriber `name`, one for each partition, as rows of `table`.

    The table takes part in the transaction of each batch: the rows that `process` writes commit
    together with the position.
    """

    def __init__(self, table: Table, name: str) -> None:
        self.name = f"position of {name} in {table.name}"
        self._table = table
        self._name = name
        self.start_tx = table.start_tx
        self.update_tx = table.update_tx
        self.tx_changes = table.tx_changes
        self.commit_tx = table.commit_tx
        self.post_commit = table.post_commit
        self.rollback_tx = table.rollback_tx
        self.leave_tx = table.leave_tx
        self.name_of_change = table.name_of_change

    @property
    def position_name(self) -> str:
        """The name by which the positions are reported to the server."""
        return self._name

    def load(self, partition: TopicLike) -> MessageId | None:
        """The position that the current transaction sees; None: there is none yet.

        Raises: ValueError: it is a topic, and not a partition.
        """
        stored = self._table.get(self._key(partition))
        return None if stored is None else MessageId.from_bytes(stored)

    def save(self, partition: TopicLike, id: MessageId, tx: object) -> None:
        """Keep the position, as a row that the current transaction writes.

        Raises: ValueError: it is a topic, and not a partition.
        """
        self._table.put(self._key(partition), id.to_bytes())

    def _key(self, partition: TopicLike) -> bytes:
        named = partition_of(partition)
        namespace, name = named.namespace, named.name
        return ROW_PREFIX + f"{namespace}:{name}:{self._name}".encode()


def check_positions(positions: object) -> None:
    """Raises: TypeError: it has no `load` and `save`."""
    if not (hasattr(positions, "load") and hasattr(positions, "save")):
        raise TypeError(
            "positions is the participant that keeps the position, as "
            f"tuff.TablePositions(table, name), and not {positions!r:.100}"
        )


class _PositionMovedError(Exception):
    """Another subscriber of this name took the batch."""
