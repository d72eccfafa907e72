"""Commits, aborts and invalidations of transactions (design §4, Commit and abort).

At most one edit that ends a transaction is on its way to the disk at a time: commits and aborts
take turns at the transaction's write gate. An invalidation does not wait for the gate. It waits for
a commit whose rows are being written, which has passed its check and holds a claim.

The decisions stand first, as functions of the transaction and the request. `Completion` waits,
writes rows and records what was decided.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NoReturn

from tuff.disk.event_loop import SharedTimeout
from tuff.log_events import event
from tuff.protocol.errors import (
    BadRequestError,
    TooManyPreparedError,
    TransactionNotPreparedError,
    TransactionsUnavailableError,
)
from tuff.protocol.requests import PublishEntry, RollbackDetail
from tuff.protocol.values import value
from tx.conflicts import all_changes, can_commit, conflict_error, loses_changes
from tx.durable_state import DurableState
from tx.edits import (
    Aborted,
    Committed,
    Conflict,
    Invalidated,
    InvalidReason,
    Prepared,
    Refused,
)
from tx.message_rows import EndedRows, MessageRows
from tx.monitoring import TransactionCounters
from tx.outcomes import (
    EndedState,
    OpenTransaction,
    Outcome,
    Preparation,
    ended_error,
    prepared_error,
)
from tx.settings import TransactionSettings
from tx.timeouts import Timeouts
from tx.write_gates_and_key_locks import TransactionLocks

log = logging.getLogger(__name__)

EXPIRED_SHOWN_MAX = 5  # transactions that one line names


@value(kw_only=True)
class CommitRequest:
    """The arguments of a commit, or with a `database` of a prepare. `changes` None: those of the
    can-commits before it. A read-only commit names an empty set."""

    changes: frozenset[bytes] | None = None
    publish: Sequence[PublishEntry] = ()
    is_read_only: bool = False
    request_id: str | None = None
    database: str | None = None


@value()
class BegunCommit:
    """A commit or a prepare that has passed its check. Without messages it is recorded, by the edit
    of this `lsn`; else its rows are next, and it holds its claim."""

    transaction_id: int
    opened: OpenTransaction
    changes: frozenset[bytes]
    entries: Sequence[PublishEntry]
    request: CommitRequest
    lsn: int | None = None


def check_read_only(opened: OpenTransaction, request: CommitRequest, *, has_rows: bool) -> None:
    """Raises: BadRequestError: the transaction wrote, or names, something to commit."""
    name = f"transaction {opened.transaction_id}"
    if request.publish or request.changes or opened.changes:
        raise BadRequestError(f"readOnly says that {name} wrote nothing, but it names writes")
    if opened.transaction.checkpoint_write_pointers:
        raise BadRequestError(f"{name} has a checkpoint, and can't be committed as readOnly")
    if has_rows:
        raise BadRequestError(f"{name} has published or stored, and can't be committed as readOnly")


def with_pointers(opened: OpenTransaction, publish: Sequence[PublishEntry]) -> list[PublishEntry]:
    """The entries, each with its pointer: the current write pointer where it names none.

    Raises:
        BadRequestError: a pointer is not one of the transaction's.
    """
    for entry in publish:
        if entry.pointer is not None and entry.pointer not in opened.pointers:
            raise BadRequestError(
                f"pointer {entry.pointer} is none of transaction {opened.transaction_id}'s"
            )
    pointer = opened.transaction.write_pointer
    return [entry.under(pointer) if entry.pointer is None else entry for entry in publish]


def abort_edit(
    opened: OpenTransaction, topics: Sequence[str], *, has_rows: bool, now_ms: int
) -> Aborted | Invalidated:
    """The first step of an abort. A long transaction ends as invalid, since its changes were not
    tracked. A short one with rows is invalid until they are marked, since they must not become
    visible in between."""
    if opened.is_short and not has_rows:
        return Aborted(now_ms, opened.transaction_id, tuple(topics))
    reason = InvalidReason.INVALIDATED if opened.is_short else InvalidReason.ABORT_OF_LONG
    return Invalidated(now_ms, opened.transaction_id, reason, tuple(topics))


def may_be_aborted(outcome: Outcome) -> bool:
    """Whether an abort turns this invalid transaction into an aborted one."""
    return outcome.is_short and outcome.reason is not InvalidReason.LOST_IN_CRASH


class Completion:
    """Ends transactions. Lives on one event loop."""

    def __init__(
        self,
        durable: DurableState,
        locks: TransactionLocks,
        ended_rows: EndedRows,
        timeouts: Timeouts,
        rows: MessageRows,
        settings: TransactionSettings,
        counters: TransactionCounters,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._durable = durable
        self._locks = locks
        self._ended_rows = ended_rows
        self._timeouts = timeouts
        self._rows = rows
        self._settings = settings
        self._counters = counters
        self._now_ms = now_ms
        self._preparing_count = 0
        # Commits that wait for the end of a prepared transaction, by its id. They are refused
        # before their callers give up.
        self._waiting: dict[int, set[asyncio.Future[None]]] = {}
        self._patience = SharedTimeout(settings.ending_timeout_s / 2, too_late=TimeoutError)

    async def can_commit(self, pointer: int, changes: Collection[bytes]) -> None:
        """Check these changes together with those named before, and remember them. Waits for the
        disk only if changes were named before.

        Raises:
            TransactionConflictError: a transaction that this one can't see committed one of them.
            ChangeSetTooLargeError, TransactionNotInProgressError (its kinds).
        """
        opened = await self.open_now(pointer)
        self._durable.require_room()
        named = frozenset(changes)
        committers, now_ms = self._durable.state.committers, self._now_ms()
        edit = can_commit(committers, opened, named, settings=self._settings, now_ms=now_ms)
        if isinstance(edit, Refused):
            # Recorded at once. If the refusal were recorded in the work below, the transaction
            # could end before it. Then the log held a refusal of an ended transaction, and every
            # recovery failed at it.
            self._record_refusal(edit)
            refused = self._raise_conflict(edit.transaction_id, edit.conflict)
            await self._durable.within_time(refused)
        lsn = self._durable.record(edit)
        if opened.changes is not None and edit.changes:
            # If a crash lost this edit and not the first one, a commit that leaves its changes to
            # both would skip the check of these, unnoticed.
            await self._durable.synced_in_time(lsn)

    async def open_now(self, pointer: int) -> OpenTransaction:
        """The transaction: in progress, within its time, not refused, and not being committed or
        aborted. The answer holds until the caller waits for something.

        Raises:
            TransactionError (its kinds): it has durably ended, or was durably refused.
        """
        while True:
            opened = self._maybe_usable(pointer) or await self._require_unrefused(pointer)
            if not self._locks.is_closed(opened.transaction_id):
                return opened
            await self._durable.within_time(self._locks.opened(opened.transaction_id))

    async def commit(
        self,
        pointer: int,
        *,
        changes: Collection[bytes] | None = None,
        publish: Sequence[PublishEntry] = (),
        read_only: bool = False,
    ) -> Outcome:
        """Commit, durably, and publish as a part of it (protocol §5.2). A repeated commit returns
        the first outcome. `changes` None: those of the can-commits before.

        Raises:
            TransactionConflictError, ChangeSetTooLargeError, TransactionNotInProgressError (its
            kinds), what `MessageRows.check_entries` raises, BadRequestError: nothing was written.
            StorageUnavailableError: rows could not be written, and the transaction is invalid.
        """
        leaves_changes = changes is None and not read_only
        request = CommitRequest(
            changes=None if leaves_changes else frozenset(changes or ()),
            publish=publish,
            is_read_only=read_only,
        )
        begun = self.begin_commit(pointer, request)
        if begun is None:
            transaction_id = self._durable.state.find(pointer).transaction_id
            return await self._durable.within_time(self._commit_in_turn(transaction_id, request))
        if begun.lsn is None:
            (outcome,) = await self._durable.within_time(self._end_claimed([begun]))
            return _unless_failed(outcome)
        await self._durable.synced_in_time(begun.lsn)
        return self._outcome(begun.transaction_id)

    def begin_commit(self, pointer: int, request: CommitRequest) -> BegunCommit | None:
        """Begin a commit that waits for nothing but the disk, as nearly all do; wait for `ended` at
        once. None: nothing was done. `commit` waits, or says why it is refused.

        A commit without messages takes no turn: it is recorded, and no other call can come between
        its check and its record.

        Raises: as `commit`.
        """
        opened = self._maybe_usable(pointer)
        if opened is None or loses_changes(opened, names_changes=request.changes is not None):
            return None
        transaction_id = opened.transaction_id
        if request.is_read_only or not self._locks.is_unused(transaction_id):
            return None
        entries, changes = self._check(opened, request)
        if not self._is_free(changes, opened):
            return None
        self._durable.require_room()
        if not entries:
            lsn = self._record_commit(opened, changes, (), request)
            return BegunCommit(transaction_id, opened, changes, entries, request, lsn)
        if not self._rows.check_now(entries):
            return None
        self._locks.close_now(transaction_id)
        self._locks.claim(transaction_id, changes)
        return BegunCommit(transaction_id, opened, changes, entries, request)

    def _is_free(self, changes: frozenset[bytes], opened: OpenTransaction) -> bool:
        """Whether nothing that another transaction has committed or claims conflicts."""
        state = self._durable.state
        return (
            self._locks.claimed_by(changes) is None
            and state.prepared.conflict(changes) is None
            and state.committers.conflict(opened.transaction, changes) is None
        )

    async def ended(self, begun: Sequence[BegunCommit]) -> list[Outcome | Exception]:
        """Wait for the end of these commits, which share one write of their rows and one sync; the
        outcome or the error of each. All of them have messages, or none has.

        Raises:
            TransactionsUnavailableError: what became of them is not known yet.
        """
        if (lsn := begun[-1].lsn) is None:
            return await self._durable.within_time(self._end_claimed(begun))
        await self._durable.synced_in_time(lsn)
        return [self._outcome(each.transaction_id) for each in begun]

    async def _end_claimed(self, claimed: Sequence[BegunCommit]) -> list[Outcome | Exception]:
        """End commits that `begin_commit` has given their turn."""
        try:
            errors = await self._write_and_record(claimed)
            return [
                self._outcome(each.transaction_id) if error is None else error
                for each, error in zip(claimed, errors, strict=True)
            ]
        finally:
            for each in claimed:
                self._locks.open(each.transaction_id)

    async def commit_unbounded(self, transaction_id: int, request: CommitRequest) -> Outcome:
        """As `commit`, for a caller that bounds the time itself."""
        begun = self.begin_commit(transaction_id, request)
        if begun is None or begun.lsn is not None:
            return await self._commit_in_turn(transaction_id, request)
        (outcome,) = await self._end_claimed([begun])
        return _unless_failed(outcome)

    async def _commit_in_turn(self, transaction_id: int, request: CommitRequest) -> Outcome:
        """Commit, after the commits and aborts of this transaction that are under way."""
        await self._locks.close(transaction_id)
        try:
            if (committed := self._committed(transaction_id)) is not None:
                await self._durable.synced(committed.lsn)
                return committed
            await self._commit(transaction_id, request)
            return self._outcome(transaction_id)
        finally:
            self._locks.open(transaction_id)

    def _committed(self, transaction_id: int) -> Outcome | None:
        """Its outcome, which may not be durable yet, if it has committed; None otherwise."""
        found = self._durable.state.find(transaction_id)
        if isinstance(found, OpenTransaction) or found.state is not EndedState.COMMITTED:
            return None
        return found

    async def prepare(
        self,
        pointer: int,
        *,
        database: str,
        changes: Collection[bytes] | None = None,
        publish: Sequence[PublishEntry] = (),
    ) -> OpenTransaction:
        """Check and write all that a commit would, durably, and leave the end to `database`
        (protocol §5.4). A repeated prepare returns the first answer.

        Raises:
            TooManyPreparedError: nothing was written.
            TransactionPreparedError: it is prepared for another database.
            As `commit`.
        """
        request = CommitRequest(
            changes=None if changes is None else frozenset(changes),
            publish=publish,
            database=database,
        )
        transaction_id = self._durable.state.find(pointer).transaction_id
        return await self._durable.within_time(self._prepare(transaction_id, request))

    async def _prepare(self, transaction_id: int, request: CommitRequest) -> OpenTransaction:
        await self._locks.close(transaction_id)
        self._preparing_count += 1
        try:
            opened = await self._require_open(transaction_id)
            if opened.prepared is None:
                self._require_few_prepared()
                await self._commit(transaction_id, request)
                return self._durable.decided.open[transaction_id]
            await self._durable.synced(opened.prepared.lsn)
            if opened.prepared.database != request.database:
                raise prepared_error(opened)
            return opened
        finally:
            self._preparing_count -= 1
            self._locks.open(transaction_id)

    def _require_few_prepared(self) -> None:
        count_max = self._settings.prepared_max
        if len(self._durable.state.prepared) + self._preparing_count > count_max:
            raise TooManyPreparedError(
                f"{count_max} transactions are prepared, as tx.prepared_max allows; resolve those "
                "whose database has decided"
            )

    async def commit_prepared(self, pointer: int) -> Outcome:
        """Commit a prepared transaction, durably: its database has committed. A repetition returns
        the first outcome.

        Raises:
            TransactionNotPreparedError: it is in progress, and was not prepared.
            TransactionNotInProgressError (its kinds): it was aborted, or became invalid.
        """
        transaction_id = self._durable.state.find(pointer).transaction_id
        return await self._durable.within_time(self._commit_prepared(transaction_id))

    async def _commit_prepared(self, transaction_id: int) -> Outcome:
        await self._locks.close(transaction_id)
        try:
            if (committed := self._committed(transaction_id)) is not None:
                await self._durable.synced(committed.lsn)
                return committed
            opened = await self._require_open(transaction_id)
            if opened.prepared is None:
                raise TransactionNotPreparedError(
                    f"transaction {transaction_id} was not prepared; commit it, or resolve it as "
                    "aborted"
                )
            published = opened.prepared.published
            lsn = self._record_commit(opened, frozenset(), published, CommitRequest())
            await self._durable.synced(lsn)
            return self._outcome(transaction_id)
        finally:
            self._locks.open(transaction_id)

    async def abort_prepared(self, pointer: int) -> Outcome:
        """Abort a transaction that may be prepared: its database has not committed, and never will.

        Raises: as `abort`, less that of a prepared one.
        """
        transaction_id = self._durable.state.find(pointer).transaction_id
        work = self.abort_unbounded(transaction_id, may_be_prepared=True)
        return await self._durable.within_time(work)

    async def _commit(self, transaction_id: int, request: CommitRequest) -> None:
        """Commit, or prepare."""
        opened, entries, changes = await self._checked(transaction_id, request)
        conflict = self._durable.state.committers.conflict(opened.transaction, changes)
        if conflict is not None:
            self._record_refusal(Refused(self._now_ms(), transaction_id, conflict))
            await self._raise_conflict(transaction_id, conflict)
        self._durable.require_room()
        if entries:
            self._locks.claim(transaction_id, changes)
            begun = BegunCommit(transaction_id, opened, changes, entries, request)
            (error,) = await self._write_and_record([begun])
            if error is not None:
                raise error
            return
        lsn = self._record_commit(opened, changes, (), request)
        if not request.is_read_only:
            await self._durable.synced(lsn)
        elif transaction_id in self._rows.reading_pointers():
            self._ended_rows.wake_once_durable(lsn, transaction_id)
            self._durable.sync_soon(lsn)

    async def _checked(
        self, transaction_id: int, request: CommitRequest
    ) -> tuple[OpenTransaction, Sequence[PublishEntry], frozenset[bytes]]:
        """The transaction, the entries and the changes, none of which another one claims. The
        answer holds until the caller waits for something."""
        are_checked = has_waited = False
        while True:
            usable = self._maybe_usable(transaction_id)
            opened = usable or await self._require_unrefused(transaction_id)
            if loses_changes(opened, names_changes=request.changes is not None):
                await self._fail_as(opened, InvalidReason.LOST_IN_CRASH)
            entries, changes = self._check(opened, request)
            if entries and not are_checked:
                # In a cluster this asks other servers, and the transaction may end meanwhile.
                await self._rows.check_entries(entries)
                are_checked = True
                if self._maybe_usable(transaction_id) is not opened:
                    continue
            if (holder := self._locks.claimed_by(changes)) is not None:
                # Whether these changes conflict is decided when the other one's rows are written.
                await self._locks.released(holder)
            elif (conflict := self._durable.state.prepared.conflict(changes)) is not None:
                if has_waited:
                    self._record_refusal(Refused(self._now_ms(), transaction_id, conflict))
                    await self._raise_conflict(transaction_id, conflict)
                has_waited = not await self._resolved(conflict.committer)
            else:
                return opened, entries, changes

    async def _resolved(self, transaction_id: int) -> bool:
        """Wait for the end of this prepared transaction, for half of `tx.ending_timeout`; whether
        it came."""
        ended = asyncio.get_running_loop().create_future()
        waiting = self._waiting.setdefault(transaction_id, set())
        waiting.add(ended)
        self._patience.watch(ended)
        try:
            await ended
        except TimeoutError:
            return False
        finally:
            waiting.discard(ended)
            if not waiting and self._waiting.get(transaction_id) is waiting:
                del self._waiting[transaction_id]
        return True

    def _check(
        self, opened: OpenTransaction, request: CommitRequest
    ) -> tuple[Sequence[PublishEntry], frozenset[bytes]]:
        """The entries with their pointers, and all changes. Raises everything that a commit can be
        refused for before a row is written, except for a conflict and what the topics refuse."""
        if request.is_read_only:
            check_read_only(opened, request, has_rows=self._has_rows(opened))
        entries = with_pointers(opened, request.publish)
        changes = all_changes(opened, request.changes or frozenset(), settings=self._settings)
        return entries, changes

    async def _write_and_record(self, claimed: Sequence[BegunCommit]) -> list[Exception | None]:
        """Write the rows of all of them as one batch, and record each, durably. The error of each
        one whose rows could not be written: it is invalid."""
        recovery_count = self._durable.recovery_count
        lsn = 0
        try:
            written = await self._write_rows(claimed)
            if self._durable.recovery_count != recovery_count:
                return [_cut_off(each.transaction_id) for each in claimed]
            for each, rows in zip(claimed, written, strict=True):
                if isinstance(rows, Exception):
                    lsn = self._invalidate(each.opened, InvalidReason.INVALIDATED)
                else:
                    lsn = self._record_commit(each.opened, each.changes, tuple(rows), each.request)
        finally:
            for each in claimed:
                self._locks.release(each.transaction_id)
        await self._durable.synced(lsn)
        errors = [rows if isinstance(rows, Exception) else None for rows in written]
        for each, error in zip(claimed, errors, strict=True):
            if error is not None:
                await self._ended_rows.marked(each.transaction_id, each.opened.pointers)
        return errors

    async def _write_rows(
        self, claimed: Sequence[BegunCommit]
    ) -> Sequence[list[RollbackDetail] | Exception]:
        # Counted as a write, so that rows are not marked before it is done, even if the service
        # goes down meanwhile.
        for each in claimed:
            self._locks.enter(each.transaction_id)
        try:
            return await self._rows.publish_final([each.entries for each in claimed])
        except Exception as error:  # noqa: BLE001 - whatever it was, the rows must be marked
            return [error] * len(claimed)
        finally:
            for each in claimed:
                self._locks.leave(each.transaction_id)

    def _record_commit(
        self,
        opened: OpenTransaction,
        changes: frozenset[bytes],
        published: tuple[RollbackDetail, ...],
        request: CommitRequest,
    ) -> int:
        if request.database is not None:
            return self._record_prepare(opened, changes, published, request.database)
        self._counters.commits += 1
        edit = Committed(
            self._now_ms(),
            opened.transaction_id,
            changes - opened.changes if opened.changes else changes,
            request.is_read_only,
            published,
            tuple(self._rows.topics(opened.pointers)),
            request.request_id,
        )
        return self._record_end(opened, edit)

    def _record_prepare(
        self,
        opened: OpenTransaction,
        changes: frozenset[bytes],
        published: tuple[RollbackDetail, ...],
        database: str,
    ) -> int:
        new = changes - opened.changes if opened.changes else changes
        edit = Prepared(self._now_ms(), opened.transaction_id, new, database, published)
        lsn = self._durable.record(edit)
        self._timeouts.forget(opened.transaction_id)
        return lsn

    async def abort(self, pointer: int) -> Outcome:
        """End without committing; rows that were published are marked before this returns. The
        outcome is aborted, or invalid (protocol §6).

        Raises:
            TransactionCommittedError, TransactionPreparedError, TransactionUnknownError.
        """
        transaction_id = self._durable.state.find(pointer).transaction_id
        return await self._durable.within_time(self.abort_unbounded(transaction_id))

    async def abort_unbounded(
        self, transaction_id: int, *, may_be_prepared: bool = False
    ) -> Outcome:
        """As `abort`, for a caller that bounds the time itself."""
        await self._locks.close(transaction_id)
        try:
            if not may_be_prepared:
                found = self._durable.state.find(transaction_id)
                if isinstance(found, OpenTransaction) and found.prepared is not None:
                    await self._raise_prepared(found, found.prepared)
            return await self._abort(transaction_id)
        finally:
            self._locks.open(transaction_id)

    async def _abort(self, transaction_id: int) -> Outcome:
        found = self._durable.state.find(transaction_id)
        if isinstance(found, OpenTransaction):
            self._counters.note_abort(is_short=found.is_short)
            topics, has_rows = self._rows.topics(found.pointers), self._has_rows(found)
            edit = abort_edit(found, topics, has_rows=has_rows, now_ms=self._now_ms())
            self._record_end(found, edit)
        outcome = self._outcome(transaction_id)
        await self._durable.synced(outcome.lsn)
        if outcome.state is EndedState.COMMITTED:
            raise ended_error(outcome)
        if outcome.state is EndedState.ABORTED:
            return outcome
        is_marked = await self._ended_rows.marked(outcome.transaction_id, outcome.pointers)
        if not is_marked or not may_be_aborted(outcome):
            return outcome
        # Only now: a pointer that is off the invalid list no longer hides its rows.
        lsn = self._durable.record(
            Aborted(self._now_ms(), transaction_id, tuple(self.topics(outcome)))
        )
        await self._durable.synced(lsn)
        return self._outcome(transaction_id)

    async def invalidate(self, pointer: int) -> Outcome:
        """End as invalid, durably; its rows are marked in the background.

        Raises:
            TransactionCommittedError, TransactionAbortedError, TransactionPreparedError,
            TransactionUnknownError.
        """
        transaction_id = self._durable.state.find(pointer).transaction_id
        return await self._durable.within_time(self._invalidate_durably(transaction_id))

    async def _invalidate_durably(self, transaction_id: int) -> Outcome:
        await self._locks.released(transaction_id)
        found = self._durable.state.find(transaction_id)
        if isinstance(found, OpenTransaction):
            if found.prepared is not None:
                await self._raise_prepared(found, found.prepared)
            self._invalidate(found, InvalidReason.INVALIDATED)
        outcome = self._outcome(transaction_id)
        await self._durable.synced(outcome.lsn)
        if outcome.state is not EndedState.INVALID:
            raise ended_error(outcome)
        return outcome

    async def renew(self, pointer: int) -> OpenTransaction:
        """Let the transaction's lease begin anew. Waits for no disk.

        Raises:
            BadRequestError: it has no lease.
            TransactionNotInProgressError (its kinds).
        """
        opened = await self._durable.within_time(self._require_unprepared(pointer))
        self._timeouts.renew(opened)
        return opened

    def expire(self) -> None:
        """Invalidate the transactions that are past their deadline, or hold readers back for too
        long, and set aside the messages of prepared ones that do; waits for no disk. A commit whose
        rows are being written has passed its check in time, and is looked at again once it is
        through."""
        expired: dict[InvalidReason, list[int]] = {}
        for opened, reason in self._timeouts.overdue(self._durable.state):
            if not self._locks.has_claim(opened.transaction_id):
                expired.setdefault(reason, []).append(opened.transaction_id)
                # One sync for all: ten thousand that are late together must not wait in a row.
                self._durable.sync_soon(self._invalidate(opened, reason))
        for reason, pointers in expired.items():
            _log_expired(reason, pointers)
        for opened in self._timeouts.blocking_prepared(self._durable.state):
            is_open = partial(self._is_open, opened.transaction_id)
            self._ended_rows.set_aside(opened, is_open=is_open)

    async def outcome(self, pointer: int) -> OpenTransaction | Outcome:
        """The transaction, or how it ended. That it ended, or is prepared, is only reported once it
        is durable.

        Raises:
            TransactionUnknownError: it never was, or ended too long ago.
        """
        found = self._durable.state.find(pointer)
        if isinstance(found, Outcome):
            await self._durable.synced_in_time(found.lsn)
        elif found.prepared is not None:
            await self._durable.synced_in_time(found.prepared.lsn)
        return found

    def topics(self, transaction: OpenTransaction | Outcome) -> list[str]:
        """`ns:topic` of each topic that the transaction published to or stored for, sorted."""
        recorded = transaction.topics if isinstance(transaction, Outcome) else ()
        return sorted({*recorded, *self._rows.topics(transaction.pointers)})

    async def _require_open(self, pointer: int) -> OpenTransaction:
        found = self._durable.state.find(pointer)
        if isinstance(found, Outcome):
            await self._durable.synced(found.lsn)
            raise ended_error(found)
        if (reason := self._overdue(found)) is not None:
            await self._fail_as(found, reason)
        return found

    def _overdue(self, found: OpenTransaction) -> InvalidReason | None:
        """Why its time is over, None while it is not. The tick may come late; no decision is made
        for a transaction whose time is over."""
        if found.prepared is None and not self._locks.has_claim(found.transaction_id):
            if self._now_ms() >= found.expires_at_ms:
                return InvalidReason.TIMED_OUT
            if found.lease_ms is not None and self._timeouts.has_lapsed(found):
                return InvalidReason.LEASE_EXPIRED
        return None

    def _maybe_usable(self, pointer: int) -> OpenTransaction | None:
        """What `_require_unrefused` returns if it waits for nothing, as nearly always. None: it
        says why not."""
        found = self._durable.state.find(pointer)
        if isinstance(found, Outcome) or found.prepared or found.conflict or self._overdue(found):
            return None
        return found

    async def _require_unprepared(self, pointer: int) -> OpenTransaction:
        opened = await self._require_open(pointer)
        if opened.prepared is not None:
            await self._raise_prepared(opened, opened.prepared)
        return opened

    async def _raise_prepared(self, opened: OpenTransaction, prepared: Preparation) -> NoReturn:
        await self._durable.synced(prepared.lsn)
        raise prepared_error(opened)

    async def _require_unrefused(self, pointer: int) -> OpenTransaction:
        opened = await self._require_unprepared(pointer)
        if opened.conflict is not None:
            await self._raise_conflict(opened.transaction_id, opened.conflict)
        return opened

    def _record_refusal(self, edit: Refused) -> None:
        self._counters.conflicts += 1
        self._durable.record(edit)

    async def _raise_conflict(self, transaction_id: int, conflict: Conflict) -> NoReturn:
        # A refusal names another transaction's commit, so that commit has to be durable first.
        await self._durable.synced(conflict.committer_lsn)
        raise conflict_error(transaction_id, conflict)

    async def _fail_as(self, opened: OpenTransaction, reason: InvalidReason) -> NoReturn:
        lsn = self._invalidate(opened, reason)
        await self._durable.synced(lsn)
        raise ended_error(self._outcome(opened.transaction_id))

    def _invalidate(self, opened: OpenTransaction, reason: InvalidReason) -> int:
        self._counters.note_invalidation(reason)
        topics = tuple(self._rows.topics(opened.pointers))
        edit = Invalidated(self._now_ms(), opened.transaction_id, reason, topics)
        return self._record_end(opened, edit)

    def _record_end(self, opened: OpenTransaction, edit: Committed | Aborted | Invalidated) -> int:
        lsn = self._durable.record(edit)
        if opened.lease_ms is not None:
            self._timeouts.forget(opened.transaction_id)
        for ended in self._waiting.pop(opened.transaction_id, ()):
            if not ended.done():
                ended.set_result(None)
        return lsn

    def _outcome(self, transaction_id: int) -> Outcome:
        # Also while the service is stopped: a call that ended the transaction before gets its
        # outcome, and is not repeated.
        found = self._durable.decided.find(transaction_id)
        assert isinstance(found, Outcome), f"transaction {transaction_id} has not ended"
        return found

    def _is_open(self, transaction_id: int) -> bool:
        return transaction_id in self._durable.decided.open

    def _has_rows(self, opened: OpenTransaction) -> bool:
        return any(map(self._rows.is_carried, opened.pointers))


def _unless_failed(outcome: Outcome | Exception) -> Outcome:
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def _cut_off(transaction_id: int) -> TransactionsUnavailableError:
    """Recovery has found a commit that was cut off, and has invalidated it."""
    return TransactionsUnavailableError(
        f"the transaction log failed during the commit of {transaction_id}; ask how it ended"
    )


def _log_expired(reason: InvalidReason, pointers: Sequence[int]) -> None:
    """One line for all that expire together, however many they are."""
    level = logging.WARNING if reason is InvalidReason.BLOCKED_READERS else logging.INFO
    shown = ", ".join(map(str, pointers[:EXPIRED_SHOWN_MAX]))
    more = ", and more" if len(pointers) > EXPIRED_SHOWN_MAX else ""
    extra = event("transactions_expired", reason=reason.value, count=len(pointers))
    log.log(level, "transactions became invalid (%s): %s%s", reason.value, shown, more, extra=extra)
