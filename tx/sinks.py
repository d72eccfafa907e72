"""Sinks: the epochs of exactly-once writers (protocol §5.3, Sinks).

An epoch that has committed is not begun again, and an older run of a writer is fenced: its
transaction is invalidated, which excludes a commit. Every reply about a sink is durable, and so is
every fact on which a decision about it rests.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter

from kernel.requests_and_replies import Caller
from tuff.protocol.errors import (
    BadRequestError,
    InvalidNameError,
    SinkEpochOpenError,
    SinkEpochSupersededError,
    SinkFencedError,
    SinkInUseError,
    SinkNotFoundError,
    TooManySinksError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionInvalidatedError,
    TransactionNotInProgressError,
    TransactionTimedOutError,
)
from tuff.protocol.ids import SINK_NAME_LENGTH_MAX
from tuff.protocol.json_bodies import shown
from tuff.protocol.pointer_list import POINTER_MAX
from tuff.protocol.transaction import TransactionType
from tx.counters import TransactionCounters
from tx.deadlines_and_leases import lease_ms, timeout_ms
from tx.durable_state import DurableState
from tx.log_records import EpochBegun, InvalidReason, SinkForgotten
from tx.outcomes import EndedState, OpenTransaction
from tx.pointer_reservation import ReservedPointers
from tx.settings import TransactionSettings
from tx.state import Sink
from tx.state_machine import Machine
from tx.state_machine_runner import MachineRunner
from tx.transaction_principals import require_principal, tenant_sink

EPOCH_MAX = POINTER_MAX
RUN_ID_LENGTH_MAX = 128  # characters; as many as a request id has

_NAME = re.compile(rf"[A-Za-z0-9._:/-]{{1,{SINK_NAME_LENGTH_MAX}}}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRequest:
    """A run's request to begin an epoch. `client`, `lease_s` and `caller` are those of the start of
    its transaction.

    Raises:
        InvalidNameError: the sink's name is no name.
        BadRequestError: the epoch, or the run's id, is out of its range.
    """

    sink: str
    epoch: int
    run_id: str
    client: str
    lease_s: float | None = None
    caller: Caller | None = None

    def __post_init__(self) -> None:
        check_name(self.sink)
        if not 0 <= self.epoch <= EPOCH_MAX:
            raise BadRequestError(f"an epoch is from 0 to {EPOCH_MAX}, not {self.epoch}")
        if not 0 < len(self.run_id) <= RUN_ID_LENGTH_MAX:
            raise BadRequestError(
                f"runId has {len(self.run_id)} characters; it takes 1 to {RUN_ID_LENGTH_MAX}"
            )
        try:
            self.run_id.encode("utf-8")
        except UnicodeEncodeError:
            raise BadRequestError("runId has half a surrogate pair") from None


class Step(Enum):
    """The next step for a run that asks for an epoch."""

    NOTHING = "it has committed"
    GO_ON = "the run has begun it already"
    FENCE = "another run's transaction has to end first"
    BEGIN = "begin it"


def check_name(name: str, *, what: str = "sink") -> str:
    """The name itself, of a sink or a database. Raises: InvalidNameError."""
    if _NAME.fullmatch(name) is None or name in {".", ".."}:
        raise InvalidNameError(
            f"{what} {shown(name)} is not a legal name: use 1 to {SINK_NAME_LENGTH_MAX} characters "
            "of A-Z a-z 0-9 . _ - : / (and not . or ..)"
        )
    return name


def next_step(sink: Sink | None, asked: EpochRequest, *, count: int, count_max: int) -> Step:
    """The next step, by the record of the sink.

    Raises:
        TooManySinksError: it would be one more than there may be.
        SinkEpochSupersededError: a later epoch was begun.
        SinkFencedError: another run has fenced this one.
        SinkEpochOpenError: an earlier epoch did not commit.
        TransactionNotInProgressError (its kinds): this run has lost the epoch's transaction.
    """
    if sink is None:
        if count >= count_max:
            raise TooManySinksError(
                f"there are {count} sinks, and tx.sinks_max={count_max}; forget one that is done"
            )
        return Step.BEGIN
    if sink.epoch > asked.epoch:
        raise SinkEpochSupersededError(
            f"epoch {asked.epoch} is older than the sink {sink.name}, which is at {sink.epoch}; a "
            "writer that begins anew needs a sink of its own",
            members={"epoch": sink.epoch},
        )
    has_committed = sink.state is EndedState.COMMITTED
    if sink.epoch == asked.epoch and has_committed:
        return Step.NOTHING
    if asked.run_id in sink.fenced:
        raise SinkFencedError(
            f"run {asked.run_id!r} has lost the sink {sink.name} to run {sink.run_id!r}, and does "
            "not get it back; start another run"
        )
    if sink.epoch == asked.epoch:
        return _step_of_open(sink, asked)
    if not has_committed:
        raise SinkEpochOpenError(
            f"epoch {sink.epoch} of the sink {sink.name} has not committed, and its messages would "
            "be lost; write it first, or forget the sink",
            members={"epoch": sink.epoch},
        )
    return Step.BEGIN


def _step_of_open(sink: Sink, asked: EpochRequest) -> Step:
    is_same_run = sink.run_id == asked.run_id
    if sink.state is None:
        return Step.GO_ON if is_same_run else Step.FENCE
    if is_same_run:
        # Its tasks hold pointers of the first transaction, and their writes would be lost.
        raise _lost_error(sink)
    return Step.BEGIN


def _lost_error(sink: Sink) -> TransactionNotInProgressError:
    how = "was aborted" if sink.reason is None else f"is invalid ({sink.reason.value})"
    sentence = (
        f"transaction {sink.transaction_id} of epoch {sink.epoch} of the sink {sink.name} {how}; a "
        "run begins an epoch once, so start another run"
    )
    if sink.reason is None:
        return TransactionAbortedError(sentence)
    is_late = sink.reason is InvalidReason.TIMED_OUT
    kind = TransactionTimedOutError if is_late else TransactionInvalidatedError
    return kind(sentence, members={"reason": sink.reason.value})


class Sinks:
    """Begins epochs, and shows and forgets sinks. Lives on one event loop. All methods raise
    TransactionsUnavailableError while the service is down or stopped."""

    def __init__(
        self,
        durable: DurableState,
        runner: MachineRunner,
        machine: Machine,
        pointers: ReservedPointers,
        settings: TransactionSettings,
        counters: TransactionCounters,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._durable = durable
        self._runner = runner
        self._machine = machine
        self._pointers = pointers
        self._settings = settings
        self._counters = counters
        self._now_ms = now_ms

    async def begin(self, asked: EpochRequest) -> tuple[Sink, OpenTransaction | None]:
        """The transaction of this epoch, the same for every task of a run; None where the epoch has
        committed. Both the start and the epoch in the sink's record are durable when this returns.

        Raises:
            InvalidTimeoutError: the lease is not above 0, or above the maximum.
            TransactionNotInProgressError (its kinds): this run has lost the epoch's transaction.
            SinkError (its kinds): as `next_step` has them.
            ForbiddenError: the transaction in progress belongs to another principal.
            QuotaExceededError: the caller has too many transactions open.
        """
        lease = lease_ms(self._settings, asked.lease_s)
        return await self._durable.within_time(self._begin(asked, lease))

    async def _begin(
        self, asked: EpochRequest, lease: int | None
    ) -> tuple[Sink, OpenTransaction | None]:
        while True:
            sink = await self._durable_sink(tenant_sink(asked.sink, asked.caller))
            # Nothing is waited for between what is recorded and what it leads to.
            sinks = self._durable.state.sinks
            step = next_step(sink, asked, count=len(sinks), count_max=self._settings.sinks_max)
            if step is Step.BEGIN:
                await self._start(asked, lease)
                continue
            assert sink is not None, "what is not recorded is begun"
            if step is Step.NOTHING:
                return sink, None
            if sink.state is None:
                require_principal(asked.caller, sink.transaction_id, self._durable.state.principals)
            try:
                if step is Step.GO_ON:
                    return sink, await self._runner.open_now(sink.transaction_id)
                await self._runner.invalidate(sink.transaction_id)
                self._counters.fences += 1
            except TransactionCommittedError:
                continue  # while its commit was waited for

    async def _start(self, asked: EpochRequest, lease: int | None) -> None:
        """Begin the epoch if there is a pointer. If not, wait for one: the caller then looks at the
        sink again, which may have changed meanwhile."""
        caller = asked.caller
        self._machine.require_room(caller)
        now_ms = self._now_ms()
        pointer = self._pointers.take(now_ms=now_ms)
        if pointer is None:
            await self._pointers.renewed()
            return
        lives_ms = timeout_ms(self._settings, TransactionType.LONG, None)
        self._machine.record_start(
            EpochBegun(
                now_ms, pointer, lives_ms, now_ms + lives_ms, asked.client,
                self._durable.state.seen, lease, tenant_sink(asked.sink, caller), asked.epoch,
                asked.run_id, None if caller is None else caller.full_name,
            )
        )  # fmt: skip

    async def show(self, name: str) -> tuple[Sink, str]:
        """A sink, by its name in the record, and the state of its transaction in the protocol's
        words. Raises: SinkNotFoundError: nothing is recorded of it.
        """
        return await self._durable.within_time(self._show(name))

    async def _show(self, name: str) -> tuple[Sink, str]:
        await self._all_durable()
        return self._shown(_found(name, self._durable.state.sinks.find(name)))

    async def show_all(self) -> list[tuple[Sink, str]]:
        """All of them, by their names."""
        return await self._durable.within_time(self._show_all())

    async def _show_all(self) -> list[tuple[Sink, str]]:
        await self._all_durable()
        by_name = sorted(self._durable.state.sinks, key=attrgetter("name"))
        return [self._shown(sink) for sink in by_name]

    async def _all_durable(self) -> None:
        """Wait until all that is shown of sinks is durable. What is read next is current."""
        state = self._durable.state
        while (lsn := max(state.sinks.lsn, state.prepared.last_lsn)) > state.seen:
            await self._durable.synced(lsn)
            state = self._durable.state

    async def forget(self, name: str) -> None:
        """Delete the record of a sink, durably: its next epoch is its first.

        Raises:
            SinkNotFoundError: nothing is recorded of it.
            SinkInUseError: its transaction is in progress.
        """
        await self._durable.within_time(self._forget(name))

    async def _forget(self, name: str) -> None:
        sink = _found(name, await self._durable_sink(name))
        if sink.state is None:
            raise SinkInUseError(
                f"epoch {sink.epoch} of the sink {name} is in progress, in transaction "
                f"{sink.transaction_id}; end that first"
            )
        await self._durable.synced(self._durable.record(SinkForgotten(self._now_ms(), name)))

    async def _durable_sink(self, name: str) -> Sink | None:
        """The record, once it is durable. It is current until the caller waits for something."""
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
