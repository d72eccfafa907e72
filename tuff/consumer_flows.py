"""A member of a consumer group: heartbeats, rebalances, positions and commits (protocol §3.11).

    background:  heartbeat, every interval, and at once after a change     -> reply or loss
    poll:        settle the previous batch; rebalance by the latest reply; look up new positions;
                 read the next batch

Only the background sends heartbeats, so their replies have an order. Only `poll` and `close` change
what the member owns, so partitions do not move while a batch is processed. What both share are
frozen values that are replaced as a whole. `tuff.consumer_run` processes batches;
`tuff.consumer_retries` has what becomes of messages that fail.
"""

import logging
import random
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import iscoroutinefunction
from typing import Any, Generic, TypeVar

from tuff import calls, group_calls
from tuff.calls import LATEST, Call, PollQuestion
from tuff.client_errors import OutcomeUnknownError, WrongStateError
from tuff.commit_protocol import Opened
from tuff.consumer_plan import Batch, Callback, ConsumerPlan, DeliveryMode
from tuff.consumer_retries import ConsumerRetries, Failure
from tuff.flows import Backoff, Flow, Hook, Pause, Stop, ask, paused, unless
from tuff.group_calls import MemberView
from tuff.protocol.errors import (
    FencedMemberEpochError,
    GroupError,
    GroupNotFoundError,
    NotFoundError,
    PartitionNotAssignedError,
    StaleMemberEpochError,
    TopicNotFoundError,
    TuffError,
    UnknownMemberError,
    UnreleasedInstanceIdError,
)
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Message
from tuff.replies import Poll
from tuff.retries import is_passing
from tuff.subscriber_flows import is_unrelated_to_messages

log = logging.getLogger(__name__)

C = TypeVar("C")

IDLE_S = 0.2  # seconds between two looks at partitions of several topics, one request for each
LONG_POLL_S = 20.0  # seconds; of a member whose partitions are of one topic
RETRY_FIRST_S = 0.1  # seconds
RETRY_S_MAX = 2.0  # seconds

# The member is not in the group any more, or not with this epoch.
_LOST = (UnknownMemberError, FencedMemberEpochError, GroupNotFoundError)
_REFUSED = (*_LOST, StaleMemberEpochError, PartitionNotAssignedError)

# Makes a transaction of a client: its participants, the commit of offsets, and its timeout. The
# blocking client takes fewer kinds of participants than the asyncio one.
Open = Callable[[Collection[Any], Callable[[int], Call[None]], float | None], Opened[C]]


@dataclass(frozen=True, slots=True)
class _Held:
    """What the member has: `life` is how often it was lost before; the epochs are 0 until it has
    joined."""

    life: int = 0
    epoch: int = group_calls.JOIN
    group_epoch: int = 0
    owned: frozenset[TopicId] = frozenset()


@dataclass(frozen=True, slots=True)
class _Heard:
    """The newest reply to a heartbeat, the life in which that was sent, and when it was sent."""

    life: int
    view: MemberView
    sent_s: float


@dataclass(slots=True)
class _Handed(Generic[C]):
    """The batch that `poll` returned last, and in exactly-once mode the newest transaction that was
    opened for it."""

    batch: Batch
    opened: Opened[C] | None = None
    failures: dict[MessageId, Failure] = field(default_factory=dict)  # those given back by `nack`


@dataclass(frozen=True, slots=True)
class _Delivered:
    """A batch whose offset is to be committed, together with the letters of what failed in it."""

    batch: Batch
    failures: tuple[Failure, ...] = ()


class ConsumerFlows(Generic[C]):
    """A member of a group as flows. All but `heartbeats` and `stop` belong to one thread or task.

    `elapsed_s`: seconds of a clock that never goes back.
    """

    def __init__(
        self,
        plan: ConsumerPlan,
        member_id: str,
        open_one: Open[C],
        *,
        elapsed_s: Callable[[], float],
        chance: Callable[[], float] = random.random,
    ) -> None:
        self.open_one = open_one
        self.mode = plan.mode
        self.retries: ConsumerRetries[C] | None = None
        if plan.retry is not None:
            self.retries = ConsumerRetries(
                plan.retry,
                plan.group.name,
                plan.topics,
                lambda offsets: open_one((), offsets, None),
                elapsed_s,
            )
        self._plan = plan
        self._member_id = member_id
        self._elapsed_s = elapsed_s
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_S_MAX, chance)
        self._held = _Held()
        self._heard: _Heard | None = None
        self._lost_life: int | None = None  # the coordinator does not know the member of this life
        self._failure: TuffError | None = None  # why the member can't join
        self._due = Stop()  # a heartbeat is to be sent now
        self._news = Stop()  # `poll` has to look at what a heartbeat brought
        self._closing = Stop()
        self._stop = Stop()
        # Where to continue in each owned partition. Those without an entry have to be looked up.
        self._positions: dict[TopicId, PollQuestion] = {}
        self._delivered: _Delivered | None = None  # processed, and not committed
        self._handed: _Handed[C] | None = None
        self._turn = 0  # which partition is read first
        self._can_wait = True  # for several partitions in one call
        self._away_count = 0  # failed attempts in a row to reach the server

    @property
    def assignment(self) -> list[TopicId]:
        """The partitions that the member has, in order."""
        return sorted(self._held.owned)

    def refuse_coroutines(self) -> None:
        """Raises: TypeError: a callback is a coroutine function, which a blocking driver does not
        await."""
        for function in (self._plan.on_assigned, self._plan.on_revoked, self._plan.on_lost):
            if iscoroutinefunction(function):
                raise TypeError(
                    f"{function!r} is a coroutine function, which only a consumer of "
                    "tuff.AsyncClient runs"
                )

    def heartbeats(self) -> Flow[None]:
        """Send heartbeats until `close`."""
        failed_count = 0
        while True:
            self._due.clear()
            if self._closing.is_set:  # `close` sets this one first
                return
            try:
                yield from self._beat()
            except TuffError as error:
                failed_count += 1
                wait = self._after_failed_heartbeat(error, failed_count)
            else:
                failed_count = 0
                wait = Pause(self._interval_s())
            yield from unless(self._due, paused(wait))

    def _beat(self) -> Flow[None]:
        held = self._held
        if held.life == self._lost_life or self._failure is not None:
            return  # `poll` has to give the partitions up, or to raise the failure
        if self.retries is not None and held.epoch == group_calls.JOIN:
            yield from self.retries.create_topics()
        sent_s = self._elapsed_s()
        try:
            view = yield from unless(self._closing, ask(self._heartbeat(held)))
        except _LOST as error:
            log.warning("%s joins again: %s", self, error.detail)
            self._lost_life = held.life
            self._news.set()
            return
        if view is not None:
            self._heard = _Heard(held.life, view, sent_s)
            if view.assigned != held.owned or view.epoch != held.epoch:
                self._news.set()

    def _heartbeat(self, held: _Held) -> Call[MemberView]:
        plan = self._plan
        if held.epoch == group_calls.JOIN:
            return group_calls.join(
                plan.group,
                self._member_id,
                topics=plan.topics if self.retries is None else self.retries.all_topics,
                assignor=plan.assignor,
                instance_id=plan.instance_id,
                client=plan.client,
            )
        return group_calls.heartbeat(
            plan.group,
            self._member_id,
            epoch=held.epoch,
            group_epoch=held.group_epoch,
            owned=held.owned,
        )

    def _after_failed_heartbeat(self, error: TuffError, failed_count: int) -> Pause:
        if is_passing(error) or isinstance(error, UnreleasedInstanceIdError):
            # A static member that was killed is in the group until its session is over.
            if failed_count == 1:
                log.warning("%s tries its heartbeat again: %s", self, error.detail)
            return self._backoff.pause(failed_count)
        self._failure = error
        self._news.set()
        return Pause(self._interval_s())

    def _interval_s(self) -> float:
        return 1.0 if self._heard is None else self._heard.view.heartbeat_interval_s

    def poll(self, wait_s: float) -> Flow[Batch | None]:
        """The next batch, or None after `wait_s`. Raises: TuffError: as the group refuses it."""
        until_s = self._elapsed_s() + wait_s
        while True:
            self._news.clear()
            left_s = 0.0 if self._stop.is_set else max(0.0, until_s - self._elapsed_s())
            try:
                batch = yield from self._poll_once(left_s)
                self._away_count = 0
            except TuffError as error:
                if not is_passing(error):
                    raise
                batch = None
                self._away_count += 1
                if self._away_count == 1:
                    log.warning("%s waits for the server: %s", self, error.detail)
            if batch is not None:
                return batch
            left_s = until_s - self._elapsed_s()
            if left_s <= 0 or self._stop.is_set:
                return None
            yield from self._idle(left_s)

    def _poll_once(self, wait_s: float) -> Flow[Batch | None]:
        self._settle_handed()
        if not self._is_member():
            yield from self._give_all_up()
        try:
            yield from self._commit_delivered()
        except _REFUSED as error:
            log.warning("%s: the next member repeats a batch: %s", self, error.detail)
        yield from self._rebalance()
        yield from self._find_positions()
        batch = yield from self._read(wait_s)
        if batch is None or not self._is_member():
            return None
        if self.mode is DeliveryMode.AT_MOST_ONCE and not (yield from self._commit_before(batch)):
            return None
        self.hand_out(batch)
        return batch

    def _settle_handed(self) -> None:
        """The caller is done with the batch that it got last."""
        handed, self._handed = self._handed, None
        if handed is None:
            return
        partition = handed.batch.partition
        if self.mode is DeliveryMode.AT_LEAST_ONCE:
            self._delivered = _Delivered(handed.batch, tuple(handed.failures.values()))
        elif self.mode is DeliveryMode.EXACTLY_ONCE:
            if handed.opened is not None and handed.opened.protocol.is_in_transaction:
                self._handed = handed
                raise WrongStateError("end the transaction of the last batch before the next poll")
            if handed.opened is not None and handed.opened.protocol.has_committed:
                self._continue_behind(handed.batch)
            else:
                # Also if the outcome is not known: then its offset is undecided until it is.
                self._positions.pop(partition, None)

    def _continue_behind(self, batch: Batch) -> None:
        question = replace(self._plan.question, start=batch.next_id, inclusive=False)
        self._positions[batch.partition] = question

    def commit(self) -> Flow[None]:
        """Commit the offset of the batch that `poll` returned last, and of those before it.

        Raises: GroupError: the member was fenced, or has lost a partition.
        """
        if self.mode is not DeliveryMode.AT_LEAST_ONCE:
            raise WrongStateError(
                f"a consumer with the mode {self.mode} commits by itself; commit() is for "
                "at_least_once"
            )
        self._settle_handed()
        failed_count = 0
        while self._delivered is not None:
            try:
                yield from self._commit_delivered()
            except TuffError as error:
                failed_count += 1
                if not is_passing(error) or not self._is_member():
                    raise
                yield self._backoff.pause(failed_count)

    def _commit_delivered(self) -> Flow[None]:
        """Raises: GroupError: refused; another member begins behind the last commit."""
        delivered = self._delivered
        if delivered is None:
            return
        if delivered.failures:
            yield from self.give(delivered.batch, delivered.failures)
            return
        try:
            yield from ask(self._commit_call(delivered.batch))
        except _REFUSED as error:
            self._delivered = None
            self._note_refusal(delivered.batch.partition, error)
            raise
        self._delivered = None

    def give(self, batch: Batch, failures: Sequence[Failure]) -> Flow[None]:
        """Publish what failed, and commit the offset of the batch, in one transaction. If it can't
        be known whether that was done, the committed offset tells where to continue.

        Raises: GroupError: refused; another member begins behind the last commit.
        """
        assert self.retries is not None
        failed_count = 0
        while True:
            try:
                yield from self.retries.give(partial(self._commit_call, batch), failures)
            except _REFUSED as error:
                self.take_back(batch)
                self._note_refusal(batch.partition, error)
                raise
            except OutcomeUnknownError as error:
                log.warning("%s looks how far it came: %s", self, error.detail)
                self.take_back(batch)
                return
            except TuffError as error:
                failed_count += 1
                if not (is_passing(error) or is_unrelated_to_messages(error)):
                    raise
                if not self._is_member():
                    self.take_back(batch)
                    return
                yield self._backoff.pause(failed_count)
            else:
                self._handed = self._delivered = None
                self._continue_behind(batch)
                return

    def take_back(self, batch: Batch) -> None:
        """The batch is not processed: continue behind the committed offset."""
        self._handed = self._delivered = None
        self._positions.pop(batch.partition, None)

    def hand_out(self, batch: Batch) -> None:
        """Let this batch, or part of one, be what is processed; what was handed out before is
        done."""
        self._settle_handed()
        self._handed = _Handed(batch)
        if self.mode is not DeliveryMode.EXACTLY_ONCE:
            self._continue_behind(batch)

    def wait_in_place(self, batch: Batch) -> Flow[None]:
        """Read the batch again later, and commit what was done before it."""
        self._handed = None
        if self._delivered is not None:
            yield from self.commit_quietly()
        self.take_back(batch)

    def nack(self, message: Message, *, reason: str, delay_s: float | None) -> Flow[None]:
        """Give a message of the newest batch back. Raises: WrongStateError: it can't be."""
        retries, handed = self.retries, self._handed
        if retries is None:
            raise WrongStateError("nack needs a consumer that was made with retry=RetryPolicy()")
        if retries.policy.in_order:
            raise WrongStateError("with in_order=True, raise an error in the function of run()")
        if handed is None or message not in handed.batch.messages:
            raise WrongStateError(
                "only a message of the batch that was polled last can be given back"
            )
        if message.id in handed.failures:
            return
        batch = handed.batch
        failure = retries.failure(
            batch.partition, message, batch.letter, reason=reason, delay_s=delay_s
        )
        if self.mode is DeliveryMode.EXACTLY_ONCE:
            if handed.opened is None or not handed.opened.protocol.is_in_transaction:
                raise WrongStateError("call nack within the transaction of the batch")
            yield from retries.publish(handed.opened.protocol, [failure])
        handed.failures[message.id] = failure

    def _note_refusal(self, partition: TopicId, error: TuffError) -> None:
        self._positions.pop(partition, None)
        if not isinstance(error, PartitionNotAssignedError):
            self._lost_life = self._held.life

    def _commit_before(self, batch: Batch) -> Flow[bool]:
        """Returns whether the batch may be handed out. A lost reply leaves open whether the commit
        counts, so it is repeated until it is known."""
        failed_count = 0
        while True:
            try:
                yield from ask(self._commit_call(batch))
            except _REFUSED as error:
                log.warning("%s hands no batch out: %s", self, error.detail)
                self._note_refusal(batch.partition, error)
                return False
            except TuffError as error:
                failed_count += 1
                if not is_passing(error):
                    raise
                if not self._is_member():
                    self._positions.pop(batch.partition, None)
                    return False
                yield self._backoff.pause(failed_count)
            else:
                return True

    def _commit_call(self, batch: Batch, pointer: int | None = None) -> Call[None]:
        return group_calls.commit_offsets(
            self._plan.group,
            self._member_id,
            epoch=self._held.epoch,
            offsets={batch.partition: batch.next_id},
            pointer=pointer,
        )

    def _is_member(self) -> bool:
        """Whether another member can't have its partitions yet, as far as this one knows."""
        held, heard = self._held, self._heard
        if held.life == self._lost_life:
            return False
        if held.epoch == group_calls.JOIN:
            return True  # it has nothing to lose
        assert heard is not None, "a member that has an epoch was answered"
        return self._elapsed_s() - heard.sent_s < heard.view.session_timeout_s

    def _rebalance(self) -> Flow[None]:
        """Give up what the newest heartbeat took, and take what it gave."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            self._due.set()
            raise failure
        if not self._is_member():
            yield from self._give_all_up()
        held, heard = self._held, self._heard
        if heard is None or heard.life != held.life:
            return
        view = heard.view
        now = _Held(held.life, view.epoch, view.group_epoch, view.assigned)
        if now == held:
            return
        yield from self._call(self._plan.on_revoked, held.owned - view.assigned)
        # In this order: what was revoked is released even if the other callback raises.
        for partition in held.owned - view.assigned:
            self._positions.pop(partition, None)
        if self.retries is not None:
            self.retries.forget(held.owned - view.assigned)
        self._held = now
        self._due.set()
        yield from self._call(self._plan.on_assigned, view.assigned - held.owned)

    def _give_all_up(self) -> Flow[None]:
        held = self._held
        self._held = _Held(held.life + 1)
        self._positions.clear()
        self._delivered = None
        if self.retries is not None:
            self.retries.forget(held.owned)
        self._due.set()
        yield from self._call(self._plan.on_lost, held.owned)

    def _call(self, callback: Callback | None, partitions: Collection[TopicId]) -> Flow[None]:
        if callback is not None and partitions:
            yield Hook(partial(callback, sorted(partitions)))

    def _find_positions(self) -> Flow[None]:
        """Look up the committed offsets of new partitions, except those that are undecided."""
        missing = [each for each in sorted(self._held.owned) if each not in self._positions]
        if not missing:
            return
        try:
            found = yield from ask(group_calls.get_offsets(self._plan.group))
        except GroupNotFoundError:
            return  # it was deleted; the next heartbeat says so
        for partition in missing:
            if partition in found.undecided:
                continue
            question, after = self._plan.question, found.after.get(partition)
            if after is not None:
                question = replace(question, start=after, inclusive=False)
            elif question.start == LATEST:
                after = yield from ask(calls.latest_position(partition))
                question = replace(question, start=after, inclusive=False)
            self._positions[partition] = question

    def _read(self, wait_s: float) -> Flow[Batch | None]:
        """Messages of the first partition in turn that has some."""
        partitions = sorted(self._positions)
        if len(self._held.owned) != 1:
            wait_s = 0.0
        for _ in partitions:
            self._turn += 1
            partition = partitions[self._turn % len(partitions)]
            if self.retries is not None and self.retries.waits(partition):
                continue
            batch = yield from self._read_partition(partition, min(wait_s, LONG_POLL_S))
            if batch is not None:
                return batch
        return None

    def _idle(self, left_s: float) -> Flow[None]:
        """Wait before the next look at all partitions."""
        call = None if self._away_count else self._wait_call(left_s)
        if call is not None:
            yield from self._wait(call)
            return
        pause_s = self._backoff.pause(self._away_count).seconds if self._away_count else IDLE_S
        yield from unless(self._news, paused(Pause(min(left_s, pause_s))))

    def _wait_call(self, left_s: float) -> Call[list[int]] | None:
        """The wait for messages of any partition; None: they are of several topics, or some are not
        read now."""
        bases = {each.base for each in self._positions}
        after = {
            each.number or 0: question.start
            for each, question in self._positions.items()
            if isinstance(question.start, MessageId) and not question.inclusive
        }
        has_all = len(bases) == 1 and len(after) == len(self._held.owned)
        if not (self._can_wait and self.retries is None and has_all):
            return None
        question = replace(self._plan.question, wait_s=min(left_s, LONG_POLL_S))
        return calls.wait_for_partitions(bases.pop(), after, question)

    def _wait(self, call: Call[list[int]]) -> Flow[None]:
        try:
            found = yield from unless(self._news, ask(call))
        except NotFoundError as error:
            self._can_wait = error.code != NotFoundError.code  # an older server has no such call
            return
        except TuffError as error:
            if not is_passing(error):
                raise
            return
        partitions = sorted(self._positions)
        numbers = [each.number or 0 for each in partitions]
        if found:
            self._turn = numbers.index(found[0]) - 1  # it is the next one

    def _read_partition(self, partition: TopicId, wait_s: float) -> Flow[Batch | None]:
        retries = self.retries
        while True:
            poll = yield from self._poll_partition(partition, wait_s)
            if not poll:
                return None
            if retries is None:
                return Batch(partition, poll.messages, poll.next_id, poll.expired)
            if not retries.is_retry(partition):
                letter = retries.failed_before(partition, poll[0])
                return Batch(partition, poll.messages, poll.next_id, poll.expired, letter)
            if (found := retries.own_letter(poll.messages)) is not None:
                carrier, letter = found
                letter = retries.failed_before(partition, letter.message) or letter
                return Batch(partition, (letter.message,), carrier.id, poll.expired, letter)
            # Only letters of other groups.
            question = self._positions[partition]
            self._positions[partition] = replace(question, start=poll.next_id, inclusive=False)

    def _poll_partition(self, partition: TopicId, wait_s: float) -> Flow[Poll | None]:
        question = replace(self._positions[partition], wait_s=wait_s)
        if self.retries is not None:
            assert question.limit is not None
            question = replace(question, limit=self.retries.limit(partition, question.limit))
            if self.retries.is_retry(partition):
                question = replace(question, tags=None)  # letters of messages that were selected
        asked = ask(calls.poll(partition, question))
        try:
            poll = yield from (unless(self._news, asked) if wait_s else asked)
        except TopicNotFoundError:
            return None  # the topic was deleted, and the coordinator has not noticed yet
        if poll is not None and not poll:
            question = replace(self._positions[partition], start=poll.next_id, inclusive=False)
            self._positions[partition] = question
        return poll

    def offsets_of(self, batch: Batch) -> Callable[[int], Call[None]]:
        """The commit of a batch's offset as part of the transaction with that write pointer.

        Raises: WrongStateError: it is not the batch that `poll` returned last.
        """
        if self.mode is not DeliveryMode.EXACTLY_ONCE:
            raise WrongStateError('transactions of batches need mode="exactly_once"')
        if self._handed is None or self._handed.batch is not batch:
            raise WrongStateError("only the batch that was polled last has a transaction")
        return partial(self._commit_call, batch)

    def opened(self, opened: Opened[C]) -> C:
        """Remember the transaction of the newest batch; returns its context."""
        assert self._handed is not None, "`offsets_of` comes first"
        self._handed.opened = opened
        self._handed.failures.clear()
        return opened.context

    def stop(self) -> None:
        """Let `run` return after its batch."""
        self._stop.set()
        self._news.set()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called since the last `end_run`."""
        return self._stop.is_set

    def end_run(self) -> Flow[None]:
        """Let the next run work, and commit what this one has processed."""
        self._stop.clear()
        if self.mode is DeliveryMode.AT_LEAST_ONCE:
            yield from self.commit_quietly()

    def commit_quietly(self) -> Flow[None]:
        """`commit`, where it is no error that another member repeats the batch."""
        try:
            yield from self.commit()
        except GroupError as error:
            log.warning("%s: the next member repeats a batch: %s", self, error.detail)

    def read_again(self, batch: Batch, error: TuffError) -> Flow[None]:
        """The batch failed for a reason outside of it."""
        log.warning("%s reads a batch again: %s", self, error.detail)
        self.take_back(batch)
        yield self._backoff.pause(1)

    def is_unrelated(self, error: TuffError) -> bool:
        """Whether a transaction failed for a reason outside of its batch. A process that was
        suspended is not in the group any more, and its transaction has timed out, too."""
        is_fenced = isinstance(error, GroupError) or not self._is_member()
        return is_fenced or is_passing(error) or is_unrelated_to_messages(error)

    def close(self) -> None:
        """Let `heartbeats` return."""
        self._closing.set()
        self._due.set()

    def leave(self) -> Flow[None]:
        """Leave the group, after `heartbeats` has returned. What `poll` returned last and was not
        committed is read again."""
        held, self._held = self._held, _Held(self._held.life + 1)
        self._positions.clear()
        self._delivered = None
        self._handed = None
        try:
            yield from self._call(self._plan.on_revoked, held.owned)
        finally:
            if self._heard is not None and held.life != self._lost_life:
                yield from self._leave()

    def _leave(self) -> Flow[None]:
        is_static = self._plan.instance_id is not None
        try:
            yield from ask(
                group_calls.leave(self._plan.group, self._member_id, is_static=is_static)
            )
        except TuffError as error:
            log.warning("%s leaves when its session is over: %s", self, error.detail)

    def __str__(self) -> str:
        return f"the member {self._member_id} of the group {self._plan.group}"
