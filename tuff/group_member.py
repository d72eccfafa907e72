"""A member of a consumer group: heartbeats, rebalances, positions and commits (protocol §3.11).

    background:  heartbeat, every interval, and at once after a change     -> reply or loss
    poll:        settle the previous batch; rebalance by the latest reply; look up new positions;
                 read the next batch

Only the background sends heartbeats, so their replies have an order. Only `poll` and `close` change
what the member owns, so partitions do not move while a batch is processed. What both share are
frozen values that are replaced as a whole. `tuff.consumer_run_loop` processes batches;
`tuff.consumer_attempts` has what becomes of messages that fail.
"""

from __future__ import annotations

import logging
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tuff import group_calls, read_calls, topic_calls
from tuff.commit_protocol import RENEW_S, Opened, renewed
from tuff.consumer_attempts import ConsumerRetries
from tuff.consumer_options import Batch, BatchEnd, Callback, ConsumerPlan, DeliveryMode
from tuff.dead_letters import Cause
from tuff.errors import OutcomeUnknownError, WrongStateError
from tuff.flows_and_repeated_calls import Call, Flow, Hook, Pause, ask, is_passing, paused, unless
from tuff.group_calls import MemberView
from tuff.protocol.errors import (
    FencedMemberEpochError,
    GroupError,
    GroupNotFoundError,
    PartitionNotAssignedError,
    StaleMemberEpochError,
    TopicNotFoundError,
    TuffError,
    UnknownMemberError,
    UnreleasedInstanceIdError,
)
from tuff.protocol.group_preferences import GroupPreferences
from tuff.protocol.ids import FIRST_ID, MessageId, PartitionId, TopicId
from tuff.protocol.requests import Message
from tuff.read_calls import EARLIEST, PollQuestion
from tuff.replies import Poll
from tuff.retry_or_dead_letter import Failure, Failures, Letters, Open, given_up, is_outside
from tuff.server_outages import Outages
from tuff.stop_signals import Stop

if TYPE_CHECKING:
    from tuff.sql.positions import GroupPositions

log = logging.getLogger(__name__)

C = TypeVar("C")

# Seconds that a member waits for its instance id, if another one has it. A member that was killed
# has lost it then: `groups.session_timeout` is 45 s.
INSTANCE_ID_WAIT_S = 60.0
IDLE_S = 0.2  # seconds between two looks while some partitions can't be waited for
LONG_POLL_S = 20.0  # seconds
LOOK_S = 60.0  # seconds between two looks at partitions of which waits found nothing
PASSED_OVER_S = 5.0  # seconds between two commits of what was passed over, each of which is a write

# The member is not in the group any more, or not with this epoch.
_LOST = (UnknownMemberError, FencedMemberEpochError, GroupNotFoundError)
_REFUSED = (*_LOST, StaleMemberEpochError, PartitionNotAssignedError)


_Position = MessageId | None  # what is behind this id comes next; None: the oldest message


@dataclass(frozen=True, slots=True)
class _Held:
    """What the member has: `life` is how often it was lost before; the epochs are 0 until it has
    joined."""

    life: int = 0
    epoch: int = group_calls.JOIN
    group_epoch: int = 0
    owned: frozenset[PartitionId] = frozenset()


@dataclass(frozen=True, slots=True)
class _Heard:
    """The newest reply to a heartbeat, the life in which that was sent, and when it was sent."""

    life: int
    view: MemberView
    sent_s: float


@dataclass(slots=True)
class _Handed(Generic[C]):
    """The batch that `poll` returned last, the message of it that the program has begun, and in
    exactly-once mode its transactions."""

    batch: Batch
    begun: MessageId
    through: MessageId | None = None  # the program has got the messages up to this one; None: all
    transactions: list[Opened[C]] = field(default_factory=list)  # that were opened for it
    failures: dict[MessageId, Failure] = field(default_factory=dict)  # those given back by `nack`

    @property
    def done(self) -> Batch:
        """The batch, or its part that the program has got."""
        if self.through is None:
            return self.batch
        return replace(self.batch, next_id=self.through)

    @property
    def opened(self) -> Opened[C] | None:
        """The newest transaction; None without one."""
        return self.transactions[-1] if self.transactions else None

    def require_ended(self) -> None:
        """Raises: WrongStateError: no transaction of the batch was opened, or the newest one has
        not ended."""
        if self.opened is None:
            raise WrongStateError(
                "the batch before was processed in no transaction of this consumer, so it would "
                "come again for ever: process it within `consumer.transaction(batch)`, or iterate "
                "over `consumer.transactions()`; an empty block of one passes over it"
            )
        if self.opened.protocol.is_in_transaction:
            raise WrongStateError("end the transaction of the last batch before the next poll")

    @property
    def has_committed(self) -> bool:
        """Whether the newest transaction of the batch has committed."""
        return self.opened is not None and self.opened.protocol.has_committed

    def require_uncommitted(self) -> None:
        """Raises: WrongStateError: a transaction has committed the batch, or may have."""
        if any(each.protocol.may_have_committed for each in self.transactions):
            raise WrongStateError(
                "a transaction of this batch has committed, or may have; poll again, since the "
                "consumer continues behind what has committed"
            )


@dataclass(slots=True)
class _Waited:
    """What the last wait found: messages, as the reply to this question to a partition; or none at
    these positions, None without any, which are not read again until a time in seconds."""

    brought: tuple[PartitionId, PollQuestion, Poll] | None = None
    quiet_at: dict[PartitionId, _Position] | None = None
    quiet_until_s: float = 0.0


def _offset_of(batch: Batch) -> dict[PartitionId, MessageId]:
    return {batch.partition: batch.next_id}


class ConsumerFlows(Generic[C]):
    """A member of a group as flows. All but `heartbeats` and `stop` belong to one thread or task.

    `elapsed_s`: seconds of a clock that never goes back. `place`: where the positions of the group
    are, if they are not in its log. The transactions of batches store them there, and the
    coordinator learns them for the lag.
    """

    # Since when another member has the instance id of this one, in seconds.
    _instance_id_taken_s: float | None = None

    def __init__(
        self,
        plan: ConsumerPlan,
        member_id: str,
        open_one: Open[C],
        *,
        elapsed_s: Callable[[], float],
        chance: Callable[[], float] = random.random,
        place: GroupPositions | None = None,
    ) -> None:
        self.open_one, self._place = open_one, place
        self.mode = plan.mode
        self.retries = ConsumerRetries(plan.group, plan.topics, Letters(), elapsed_s)
        self._stop = Stop()
        outage = () if plan.preferences.retry is None else plan.preferences.retry.outage
        self.failures = Failures(self, outage, self._stop, chance)
        self._plan, self._member_id = plan, member_id
        self._elapsed_s = elapsed_s
        bounded = partial(
            Outages, count_max=plan.attempts_max, count_min=plan.attempts_min, chance=chance
        )
        self._outages = bounded(self)  # of reading
        self._commit_outages = bounded(self, waits_for=self._can_repeat_commit)
        self._heartbeat_outages = bounded(
            f"the heartbeat of {self}", waits_for=self._can_repeat_heartbeat
        )
        self._held = _Held()
        self._announced: frozenset[PartitionId] = frozenset()  # `on_assigned` has returned
        self._heard: _Heard | None = None
        self._group_preferences = GroupPreferences()  # the newest that were heard of
        self._follow(plan.preferences)
        self._may_have_joined = False  # a join was sent, and not refused
        self._lost_life: int | None = None  # the coordinator does not know the member of this life
        self._failure: TuffError | None = None  # why the member can't join, or gets no answer
        self._ended: WrongStateError | None = None  # why no more heartbeats are sent
        self._due = Stop()  # a heartbeat is to be sent now
        self._news = Stop()  # `poll` has to look at what a heartbeat brought
        self._closing = Stop()
        # Where to continue in each owned partition. Those without an entry have to be looked up.
        self._positions: dict[PartitionId, _Position] = {}
        # Partitions in which messages may have been passed over since the last commit: a selection
        # by tags, or a retry topic, has messages that are not for this group. With a place, also
        # those in which messages were processed.
        self._passed_over: set[PartitionId] = set()
        self._passed_over_due_s = 0.0
        self._delivered: _Handed[C] | None = None  # processed, and not committed
        self._handed: _Handed[C] | None = None
        self._waited, self._turn = _Waited(), 0  # the turn: which partition is read first

    @property
    def assignment(self) -> list[PartitionId]:
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
        """Send heartbeats until `close`. If an error or a cancellation ends them, `poll` raises."""
        try:
            yield from self._heartbeats()
        except GeneratorExit:
            raise
        except BaseException as error:
            self._ended = WrongStateError(
                f"{type(error).__name__} has ended the heartbeats of {self}; make another consumer"
            )
            self._news.set()
            raise

    def _heartbeats(self) -> Flow[None]:
        while True:
            self._due.clear()
            if self._closing.is_set:  # `close` sets this one first
                return
            try:
                yield from self._renew_transactions()
                yield from self._beat()
            except TuffError as error:
                if self._heartbeat_outages.is_outage(error):
                    yield from self._heartbeat_outages.wait(self._due)
                    continue
                self._failure = error
                # A join that got no answer may have been executed.
                self._may_have_joined = self._may_have_joined and self._can_repeat_heartbeat(error)
                self._news.set()
            else:
                self._heartbeat_outages.end()
            heard = self._heard
            interval_s = 1.0 if heard is None else heard.view.heartbeat_interval_s
            yield from unless(self._due, paused(Pause(min(interval_s, RENEW_S))))

    def _can_repeat_heartbeat(self, error: Exception) -> bool:
        if not isinstance(error, UnreleasedInstanceIdError):
            return is_passing(error)
        # A static member that was killed is in the group until its session is over. One that is
        # there for longer lives, and has the id for as long as it wants.
        now_s = self._elapsed_s()
        if self._instance_id_taken_s is None:
            self._instance_id_taken_s = now_s
        return now_s - self._instance_id_taken_s < INSTANCE_ID_WAIT_S

    def _renew_transactions(self) -> Flow[None]:
        """A handler may take any time: the transaction of its batch lives as long as its member."""
        if (handed := self._handed) is not None:
            protocols = [each.protocol for each in handed.transactions]
            yield from unless(self._closing, renewed(protocols))

    def _beat(self) -> Flow[None]:
        held, failure = self._held, self._failure
        is_refused = failure is not None and not self._can_repeat_heartbeat(failure)
        if held.life == self._lost_life or is_refused:
            return  # `poll` has to give the partitions up, or to raise the failure
        if is_join := held.epoch == group_calls.JOIN:
            yield from self._look_for_topics()
            if self._closing.is_set:
                return
            self._may_have_joined = True
        sent_s = self._elapsed_s()
        asking = ask(self._heartbeat(held))
        try:
            # A join is waited for: one that arrives after the leave is a member for a session.
            view = yield from asking if is_join else unless(self._closing, asking)
        except _LOST as error:
            log.warning("%s joins again: %s", self, error.detail)
            self._lost_life = held.life
            self._news.set()
            return
        if view is not None:
            self._heard = _Heard(held.life, view, sent_s)
            self._failure = self._instance_id_taken_s = None
            if view.assigned != held.owned or view.epoch != held.epoch:
                self._news.set()

    def _look_for_topics(self) -> Flow[None]:
        """Warn of topics that do not exist, and create the retry topics of those that do."""
        for topic in self._plan.topics:
            try:
                info = yield from ask(topic_calls.get_topic(topic))
            except TopicNotFoundError:
                # A group may subscribe before the topic is created (protocol §3.11).
                log.warning(
                    "%s waits until %s is created, which does not exist: correct its name, or "
                    "create it with `tuff topics create %s`",
                    self,
                    topic,
                    topic,
                )
            else:
                yield from self.retries.create_topic_of(topic, len(info.partitions))

    def _heartbeat(self, held: _Held) -> Call[MemberView]:
        plan = self._plan
        if held.epoch == group_calls.JOIN:
            return group_calls.join(
                plan.group,
                self._member_id,
                topics=self.retries.all_topics,
                start=plan.preferences.start,
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
            begun=self._begun(),
        )

    def _begun(self) -> Mapping[PartitionId, MessageId]:
        handed = self._handed
        if handed is None or self.retries.policy is None:
            return {}  # nothing would follow from the death of the member
        return {handed.batch.partition: handed.begun}

    def poll(self, wait_s: float) -> Flow[Batch | None]:
        """The next batch, or None after `wait_s`, which may be infinite, or a stop. Raises:
        TuffError: the group refuses it; or no server answers, after the attempts of the plan, or
        without such a bound when the wait is over."""
        until_s = self._elapsed_s() + wait_s
        self._begin_poll(wait_s)
        while True:
            self._news.clear()
            left_s = 0.0 if self._stop.is_set else max(0.0, until_s - self._elapsed_s())
            try:
                batch = yield from self._poll_once(left_s)
            except TuffError as error:
                if not self._is_outage(error):
                    raise
                batch = None
            else:
                if self._held.owned:  # else it has asked nothing
                    self._outages.end()
            if batch is not None or self._stop.is_set:
                return batch
            left_s = until_s - self._elapsed_s()
            if self._asking.is_over(left_s):
                yield Pause(0.0)  # the heartbeats of the same event loop have their turn
                return None
            yield from self._idle(left_s)

    def _begin_poll(self, wait_s: float) -> None:
        if wait_s <= 0.0:
            self._waited.quiet_at = None  # no wait would look
        self._heartbeat_outages.begin()

    def _is_outage(self, error: TuffError) -> bool:
        """Whether to wait and try again."""
        if error is self._failure:  # the heartbeats have made their attempts
            self._failure = None
            self._due.set()
            return False
        return self._outages.is_outage(error)

    @property
    def _asking(self) -> Outages:
        """The outages of what asks the server now: without partitions, that is the heartbeats."""
        return self._outages if self._held.owned else self._heartbeat_outages

    def _poll_once(self, wait_s: float) -> Flow[Batch | None]:
        self._settle_handed()
        if not self._is_member():
            yield from self._give_all_up(self._plan.on_lost)
        try:
            yield from self._commit_delivered()
        except _REFUSED as error:
            log.warning("%s: the next member repeats a batch: %s", self, error.detail)
        yield from self._rebalance()
        yield from self._find_positions()
        yield from self._commit_passed_over()
        batch = yield from self._read(wait_s)
        if batch is None or not self._is_member():
            return None
        if not self.retries.may_begin(batch):
            yield from self._give_up(batch)
            return None
        if not (yield from self._report_begun(batch)):
            return None
        if self.mode is DeliveryMode.AT_MOST_ONCE and not (yield from self._commit_before(batch)):
            return None
        self.hand_out(batch)
        return batch

    def _give_up(self, killer: Batch) -> Flow[None]:
        """The members that began the only message of the batch vanished."""
        assert killer.letter is not None, "it has the number of attempts"
        try:
            yield from self.give(killer, [given_up(killer.letter, self.retries.dead_letters)])
        except GroupError as error:
            log.warning("%s leaves a dead letter to the next member: %s", self, error.detail)

    def _report_begun(self, batch: Batch) -> Flow[bool]:
        """Report a beginning that a process which dies of it can't report any more. Returns whether
        the batch may be handed out."""
        if not self.retries.has_to_report(batch.partition):
            return True
        begun = {batch.partition: self.retries.first_id(batch)}
        report = group_calls.report_begun(
            self._plan.group, self._member_id, epoch=self._held.epoch, begun=begun
        )
        return (yield from self._accepted(ask(report), begun, "hands no batch out"))

    def _accepted(
        self, asking: Flow[None], partitions: Collection[PartitionId], otherwise: str
    ) -> Flow[bool]:
        """Whether the coordinator accepts what is asked about partitions; else this is logged."""
        try:
            yield from asking
        except _REFUSED as error:
            log.warning("%s %s: %s", self, otherwise, error.detail)
            for partition in partitions:
                self._note_refusal(partition, error)
            return False
        return True

    def _settle_handed(self) -> None:
        """The caller is done with the batch that it got last. Raises: WrongStateError: in
        exactly-once mode, the batch has no transaction that has ended."""
        handed = self._handed
        if handed is None:
            return
        if self.mode is DeliveryMode.EXACTLY_ONCE:
            handed.require_ended()
            if handed.has_committed:
                self._continue_behind(handed.batch)
            else:
                # Also if the outcome is not known: then its offset is undecided until it is.
                self._positions.pop(handed.batch.partition, None)
        elif self.mode is DeliveryMode.AT_LEAST_ONCE:
            self._delivered = handed
        self._handed = None

    def _continue_behind(self, batch: Batch) -> None:
        self._positions[batch.partition] = batch.next_id
        if self._place is not None:
            self._passed_over.add(batch.partition)

    def use(self, participants: Collection[Any]) -> None:
        """The program gives what takes part in the transactions of its batches."""
        if self._place is not None:
            self._place.use(participants)

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
        yield from self._commit_outages.outlasting(self._commit_delivered)

    def _commit_delivered(self) -> Flow[None]:
        """Raises: GroupError: refused; another member begins behind the last commit."""
        if self._delivered is None:
            return
        batch, failures = self._delivered.done, self._delivered.failures
        if failures:
            yield from self.give(batch, [*failures.values()])
            return
        try:
            yield from ask(self._commit_call(_offset_of(batch)))
        except _REFUSED as error:
            self._delivered = None
            self._note_refusal(batch.partition, error)
            raise
        self._delivered = None

    def _commit_passed_over(self) -> Flow[None]:
        """Commit what was passed over, every few seconds: else a restart would read it again, and
        it would be lag. All before the position of a partition is processed and committed, or was
        passed over: only then the member looks for more."""
        if not self._passed_over or self._elapsed_s() < self._passed_over_due_s:
            return
        offsets = {
            each: position
            for each in sorted(self._passed_over)
            if (position := self._positions.get(each)) is not None
        }
        self._passed_over.clear()
        self._passed_over_due_s = self._elapsed_s() + PASSED_OVER_S
        if offsets:
            committing = ask(self._commit_call(offsets))
            yield from self._accepted(committing, offsets, "passes over messages again")

    def give(self, batch: Batch, failures: Sequence[Failure]) -> Flow[None]:
        """Publish what failed, and commit the offset of the batch, in one transaction. If it can't
        be known whether that was done, the committed offset tells where to continue.

        Raises: GroupError: refused; another member begins behind the last commit.
        """
        letters, dead_letters = self.retries.letters, self.retries.dead_letters
        opening = partial(self.open_one, (), self._end_of(batch), None)
        giving = partial(letters.give, opening, failures, dead_letters)
        try:
            given = yield from self._commit_outages.outlasting(giving)
        except _REFUSED as error:
            self.take_back(batch)
            self._note_refusal(batch.partition, error)
            raise
        except OutcomeUnknownError as error:
            log.warning("%s looks how far it came: %s", self, error.detail)
            self.take_back(batch)
        except TuffError:
            if self._is_member():
                raise
            self.take_back(batch)
        else:
            self._handed = self._delivered = None
            self._continue_behind(batch)
            for failure in given:
                if failure.delay_s is None:
                    self.failures.gave_up(failure.letter, failure.target)

    def take_back(self, batch: Batch) -> None:
        """The batch is not processed: continue behind the committed offset."""
        self._handed = self._delivered = None
        self._positions.pop(batch.partition, None)

    def hand_out(self, batch: Batch) -> None:
        """Let this batch, or part of one, be what is processed; what was handed out before is
        done."""
        self._settle_handed()
        self._handed = _Handed(batch, self.retries.begin(batch))
        if self.mode is not DeliveryMode.EXACTLY_ONCE:
            self._continue_behind(batch)

    def hand_out_one(self, batch: Batch, index: int) -> Message:
        """The message of the batch that `poll` returned last, which is handed out with those before
        it: a commit counts only these, and the next poll continues behind them.

        Raises: WrongStateError: another poll came since.
        """
        if self._handed is None or self._handed.batch is not batch:
            raise WrongStateError("the iteration ended with another poll; begin a new one")
        is_last = index == len(batch) - 1
        self._handed.through = None if is_last else batch[index].id
        if not self.retries.is_retry(batch.partition):
            self._handed.begun = batch[index].id
        if self.mode is not DeliveryMode.EXACTLY_ONCE:
            self._continue_behind(self._handed.done)
        return batch[index]

    def partition(self, message: Message) -> PartitionId:
        """The partition of a message of the batch that is processed; of one that is tried again,
        that which it came from. Raises: WrongStateError: it is of another batch."""
        if self._handed is None or message not in self._handed.batch.messages:
            raise WrongStateError(
                f"{message.id.hex()} is not a message of the batch that was polled last"
            )
        batch = self._handed.batch
        if batch.letter is None:
            return batch.partition
        return batch.letter.topic.partition(batch.letter.topic.number or 0)

    def wait_in_place(self, batch: Batch) -> Flow[None]:
        """Read the batch again later, and commit what was done before it."""
        self._handed = None
        if self._delivered is not None:
            yield from self.commit_quietly()
        self.take_back(batch)

    def nack(self, message: Message, *, cause: Cause, delay_s: float | None) -> Flow[None]:
        """Give a message of the newest batch back. Raises: WrongStateError: it can't be."""
        retries, handed = self.retries, self._handed
        if retries.policy is None:
            raise WrongStateError(
                "nack needs a retry policy: that of the consumer, as retry=tuff.RetryPolicy(), or "
                "that of its group"
            )
        if retries.policy.in_order:
            raise WrongStateError("with in_order=True, raise an error in the function of run()")
        if handed is None or message not in handed.batch.messages:
            raise WrongStateError(
                "only a message of the batch that was polled last can be given back"
            )
        if message.id in handed.failures:
            return
        failure = retries.failure(handed.batch, message, cause, delay_s=delay_s)
        if self.mode is DeliveryMode.EXACTLY_ONCE:
            if handed.opened is None or not handed.opened.protocol.is_in_transaction:
                raise WrongStateError("call nack within the transaction of the batch")
            yield from self.retries.letters.publish(handed.opened.protocol, [failure])
        handed.failures[message.id] = failure

    def _note_refusal(self, partition: PartitionId, error: TuffError) -> None:
        self._positions.pop(partition, None)
        if not isinstance(error, PartitionNotAssignedError):
            self._lost_life = self._held.life

    def _commit_before(self, batch: Batch) -> Flow[bool]:
        """Returns whether the batch may be handed out. A lost reply leaves open whether the commit
        counts, so it is repeated until it is known."""
        offset = _offset_of(batch)
        commit = self._commit_call(offset)
        committing = self._commit_outages.outlasting(lambda: ask(commit))
        try:
            return (yield from self._accepted(committing, offset, "hands no batch out"))
        except TuffError:
            if self._is_member():
                raise
            self._positions.pop(batch.partition, None)
            return False

    def _commit_call(
        self, offsets: Mapping[PartitionId, MessageId], pointer: int | None = None
    ) -> Call[None]:
        return group_calls.commit_offsets(
            self._plan.group,
            self._member_id,
            epoch=self._held.epoch,
            offsets=offsets,
            pointer=pointer,
        )

    def _can_repeat_commit(self, error: Exception) -> bool:
        """Also one whose transaction failed for a reason outside of the batch."""
        return is_outside(error) and self._is_member()

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
        for error in (self._ended, self._failure):
            if error is not None:
                raise error
        if not self._is_member():
            yield from self._give_all_up(self._plan.on_lost)
        held, heard = self._held, self._heard
        if heard is None or heard.life != held.life:
            return
        view, topics = heard.view, self.retries.all_topics
        self._hear_preferences(view.preferences)
        if topics != self.retries.all_topics:
            yield from self._give_all_up(self._plan.on_revoked)  # and join with these topics
            return
        now = _Held(held.life, view.epoch, view.group_epoch, view.assigned)
        if now != held:
            gone = held.owned - view.assigned
            yield from self._call(self._plan.on_revoked, gone & self._announced)
            # In this order: what was revoked is released even if the other callback raises.
            for partition in gone:
                self._positions.pop(partition, None)
            self.retries.forget(gone)
            new = view.assigned - held.owned
            self.retries.hear_deaths([each for each in view.lost if each.partition in new])
            self._held = now
            self._announced -= gone
            self._due.set()
        # At each poll until it returns: no message of a partition comes before its callback.
        yield from self._call(self._plan.on_assigned, self._held.owned - self._announced)
        self._announced = self._held.owned

    def _hear_preferences(self, preferences: GroupPreferences) -> None:
        """Follow the preferences of the group, except those that the program names itself."""
        if preferences == self._group_preferences:
            return
        own, self._group_preferences = self._plan.preferences, preferences
        for name in own.contradicted(preferences):
            log.warning(
                "%s: its program names another %s than the preferences of its group; that of the "
                "program counts",
                self,
                name,
            )
        self._follow(own.or_else(preferences))

    def _follow(self, preferences: GroupPreferences) -> None:
        self._preferences = preferences  # of the program, and else of the group
        if self.mode is DeliveryMode.AT_MOST_ONCE:
            return  # it processes no message again
        name = preferences.dead_letters
        dead_letters = None if name is None else TopicId(self._plan.group.namespace, name)
        self.retries.follow(preferences.retry, dead_letters)

    def _give_all_up(self, callback: Callback | None) -> Flow[None]:
        held = self._held
        lost, self._announced = self._announced, frozenset()
        self._waited = _Waited()
        self._held = _Held(held.life + 1)
        self._positions.clear()
        self._delivered = None
        self.retries.forget(held.owned)
        self._due.set()
        yield from self._call(callback, lost)

    def _call(self, callback: Callback | None, partitions: Collection[PartitionId]) -> Flow[None]:
        if callback is not None and partitions:
            yield Hook(partial(callback, sorted(partitions)))

    def _find_positions(self) -> Flow[None]:
        """Look up the committed offsets of new partitions, except those that are undecided. The
        coordinator has decided where the group begins: a partition without an offset is read from
        its beginning."""
        missing = [each for each in sorted(self._held.owned) if each not in self._positions]
        if not missing:
            return
        try:
            found = yield from ask(group_calls.get_offsets(self._plan.group))
        except GroupNotFoundError:
            return  # it was deleted; the next heartbeat says so
        after = {each.partition: each.after for each in found.offsets}
        offsets = {each: after.get(each) for each in missing if each not in found.undecided}
        self._positions |= offsets if self._place is None else (yield from self._taken(offsets))

    def _taken(
        self, offsets: Mapping[PartitionId, _Position]
    ) -> Flow[dict[PartitionId, _Position]]:
        """The positions of partitions that the member has taken in their place.

        Then the coordinator has to confirm that it still has them: the member may have been
        suspended before, and its successor takes them again.
        """
        assert self._place is not None
        taken = yield from self._place.take(offsets)
        if not taken:
            return {}
        committing = ask(self._commit_call(taken))
        if not (yield from self._accepted(committing, taken, "has lost what it was taking")):
            return {}
        return {each: None if found == FIRST_ID else found for each, found in taken.items()}

    def _read(self, wait_s: float) -> Flow[Batch | None]:
        """Messages of the first partition in turn that has some. What the last wait found empty is
        not read again, as the next wait begins with a look at it."""
        waited = self._waited
        if waited.quiet_at == self._positions and self._elapsed_s() < waited.quiet_until_s:
            return None
        waited.quiet_until_s = self._elapsed_s() + LOOK_S
        partitions = sorted(self._positions)
        if len(self._held.owned) != 1:
            wait_s = 0.0
        for _ in partitions:
            self._turn += 1
            partition = partitions[self._turn % len(partitions)]
            if self.retries.waits(partition):
                continue
            batch = yield from self._read_partition(partition, self._long_poll_s(wait_s))
            if batch is not None:
                return batch
        return None

    def _idle(self, left_s: float) -> Flow[None]:
        """Wait before the next look at all partitions."""
        if self._asking.is_away:
            yield from self._asking.wait_within(left_s, self._news)
        elif (asked := self._askable()) is not None:
            yield from self._wait(asked, left_s)
        else:
            yield from unless(self._news, paused(Pause(min(left_s, IDLE_S))))

    def _askable(self) -> dict[PartitionId, PollQuestion] | None:
        """The questions for a wait for messages of any partition; None: some are not read now."""
        asked = {
            each: self._question(each)
            for each, position in self._positions.items()
            if position is not None and not self.retries.waits(each)
        }
        waiting = sum(map(self.retries.waits, self._positions))
        return asked if asked and len(asked) + waiting == len(self._held.owned) else None

    def _long_poll_s(self, left_s: float) -> float:
        """How long to wait for messages at once: what was passed over is committed in between."""
        if self._passed_over:
            left_s = min(left_s, max(0.0, self._passed_over_due_s - self._elapsed_s()))
        return min(left_s, LONG_POLL_S)

    def _question(self, partition: PartitionId) -> PollQuestion:
        """The next question to a partition. Letters are of messages that were selected."""
        position, preferences = self._positions[partition], self._preferences
        return PollQuestion(
            start=EARLIEST if position is None else position,
            inclusive=position is None,
            limit=self.retries.limit(partition, self._plan.batch),
            isolation=preferences.isolation,
            tags=None if self.retries.is_retry(partition) else preferences.tags,
        )

    def _wait(self, asked: Mapping[PartitionId, PollQuestion], left_s: float) -> Flow[None]:
        self._waited.quiet_at = None
        wait_s = min(self._long_poll_s(left_s), self.retries.soonest_s(self._positions))
        call = read_calls.wait_for_topics(asked, wait_s=wait_s)
        try:
            found = yield from unless(self._news, ask(call))
        except TopicNotFoundError:
            return
        except TuffError as error:
            if not is_passing(error):
                raise
            return
        if found is None:
            return
        if found.partitions:
            first = found.partitions[0]
            self._turn = sorted(self._positions).index(first) - 1  # it is the next one
            if found.poll is not None:
                self._waited.brought = first, asked[first], found.poll
        # With tags, reads note what they pass over.
        elif len(asked) == len(self._positions) and self._preferences.tags is None:
            self._waited.quiet_at = dict(self._positions)

    def _read_partition(self, partition: PartitionId, wait_s: float) -> Flow[Batch | None]:
        retries = self.retries
        while True:
            poll = yield from self._poll_partition(partition, wait_s)
            if not poll:
                return None
            if not retries.is_retry(partition):
                return retries.with_letter(
                    Batch(partition, poll.messages, poll.next_id, poll.expired)
                )
            if (found := retries.own_letter(poll.messages)) is not None:
                carrier, letter = found
                return retries.with_letter(
                    Batch(partition, (letter.message,), carrier.id, poll.expired, letter)
                )
            # Only letters of other groups.
            self._pass_over(partition, poll)

    def _poll_partition(self, partition: PartitionId, wait_s: float) -> Flow[Poll | None]:
        question = self._question(partition)
        brought, self._waited.brought = self._waited.brought, None
        if brought is not None and brought[:2] == (partition, question):
            return brought[2]
        asked = ask(read_calls.poll(partition, replace(question, wait_s=wait_s)))
        try:
            poll = yield from (unless(self._news, asked) if wait_s else asked)
        except TopicNotFoundError:
            return None  # the topic was deleted, and the coordinator has not noticed yet
        if poll is not None and not poll:
            self._pass_over(partition, poll)
        return poll

    def _pass_over(self, partition: PartitionId, poll: Poll) -> None:
        """No message of the poll is for this member."""
        before, self._positions[partition] = self._positions[partition], poll.next_id
        is_selection = self._preferences.tags is not None or self.retries.is_retry(partition)
        if is_selection and poll.next_id != before:
            self._passed_over.add(partition)

    def open_for(
        self, batch: Batch, participants: Collection[Any], timeout_s: float | None
    ) -> Opened[C]:
        """A transaction that commits the offset of a batch.

        Raises: WrongStateError: it is not the batch that `poll` returned last.
        """
        if self.mode is not DeliveryMode.EXACTLY_ONCE:
            raise WrongStateError('transactions of batches need mode="exactly_once"')
        if self._handed is None or self._handed.batch is not batch:
            raise WrongStateError("only the batch that was polled last has a transaction")
        handed, end = self._handed, self._end_of(batch)
        handed.require_uncommitted()

        def commit(pointer: int) -> Call[None]:
            handed.require_uncommitted()  # another transaction may have been opened before
            return end.commit(pointer)

        opened = self.open_one(participants, replace(end, commit=commit), timeout_s)
        handed.transactions.append(opened)
        handed.failures.clear()
        return opened

    def _end_of(self, batch: Batch) -> BatchEnd:
        commit = partial(self._commit_call, _offset_of(batch))
        return BatchEnd(batch.partition, batch.next_id, commit)

    def stop(self) -> None:
        """Let `run` return after its batch, or an iteration after its step."""
        self._stop.set()
        self._news.set()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called since the last `end_run`."""
        return self._stop.is_set

    def end_run(self) -> Flow[None]:
        """Let the next run or iteration work, and commit what this one has processed."""
        self._stop.clear()
        if self.mode is DeliveryMode.AT_LEAST_ONCE:
            yield from self.commit_quietly()

    def commit_quietly(self) -> Flow[None]:
        """`commit`, where it is no error that another member repeats the batch."""
        try:
            yield from self.commit()
        except GroupError as error:
            log.warning("%s: the next member repeats a batch: %s", self, error.detail)

    def read_again(self, batch: Batch, error: Exception | None) -> Flow[None]:
        """The batch failed for a reason outside of it."""
        self.take_back(batch)
        yield from self.failures.before_again(error)

    def is_unrelated(self, error: TuffError) -> bool:
        """Whether a transaction failed for a reason outside of its batch. A process that was
        suspended is not in the group any more, and its transaction has timed out, too."""
        return isinstance(error, GroupError) or not self._is_member() or is_outside(error)

    def close(self) -> None:
        """Let `heartbeats` return."""
        self._closing.set()
        self._due.set()

    def leave(self) -> Flow[None]:
        """Leave the group, after `heartbeats` has returned. What `poll` returned last and was not
        committed is read again."""
        if self._place is not None:
            yield from self._report_positions()
        held, self._held = self._held, _Held(self._held.life + 1)
        self._positions.clear()
        self._delivered = None
        self._handed = None
        try:
            yield from self._call(self._plan.on_revoked, held.owned)
        finally:
            is_known = self._heard is not None or self._may_have_joined
            if is_known and held.life != self._lost_life:
                yield from self._leave()

    def _report_positions(self) -> Flow[None]:
        """Let the coordinator know how far the member came."""
        if not self._is_member():
            return
        handed, self._passed_over_due_s = self._handed, 0.0
        if handed and handed.has_committed:
            self._continue_behind(handed.batch)
        try:
            yield from self._commit_passed_over()
        except TuffError as error:
            log.warning("%s leaves without a report of its positions: %s", self, error.detail)

    def _leave(self) -> Flow[None]:
        is_static = self._plan.instance_id is not None
        try:
            yield from ask(
                group_calls.leave(self._plan.group, self._member_id, is_static=is_static)
            )
        except (UnknownMemberError, GroupNotFoundError):
            pass  # the join whose reply was lost was not executed
        except TuffError as error:
            log.warning("%s leaves when its session is over: %s", self, error.detail)

    def __str__(self) -> str:
        return f"the member {self._member_id} of the group {self._plan.group}"
