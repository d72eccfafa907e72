"""`Consumer.run`: processes batches by a function of the program, until it is stopped.

batch -> done
       | failed for a reason outside of it  -> read again
       | failed -> each message by itself: done | failed -> waits, or is a dead letter
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Generic, TypeVar

from tuff.client_errors import OutcomeUnknownError
from tuff.commit_protocol import Opened, during
from tuff.consumer_flows import ConsumerFlows
from tuff.consumer_plan import Batch, DeliveryMode
from tuff.consumer_retries import ConsumerRetries
from tuff.dead_letters import reason_of
from tuff.flows import Flow, Hook, hook
from tuff.protocol.errors import GroupError, TuffError
from tuff.tracing import processing

C = TypeVar("C")


class _ReadAgainError(Exception):
    """The batch was taken back, and is read again by this or another member."""


@dataclass(frozen=True, slots=True)
class ConsumerRun(Generic[C]):
    """One run. `open_one` makes a transaction whose commit includes `offsets_of` the batch, and
    passes it to `opened`."""

    flows: ConsumerFlows[C]
    process: Callable[..., object]
    open_one: Callable[[Batch], Opened[C]]

    def run(self, wait_s: float) -> Flow[None]:
        """Raises: Exception: what `process` raises, without a retry policy."""
        flows = self.flows
        while not flows.is_stopping:
            batch = yield from flows.poll(wait_s)
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
        if retries is None:
            yield from self._process(batch)
            return
        error = yield from self._attempt(batch)
        if error is None:
            return
        if len(batch) == 1:
            yield from self._failed(batch, error, retries)
            return
        # The other messages of the batch must not fail with the one that does.
        flows = self.flows
        flows.take_back(batch)
        for message in batch:
            alone = Batch(batch.partition, (message,), message.id)
            flows.hand_out(alone)
            error = yield from self._attempt(alone)
            if error is not None:
                yield from self._failed(alone, error, retries)
        flows.hand_out(batch)

    def _failed(self, batch: Batch, error: Exception, retries: ConsumerRetries[C]) -> Flow[None]:
        """The only message of the batch failed. Raises: _ReadAgainError."""
        flows = self.flows
        failure = retries.failure(batch.partition, batch[0], batch.letter, reason=reason_of(error))
        if retries.policy.in_order and failure.delay_s is not None:
            yield from flows.wait_in_place(batch)
            retries.wait(batch.partition, failure)
            raise _ReadAgainError
        try:
            yield from flows.give(batch, [failure])
        except GroupError as refusal:
            yield from flows.read_again(batch, refusal)
            raise _ReadAgainError from refusal

    def _attempt(self, batch: Batch) -> Flow[Exception | None]:
        """The error that counts as a failed attempt. Raises: _ReadAgainError."""
        try:
            yield from self._process(batch)
        except (_ReadAgainError, OutcomeUnknownError):
            raise
        except TuffError as error:
            if self.flows.is_unrelated(error):
                yield from self.flows.read_again(batch, error)
                raise _ReadAgainError from error
            return error
        except Exception as error:  # noqa: BLE001 - an error of `process`; the dead letter has it
            return error
        return None

    def _process(self, batch: Batch) -> Flow[None]:
        if self.flows.mode is not DeliveryMode.EXACTLY_ONCE:
            yield Hook(self._in_span(batch, partial(self.process, batch)))
            return
        opened = self.open_one(batch)
        work = self._in_span(batch, partial(self.process, batch, opened.context))
        try:
            yield from during(opened.protocol, hook(work))
        except TuffError as error:
            if isinstance(error, OutcomeUnknownError) or not self.flows.is_unrelated(error):
                raise
            yield from self.flows.read_again(batch, error)
            raise _ReadAgainError from error

    def _in_span(self, batch: Batch, work: Callable[[], object]) -> Callable[[], object]:
        return processing(batch.partition, batch.messages, work)
