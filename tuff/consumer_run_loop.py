"""`Consumer.run`: processes batches by a function of the program, until it is stopped.

batch -> done
       | failed for a reason outside of it  -> read again
       | failed -> each message by itself: done | failed -> waits, or is a dead letter
"""

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from tuff.commit_protocol import during
from tuff.consumer_attempts import ConsumerRetries
from tuff.consumer_options import Batch, DeliveryMode
from tuff.dead_letters import cause_of
from tuff.flows_and_repeated_calls import Flow, Hook, hook
from tuff.group_member import ConsumerFlows
from tuff.protocol.errors import GroupError, TuffError
from tuff.retry_or_dead_letter import check_signature, is_out_of_time
from tuff.tracing import processing

C = TypeVar("C")


class _ReadAgainError(Exception):
    """The batch was taken back, and is read again by this or another member."""


@dataclass(frozen=True, slots=True)
class ConsumerRun(Generic[C]):
    """One run. The `participants` and the time-out are those of the transactions of batches."""

    flows: ConsumerFlows[C]
    process: Callable[..., object]
    participants: Collection[Any]
    timeout_s: float | None

    def run(self) -> Flow[None]:
        """Raises: Exception: what `process` raises, without a retry policy."""
        flows = self.flows
        is_exact = flows.mode is DeliveryMode.EXACTLY_ONCE
        check_signature(self.process, *(("batch", "tx") if is_exact else ("batch",)))
        while not flows.is_stopping:
            batch = yield from flows.poll(math.inf)
            if batch is None:
                continue
            try:
                yield from self._process_batch(batch)
            except _ReadAgainError:
                continue
            except BaseException:
                flows.take_back(batch)  # the next poll reads it again
                raise
        yield from flows.end_run()

    def _process_batch(self, batch: Batch) -> Flow[None]:
        retries = self.flows.retries
        error = yield from self._attempt(batch)
        if error is None:
            return
        if retries.policy is None:
            raise error
        if len(batch) == 1:
            yield from self._failed(batch, error, retries)
            return
        # The other messages of the batch must not fail with the one that does.
        flows = self.flows
        flows.failures.failed_batch(batch.partition, (batch[0].id, batch[-1].id), error)
        flows.take_back(batch)
        for message in batch:
            alone = Batch(batch.partition, (message,), message.id)
            flows.hand_out(alone)
            error = yield from self._attempt(alone)
            if error is not None:
                yield from self._failed(alone, error, retries)
        if flows.mode is not DeliveryMode.EXACTLY_ONCE:
            flows.hand_out(batch)

    def _failed(self, batch: Batch, error: Exception, retries: ConsumerRetries) -> Flow[None]:
        """The only message of the batch failed. Raises: _ReadAgainError."""
        flows = self.flows
        failure = retries.failure(batch, batch[0], cause_of(error))
        flows.failures.failed(batch.partition, batch[0].id, failure.letter.attempts, error)
        assert retries.policy is not None, "else the error was raised"
        if retries.policy.in_order and failure.delay_s is not None:
            yield from flows.wait_in_place(batch)
            retries.wait(batch.partition, failure)
            raise _ReadAgainError
        try:
            yield from flows.give(batch, [failure])
        except GroupError as refusal:
            yield from flows.read_again(batch, refusal)
            raise _ReadAgainError from refusal
        yield from flows.failures.pause()

    def _attempt(self, batch: Batch) -> Flow[Exception | None]:
        """The error that counts as a failed attempt. Raises: _ReadAgainError."""
        flows = self.flows
        is_outside = partial(self._is_outside, is_single=len(batch) == 1)
        attempt = yield from flows.failures.attempt(self._process(batch), is_outside)
        if attempt.counts:
            return attempt.error
        yield from flows.read_again(batch, attempt.error)
        raise _ReadAgainError from attempt.error

    def _is_outside(self, error: TuffError, *, is_single: bool) -> bool:
        """Without a transaction and a policy, each error of the function is for the program. If a
        batch takes longer than its time-out, its messages are tried one by one; without a policy,
        that is for the program."""
        flows = self.flows
        if is_out_of_time(error) and flows.mode is DeliveryMode.EXACTLY_ONCE:
            is_retried = is_single and flows.retries.policy is not None
            return is_retried or flows.is_unrelated(error)
        is_plain = flows.mode is not DeliveryMode.EXACTLY_ONCE and flows.retries.policy is None
        return not is_plain and flows.is_unrelated(error)

    def _process(self, batch: Batch) -> Flow[None]:
        if self.flows.mode is not DeliveryMode.EXACTLY_ONCE:
            yield Hook(self._in_span(batch, partial(self.process, batch)))
            return
        opened = self.flows.open_for(batch, self.participants, self.timeout_s)
        work = self._in_span(batch, partial(self.process, batch, opened.context))
        yield from during(opened.protocol, hook(work))

    def _in_span(self, batch: Batch, work: Callable[[], object]) -> Callable[[], object]:
        return processing(batch.partition, batch.messages, work)
