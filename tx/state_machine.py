"""The machine of transactions: takes calls and events, changes the state, and says what is to be
done outside (decision 0058). It waits for nothing, and uses no clock, no event loop and no I/O.

A call is decided by `tx/transaction_decisions.py`, and again from the beginning whenever
something happened for which it was parked (`tx/claims_and_waits.py`). What a call waits for, and
the loss that it prevents:

| A call | waits for | else |
|---|---|---|
| that ends a transaction | another such call | two ends are recorded |
| that ends a transaction | its writes under way | acknowledged rows are no part of the end |
| to commit | the claim of one of its changes | two commits with one change pass the check |
| to commit | a prepared one with one of its changes | it is refused for what may be aborted |
| to run | another run with its request id | one request publishes twice |
| to invalidate, or a time-out | the claim of the transaction | visible rows become invalid |
| that names an end, or a conflict | the record on the disk | a crash undoes what was answered |
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any, Protocol

from tuff.protocol.errors import (
    OverloadedError,
    StartWithdrawnError,
    TooManyPreparedError,
    TransactionsUnavailableError,
    TuffError,
)
from tuff.protocol.requests import PublishEntry, RollbackDetail
from tx.calls import (
    Abort,
    Call,
    CanCommit,
    Checkpoint,
    Commit,
    CommitPrepared,
    Invalidate,
    Join,
    Renew,
    Run,
    SetAside,
    Start,
    StartRequest,
    Use,
)
from tx.claims_and_waits import Step, UnderWay
from tx.counters import TransactionCounters
from tx.deadlines_and_leases import Timeouts, durations_ms
from tx.log_records import (
    Aborted,
    Checkpointed,
    Committed,
    Confirmed,
    Edit,
    EpochBegun,
    InDoubt,
    Invalidated,
    InvalidReason,
    Prepared,
    Refused,
    Started,
    StoreJoined,
)
from tx.messaging_interface import MessageRows
from tx.outcomes import (
    EndedState,
    OpenTransaction,
    Outcome,
    not_prepared_error,
    prepared_error,
)
from tx.rows_of_ended_transactions import EndedRows, Rollback
from tx.settings import OPEN_COUNT_MAX, WITHDRAWN_COUNT_MAX, TransactionSettings
from tx.state import TransactionState, ViewChange
from tx.transaction_decisions import (
    Claimed,
    Clear,
    Conflicting,
    Refusal,
    abort_edit,
    can_commit,
    check_read_only,
    decide_commit,
    loses_changes,
    may_be_aborted,
    overdue,
    refusal,
    refused_end,
)
from tx.transaction_principals import require_quota

Rows = Sequence[RollbackDetail] | Exception  # what a commit publishes, or why it can't
AT_ONCE_MAX = 16  # transactions in progress; with more, the record of a commit follows its rows
REMEMBERED_TIMES_MAX = 64  # pairs of a time-out and a lease


class Records(Protocol):
    """The state, and the log to which its edits go."""

    recovery_count: int

    @property
    def state(self) -> TransactionState:
        """Raises: TransactionsUnavailableError: the service is not running."""

    @property
    def decided(self) -> TransactionState:
        """The state, also of a stopped service. Raises: TransactionsUnavailableError: down."""

    def record(self, edit: Edit) -> int:
        """Append an edit to the log, and apply it; its LSN. Raises: TransactionsUnavailableError:
        the service is down."""

    def require_room(self) -> None:
        """Raises: OverloadedError: too much waits for the disk already."""

    def sync_soon(self, lsn: int) -> None:
        """Make this edit durable with the next batch."""


class Pointers(Protocol):
    """The pointers that may be handed out."""

    def take(self, *, now_ms: int) -> int | None:
        """The next one; None while there is none."""

    def renew_if_due(self) -> None:
        """Reserve more if few are left."""

    def wait(self, step: Step) -> None:
        """Let this go on once there are pointers again."""


@dataclass(slots=True)
class Effects:
    """What is to be done now, and reported to the machine when it is done.

    `rows`: commits whose entries are written as one batch (`rows_written`). `checks`: commits whose
    entries other servers check (`checked`). `impatient`: commits that wait for a prepared
    transaction (`waited_enough`). `asides`: prepared transactions whose messages readers may pass
    (`set_aside`). `rollbacks`: rows to roll back (`rolled_back`). For the log are `expired`:
    transactions that have become invalid, and `bugs`: what was raised when no caller waited.
    """

    rows: list[Commit] = field(default_factory=list)
    checks: list[Commit] = field(default_factory=list)
    impatient: list[Commit] = field(default_factory=list)
    asides: list[tuple[SetAside, tuple[int, ...]]] = field(default_factory=list)
    rollbacks: list[Rollback] = field(default_factory=list)
    expired: dict[InvalidReason, list[int]] = field(default_factory=dict)
    bugs: list[Exception] = field(default_factory=list)


class Machine:
    """All calls that begin, change or end transactions."""

    def __init__(
        self,
        records: Records,
        under_way: UnderWay,
        pointers: Pointers,
        timeouts: Timeouts,
        rows: MessageRows,
        settings: TransactionSettings,
        counters: TransactionCounters,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._records = records
        self._under_way = under_way
        self._pointers = pointers
        self._timeouts = timeouts
        self._rows = rows
        self._ended_rows = EndedRows(under_way, rows)
        self._settings = settings
        self._counters = counters
        self._now_ms = now_ms
        self._turn_ms = 0  # the time of the event that is handled
        self._effects = Effects(rollbacks=self._ended_rows.begun)
        # Calls that are answered, or go on, once the edit of an LSN is durable.
        self._at: list[tuple[int, Call, object, Callable[[Any], None] | None]] = []
        self._at_last = 0  # the highest LSN of them
        self._preparing: set[Call] = set()
        self._runs: dict[str, list[Run]] = {}  # under way, by request id, and those that wait
        self._in_doubt: set[int] = set()  # their rows are being written, or that failed
        # Prepared transactions whose messages are set aside, or are about to be.
        self._aside: set[int] = set()
        # Request ids whose starts may still be on their way, and must not begin anything. In memory
        # only: a server that takes over answers such a start, and its transaction times out.
        self._withdrawn: dict[str, None] = {}
        # A program names the same times again and again.
        self._durations = lru_cache(REMEMBERED_TIMES_MAX)(partial(durations_ms, settings))
        self._steps: Mapping[type[Call], Callable[[Any], None]] = {
            Start: self._start,
            Use: self._use,
            CanCommit: self._can_commit,
            Checkpoint: self._checkpoint,
            Join: self._join,
            Renew: self._renew,
            Commit: self._commit,
            Run: self._run_once,
            CommitPrepared: self._commit_prepared,
            Abort: self._abort,
            Invalidate: self._invalidate_call,
            SetAside: self._set_aside,
        }

    def take_effects(self) -> Effects:
        """What is to be done now. Call it after each event."""
        if self._at:
            self._records.sync_soon(self._at_last)
        effects = self._effects
        self._ended_rows.begun = []
        self._effects = Effects(rollbacks=self._ended_rows.begun)
        return effects

    # Events.

    def take(self, calls: Iterable[Call]) -> None:
        """Decide these calls, which arrived together."""
        self._turn_ms = self._now_ms()
        steps = self._steps
        for call in calls:
            try:
                steps[type(call)](call)
            except Exception as error:  # noqa: BLE001 - also of a bug: the others go on
                self._fail(call, error)

    def go_on(self) -> None:
        """Decide again what was parked and can go on."""
        self._turn_ms = self._now_ms()
        ready, self._under_way.ready = self._under_way.ready, []
        for step, argument in ready:
            step(argument)

    def durable(self, lsn: int, changes: Iterable[ViewChange]) -> None:
        """Edits up to this one are on the disk, and these changes are in the view."""
        self._turn_ms = self._now_ms()
        self._ended_rows.synced(lsn, changes)
        reached, self._at = self._at, []
        if lsn < self._at_last:
            self._at = [each for each in reached if each[0] > lsn]
            reached = [each for each in reached if each[0] <= lsn]
        for _, call, result, then in reached:
            if then is None:
                call.finish(result)
            else:
                self._step(then, call)

    def failed(self, reason: str) -> None:
        """The log failed: a recovery decides which edits stand."""
        waiting, self._at, self._at_last = self._at, [], 0
        for _, call, _, _ in waiting:
            self._answer(call, TransactionsUnavailableError(reason))

    def cut_off(self, state: TransactionState) -> Iterator[Edit]:
        """The ends of transactions whose commit a crash, or a failure of the log, has cut off. A
        commit in doubt stands if its rows were durable before: others may have been told of it."""
        now_ms, has_final_rows = self._now_ms(), self._rows.final_pointers()
        unsure = self._under_way.claiming() | self._in_doubt
        for opened in list(state.open.values()):
            transaction_id, pointers = opened.transaction_id, opened.pointers
            if opened.prepared is not None:
                continue
            has_rows = not has_final_rows.isdisjoint(pointers)
            if opened.doubt is not None and has_rows and transaction_id not in unsure:
                yield Confirmed(now_ms, transaction_id)
            elif opened.doubt is not None or has_rows or transaction_id in unsure:
                # Its rows are there, or on their way, and its record is not; or the other way.
                topics, reason = tuple(self._rows.topics(pointers)), InvalidReason.LOST_IN_CRASH
                yield Invalidated(now_ms, transaction_id, reason, topics)

    def came_up(self, state: TransactionState) -> None:
        """The service is up, and the whole state is durable."""
        self._aside.clear()  # an end that was not durable may be undone
        self._in_doubt.clear()
        self._ended_rows.came_up(state)
        self._under_way.resume_all()  # recovery may have undone what a call is parked for

    def rows_found(self, pointers: Iterable[int]) -> None:
        """Rows of these pointers were found that may not have been ended or rolled back."""
        self._ended_rows.found(pointers, self._records.state)

    def sync_confirmations(self) -> None:
        """Sync the confirmations that no other edit has taken along, so that their index rows end.
        Call it now and then, also while the service is stopped."""
        if (lsn := self._ended_rows.unsynced_lsn) is not None:
            self._records.sync_soon(lsn)

    def rows_built(
        self, commits: Sequence[Commit], results: Sequence[Rows], *, recovery_count: int
    ) -> None:
        """The rows of these commits are about to be written as one batch. With few transactions in
        progress, the record goes to the log at the same time, in doubt until the rows are durable:
        a commit waits for one sync and not for two. With many, the record follows: it costs less,
        and others use the time."""
        if self._records.recovery_count != recovery_count:
            return
        try:
            if len(self._records.decided.open) > AT_ONCE_MAX:
                return
            self._turn_ms = self._now_ms()
            for call, rows in zip(commits, results, strict=True):
                if call.database is None and not isinstance(rows, Exception):
                    self._record_doubt(call, tuple(rows))
        except TransactionsUnavailableError:
            return  # the log has failed, and `rows_written` finds it so

    def rows_written(
        self, commits: Sequence[Commit], results: Sequence[Rows], *, recovery_count: int
    ) -> None:
        """The rows of these commits were written as one batch, for which the state was recovered so
        often: what each published, or why its rows were not written."""
        self._turn_ms = self._now_ms()
        for call, rows in zip(commits, results, strict=True):
            self._under_way.leave(call.pointer)
            if self._records.recovery_count != recovery_count:
                self._answer(call, _cut_off(call.pointer))
                continue
            try:
                self._record_rows(rows, call)
            except Exception as error:  # noqa: BLE001 - also of a bug: the others go on
                self._fail(call, error)

    def checked(self, call: Commit, error: Exception | None) -> None:
        """Other servers have checked the entries of this commit."""
        self._turn_ms = self._now_ms()
        call.is_checked = True
        if error is None:
            self._run(call)
        else:
            self._answer(call, error)

    def waited_enough(self, call: Commit) -> None:
        """This commit has waited for the end of a prepared transaction for long enough."""
        self._turn_ms = self._now_ms()
        call.has_waited = True
        self._run(call)

    def rolled_back(self, transaction_id: int, *, is_done: bool) -> None:
        """The rows of this transaction are rolled back, or that failed."""
        self._turn_ms = self._now_ms()
        self._ended_rows.rolled_back(transaction_id, is_done=is_done)

    def set_aside(self, call: SetAside, *, is_done: bool) -> None:
        """Readers can pass the messages of this prepared transaction, or that failed."""
        self._turn_ms = self._now_ms()
        if not is_done:
            self._aside.discard(call.pointer)
        self._answer(call, None)

    def expire(self) -> None:
        """Invalidate the transactions that are past their deadline, or block readers for too long,
        and set aside the messages of prepared ones that do. A commit whose rows are being written
        has passed its check in time, and is looked at again once it is through."""
        self._turn_ms = self._now_ms()
        expired: dict[InvalidReason, list[int]] = {}
        state = self._records.state
        for opened, reason in self._timeouts.overdue(state):
            if not self._under_way.has_claim(opened.transaction_id):
                expired.setdefault(reason, []).append(opened.transaction_id)
                # One sync for all: ten thousand that are late together must not wait in a row.
                self._records.sync_soon(self._invalidate(opened, reason))
        self._effects.expired.update(expired)
        for opened in self._timeouts.blocking_prepared(state):
            # Once is enough: it writes no more rows.
            if opened.transaction_id not in self._aside:
                self._aside.add(opened.transaction_id)
                self._run(SetAside(_to_nobody, opened.transaction_id))

    # Starts.

    def start_all(
        self, requests: Iterable[StartRequest]
    ) -> Iterator[OpenTransaction | TuffError | None]:
        """Start transactions that were asked for together: each with its refusal, or None if no
        pointer is left, and a call has to wait."""
        self._turn_ms = self._now_ms()
        self._records.require_room()
        for request in requests:
            try:
                yield self._start_now(request)
            except TuffError as error:
                yield error
        self._pointers.renew_if_due()

    def _start_now(self, request: StartRequest) -> OpenTransaction | None:
        """Start a transaction that reads what has durably ended, or find the one in progress that
        the same request has started; None if no pointer is left. Nothing comes between the pointer
        and its record, so that edits enter the log in pointer order.

        Raises:
            StartWithdrawnError: the client has given the request up.
            QuotaExceededError: the caller has too many open.
            InvalidTimeoutError: not above 0, above the maximum, or given for a long one; or the
                lease is not above 0, or above its maximum.
        """
        state, now_ms = self._records.state, self._turn_ms
        lives_ms, lease = self._durations(request.type, request.timeout_s, request.lease_s)
        if request.request_id is not None:
            if request.request_id in self._withdrawn:
                sentence = "the client has withdrawn this start; nothing was started"
                raise StartWithdrawnError(sentence)
            if (opened := state.of_request(request.request_id)) is not None:
                return opened
        caller = request.caller
        if caller is not None:
            require_quota(caller, state.principals)
        if len(state.open) >= OPEN_COUNT_MAX:
            raise _too_many_open()
        pointer = self._pointers.take(now_ms=now_ms)
        if pointer is None:
            return None
        return self._record_start(
            state,
            Started(
                now_ms, pointer, request.type, lives_ms, now_ms + lives_ms, request.client,
                state.seen, lease, None if caller is None else caller.full_name, request.request_id,
                request.is_messages_only,
            ),
        )  # fmt: skip

    def require_valid(self, request: StartRequest) -> None:
        """Raises: InvalidTimeoutError: as a start."""
        self._durations(request.type, request.timeout_s, request.lease_s)

    def require_room(self, caller: Any) -> None:
        """
        Raises:
            OverloadedError: too many are in progress, or too much waits for the disk.
            QuotaExceededError: the caller has too many open.
        """
        state = self._records.state
        if caller is not None:
            require_quota(caller, state.principals)
        self._records.require_room()
        if len(state.open) >= OPEN_COUNT_MAX:
            raise _too_many_open()

    def record_start(self, edit: EpochBegun) -> OpenTransaction:
        """Record the start of an epoch; the transaction that it opens."""
        opened = self._record_start(self._records.state, edit)
        self._pointers.renew_if_due()
        return opened

    def _record_start(self, state: TransactionState, edit: Started | EpochBegun) -> OpenTransaction:
        self._counters.starts += 1
        self._records.record(edit)
        opened = state.open[edit.pointer]
        if edit.lease_ms is not None:
            self._timeouts.begin_lease(opened)
        return opened

    def withdraw(self, request_id: str) -> OpenTransaction | None:
        """Let a start with this request id have no effect, whether it came or is still to come. The
        transaction in progress that it has started, which the caller aborts; None without one."""
        opened = self._records.state.of_request(request_id)
        self._withdrawn[request_id] = None
        if len(self._withdrawn) > WITHDRAWN_COUNT_MAX:
            del self._withdrawn[next(iter(self._withdrawn))]
        return opened

    def _start(self, call: Start) -> None:
        self._records.require_room()
        opened = self._start_now(call.request)
        if opened is None:
            self._pointers.wait((self._run, call))
            return
        self._pointers.renew_if_due()
        self._answer(call, opened)

    # Whole transactions.

    def _run_once(self, call: Run) -> None:
        """A transaction that fails is aborted, and its request id is free again."""
        request_id = call.request_id
        if request_id is not None:
            outcome = self._records.decided.outcomes.of_request(request_id)
            if outcome is not None:
                self._answer(call, outcome.published, outcome.lsn)
                return
            if (waiting := self._runs.get(request_id)) is not None:
                waiting.append(call)
                return
        self._records.require_room()
        opened = self._start_now(call.start)
        if opened is None:
            self._pointers.wait((self._run, call))
            return
        self._pointers.renew_if_due()
        if request_id is not None:
            self._runs[request_id] = []
        pointer = opened.transaction_id
        ended = partial(self._run_ended, call, pointer)
        self._run(Commit(ended, pointer, None, call.entries, request_id=request_id))

    def _run_ended(self, call: Run, pointer: int, result: object) -> None:
        if isinstance(result, Exception):
            # While the service is down, recovery ends the transaction. The first error says more.
            self._run(Abort(lambda _: self._finish_run(call, result), pointer))
        else:
            self._finish_run(call, result)

    def _finish_run(self, call: Run, result: object) -> None:
        call.is_decided = True
        call.finish(result)
        if call.request_id is not None:
            for each in self._runs.pop(call.request_id):
                self._run(each)

    # Transactions in progress.

    def _use(self, call: Use) -> None:
        opened = self._usable(call)
        if opened is not None:
            self._answer(call, opened)

    def _can_commit(self, call: CanCommit) -> None:
        opened = self._usable(call)
        if opened is None:
            return
        self._records.require_room()
        committers, now_ms = self._records.state.committers, self._turn_ms
        edit = can_commit(committers, opened, call.changes, settings=self._settings, now_ms=now_ms)
        if isinstance(edit, Refused):
            self._refuse_conflict(call, edit)
            return
        lsn = self._records.record(edit)
        # If a crash lost this edit and not the first one, a commit that leaves its changes to both
        # would skip the check of these, unnoticed.
        self._answer(call, None, lsn if opened.changes is not None and edit.changes else 0)

    def _checkpoint(self, call: Checkpoint) -> None:
        opened = self._usable(call)
        if opened is None:
            return
        self._records.require_room()
        pointer = self._pointers.take(now_ms=self._turn_ms)
        if pointer is None:
            self._pointers.wait((self._run, call))
            return
        transaction_id = opened.transaction_id
        lsn = self._records.record(Checkpointed(self._turn_ms, transaction_id, pointer))
        self._pointers.renew_if_due()
        # If the pointer were lost and the transaction survived, half a commit would be possible.
        self._answer(call, self._records.state.open[transaction_id], lsn)

    def _join(self, call: Join) -> None:
        opened = self._usable(call)
        if opened is None:
            return
        if opened.is_messages_only:
            self._records.require_room()
            self._records.record(StoreJoined(self._turn_ms, opened.transaction_id))
        # If a crash lost the edit, the pointers of the transaction would leave the invalid list,
        # and what the store keeps under them would become visible.
        self._answer(call, opened, self._records.state.lsn)

    def _renew(self, call: Renew) -> None:
        found = self._records.state.find(call.pointer)
        if isinstance(found, Outcome) or found.prepared is not None:
            self._refuse(call, refusal(found))
        elif (reason := self._overdue(found)) is not None:
            self._refuse_overdue(call, found, reason)
        else:
            self._timeouts.renew(found)
            self._answer(call, found)

    def _usable(self, call: Call) -> OpenTransaction | None:
        """The transaction: in progress, within its time, not refused, and not being ended. None:
        the call is refused, or waits."""
        found = self._records.state.find(call.pointer)
        if self._under_way.ends(found.transaction_id) is not None:
            self._under_way.park(found.transaction_id, self._run, call)
            return None
        return self._unrefused(call, found)

    def _unrefused(self, call: Call, found: OpenTransaction | Outcome) -> OpenTransaction | None:
        if isinstance(found, OpenTransaction):
            if found.prepared is None and (reason := self._overdue(found)) is not None:
                self._refuse_overdue(call, found, reason)
                return None
            if found.prepared is None and found.conflict is None:
                return found
        self._refuse(call, refusal(found))
        return None

    # Ends.

    def _commit(self, call: Commit) -> None:
        """Commit, or prepare."""
        state = self._records.state
        found = state.find(call.pointer)
        is_open = isinstance(found, OpenTransaction) and found.prepared is None
        if self._waits_to_end(call, found.transaction_id) or (
            not is_open and self._is_repeated(call, found)
        ):
            return
        opened = self._unrefused(call, found)
        if opened is None:
            return
        if call.database is not None or call.is_read_only:
            self._check_commit(call, opened)
        if opened.survived_crash and loses_changes(opened, names_changes=call.changes is not None):
            self._refuse_overdue(call, opened, InvalidReason.LOST_IN_CRASH)
            return
        decision = decide_commit(state, self._under_way, opened, call, settings=self._settings)
        if self._waits_for_check(call, decision.entries):
            return
        if isinstance(decision, Clear):
            self._records.require_room()
            if decision.entries:
                self._write_rows(call, opened, decision)
            else:
                self._record_commit(call, opened, decision.changes, ())
        else:
            self._meet(call, decision)

    def _check_commit(self, call: Commit, opened: OpenTransaction) -> None:
        """Raises: TooManyPreparedError, BadRequestError."""
        if call.database is not None:
            self._require_few_prepared(call)
        if call.is_read_only:
            check_read_only(opened, call, has_rows=self._has_rows(opened))

    def _waits_for_check(self, call: Commit, entries: Sequence[PublishEntry]) -> bool:
        """Whether other servers have to check the entries before. Raises: what a publish of the
        entries would be refused with."""
        if not entries or call.is_checked:
            return False
        call.is_checked = self._rows.check_now(entries)
        if not call.is_checked:
            self._begin_end(call)
            call.entries = entries
            self._effects.checks.append(call)
        return not call.is_checked

    def _is_repeated(self, call: Commit, found: OpenTransaction | Outcome) -> bool:
        """Whether an earlier call did the same; then this one has its answer."""
        if isinstance(found, Outcome):
            if call.database is None and found.state is EndedState.COMMITTED:
                self._answer(call, found.published, found.lsn)
                return True
        elif found.prepared is not None and call.database is not None:
            is_same = found.prepared.database == call.database
            self._answer(call, found if is_same else prepared_error(found), found.prepared.lsn)
            return True
        return False

    def _meet(self, call: Commit, decision: Claimed | Conflicting) -> None:
        """Wait for the transaction that has one of the changes, or refuse the call."""
        if isinstance(decision, Claimed):
            self._begin_end(call)
            self._under_way.park(decision.transaction_id, self._run, call)
        elif decision.is_prepared and not call.has_waited:
            self._begin_end(call)
            self._under_way.park(decision.conflict.committer, self._run, call)
            self._effects.impatient.append(call)
        else:
            self._refuse_conflict(call, Refused(self._turn_ms, call.pointer, decision.conflict))

    def _require_few_prepared(self, call: Commit) -> None:
        self._preparing.add(call)
        count_max = self._settings.prepared_max
        if len(self._records.state.prepared) + len(self._preparing) > count_max:
            raise TooManyPreparedError(
                f"{count_max} transactions are prepared, as tx.prepared_max allows; resolve those "
                "whose database has decided"
            )

    def _write_rows(self, call: Commit, opened: OpenTransaction, decision: Clear) -> None:
        # Counted as a write, so that rows are not rolled back before it is done, even if the
        # service goes down meanwhile.
        call.is_ending = True
        self._under_way.begin_commit(call.pointer, call, decision.changes)
        call.entries, call.opened, call.claimed = decision.entries, opened, decision.changes
        self._effects.rows.append(call)

    def _record_rows(self, rows: Rows, call: Commit) -> None:
        opened = call.opened
        assert opened is not None, "its rows were written"
        if isinstance(rows, Exception):
            lsn = self._invalidate(opened, InvalidReason.INVALIDATED)
            self._answer(call, rows, lsn, partial(self._answer_rolled_back, rows))
        elif call.doubt_lsn:
            if call.doubt_lsn > self._records.decided.seen:
                self._wait(call.doubt_lsn, call, None, self._confirm)
            else:
                self._confirm(call)
        else:
            self._record_commit(call, opened, call.claimed, tuple(rows))

    def _answer_rolled_back(self, error: Exception, call: Commit) -> None:
        outcome = self._outcome(call.pointer)
        self._ended_rows.roll_back(
            outcome.transaction_id, outcome.pointers, lambda _: call.finish(error)
        )

    def _record_commit(
        self,
        call: Commit | CommitPrepared,
        opened: OpenTransaction,
        changes: frozenset[bytes],
        published: tuple[RollbackDetail, ...],
    ) -> None:
        transaction_id, now_ms = opened.transaction_id, self._turn_ms
        new = changes - opened.changes if opened.changes else changes
        if isinstance(call, CommitPrepared):
            is_read_only, request_id = False, None
        elif call.database is not None:
            edit = Prepared(now_ms, transaction_id, new, call.database, published)
            lsn = self._records.record(edit)
            self._timeouts.forget(transaction_id)
            self._answer(call, self._records.decided.open[transaction_id], lsn)
            return
        else:
            is_read_only, request_id = call.is_read_only, call.request_id
        self._counters.commits += 1
        topics = tuple(self._rows.topics(opened.pointers))
        lsn = self._record_end(
            opened,
            Committed(now_ms, transaction_id, new, is_read_only, published, topics, request_id),
        )
        if not is_read_only:
            self._answer(call, published, lsn)
            return
        if transaction_id in self._rows.reading_pointers():
            self._ended_rows.wake_once_durable(lsn, transaction_id)
            self._records.sync_soon(lsn)
        self._answer(call, published)

    def _record_doubt(self, call: Commit, published: tuple[RollbackDetail, ...]) -> None:
        opened = call.opened
        assert opened is not None, "its rows are written"
        new = call.claimed - opened.changes if opened.changes else call.claimed
        topics = tuple(self._rows.topics(opened.pointers))
        edit = InDoubt(
            self._turn_ms, opened.transaction_id, new, published, topics, call.request_id
        )
        call.doubt_lsn = self._records.record(edit)
        self._in_doubt.add(opened.transaction_id)
        self._records.sync_soon(call.doubt_lsn)

    def _confirm(self, call: Commit) -> None:
        opened = self._records.decided.open[call.pointer]
        assert opened.doubt is not None, "its rows are durable, and it was in doubt"
        self._counters.commits += 1
        lsn = self._record_end(opened, Confirmed(self._turn_ms, call.pointer))
        self._in_doubt.discard(call.pointer)
        self._ended_rows.confirmed(lsn, opened.pointers)
        if self._rows.has_rows_to_move(opened.pointers):
            self._records.sync_soon(lsn)  # delayed messages begin to wait only then
        self._answer(call, opened.doubt.published)

    def _commit_prepared(self, call: CommitPrepared) -> None:
        found = self._records.state.find(call.pointer)
        if self._waits_to_end(call, found.transaction_id):
            return
        if isinstance(found, Outcome):
            error = refused_end(found, EndedState.COMMITTED)
            self._answer(call, found.published if error is None else error, found.lsn)
        elif found.prepared is not None:
            self._record_commit(call, found, frozenset(), found.prepared.published)
        elif (reason := self._overdue(found)) is not None:
            self._refuse_overdue(call, found, reason)
        else:
            raise not_prepared_error(found.transaction_id)

    def _abort(self, call: Abort) -> None:
        found = self._records.state.find(call.pointer)
        if self._waits_to_end(call, found.transaction_id):
            return
        if isinstance(found, OpenTransaction):
            if found.prepared is not None and not call.may_be_prepared:
                self._refuse(call, refusal(found))
                return
            self._counters.note_abort(is_short=found.is_short)
            topics, has_rows = self._rows.topics(found.pointers), self._has_rows(found)
            edit = abort_edit(found, topics, has_rows=has_rows, now_ms=self._turn_ms)
            self._record_end(found, edit)
        outcome = self._outcome(call.pointer)
        self._answer(call, outcome, outcome.lsn, self._roll_back_aborted)

    def _roll_back_aborted(self, call: Call) -> None:
        outcome = self._outcome(call.pointer)
        if outcome.state is not EndedState.INVALID:
            # Another abort of it may have just recorded that it is aborted.
            self._answer(call, refused_end(outcome, EndedState.ABORTED) or outcome, outcome.lsn)
            return
        then = partial(self._rolled_back_aborted, call)
        self._ended_rows.roll_back(outcome.transaction_id, outcome.pointers, then)

    def _rolled_back_aborted(self, call: Call, is_done: bool) -> None:  # noqa: FBT001 - as a Then
        self._step(partial(self._record_aborted, is_done=is_done), call)

    def _record_aborted(self, call: Call, *, is_done: bool) -> None:
        outcome = self._outcome(call.pointer)
        if outcome.state is EndedState.INVALID and (not is_done or not may_be_aborted(outcome)):
            call.finish(outcome)
            return
        if outcome.state is EndedState.INVALID:
            # Only now: a pointer that is off the invalid list no longer hides its rows.
            topics = tuple(self.topics(outcome))
            self._records.record(Aborted(self._turn_ms, outcome.transaction_id, topics))
            outcome = self._outcome(call.pointer)
        self._answer(call, outcome, outcome.lsn)

    def _invalidate_call(self, call: Invalidate) -> None:
        found = self._records.state.find(call.pointer)
        if self._under_way.has_claim(found.transaction_id):
            self._under_way.park(found.transaction_id, self._run, call)
            return
        if isinstance(found, OpenTransaction):
            if found.prepared is not None:
                self._refuse(call, refusal(found))
                return
            self._invalidate(found, InvalidReason.INVALIDATED)
        outcome = self._outcome(call.pointer)
        self._answer(call, refused_end(outcome, EndedState.INVALID) or outcome, outcome.lsn)

    def _set_aside(self, call: SetAside) -> None:
        if self._waits_to_end(call, call.pointer):
            return
        opened = self._records.decided.open.get(call.pointer)
        if opened is None:  # it has ended meanwhile
            self._answer(call, None)
            return
        self._begin_end(call)
        self._effects.asides.append((call, opened.pointers))

    def _waits_to_end(self, call: Call, transaction_id: int) -> bool:
        """Whether the call has to wait: ends take turns, in the order of the calls, and each waits
        for the writes that passed before it."""
        under_way = self._under_way
        call.pointer = transaction_id
        if under_way.is_unused(transaction_id):
            return False
        ending = under_way.ends(transaction_id)
        if ending is not None and ending is not call:
            under_way.park(transaction_id, self._run, call)
            return True
        if under_way.has_writes(transaction_id):
            self._begin_end(call)
            under_way.await_writes(transaction_id, self._run, call)
            return True
        return False

    def _begin_end(self, call: Call) -> None:
        call.is_ending = True
        self._under_way.begin_end(call.pointer, call)

    # Records and answers.

    def topics(self, transaction: OpenTransaction | Outcome) -> list[str]:
        """`ns:topic` of each topic that the transaction published to or stored for, sorted."""
        recorded = transaction.topics if isinstance(transaction, Outcome) else ()
        return sorted({*recorded, *self._rows.topics(transaction.pointers)})

    def _run(self, call: Call) -> None:
        """Decide a call, if that was not done."""
        if not call.is_decided:
            self._step(self._steps[type(call)], call)

    def _step(self, step: Callable[[Any], None], call: Call) -> None:
        try:
            step(call)
        except Exception as error:  # noqa: BLE001 - also of a bug: the others go on
            self._fail(call, error)

    def _fail(self, call: Call, error: Exception) -> None:
        if call.is_answered and not isinstance(error, TuffError):
            self._effects.bugs.append(error)
        self._answer(call, error)

    def _answer(
        self,
        call: Call,
        result: object,
        lsn: int = 0,
        then: Callable[[Any], None] | None = None,
    ) -> None:
        """The call is decided. Answer it once the edit of this LSN is durable, or go on with `then`
        at that time."""
        call.is_decided = True
        if call.is_ending:
            call.is_ending = False
            self._under_way.finish_end(call.pointer)
        if self._preparing:
            self._preparing.discard(call)
        if lsn and lsn > self._records.decided.seen:
            self._wait(lsn, call, result, then)
        elif then is None:
            call.finish(result)
        else:
            self._step(then, call)

    def _wait(
        self, lsn: int, call: Call, result: object, then: Callable[[Any], None] | None
    ) -> None:
        self._at.append((lsn, call, result, then))
        if lsn > self._at_last:
            self._at_last = lsn  # `take_effects` lets it be synced

    def _refuse(self, call: Call, refused: Refusal | None) -> None:
        assert refused is not None, "it was refused"
        self._answer(call, refused.error, refused.lsn)

    def _refuse_conflict(self, call: Call, edit: Refused) -> None:
        # Recorded at once: if the transaction could end before, the log held a refusal of an ended
        # transaction, and every recovery failed at it.
        self._counters.conflicts += 1
        lsn, state = self._records.record(edit), self._records.state
        refused = refusal(state.open[edit.transaction_id])
        assert refused is not None, "it has a conflict"
        # One that is prepared may still be aborted. If a crash then lost this edit, the call that
        # was refused would pass.
        is_prepared = edit.conflict.committer in state.prepared
        self._answer(call, refused.error, lsn if is_prepared else refused.lsn)

    def _refuse_overdue(self, call: Call, opened: OpenTransaction, reason: InvalidReason) -> None:
        self._invalidate(opened, reason)
        self._refuse(call, refusal(self._outcome(opened.transaction_id)))

    def _overdue(self, opened: OpenTransaction) -> InvalidReason | None:
        now_ms, ends_ms = self._turn_ms, None
        if opened.lease_ms is not None:
            ends_ms = self._timeouts.lease_ends_at_ms(opened)
        elif now_ms < opened.expires_at_ms:
            return None  # as nearly always
        reason = overdue(opened, now_ms=now_ms, lease_ends_ms=ends_ms)
        return None if self._under_way.has_claim(opened.transaction_id) else reason

    def _invalidate(self, opened: OpenTransaction, reason: InvalidReason) -> int:
        self._counters.note_invalidation(reason)
        topics = tuple(self._rows.topics(opened.pointers))
        edit = Invalidated(self._turn_ms, opened.transaction_id, reason, topics)
        return self._record_end(opened, edit)

    def _record_end(
        self, opened: OpenTransaction, edit: Committed | Confirmed | Aborted | Invalidated
    ) -> int:
        lsn = self._records.record(edit)
        if opened.lease_ms is not None:
            self._timeouts.forget(opened.transaction_id)
        if opened.prepared is not None:
            self._aside.discard(opened.transaction_id)
            self._under_way.resume(opened.transaction_id)
        return lsn

    def _outcome(self, pointer: int) -> Outcome:
        # Also while the service is stopped: a call that ended the transaction before gets its
        # outcome, and is not repeated.
        found = self._records.decided.find(pointer)
        assert isinstance(found, Outcome), f"transaction {pointer} has not ended"
        return found

    def _has_rows(self, opened: OpenTransaction) -> bool:
        return any(map(self._rows.is_carried, opened.pointers))


def _too_many_open() -> OverloadedError:
    return OverloadedError(f"{OPEN_COUNT_MAX} transactions are in progress; end some first")


def _to_nobody(_result: object) -> None:
    pass


def _cut_off(transaction_id: int) -> TransactionsUnavailableError:
    """Recovery has found a commit that was cut off, and has invalidated it."""
    return TransactionsUnavailableError(
        f"the transaction log failed during the commit of {transaction_id}; ask how it ended"
    )
