"""A worker of a share group: leases, renewals, acknowledgements, retries (protocol §3.12).

    background:  renew the leases of all messages that the worker has, and of their transactions,
                 three times in a lease
    poll:        settle the previous batch; take the next one; give up what killed other workers
    run:         process message by message; release, or give up, those that fail

What both share are a mapping and a set that are replaced as a whole.

An attempt is a beginning. The server counts the first message of a lease as begun; of the others,
the worker says it when it renews or releases them.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from types import MappingProxyType
from typing import Any, Generic, TypeVar

from tuff import share_calls
from tuff.commit_protocol import RENEW_S, Opened, during, renewed
from tuff.consumer_options import DeliveryMode, DeliveryModeLike
from tuff.dead_letters import (
    SHARE_PREFIX,
    Cause,
    DeadLetter,
    cause_of,
    cause_of_deaths,
    dead_letter_topic_of,
)
from tuff.errors import OutcomeUnknownError, WrongStateError
from tuff.flows_and_repeated_calls import (
    Flow,
    Hook,
    Pause,
    ask,
    hook,
    paused,
    unless,
)
from tuff.protocol.errors import GroupExistsError, GroupNotFoundError, LeaseLostError, TuffError
from tuff.protocol.group_preferences import RetryPolicy
from tuff.protocol.ids import MessageId, PartitionId
from tuff.protocol.leases import AttemptReport, LeaseAction
from tuff.protocol.requests import Message
from tuff.read_calls import Start
from tuff.requests_and_responses import number_of, of_type
from tuff.retry_or_dead_letter import (
    Failure,
    Failures,
    Letters,
    Open,
    check_signature,
    failure_of,
    given_up,
    is_out_of_time,
    is_outside,
)
from tuff.server_outages import Outages
from tuff.share_calls import (
    ACKNOWLEDGED_COUNT_MAX,
    DELAY_S_MAX,
    Leased,
    NotDone,
    ShareGroupId,
    ShareOrder,
)
from tuff.stop_signals import Stop

log = logging.getLogger(__name__)

C = TypeVar("C")

LONG_POLL_S = 20.0  # seconds
RENEWALS_COUNT = 3  # in one lease; two may be late


@dataclass(frozen=True, slots=True, kw_only=True)
class SharePlan:
    """What a worker takes, and what becomes of messages that fail.

    Raises: ValueError: the mode, the order or the count is not possible, or the policy is for
        consumers in order. InvalidNameError: the topic's name is too long for a dead-letter topic.
    """

    group: ShareGroupId
    mode: DeliveryModeLike
    order: ShareOrder | None
    tags: str | None
    start: Start
    lease_s: float
    count: int
    retry: RetryPolicy | None
    attempts_max: int | None = None  # to reach the server, in a row; None: it waits for it
    attempts_min: int = 0  # that fail before a poll whose wait is over raises

    def __post_init__(self) -> None:
        if self.mode not in (DeliveryMode.AT_LEAST_ONCE, DeliveryMode.EXACTLY_ONCE):
            raise ValueError(f"mode is at_least_once or exactly_once, not {self.mode!r}")
        if self.order not in (None, "none", "key"):
            raise ValueError(f"order is none or key, not {self.order!r}")
        number_of(self.count, "batch", at_most=ACKNOWLEDGED_COUNT_MAX)
        if self.retry is not None:
            if of_type(self.retry, RetryPolicy, "retry").in_order:
                raise ValueError('in_order is for consumers; a share group takes order="key"')
            dead_letter_topic_of(self.group.topic)


@dataclass(slots=True)
class ShareConsumerFlows(Generic[C]):
    """A worker as flows. All but `renewals`, `stop` and `close` belong to one thread or task.

    `open_one` makes a transaction; `elapsed_s` is a clock that never goes back, in seconds.
    """

    plan: SharePlan
    open_one: Open[C]
    elapsed_s: Callable[[], float]
    _held: Mapping[MessageId, Leased] = field(default_factory=dict)
    _begun: frozenset[MessageId] = frozenset()  # of these, those that the program processes
    # Of messages, with their ids.
    _transactions: list[tuple[Opened[C], frozenset[MessageId]]] = field(default_factory=list)
    _closing: Stop = field(default_factory=Stop)
    _stop: Stop = field(default_factory=Stop)
    _is_created: bool = False
    _has_no_transaction: bool = False  # of the newest batch, in exactly-once mode
    _outages: Outages = field(init=False)
    _failures: Failures = field(init=False)
    _letters: Letters = field(default_factory=Letters)

    def __post_init__(self) -> None:
        self._outages = Outages(
            self, count_max=self.plan.attempts_max, count_min=self.plan.attempts_min
        )
        outage = () if self.plan.retry is None else self.plan.retry.outage
        self._failures = Failures(self, outage, self._stop)

    def renewals(self) -> Flow[None]:
        """Renew leases until `close`."""
        interval_s = min(self.plan.lease_s / RENEWALS_COUNT, RENEW_S)
        while not self._closing.is_set:
            yield from unless(self._closing, paused(Pause(interval_s)))
            try:
                yield from unless(self._closing, self._renew())
                protocols = [opened.protocol for opened, _ in self._transactions]
                yield from unless(self._closing, renewed(protocols))
            except TuffError as error:
                log.warning("%s could not renew its leases: %s", self, error.detail)

    def _renew(self) -> Flow[None]:
        begun = dict.fromkeys(self._begun, AttemptReport.BEGUN)
        renew = partial(share_calls.acknowledge, attempts=begun, lease_s=self.plan.lease_s)
        for part in _parts([*self._held.values()]):
            # Those that are lost were acknowledged meanwhile, or the acknowledgement will say so.
            yield from ask(renew(self.plan.group, part, LeaseAction.RENEW))

    def poll(self, wait_s: float) -> Flow[tuple[Message, ...]]:
        """The next messages, or none after `wait_s`, which may be infinite, or a stop. Raises:
        TuffError: the server refuses; or no server answers, after the attempts of the plan, or
        without such a bound when the wait is over."""
        self._require_transaction()
        until_s = self.elapsed_s() + wait_s
        while True:
            left_s = 0.0 if self._stop.is_set else max(0.0, until_s - self.elapsed_s())
            try:
                yield from self._settle()
                found = yield from self._take(min(left_s, LONG_POLL_S))
            except TuffError as error:
                if not self._outages.is_outage(error):
                    raise
                found = ()
            else:
                self._outages.end()
            if found or self._stop.is_set:
                self._has_no_transaction = bool(found)
                return found
            left_s = until_s - self.elapsed_s()
            if self._outages.is_over(left_s):
                return ()
            if self._outages.is_away:
                yield from self._outages.wait_within(left_s, self._stop)

    def _require_transaction(self) -> None:
        if self._has_no_transaction and self.plan.mode == DeliveryMode.EXACTLY_ONCE:
            raise WrongStateError(
                "the batch before was processed in no transaction of this consumer, so it would "
                "come again for ever: process its messages within `consumer.transaction(message)`; "
                "an empty block of one passes over them, and nack() gives them back"
            )

    def _take(self, wait_s: float) -> Flow[tuple[Message, ...]]:
        found = yield from self._lease(wait_s)
        if found is None:
            return ()
        self._held = {each.message.id: each for each in found}
        self._begun = frozenset()
        yield from self._give_up_killers(found)
        return tuple(each.message for each in self._held.values())

    def _give_up_killers(self, found: Sequence[Leased]) -> Flow[None]:
        """Give up the messages that the policy has no attempt left for: the workers that made the
        last ones vanished, or could not say how they ended."""
        retry = self.plan.retry
        for each in found:
            before = each.attempts - 1
            if retry is None or not before or retry.delay_s(before) is not None:
                continue
            self._drop([each.message.id])
            letter = self._letter(each, cause_of_deaths(each.lost, before), attempts=before)
            yield from self._give_up(each, given_up(letter))

    def _lease(self, wait_s: float) -> Flow[list[Leased] | None]:
        if not self._is_created:
            yield from self._create()
            self._is_created = True
        call = share_calls.lease(
            self.plan.group, count=self.plan.count, lease_s=self.plan.lease_s, wait_s=wait_s
        )
        return (yield from unless(self._stop, ask(call)))

    def _create(self) -> Flow[None]:
        """Create the group, or check that it has the order and tags that were asked for."""
        plan = self.plan
        try:
            found = yield from ask(share_calls.get_share_group(plan.group))
        except GroupNotFoundError:
            create = share_calls.create_share_group(
                plan.group,
                start=plan.start,
                order=plan.order or "none",
                tags=plan.tags,
                lease_s=plan.lease_s,
            )
            with suppress(GroupExistsError):  # another worker was faster
                yield from ask(create)
            found = yield from ask(share_calls.get_share_group(plan.group))
        asked = (plan.order or found.order, plan.tags or found.tags)
        if asked != (found.order, found.tags):
            raise GroupExistsError(
                f"the share group {plan.group} exists already, with order {found.order} and tags "
                f"{found.tags}; name the same, or delete it"
            )

    def attempt(self, message: Message) -> int:
        """The number of this attempt of a message of the newest batch."""
        return self._held_ones([message])[0].attempts

    def partition(self, message: Message) -> PartitionId:
        """The partition of a message of the newest batch."""
        return self._held_ones([message])[0].partition

    def accept(self, messages: Sequence[Message]) -> Flow[bool]:
        """Accept messages of the newest batch; whether all of it counts."""
        if self.plan.mode != DeliveryMode.AT_LEAST_ONCE:
            raise WrongStateError("with exactly_once, messages are accepted by their transaction")
        not_done = yield from self._acknowledge(self._held_ones(messages), LeaseAction.ACCEPT)
        return not not_done.lost

    def nack(self, message: Message, *, cause: Cause, delay_s: float | None) -> Flow[None]:
        """Give a message of the newest batch back. If that fails, its lease ends."""
        (held,) = self._held_ones([message])
        self._has_no_transaction = False
        self._drop([message.id])  # first: it must not be accepted, whatever happens
        retry = self.plan.retry
        if retry is not None:
            failure = failure_of(retry, self._letter(held, cause), delay_s=delay_s)
            if failure.delay_s is None:
                yield from self._give_up(held, failure)
                return
            delay_s = failure.delay_s
        in_s = min(delay_s or 0.0, DELAY_S_MAX)
        attempts = {message.id: AttemptReport.BEGUN}
        not_done = yield from self._acknowledge(
            [held], LeaseAction.RELEASE, attempts=attempts, delay_s=in_s
        )
        if not not_done.expiring:
            return
        expires = f"it expires before its retry in {in_s:g} s"
        if retry is None:
            log.warning("%s does not try %s again: %s", self, message.id.hex(), expires)
        else:
            cause = replace(cause, reason=f"{cause.reason} ({expires})")
            yield from self._give_up(held, given_up(self._letter(held, cause)))

    def _letter(self, held: Leased, cause: Cause, *, attempts: int | None = None) -> DeadLetter:
        return DeadLetter(
            topic=held.partition,
            message=held.message,
            reason=cause.reason,
            attempts=held.attempts if attempts is None else attempts,
            group=f"{SHARE_PREFIX}{self.plan.group.name}",
            traceback=cause.traceback,
        )

    def _give_up(self, held: Leased, failure: Failure) -> Flow[None]:
        """Publish the dead letter, and reject the message, in one transaction."""
        reject = partial(share_calls.acknowledge_in, self.plan.group, [held], LeaseAction.REJECT)
        try:
            opening = partial(self.open_one, (), reject, None)
            (given,) = yield from self._letters.give(opening, [failure])
        except (LeaseLostError, OutcomeUnknownError) as error:
            log.warning("%s: a message may be tried again: %s", self, error.detail)
        else:
            self._failures.gave_up(given.letter, given.target)

    def begin(self, message: Message) -> None:
        """The program processes a message of the newest batch now."""
        if message.id in self._held:
            self._begun |= {message.id}

    def accept_handed_out(self, batch: Collection[Message]) -> Flow[None]:
        """The program has ended without an error: what it had begun is done, and this batch."""
        if self.plan.mode == DeliveryMode.AT_LEAST_ONCE:
            done = self._begun | {each.id for each in batch}
            held = [each for id, each in self._held.items() if id in done]
            yield from self._quietly(self._acknowledge(held, LeaseAction.ACCEPT))

    def open_for(
        self,
        messages: Sequence[Message],
        participants: Collection[Any],
        timeout_s: float | None,
    ) -> Opened[C]:
        """A transaction that accepts these messages."""
        if self.plan.mode != DeliveryMode.EXACTLY_ONCE:
            raise WrongStateError('transactions of messages need mode="exactly_once"')
        held = self._held_ones(messages)
        accept = partial(share_calls.acknowledge_in, self.plan.group, held, LeaseAction.ACCEPT)
        opened = self.open_one(participants, accept, timeout_s)
        self._has_no_transaction = False
        ids = frozenset(each.id for each in messages)
        self._begun |= ids
        self._transactions.append((opened, ids))
        return opened

    def run(
        self,
        process: Callable[..., object],
        participants: Collection[Any],
        *,
        timeout_s: float | None,
    ) -> Flow[None]:
        """Process messages until `stop`. Raises: Exception: what `process` raises, without a retry
        policy."""
        is_exact = self.plan.mode == DeliveryMode.EXACTLY_ONCE
        check_signature(process, *(("message", "tx") if is_exact else ("message",)))
        work = partial(self._work, process, participants, timeout_s)
        while not self._stop.is_set:
            left = deque((yield from self.poll(math.inf)))
            try:
                while left and not self._stop.is_set:
                    yield from self._process(left[0], work(left[0]))
                    left.popleft()
            except GeneratorExit:
                raise
            except BaseException:
                yield from self._quietly(self._settle(left))
                raise
            if left:
                yield from self._quietly(self._settle(left))
        self._stop.clear()
        yield from self._quietly(self._settle())

    def _process(self, message: Message, work: Flow[None]) -> Flow[None]:
        self._begun |= {message.id}
        attempt = yield from self._failures.attempt(work, self._is_outside)
        if not attempt.counts:
            self._begun -= {message.id}
            yield from self._quietly(self._release([message]))
            yield from self._failures.before_again(attempt.error)
        elif attempt.error is not None:
            if self.plan.retry is None:
                raise attempt.error
            yield from self._failed(message, attempt.error)

    def _is_outside(self, error: TuffError) -> bool:
        """Without a policy, a time-out is for the program."""
        return _is_outside(error) or (self.plan.retry is not None and is_out_of_time(error))

    def _work(
        self,
        process: Callable[..., object],
        participants: Collection[Any],
        timeout_s: float | None,
        message: Message,
    ) -> Flow[None]:
        if self.plan.mode == DeliveryMode.AT_LEAST_ONCE:
            yield Hook(partial(process, message))
            return
        opened = self.open_for([message], participants, timeout_s)
        yield from during(opened.protocol, hook(partial(process, message, opened.context)))

    def _failed(self, message: Message, error: Exception) -> Flow[None]:
        try:
            attempts = self.attempt(message)
            partition = self._held[message.id].partition
            self._failures.failed(partition, message.id, attempts, error)
            yield from self.nack(message, cause=cause_of(error), delay_s=None)
        except TuffError as refusal:
            if not _is_outside(refusal):
                raise
            log.warning("%s: a message waits until its lease ends: %s", self, refusal.detail)
        yield from self._failures.pause()

    def leave(self, *, has_failed: bool) -> Flow[None]:
        """Release what was not acknowledged, so that other workers get it at once. `has_failed`:
        the program ends by an error, which may be that of a message it has polled."""
        self._drop_committed()
        unsaid = AttemptReport.NONE
        if has_failed and not self._begun:
            unsaid = AttemptReport.BEGUN if len(self._held) == 1 else AttemptReport.UNKNOWN
        held = [each.message for each in self._held.values()]
        yield from self._quietly(self._release(held, unsaid=unsaid))

    def stop(self) -> None:
        """Let `run` return after its message, or an iteration after its step."""
        self._stop.set()

    @property
    def is_stopping(self) -> bool:
        """Whether `stop` was called since the last run or iteration ended."""
        return self._stop.is_set

    def end_iteration(self, batch: Collection[Message]) -> Flow[None]:
        """Let the next run or iteration work, and accept what this one has handed out."""
        self._stop.clear()
        yield from self.accept_handed_out(batch)

    def close(self) -> None:
        """Let `renewals` return."""
        self._closing.set()

    def _settle(self, left: Collection[Message] = ()) -> Flow[None]:
        """The caller is done with what it got last, except with those that are `left`."""
        for opened, _ in self._transactions:
            if opened.protocol.is_in_transaction:
                raise WrongStateError("end the transactions of the last batch before the next poll")
        self._drop_committed()
        self._transactions.clear()
        self._has_no_transaction = False
        yield from self._release(left)
        if self.plan.mode == DeliveryMode.AT_LEAST_ONCE:
            yield from self._acknowledge([*self._held.values()], LeaseAction.ACCEPT)
        else:
            yield from self._release([each.message for each in self._held.values()])

    def _drop_committed(self) -> None:
        """The messages of these transactions were accepted with their commit."""
        for opened, ids in self._transactions:
            if opened.protocol.has_committed:
                self._drop(ids)

    def _release(
        self, messages: Collection[Message], *, unsaid: AttemptReport = AttemptReport.NONE
    ) -> Flow[None]:
        """`unsaid`: of those messages that are not known to have been begun."""
        held = [self._held[each.id] for each in messages if each.id in self._held]
        attempts = {
            each.message.id: AttemptReport.BEGUN if each.message.id in self._begun else unsaid
            for each in held
        }
        self._drop(attempts)
        yield from self._acknowledge(held, LeaseAction.RELEASE, attempts=attempts)

    def _acknowledge(
        self,
        held: Sequence[Leased],
        action: LeaseAction,
        *,
        attempts: Mapping[MessageId, AttemptReport] = MappingProxyType({}),
        delay_s: float | None = None,
    ) -> Flow[NotDone]:
        not_done = NotDone([], [])
        for part in _parts(held):
            call = share_calls.acknowledge(
                self.plan.group, part, action, attempts=attempts, delay_s=delay_s
            )
            lost, expiring = yield from ask(call)
            not_done.lost.extend(lost)
            not_done.expiring.extend(expiring)
            self._drop([each.message.id for each in part])
        if not_done.lost:
            log.warning("%s: other workers process %d of its messages", self, len(not_done.lost))
        return not_done

    def _quietly(self, flow: Flow[object]) -> Flow[None]:
        """A flow whose failure only means that leases have to run out."""
        try:
            yield from flow
        except TuffError as error:
            log.warning("%s leaves messages until their leases end: %s", self, error.detail)

    def _held_ones(self, messages: Collection[Message]) -> list[Leased]:
        """Raises: WrongStateError: one was acknowledged already, or is not of the newest batch."""
        missing = [each.id.hex() for each in messages if each.id not in self._held]
        if missing:
            raise WrongStateError(
                f"{missing[0]} is not a message of the batch that was polled last, or was "
                "acknowledged already"
            )
        return [self._held[each.id] for each in messages]

    def _drop(self, ids: Collection[MessageId]) -> None:
        self._held = {each: held for each, held in self._held.items() if each not in ids}
        self._begun -= frozenset(ids)

    def __str__(self) -> str:
        return f"a worker of the share group {self.plan.group}"


def _parts(held: Sequence[Leased]) -> Iterator[Sequence[Leased]]:
    """The messages, cut into one part for each request."""
    for start in range(0, len(held), ACKNOWLEDGED_COUNT_MAX):
        yield held[start : start + ACKNOWLEDGED_COUNT_MAX]


def _is_outside(error: TuffError) -> bool:
    """Whether a message failed for a reason outside of it."""
    return isinstance(error, LeaseLostError) or is_outside(error)
