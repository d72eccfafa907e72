"""Epochs of sinks: a replayed one is a no-op, and an older run is fenced (protocol §5.3, Sinks).

The fence is an invalidation of the older run's transaction: it and a commit exclude each other.
What is told of a sink is durable, and so is what a decision about it rests on.
"""

from operator import attrgetter

from tuff.protocol.errors import (
    SinkInUseError,
    SinkNotFoundError,
    TransactionCommittedError,
)
from tuff.protocol.transaction import TransactionType
from tx import decisions
from tx.edits import EpochBegun, InvalidReason, SinkForgotten
from tx.endings import Endings
from tx.ledger import Ledger
from tx.records import OpenTransaction
from tx.sinks import EpochRequest, Sink, Step, check_sink, next_step
from tx.starts import Starts
from tx.surroundings import Surroundings


class Epochs:
    """The sinks and their epochs. Lives on one event loop. All methods raise
    TransactionsUnavailableError while the service is down or stopped."""

    def __init__(
        self, ledger: Ledger, endings: Endings, starts: Starts, around: Surroundings
    ) -> None:
        self._ledger = ledger
        self._endings = endings
        self._starts = starts
        self._settings = around.settings
        self._now_ms = around.now_ms
        self._counters = around.counters

    async def begin(
        self, asked: EpochRequest, *, lease_s: float | None, client: str
    ) -> tuple[Sink, OpenTransaction | None]:
        """The transaction of this epoch, the same for every task of a run; None where the epoch has
        committed. Both the start and its place in the sink are durable when this returns.

        Raises:
            InvalidTimeoutError, BadRequestError: the lease or the client's name is no such thing.
            TransactionNotInProgressError (its kinds): this run has lost the epoch's transaction.
            SinkError (its kinds): as `tx.sinks.next_step` has them.
        """
        lease_ms = decisions.lease_ms(self._settings, TransactionType.LONG, lease_s)
        decisions.check_client(client)
        return await self._endings.bounded(self._begin(asked, lease_ms, client))

    async def _begin(
        self, asked: EpochRequest, lease_ms: int | None, client: str
    ) -> tuple[Sink, OpenTransaction | None]:
        while True:
            sink = await self._durable(asked.sink)
            # Nothing is waited for between what is recorded and what it leads to.
            sinks = self._ledger.state.sinks
            step = next_step(sink, asked, count=len(sinks), count_max=self._settings.sinks_max)
            if step is Step.BEGIN:
                await self._start(asked, lease_ms, client)
                continue
            assert sink is not None, "what is not recorded is begun"
            if step is Step.NOTHING:
                return sink, None
            try:
                if step is Step.GO_ON:
                    return sink, await self._endings.open_now(sink.transaction_id)
                await self._endings.invalidate(sink.transaction_id, InvalidReason.INVALIDATED)
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
                now_ms, pointer, lives_ms, now_ms + lives_ms, client, self._ledger.state.seen,
                lease_ms, asked.sink, asked.epoch, asked.run_id,
            )
        )  # fmt: skip

    async def show(self, name: str) -> tuple[Sink, str]:
        """A sink, and the state of its transaction in the protocol's words.

        Raises:
            InvalidNameError: that is no name.
            SinkNotFoundError: nothing is recorded of it.
        """
        return await self._endings.bounded(self._show(check_sink(name)))

    async def _show(self, name: str) -> tuple[Sink, str]:
        return self._shown(_found(name, await self._durable(name)))

    async def show_all(self) -> list[tuple[Sink, str]]:
        """All of them, by their names."""
        return await self._endings.bounded(self._show_all())

    async def _show_all(self) -> list[tuple[Sink, str]]:
        while (lsn := self._ledger.state.sinks.lsn) > self._ledger.state.seen:
            await self._ledger.durable(lsn)
        by_name = sorted(self._ledger.state.sinks, key=attrgetter("name"))
        return [self._shown(sink) for sink in by_name]

    async def forget(self, name: str) -> None:
        """Take a sink off the record, durably: its next epoch is its first.

        Raises:
            InvalidNameError: that is no name.
            SinkNotFoundError: nothing is recorded of it.
            SinkInUseError: its transaction is in progress.
        """
        await self._endings.bounded(self._forget(check_sink(name)))

    async def _forget(self, name: str) -> None:
        sink = _found(name, await self._durable(name))
        if sink.state is None:
            raise SinkInUseError(
                f"epoch {sink.epoch} of the sink {name} is in progress, in transaction "
                f"{sink.transaction_id}; end that first"
            )
        await self._ledger.durable(self._ledger.record(SinkForgotten(self._now_ms(), name)))

    async def _durable(self, name: str) -> Sink | None:
        """What is recorded, once that is durable; it holds until the caller waits for something."""
        while True:
            state = self._ledger.state
            sink = state.sinks.find(name)
            # Of one that is not there nobody knows when it was forgotten: perhaps just now.
            lsn = state.sinks.lsn if sink is None else sink.lsn
            if lsn <= state.seen:
                return sink
            await self._ledger.durable(lsn)

    def _shown(self, sink: Sink) -> tuple[Sink, str]:
        if sink.state is not None:
            return sink, sink.state.value
        return sink, self._ledger.state.open[sink.transaction_id].state


def _found(name: str, sink: Sink | None) -> Sink:
    if sink is None:
        raise SinkNotFoundError(f"nothing is recorded of a sink {name}; it begins with an epoch")
    return sink
