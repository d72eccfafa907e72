"""The machine of transactions without an event loop: a log that a test makes durable, and calls and
events in the order that the test wants. Each step checks what must always be so.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeVar

from tests.tx.service import NOW_MS, Rows, entry
from tuff.protocol.errors import (
    StorageUnavailableError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionConflictError,
    TransactionInvalidatedError,
    TransactionPreparedError,
    TransactionsUnavailableError,
    TransactionTimedOutError,
    TuffError,
)
from tuff.protocol.requests import RollbackDetail
from tx.calls import Abort, Answer, Call, Checkpoint, Commit, CommitPrepared, Join
from tx.claims_and_waits import Step, UnderWay
from tx.consistency import contradiction
from tx.counters import TransactionCounters
from tx.deadlines_and_leases import Timeouts
from tx.log_records import (
    Aborted,
    BlockReserved,
    Checkpointed,
    Committed,
    Confirmed,
    Edit,
    InDoubt,
    Invalidated,
    PointerRange,
    Prepared,
    Refused,
    Restarted,
    StoreJoined,
)
from tx.outcomes import EndedState, OpenTransaction, Outcome
from tx.rows_of_ended_transactions import Rollback
from tx.settings import TransactionSettings
from tx.state import TransactionState, fresh_image
from tx.state_machine import Machine

C = TypeVar("C", bound=Call)

BLOCK_COUNT = 1_000  # pointers; no test starts as many transactions
DOWN = "the disk failed"


class Log:
    """A log in memory, and the state. It applies an edit at once; `World.synced` makes it durable.

    No edit may contradict those before it, end what has ended, or commit against snapshot
    isolation, or without its rows. `with_rows` are the transactions whose commit has written them.
    """

    def __init__(self, rows: Rows, writing: Callable[[int], bool]) -> None:
        self.with_rows: set[int] = set()
        self.recovery_count = 1
        self.is_down = False
        self.edits: list[Edit] = []
        self.durable_lsn = self.wanted_lsn = 0
        self._rows, self._is_writing = rows, writing
        self._state = TransactionState(fresh_image(now_ms=NOW_MS))
        self._commits: dict[int, frozenset[bytes]] = {}  # the changes of each

    @property
    def state(self) -> TransactionState:
        return self.decided

    @property
    def decided(self) -> TransactionState:
        if self.is_down:
            raise TransactionsUnavailableError(DOWN)
        return self._state

    def record(self, edit: Edit) -> int:
        state = self.decided
        assert contradiction(state, edit) is None
        if isinstance(edit, Committed | Confirmed | InDoubt | Prepared | Aborted):
            self._check_end(state, edit)
        self._apply(edit)
        return state.lsn

    def require_room(self) -> None:
        pass

    def sync_soon(self, lsn: int) -> None:
        self.wanted_lsn = max(self.wanted_lsn, lsn)

    def recover(
        self, kept_lsn: int, first_edits: Callable[[TransactionState], Iterable[Edit]]
    ) -> None:
        """Come up again with the edits up to this one, those that `first_edits` adds, and nothing
        else."""
        kept, self.edits, self._commits = self.edits[:kept_lsn], [], {}
        self._state = TransactionState(fresh_image(now_ms=NOW_MS))
        for edit in kept:
            self._apply(edit)
        self._state.advance_view(kept_lsn)
        for edit in first_edits(self._state):
            assert contradiction(self._state, edit) is None
            assert not isinstance(edit, Confirmed) or edit.transaction_id in self.with_rows
            self._apply(edit)
        self._state.advance_view(self._state.lsn)
        self.durable_lsn, self.wanted_lsn = self._state.lsn, 0
        self.is_down = False
        self.recovery_count += 1

    def is_durable(self, kind: type[Edit] | tuple[type[Edit], ...], pointer: int) -> bool:
        """Whether an edit of this kind, of this transaction or pointer, is durable."""
        return any(
            isinstance(edit, kind) and _is_of(edit, pointer)
            for edit in self.edits[: self.durable_lsn]
        )

    def _apply(self, edit: Edit) -> None:
        if isinstance(edit, Committed | Confirmed):
            self._commits[edit.transaction_id] = self._changes(edit)
        self.edits.append(edit)
        self._state.apply(len(self.edits), edit)

    def _changes(self, edit: Committed | Confirmed | InDoubt | Prepared) -> frozenset[bytes]:
        opened = self._state.open[edit.transaction_id]
        doubt = opened.doubt if isinstance(edit, Confirmed) else edit
        assert doubt is not None
        return doubt.changes | (opened.changes or frozenset())

    def _check_end(
        self, state: TransactionState, edit: Committed | Confirmed | InDoubt | Prepared | Aborted
    ) -> None:
        one = edit.transaction_id
        if isinstance(edit, Confirmed):
            assert one in self.with_rows, "a commit without its rows"
            assert self.is_durable(InDoubt, one), "a crash undoes it"
        assert not self._is_writing(one), "its rows may not be there yet"
        if isinstance(edit, Aborted):
            carried = [each for each in state.find(one).pointers if self._rows.is_carried(each)]
            assert carried == [], "rows that no invalid list hides any more"
        else:
            snapshot, changes = state.open[one].transaction, self._changes(edit)
            for other, others_changes in self._commits.items():
                has_same = not others_changes.isdisjoint(changes)
                assert not has_same or snapshot.is_visible(other), "a lost update"


def _is_of(edit: Edit, pointer: int) -> bool:
    if isinstance(edit, Restarted):
        return any(block.start <= pointer < block.stop for block in edit.lost)
    if isinstance(edit, Checkpointed):
        return edit.pointer == pointer
    return getattr(edit, "transaction_id", None) == pointer


@dataclass
class ReservedPointers:
    """Pointers of one block; there are none while it `is_empty`."""

    next: int = 0
    is_empty: bool = False
    waiting: list[Step] = field(default_factory=list)

    def take(self, *, now_ms: int) -> int | None:
        if self.is_empty:
            return None
        self.next += 1
        return self.next

    def renew_if_due(self) -> None:
        pass

    def wait(self, step: Step) -> None:
        self.waiting.append(step)


@dataclass
class Asked:
    """A call, and its answers: there is never more than one."""

    call: Call
    answers: list[object] = field(default_factory=list)

    @property
    def answer(self) -> object:
        (answer,) = self.answers
        return answer

    @property
    def error(self) -> type:
        return type(self.answer)


@dataclass
class Write:
    """A write of messages under way, or a server that has joined, which is told to leave."""

    pointer: int
    transaction_id: int
    is_recalled: bool = False

    def recall(self) -> None:
        self.is_recalled = True


@dataclass
class Batch:
    """Rows of commits that are being written."""

    commits: Sequence[Commit]
    recovery_count: int
    is_built: bool = False
    refused: tuple[int, ...] = ()


class World:
    """The machine, and all that happens to it. What it asks for is kept, until the test does it."""

    def __init__(self, settings: TransactionSettings | None = None) -> None:
        self.now_ms = NOW_MS
        self.rows = Rows()
        self.log = Log(self.rows, self._is_writing)
        self.asked: list[Asked] = []
        self.broken: list[AssertionError] = []
        self._settings = settings or TransactionSettings()
        self._begin()
        self.log.recover(0, lambda state: [self._reserve(state)])

    def _begin(self) -> None:
        """A new process."""
        self.under_way = UnderWay(lambda: None)
        self.pointers = ReservedPointers()
        timeouts = Timeouts(self.rows, max_block_s=30, now_ms=lambda: self.now_ms)
        self.timeouts = timeouts
        self.machine = Machine(
            self.log,
            self.under_way,
            self.pointers,
            timeouts,
            self.rows,
            self._settings,
            TransactionCounters(),
            now_ms=lambda: self.now_ms,
        )
        self.writes: list[Write] = []
        self.batches: list[Batch] = []
        self.checks: list[Commit] = []
        self.impatient: list[Commit] = []
        self.asides: list[Call] = []
        self.rollbacks: list[Rollback] = []

    # Calls.

    def call(self, make: Callable[[Answer], C]) -> Asked:
        """A call that was not taken yet."""
        answers: list[object] = []
        call = make(lambda answer: self._answered(asked, answer))
        asked = Asked(call, answers)
        self.asked.append(asked)
        return asked

    def take(self, *makes: Callable[[Answer], Call]) -> list[Asked]:
        """Calls that arrive together."""
        asked = [self.call(make) for make in makes]
        self.take_all(asked)
        return asked

    def take_all(self, asked: Sequence[Asked]) -> None:
        self.machine.take([each.call for each in asked])
        self.act()

    def _answered(self, asked: Asked, answer: object) -> None:
        asked.answers.append(answer)
        try:
            assert len(asked.answers) == 1, "answered twice"
            assert isinstance(answer, TuffError) or not isinstance(answer, Exception), repr(answer)
            self._check_durable(asked.call, answer)
        except AssertionError as error:
            self.broken.append(error)  # the machine would take it for one of its own bugs

    def _check_durable(self, call: Call, answer: object) -> None:
        """What an answer tells, no crash may undo."""
        log, pointer = self.log, call.pointer
        ended_without = (Aborted, Invalidated, Restarted)
        match answer:
            case TransactionConflictError():
                refused = [
                    edit
                    for edit in log.edits
                    if isinstance(edit, Refused) and edit.transaction_id == pointer
                ]
                assert refused[-1].conflict.committer_lsn <= log.durable_lsn
            case TransactionCommittedError():
                assert log.is_durable((Committed, Confirmed), pointer)
            case TransactionPreparedError():
                assert log.is_durable(Prepared, pointer)
            case (
                TransactionAbortedError()
                | TransactionInvalidatedError()
                | TransactionTimedOutError()
                | StorageUnavailableError()
            ):
                assert log.is_durable(ended_without, pointer)
            case Exception():
                pass
            case Outcome():
                assert answer.lsn <= log.durable_lsn
            case _:
                self._check_success(call, answer)

    def _check_success(self, call: Call, answer: object) -> None:
        log, pointer = self.log, call.pointer
        if isinstance(call, CommitPrepared):
            assert log.is_durable((Committed, Confirmed), pointer)
        elif isinstance(call, Commit) and not call.is_read_only:
            kind = Committed if call.database is None else Prepared
            has_rows = pointer in log.with_rows
            assert log.is_durable(kind, pointer) or (has_rows and log.is_durable(InDoubt, pointer))
        elif isinstance(call, Checkpoint):
            assert isinstance(answer, OpenTransaction)
            assert log.is_durable(Checkpointed, answer.transaction.write_pointer)
        elif isinstance(call, Join):
            assert isinstance(answer, OpenTransaction)
            is_joined = log.is_durable(StoreJoined, answer.transaction_id)
            assert is_joined or not answer.is_messages_only
        assert not isinstance(call, Abort)

    # Events.

    def act(self) -> None:
        """Keep what the machine asks for."""
        for error in self.broken:
            raise error
        effects = self.machine.take_effects()
        waited_for = max([lsn for lsn, *_ in self.machine._at], default=0)
        assert waited_for <= max(self.log.wanted_lsn, self.log.durable_lsn), "nothing syncs it"
        if effects.rows:
            self.batches.append(Batch(effects.rows, self.log.recovery_count))
        self.checks += effects.checks
        self.impatient += effects.impatient
        self.asides += [call for call, _ in effects.asides]
        for rollback in effects.rollbacks:
            assert not self.under_way.has_writes(rollback[0]), "rows that are written later stay"
            self.rollbacks.append(rollback)

    def go_on(self) -> None:
        self.machine.go_on()
        self.act()

    def synced(self, lsn: int | None = None) -> None:
        """Edits up to this one, or all, are durable."""
        lsn = len(self.log.edits) if lsn is None else lsn
        self.log.durable_lsn = lsn
        self.machine.durable(lsn, self.log.decided.advance_view(lsn))
        self.act()

    def write(self, opened: OpenTransaction, *, is_joined: bool = False) -> Write:
        """Messages of this transaction are being written, or a server joins it."""
        write = Write(opened.transaction.write_pointer, opened.transaction_id)
        self.under_way.require_open(opened.transaction_id)
        self.under_way.enter(opened.transaction_id, write.recall if is_joined else None)
        self.writes.append(write)
        return write

    def written(self, write: Write, *, is_joined: bool = False) -> None:
        self.writes.remove(write)
        self.rows.carried[write.pointer] = "ns:t"
        self.under_way.leave(write.transaction_id, write.recall if is_joined else None)

    def _is_writing(self, transaction_id: int) -> bool:
        """Whether messages of the transaction are being written, other than those of its commit."""
        return any(each.transaction_id == transaction_id for each in self.writes)

    def _results(
        self, batch: Batch, failing: Sequence[int]
    ) -> list[Sequence[RollbackDetail] | TuffError]:
        results: list[Sequence[RollbackDetail] | TuffError] = []
        for index, call in enumerate(batch.commits):
            written = self.rows._written(call.entries)
            error = StorageUnavailableError("the disk is full")
            results.append(error if index in failing else written)
        return results

    def rows_built(self, *failing: int) -> None:
        """The rows of the newest batch are about to be written, but for those of these commits."""
        batch = self.batches[-1]
        batch.is_built, batch.refused = True, failing
        results = self._results(batch, failing)
        self.machine.rows_built(batch.commits, results, recovery_count=batch.recovery_count)
        self.act()

    def rows_written(self, *failing: int) -> None:
        """The rows of the oldest batch are there, but for those of these commits of it."""
        batch = self.batches.pop(0)
        failing = (*failing, *batch.refused)
        results = self._results(batch, failing)
        self.log.with_rows |= {
            call.pointer for at, call in enumerate(batch.commits) if at not in failing
        }
        self.machine.rows_written(batch.commits, results, recovery_count=batch.recovery_count)
        self.act()

    def checked(self, error: TuffError | None = None) -> None:
        self.machine.checked(self.checks.pop(0), error)
        self.act()

    def waited_enough(self) -> None:
        self.machine.waited_enough(self.impatient.pop(0))
        self.act()

    def set_aside(self, *, is_done: bool = True) -> None:
        call = self.asides.pop(0)
        if is_done:
            self.rows.published_at_ms.pop(call.pointer, None)
        self.machine.set_aside(call, is_done=is_done)
        self.act()

    def rolled_back(self, *, is_done: bool = True) -> None:
        transaction_id, pointers = self.rollbacks.pop(0)
        if is_done:
            for pointer in pointers:
                self.rows.carried.pop(pointer, None)
                self.rows.finals.discard(pointer)
        self.machine.rolled_back(transaction_id, is_done=is_done)
        self.act()

    def rows_found(self) -> None:
        self.machine.rows_found(list(self.rows.carried))
        self.act()

    def refill(self) -> None:
        """There are pointers again."""
        self.pointers.is_empty = False
        waiting, self.pointers.waiting = self.pointers.waiting, []
        for step, argument in waiting:
            step(argument)
        self.act()

    def expire(self) -> None:
        self.machine.sync_confirmations()
        self.machine.expire()
        self.act()

    def fail(self) -> None:
        """The log fails."""
        if not self.log.is_down:
            self.log.is_down = True
            self.machine.failed(DOWN)
            self.act()

    def recover(self, *, kept_lsn: int | None = None) -> None:
        """Come up with the edits that are durable, or more of those that were recorded."""
        kept_lsn = self.log.durable_lsn if kept_lsn is None else kept_lsn
        self.log.recover(kept_lsn, self._first_edits)
        self.machine.came_up(self.log.state)
        self.timeouts.begin_all(self.log.state.open.values())
        self._check_answered()
        self.act()

    def restart(self, *, kept_lsn: int | None = None, keeps_rows: bool = False) -> None:
        """The process is killed and starts again: with the edits that are durable, or more of those
        that were recorded, and with the rows that are durable, or all."""
        for batch in self.batches:
            written = {call.pointer for call in batch.commits if batch.is_built}
            if keeps_rows:
                self.log.with_rows |= written
                continue
            for call in batch.commits:
                for each in call.entries:
                    self.rows.finals.discard(each.pointer or 0)
                    self.rows.carried.pop(each.pointer or 0, None)
        self.asked = [each for each in self.asked if each.answers]
        self._begin()
        self.log.is_down = True
        self.recover(kept_lsn=kept_lsn)

    def _check_answered(self) -> None:
        """No recovery undoes a commit that was answered."""
        for each in self.asked:
            answer, call = each.answers[:1], each.call
            if not isinstance(call, Commit) or not answer or isinstance(answer[0], Exception):
                continue
            if call.database is None and not call.is_read_only:
                found = self.log.state.find(call.pointer)
                assert isinstance(found, Outcome)
                assert found.state is EndedState.COMMITTED

    def _first_edits(self, state: TransactionState) -> Iterable[Edit]:
        yield Restarted(self.now_ms, True, state.blocks)
        yield from self.machine.cut_off(state)
        yield self._reserve(state)

    def _reserve(self, state: TransactionState) -> Edit:
        start = state.next_block_start
        self.pointers.next = start - 1
        return BlockReserved(self.now_ms, PointerRange(start, start + BLOCK_COUNT))

    # The end.

    def finish(self) -> None:
        """Let all that was begun come to its end, and find nothing left of it."""
        if self.log.is_down:
            self.recover()
        self.refill()
        while self._finish_something():
            pass
        prepared = [one for one, each in self.log.state.open.items() if each.prepared is not None]
        self.take(*(partial(Abort, pointer=one, may_be_prepared=True) for one in prepared))
        while self._finish_something():
            pass
        assert [each.call for each in self.asked if len(each.answers) != 1] == []
        assert self.under_way.claiming() == set()
        seen = [each.call.pointer for each in self.asked]
        assert [one for one in seen if not self.under_way.is_unused(one)] == []
        assert self.pointers.waiting == []
        assert not self.machine._at
        assert [one for one in self.rows.carried if one in self._started_and_ended()] == []

    def _started_and_ended(self) -> set[int]:
        """The ids of transactions that have ended. A checkpoint that a crash took is not among
        them: the rows of a commit that named it before it was durable are of no transaction."""
        answers = [answer for each in self.asked for answer in each.answers]
        started = {one.transaction_id for one in answers if isinstance(one, OpenTransaction)}
        return started - set(self.log.state.open)

    def _finish_something(self) -> bool:
        self.go_on()
        is_left = True
        if self.writes:
            self.written(self.writes[0], is_joined=True)
        elif self.batches:
            self.rows_written()
        elif self.checks:
            self.checked()
        elif self.asides:
            self.set_aside()
        elif self.rollbacks:
            self.rolled_back()
        elif self.impatient:
            self.waited_enough()
        else:
            is_left = self.log.durable_lsn < self.log.state.lsn or bool(self.under_way.ready)
            self.synced()
        return is_left


def commit(
    opened: OpenTransaction, *changes: bytes, publish: bool = False
) -> Callable[[Answer], Commit]:
    """A commit, which names these changes, and may publish a message."""
    entries = [entry(b"a")] if publish else []
    return lambda answer: Commit(answer, opened.transaction_id, frozenset(changes), entries)
