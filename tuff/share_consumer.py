"""A worker of a share group: leases, renewals, acknowledgements, retries (protocol §3.12).

    background:  renew the leases of all messages that the worker has, three times in a lease
    poll:        settle the previous batch; take the next one
    run:         process message by message; release, or give up, those that fail

What both share is a mapping that is replaced as a whole.
"""

import logging
import random
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Generic, TypeVar

from tuff import share_calls
from tuff.calls import Call, of_type
from tuff.client_errors import OutcomeUnknownError, WrongStateError
from tuff.commit_protocol import Opened, during
from tuff.consumer_flows import Open
from tuff.consumer_plan import DeliveryMode, DeliveryModeLike
from tuff.consumer_retries import ConsumerRetries, Failure
from tuff.dead_letters import (
    SHARE_PREFIX,
    DeadLetter,
    RetryPolicy,
    dead_letter_topic_of,
    reason_of,
)
from tuff.flows import Backoff, Flow, Hook, Pause, Stop, ask, hook, paused, unless
from tuff.protocol.errors import GroupExistsError, GroupNotFoundError, LeaseLostError, TuffError
from tuff.protocol.ids import MessageId
from tuff.protocol.requests import Message
from tuff.retries import is_passing
from tuff.share_calls import (
    ACKNOWLEDGED_COUNT_MAX,
    DELAY_S_MAX,
    Action,
    Leased,
    ShareGroupId,
    ShareOrder,
    ShareStart,
)
from tuff.subscriber_flows import is_unrelated_to_messages

log = logging.getLogger(__name__)

C = TypeVar("C")

LONG_POLL_S = 20.0  # seconds
RETRY_FIRST_S = 0.1  # seconds
RETRY_S_MAX = 2.0  # seconds
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
    start: ShareStart
    lease_s: float
    count: int
    retry: RetryPolicy | None

    def __post_init__(self) -> None:
        if self.mode not in (DeliveryMode.AT_LEAST_ONCE, DeliveryMode.EXACTLY_ONCE):
            raise ValueError(f"mode is at_least_once or exactly_once, not {self.mode!r}")
        if self.order not in (None, "none", "key"):
            raise ValueError(f"order is none or key, not {self.order!r}")
        if not 1 <= of_type(self.count, int, "batch") <= ACKNOWLEDGED_COUNT_MAX:
            raise ValueError(f"batch is 1 to {ACKNOWLEDGED_COUNT_MAX}, not {self.count}")
        if self.retry is not None:
            if of_type(self.retry, RetryPolicy, "retry").in_order:
                raise ValueError('in_order is for consumers; a share group takes order="key"')
            dead_letter_topic_of(self.group.topic)


@dataclass(slots=True)
class _Opened(Generic[C]):
    opened: Opened[C]
    ids: tuple[MessageId, ...]


@dataclass(slots=True)
class ShareConsumerFlows(Generic[C]):
    """A worker as flows. All but `renewals`, `stop` and `close` belong to one thread or task.

    `open_one` makes a transaction; `elapsed_s` is a clock that never goes back, in seconds.
    """

    plan: SharePlan
    open_one: Open[C]
    elapsed_s: Callable[[], float]
    _held: Mapping[MessageId, Leased] = field(default_factory=dict)
    _transactions: list[_Opened[C]] = field(default_factory=list)
    _closing: Stop = field(default_factory=Stop)
    _stop: Stop = field(default_factory=Stop)
    _is_created: bool = False
    _backoff: Backoff = field(
        default_factory=lambda: Backoff(RETRY_FIRST_S, RETRY_S_MAX, random.random)
    )

    def renewals(self) -> Flow[None]:
        """Renew leases until `close`."""
        interval_s = self.plan.lease_s / RENEWALS_COUNT
        while not self._closing.is_set:
            yield from unless(self._closing, paused(Pause(interval_s)))
            try:
                yield from unless(self._closing, self._renew())
            except TuffError as error:
                log.warning("%s could not renew its leases: %s", self, error.detail)

    def _renew(self) -> Flow[None]:
        held = [*self._held.values()]
        for start in range(0, len(held), ACKNOWLEDGED_COUNT_MAX):
            part = held[start : start + ACKNOWLEDGED_COUNT_MAX]
            # Those that are lost were acknowledged meanwhile, or the acknowledgement will say so.
            yield from ask(
                share_calls.acknowledge(
                    self.plan.group, part, Action.RENEW, lease_s=self.plan.lease_s
                )
            )

    def poll(self, wait_s: float) -> Flow[tuple[Message, ...]]:
        """The next messages, or none after `wait_s`."""
        until_s = self.elapsed_s() + wait_s
        failed_count = 0
        while True:
            left_s = 0.0 if self._stop.is_set else max(0.0, until_s - self.elapsed_s())
            try:
                yield from self._settle()
                found = yield from self._lease(min(left_s, LONG_POLL_S))
                failed_count = 0
            except TuffError as error:
                if not is_passing(error):
                    raise
                found = None
                failed_count += 1
                if failed_count == 1:
                    log.warning("%s waits for the server: %s", self, error.detail)
            if found:
                self._held = {each.message.id: each for each in found}
                return tuple(each.message for each in found)
            left_s = until_s - self.elapsed_s()
            if left_s <= 0 or self._stop.is_set:
                return ()
            if failed_count:
                seconds = min(left_s, self._backoff.pause(failed_count).seconds)
                yield from unless(self._stop, paused(Pause(seconds)))

    def _lease(self, wait_s: float) -> Flow[list[Leased] | None]:
        if not self._is_created:
            yield from self._create()
            self._is_created = True
        call = share_calls.lease(
            self.plan.group, count=self.plan.count, lease_s=self.plan.lease_s, wait_s=wait_s
        )
        return (yield from unless(self._stop, ask(call)))

    def _create(self) -> Flow[None]:
        """Create the group, or check that it has the order that was asked for."""
        plan = self.plan
        try:
            found = yield from ask(share_calls.get_share_group(plan.group))
        except GroupNotFoundError:
            create = share_calls.create_share_group(
                plan.group, start=plan.start, order=plan.order or "none", lease_s=plan.lease_s
            )
            with suppress(GroupExistsError):  # another worker was faster
                yield from ask(create)
            found = yield from ask(share_calls.get_share_group(plan.group))
        if plan.order is not None and found.order != plan.order:
            raise GroupExistsError(
                f"the share group {plan.group} exists already, with order {found.order}; name the "
                "same, or delete it"
            )

    def attempt(self, message: Message) -> int:
        """How often a message of the newest batch was given out."""
        return self._held_ones([message])[0].attempts

    def accept(self, messages: Sequence[Message]) -> Flow[bool]:
        """Accept messages of the newest batch; whether all of it counts."""
        if self.plan.mode != DeliveryMode.AT_LEAST_ONCE:
            raise WrongStateError("with exactly_once, messages are accepted by their transaction")
        return (yield from self._acknowledge(self._held_ones(messages), Action.ACCEPT))

    def nack(self, message: Message, *, reason: str, delay_s: float | None) -> Flow[None]:
        """Give a message of the newest batch back. If that fails, its lease ends."""
        (held,) = self._held_ones([message])
        self._drop([message.id])  # first: it must not be accepted, whatever happens
        retry = self.plan.retry
        by_policy_s = None if retry is None else retry.delay_s(held.attempts)
        if retry is not None and by_policy_s is None:
            yield from self._give_up(held, retry, reason)
            return
        chosen_s = by_policy_s if delay_s is None else delay_s
        yield from self._acknowledge(
            [held], Action.RELEASE, delay_s=min(chosen_s or 0.0, DELAY_S_MAX)
        )

    def _give_up(self, held: Leased, retry: RetryPolicy, reason: str) -> Flow[None]:
        """Publish the dead letter, and reject the message, in one transaction."""
        group = self.plan.group
        letter = DeadLetter(
            topic=group.topic,
            message=held.message,
            reason=reason,
            attempts=held.attempts,
            group=f"{SHARE_PREFIX}{group.name}",
        )
        retries = ConsumerRetries(
            retry,
            group.name,
            (group.topic.base,),
            lambda offsets: self.open_one((), offsets, None),
            self.elapsed_s,
        )
        reject = partial(share_calls.acknowledge_in, group, [held], Action.REJECT)
        try:
            yield from retries.give(reject, [Failure(letter, None)])
        except (LeaseLostError, OutcomeUnknownError) as error:
            log.warning("%s: a message may be tried again: %s", self, error.detail)

    def acceptance_of(self, messages: Sequence[Message]) -> Callable[[int], Call[None]]:
        """The acceptance of messages as part of the transaction with that write pointer."""
        if self.plan.mode != DeliveryMode.EXACTLY_ONCE:
            raise WrongStateError('transactions of messages need mode="exactly_once"')
        held = self._held_ones(messages)
        return partial(share_calls.acknowledge_in, self.plan.group, held, Action.ACCEPT)

    def opened(self, opened: Opened[C], messages: Sequence[Message]) -> C:
        """Remember a transaction of messages; returns its context."""
        self._transactions.append(_Opened(opened, tuple(each.id for each in messages)))
        return opened.context

    def open_for(
        self,
        messages: Sequence[Message],
        participants: Collection[Any],
        timeout_s: float | None,
    ) -> Opened[C]:
        """A transaction that accepts these messages."""
        opened = self.open_one(participants, self.acceptance_of(messages), timeout_s)
        self.opened(opened, messages)
        return opened

    def run(
        self,
        process: Callable[..., object],
        participants: Collection[Any],
        *,
        wait_s: float,
        timeout_s: float | None,
    ) -> Flow[None]:
        """Process messages until `stop`. Raises: Exception: what `process` raises, without a retry
        policy."""
        while not self._stop.is_set:
            left = deque((yield from self.poll(wait_s)))
            try:
                while left and not self._stop.is_set:
                    yield from self._process(left[0], process, participants, timeout_s)
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

    def _process(
        self,
        message: Message,
        process: Callable[..., object],
        participants: Collection[Any],
        timeout_s: float | None,
    ) -> Flow[None]:
        try:
            if self.plan.mode == DeliveryMode.AT_LEAST_ONCE:
                yield Hook(partial(process, message))
            else:
                opened = self.open_for([message], participants, timeout_s)
                work = hook(partial(process, message, opened.context))
                yield from during(opened.protocol, work)
        except OutcomeUnknownError:
            raise
        except Exception as error:
            if not (isinstance(error, TuffError) and _is_outside(error)):
                if self.plan.retry is None:
                    raise
                yield from self._failed(message, error)
                return
            log.warning("%s releases a message: %s", self, error.detail)
            yield from self._quietly(self._release([message]))
            yield self._backoff.pause(1)

    def _failed(self, message: Message, error: Exception) -> Flow[None]:
        try:
            yield from self.nack(message, reason=reason_of(error), delay_s=None)
        except TuffError as refusal:
            if not _is_outside(refusal):
                raise
            log.warning("%s: a message waits until its lease ends: %s", self, refusal.detail)

    def leave(self) -> Flow[None]:
        """Release what was not acknowledged, so that other workers get it at once."""
        self._drop_committed()
        yield from self._quietly(self._release([each.message for each in self._held.values()]))

    def stop(self) -> None:
        """Let `run` return after its message."""
        self._stop.set()

    def close(self) -> None:
        """Let `renewals` return."""
        self._closing.set()

    def _settle(self, left: Collection[Message] = ()) -> Flow[None]:
        """The caller is done with what it got last, except with those that are `left`."""
        for each in self._transactions:
            if each.opened.protocol.is_in_transaction:
                raise WrongStateError("end the transactions of the last batch before the next poll")
        self._drop_committed()
        self._transactions.clear()
        yield from self._release(left)
        held = [*self._held.values()]
        is_accepted = self.plan.mode == DeliveryMode.AT_LEAST_ONCE
        yield from self._acknowledge(held, Action.ACCEPT if is_accepted else Action.RELEASE)

    def _drop_committed(self) -> None:
        """The messages of these transactions were accepted with their commit."""
        for each in self._transactions:
            if each.opened.protocol.has_committed:
                self._drop(each.ids)

    def _release(self, messages: Collection[Message]) -> Flow[None]:
        held = [self._held[each.id] for each in messages if each.id in self._held]
        self._drop([each.message.id for each in held])
        yield from self._acknowledge(held, Action.RELEASE)

    def _acknowledge(
        self, held: Sequence[Leased], action: Action, *, delay_s: float | None = None
    ) -> Flow[bool]:
        """Whether all of it counts: then no other worker has one of the messages."""
        lost_count = 0
        for start in range(0, len(held), ACKNOWLEDGED_COUNT_MAX):
            part = held[start : start + ACKNOWLEDGED_COUNT_MAX]
            call = share_calls.acknowledge(self.plan.group, part, action, delay_s=delay_s)
            lost_count += len((yield from ask(call)))
            self._drop([each.message.id for each in part])
        if lost_count:
            log.warning("%s: other workers process %d of its messages", self, lost_count)
        return lost_count == 0

    def _quietly(self, flow: Flow[None]) -> Flow[None]:
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

    def __str__(self) -> str:
        return f"a worker of the share group {self.plan.group}"


def _is_outside(error: TuffError) -> bool:
    """Whether a message failed for a reason outside of it."""
    is_lost = isinstance(error, LeaseLostError)
    return is_lost or is_passing(error) or is_unrelated_to_messages(error)
