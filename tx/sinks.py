"""Sinks: which epoch of a writer was begun, by which run, and whether it committed (protocol §5.3).

The record of a sink has an outcome of its own, set by the edit that ends the transaction. So it is
still there when the outcome of the transaction was forgotten, or its pointer truncated.
"""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import Enum

from tuff.protocol.errors import (
    BadRequestError,
    InvalidNameError,
    SinkEpochOpenError,
    SinkEpochSupersededError,
    SinkFencedError,
    TooManySinksError,
    TransactionAbortedError,
    TransactionInvalidatedError,
    TransactionNotInProgressError,
    TransactionTimedOutError,
)
from tuff.protocol.ids import SINK_NAME_LENGTH_MAX
from tuff.protocol.json_forms import shown
from tuff.protocol.pointers import POINTER_MAX
from tx.edits import EpochBegun, InvalidReason
from tx.transactions import EndedState, Outcome

EPOCH_MAX = POINTER_MAX
RUN_ID_LENGTH_MAX = 128  # characters; as many as a request id has
FENCED_COUNT_MAX = (
    16  # runs of a sink that are remembered; a zombie is seldom more than one run old
)

_NAME = re.compile(rf"[A-Za-z0-9._:/-]{{1,{SINK_NAME_LENGTH_MAX}}}")


@dataclass(frozen=True, slots=True)
class Sink:
    """A writer's newest epoch. `state` None: its transaction is in progress. `fenced` are runs
    that lost the sink to another run, the newest last; `lsn` is the edit that changed it last."""

    name: str
    epoch: int
    run_id: str
    transaction_id: int
    state: EndedState | None
    reason: InvalidReason | None
    updated_ms: int
    lsn: int
    fenced: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochRequest:
    """What a run asks for.

    Raises:
        InvalidNameError: the sink's name is no name.
        BadRequestError: the epoch, or the run's id, is out of its range.
    """

    sink: str
    epoch: int
    run_id: str

    def __post_init__(self) -> None:
        check_sink(self.sink)
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


def check_sink(name: str) -> str:
    """The name itself. Raises: InvalidNameError."""
    if _NAME.fullmatch(name) is None or name in {".", ".."}:
        raise InvalidNameError(
            f"sink {shown(name)} is not a legal name: use 1 to {SINK_NAME_LENGTH_MAX} characters "
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
    """Every sink, by its name. Changed by edits only; `lsn` is the last one that changed any."""

    def __init__(self, sinks: Iterable[Sink] = ()) -> None:
        self.lsn = 0
        self._by_name = {sink.name: sink for sink in sinks}
        self._of_transaction = {
            sink.transaction_id: sink.name for sink in self._by_name.values() if sink.state is None
        }

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Sink]:
        return iter(self._by_name.values())

    def find(self, name: str) -> Sink | None:
        """The record of a sink; None without one."""
        return self._by_name.get(name)

    def begin(self, lsn: int, edit: EpochBegun) -> None:
        """Record an epoch. If another run had the sink, it is fenced from now on."""
        self.lsn = lsn
        before = self._by_name.get(edit.sink)
        fenced = () if before is None else before.fenced
        if before is not None:
            self._of_transaction.pop(before.transaction_id, None)
            if before.run_id != edit.run_id:
                fenced = (*fenced, before.run_id)[-FENCED_COUNT_MAX:]
        self._by_name[edit.sink] = Sink(
            edit.sink, edit.epoch, edit.run_id, edit.pointer, None, None, edit.at_ms, lsn, fenced
        )
        self._of_transaction[edit.pointer] = edit.sink

    def end(self, outcome: Outcome) -> None:
        """Record how a transaction ended, if it is one of a sink."""
        name = self._of_transaction.pop(outcome.transaction_id, None)
        if name is not None:
            self.lsn = outcome.lsn
            self._by_name[name] = replace(
                self._by_name[name],
                state=outcome.state,
                reason=outcome.reason,
                updated_ms=outcome.ended_at_ms,
                lsn=outcome.lsn,
            )

    def forget(self, lsn: int, name: str) -> None:
        """Drop the record of a sink."""
        self.lsn = lsn
        sink = self._by_name.pop(name)
        self._of_transaction.pop(sink.transaction_id, None)
