"""Epochs of sinks: a replayed one is a no-op, and an older run is fenced (protocol §5.3, Sinks).

The fence is an invalidation of the older run's transaction: it and a commit exclude each other.
Every answer about a sink is durable, and so is all that a decision about it rests on.
"""

from collections.abc import Callable
from operator import attrgetter

from tuff.protocol.errors import (
    SinkInUseError,
    SinkNotFoundError,
    TransactionCommittedError,
)
from tuff.protocol.transaction import TransactionType
from tx import decisions
from tx.commit_and_abort import Completion
from tx.durable_state import DurableState
from tx.edits import EpochBegun, InvalidReason, SinkForgotten
from tx.monitoring import TransactionCounters
from tx.settings import TransactionSettings
from tx.sinks import EpochRequest, Sink, Step, check_sink, next_step
from tx.start_and_checkpoint import Starts
from tx.transactions import OpenTransaction


class Epochs:
    """The sinks and their epochs. Lives on one event loop. All methods raise
    TransactionsUnavailableError while the service is down or stopped."""

    def __init__(
        self,
        durable: DurableState,
        completion: Completion,
        starts: Starts,
        settings: TransactionSettings,
        counters: TransactionCounters,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._durable = durable
        self._completion = completion
        self._starts = starts
        self._settings = settings
        self._counters = counters
        self._now_ms = now_ms

    async def begin(
        self, asked: EpochRequest, *, lease_s: float | None, client: str
    ) -> tuple[Sink, OpenTransaction | None]:
        """The transaction of this epoch, the same for every task of a run; None where the epoch has
        committed. Both the start and the epoch in the sink's record are durable when this returns.

        Raises:
            InvalidTimeoutError, BadRequestError: the lease or the client's name is no such thing.
            TransactionNotInProgressError (its kinds): this run has lost the epoch's transaction.
            SinkError (its kinds): as `tx.sinks.next_step` has them.
        """
        lease_ms = decisions.lease_ms(self._settings, TransactionType.LONG, lease_s)
        decisions.check_client(client)
        return await self._durable.within_time(self._begin(asked, lease_ms, client))

    async def _begin(
        self, asked: EpochRequest, lease_ms: int | None, client: str
    ) -> tuple[Sink, OpenTransaction | None]:
        while True:
            sink = await self._durable_sink(asked.sink)
            # Nothing is waited for between what is recorded and what it leads to.
            sinks = self._durable.state.sinks
            step = next_step(sink, asked, count=len(sinks), count_max=self._settings.sinks_max)
            if step is Step.BEGIN:
                await self._start(asked, lease_ms, client)
                continue
            assert sink is not None, "what is not recorded is begun"
            if step is Step.NOTHING:
                return sink, None
            try:
                if step is Step.GO_ON:
                    return sink, await self._completion.open_now(sink.transaction_id)
                await self._completion.invalidate(sink.transaction_id, InvalidReason.INVALIDATED)
                self._counters.fences += 1
            except TransactionCommittedError:
                continue  # while its commit was waited for

    async def _start(self, asked: EpochRequest, lease_ms: int | None, client: str) -> None:
        """Begin it, if there is a pointer; else wait for one, and have everything looked at again:
        meanwhile the sink may have changed."""
        self._starts.require_room()
        pointer = self._starts.take_pointer()
        if pointer is None:
            await self._starts.renewed()
            return
        now_ms = self._now_ms()
        lives_ms = decisions.timeout_ms(self._settings, TransactionType.LONG, None)
        self._starts.record(
            EpochBegun(
                now_ms, pointer, lives_ms, now_ms + lives_ms, client, self._durable.state.seen,
                lease_ms, asked.sink, asked.epoch, asked.run_id,
            )
        )  # fmt: skip

    async def show(self, name: str) -> tuple[Sink, str]:
        """A sink, and the state of its transaction in the protocol's words.

        Raises:
            InvalidNameError: that is no name.
            SinkNotFoundError: nothing is recorded of it.
        """
        return await self._durable.within_time(self._show(check_sink(name)))

    async def _show(self, name: str) -> tuple[Sink, str]:
        return self._shown(_found(name, await self._durable_sink(name)))

    async def show_all(self) -> list[tuple[Sink, str]]:
        """All of them, by their names."""
        return await self._durable.within_time(self._show_all())

    async def _show_all(self) -> list[tuple[Sink, str]]:
        while (lsn := self._durable.state.sinks.lsn) > self._durable.state.seen:
            await self._durable.synced(lsn)
        by_name = sorted(self._durable.state.sinks, key=attrgetter("name"))
        return [self._shown(sink) for sink in by_name]

    async def forget(self, name: str) -> None:
        """Take a sink off the record, durably: its next epoch is its first.

        Raises:
            InvalidNameError: that is no name.
            SinkNotFoundError: nothing is recorded of it.
            SinkInUseError: its transaction is in progress.
        """
        await self._durable.within_time(self._forget(check_sink(name)))

    async def _forget(self, name: str) -> None:
        sink = _found(name, await self._durable_sink(name))
        if sink.state is None:
            raise SinkInUseError(
                f"epoch {sink.epoch} of the sink {name} is in progress, in transaction "
                f"{sink.transaction_id}; end that first"
            )
        await self._durable.synced(self._durable.record(SinkForgotten(self._now_ms(), name)))

    async def _durable_sink(self, name: str) -> Sink | None:
        """What is recorded, once that is durable; it holds until the caller waits for something."""
        while True:
            state = self._durable.state
            sink = state.sinks.find(name)
            # A sink that is not there may just have been forgotten, by the last edit of any sink.
            lsn = state.sinks.lsn if sink is None else sink.lsn
            if lsn <= state.seen:
                return sink
            await self._durable.synced(lsn)

    def _shown(self, sink: Sink) -> tuple[Sink, str]:
        if sink.state is not None:
            return sink, sink.state.value
        return sink, self._durable.state.open[sink.transaction_id].state


def _found(name: str, sink: Sink | None) -> Sink:
    if sink is None:
        raise SinkNotFoundError(f"nothing is recorded of a sink {name}; it begins with an epoch")
    return sink
