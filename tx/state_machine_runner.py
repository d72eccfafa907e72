"""Brings calls and events to the machine of transactions, and does what it asks for (design §4;
decision 0058): writes rows, asks the message store, limits the time of calls."""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

from kernel.event_loop import FutureTask, SharedTimeout, Spawn, settle
from kernel.log_events import event
from tuff.protocol.errors import TuffError
from tuff.protocol.requests import PublishEntry, RollbackDetail
from tx.calls import (
    Abort,
    Answer,
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
from tx.durable_state import DurableState
from tx.log_records import InvalidReason
from tx.messaging_interface import MessageRows
from tx.outcomes import OpenTransaction, Outcome
from tx.rows_of_ended_transactions import Rollback
from tx.settings import TransactionSettings
from tx.state_machine import Machine, Rows

log = logging.getLogger(__name__)

_IS_ANSWERED, _ENTRIES = attrgetter("is_answered"), attrgetter("entries")
EXPIRED_SHOWN_MAX = 5  # transactions that one line names


class MachineRunner:
    """Runs the machine. Lives on one event loop.

    `take` takes calls that arrived together; the coroutines are for callers that have one. Each
    raises TransactionsUnavailableError while the service is down or stopped, and if it takes longer
    than `tx.ending_timeout`; the work continues then.
    """

    def __init__(
        self,
        durable: DurableState,
        machine: Machine,
        rows: MessageRows,
        settings: TransactionSettings,
        *,
        spawn: Spawn,
    ) -> None:
        self._durable = durable
        self._machine = machine
        self._rows = rows
        self._spawn = spawn
        self._patience = SharedTimeout(settings.ending_timeout_s / 2, too_late=TimeoutError)

    def take(self, calls: Sequence[Call], *, are_limited: bool = True) -> None:
        """Decide these calls, which arrived together. Each is answered, within `tx.ending_timeout`
        if they are limited."""
        self._machine.take(calls)
        if are_limited:
            self._durable.limit(_Together(calls))
        self.act()

    def go_on(self) -> None:
        """Decide again what was parked and can go on."""
        self._machine.go_on()
        self.act()

    def expire(self) -> None:
        """End what is past its time. Waits for no disk."""
        self._machine.expire()
        self.act()

    def act(self) -> None:
        """Do what the machine asks for. Call it after each event."""
        effects = self._machine.take_effects()
        if effects.rows:
            self._write_rows(effects.rows)
        for call in effects.checks:
            _begin(self._check(call))
        for call in effects.impatient:
            self._patience.watch(_Patience(call, self._waited_enough))
        for aside in effects.asides:
            self._spawn(self._set_aside(*aside))
        for rollback in effects.rollbacks:
            self._spawn(self._roll_back(rollback))
        for reason, pointers in effects.expired.items():
            _log_expired(reason, pointers)
        for bug in effects.bugs:
            log.error("the caller has given up, and an error was raised", exc_info=bug)

    def _write_rows(self, commits: Sequence[Commit]) -> None:
        recovery_count = self._durable.recovery_count
        self._rows.publish_final(
            list(map(_ENTRIES, commits)),
            partial(self._machine.rows_built, commits, recovery_count=recovery_count),
            partial(self._rows_written, commits, recovery_count),
        )

    def _rows_written(
        self, commits: Sequence[Commit], recovery_count: int, results: Sequence[Rows] | Exception
    ) -> None:
        if isinstance(results, Exception):  # whatever it was, the rows must be rolled back
            results = [results] * len(commits)
        self._machine.rows_written(commits, results, recovery_count=recovery_count)
        self.act()

    async def _check(self, call: Commit) -> None:
        failure = None
        try:
            await self._rows.check_entries(call.entries)
        except Exception as error:  # noqa: BLE001 - the caller gets it
            failure = error
        self._machine.checked(call, failure)
        self.act()

    async def _set_aside(self, call: SetAside, pointers: Collection[int]) -> None:
        is_done = False
        try:
            await self._rows.set_aside(pointers)
            is_done = True
        except TuffError as error:
            log.info("messages of %d are not set aside yet: %s", call.pointer, error)
        self._machine.set_aside(call, is_done=is_done)
        self.act()

    async def _roll_back(self, rollback: Rollback) -> None:
        transaction_id, pointers = rollback
        is_done = False
        try:
            await self._rows.roll_back(pointers)
            is_done = True
        except TuffError as error:
            # The message store tries again, from its index.
            log.warning(
                "rows of transaction %d are not rolled back yet: %s",
                transaction_id,
                error,
                extra=event("rows_not_marked", transaction=transaction_id),
            )
        self._machine.rolled_back(transaction_id, is_done=is_done)
        self.act()

    def _waited_enough(self, call: Commit) -> None:
        self._machine.waited_enough(call)
        self.act()

    # For callers with one call.

    async def start(self, request: StartRequest) -> OpenTransaction:
        """Start a transaction that reads what has durably ended, or return the one in progress that
        the same request has started. Waits for the disk only if no pointer is reserved.

        Raises:
            StartWithdrawnError: the client has given the request up.
            QuotaExceededError: the caller has too many open.
            InvalidTimeoutError: not above 0, above the maximum, or given for a long one; or so of
                the lease, which only a long one takes.
        """
        return _opened(await self._result(lambda answer: Start(answer, request)))

    async def withdraw(self, request_id: str) -> Outcome | None:
        """Let a start with this request id have no effect, whether it came or is still to come. The
        outcome of the transaction in progress that it has started, which is aborted; None without
        one.

        Raises: as `abort`.
        """
        opened = self._machine.withdraw(request_id)
        return None if opened is None else await self.abort(opened.transaction_id)

    async def checkpoint(self, pointer: int) -> OpenTransaction:
        """Give the transaction a new write pointer, durably."""
        return _opened(await self._result(lambda answer: Checkpoint(answer, pointer)))

    async def join(self, pointer: int) -> OpenTransaction:
        """Let another store take part in the transaction, durably, before it writes. A repetition
        changes nothing."""
        return _opened(await self._result(lambda answer: Join(answer, pointer)))

    async def can_commit(self, pointer: int, changes: Collection[bytes]) -> None:
        """Check these changes together with those named before, and remember them. Waits for the
        disk only if changes were named before.

        Raises:
            TransactionConflictError: a transaction that this one can't see committed one of them.
            ChangeSetTooLargeError, TransactionNotInProgressError (its kinds).
        """
        await self._result(lambda answer: CanCommit(answer, pointer, frozenset(changes)))

    async def open_now(self, pointer: int) -> OpenTransaction:
        """The transaction, once no end of it is under way: in progress, within its time, and not
        refused.

        Raises:
            TransactionError (its kinds): it has durably ended, or was durably refused.
        """
        return _opened(await self._result(lambda answer: Use(answer, pointer)))

    async def renew(self, pointer: int) -> OpenTransaction:
        """Let the transaction's lease begin anew. Waits for no disk.

        Raises:
            BadRequestError: it has no lease.
            TransactionNotInProgressError (its kinds).
        """
        return _opened(await self._result(lambda answer: Renew(answer, pointer)))

    async def commit(
        self,
        pointer: int,
        *,
        changes: Collection[bytes] | None = None,
        publish: Sequence[PublishEntry] = (),
        read_only: bool = False,
        request_id: str | None = None,
        is_limited: bool = True,
    ) -> Outcome:
        """Commit, durably, and publish as a part of it (protocol §5.2). A repeated commit returns
        the first outcome. `changes` None: those of the can-commits before. Without a limit it waits
        for longer than `tx.ending_timeout`.

        Raises:
            TransactionConflictError, ChangeSetTooLargeError, TransactionNotInProgressError (its
            kinds), what `MessageRows.check_entries` raises, BadRequestError: nothing was written.
            StorageUnavailableError: rows could not be written, and the transaction is invalid.
        """
        leaves_changes = changes is None and not read_only
        named = None if leaves_changes else frozenset(changes or ())

        def call(answer: Answer) -> Commit:
            return Commit(
                answer, pointer, named, publish, is_read_only=read_only, request_id=request_id
            )

        await self._result(call, is_limited=is_limited)
        return self._outcome(pointer)

    async def run(
        self, publish: Sequence[PublishEntry], *, client: str, request_id: str | None
    ) -> Sequence[RollbackDetail]:
        """Start, publish and commit: what was published. If a transaction with this request id has
        committed, that is returned instead. A transaction that fails is aborted.

        Raises: as `start` and `commit`.
        """
        self._durable.require_running()
        start = StartRequest(client=client, is_messages_only=True)
        published = await self._result(lambda answer: Run(answer, publish, start, request_id))
        assert isinstance(published, tuple)
        return published

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
        named = None if changes is None else frozenset(changes)
        return _opened(
            await self._result(
                lambda answer: Commit(answer, pointer, named, publish, database=database)
            )
        )

    async def commit_prepared(self, pointer: int) -> Outcome:
        """Commit a prepared transaction, durably: its database has committed. A repetition returns
        the first outcome.

        Raises:
            TransactionNotPreparedError: it is in progress, and was not prepared.
            TransactionNotInProgressError (its kinds): it was aborted, or became invalid.
        """
        await self._result(lambda answer: CommitPrepared(answer, pointer))
        return self._outcome(pointer)

    async def abort_prepared(self, pointer: int) -> Outcome:
        """Abort a transaction that may be prepared: its database has not committed, and never will.

        Raises: as `abort`, less that of a prepared one.
        """
        return _ended(
            await self._result(lambda answer: Abort(answer, pointer, may_be_prepared=True))
        )

    async def abort(self, pointer: int, *, is_limited: bool = True) -> Outcome:
        """End without committing; rows that were published are rolled back before this returns. The
        outcome is aborted, or invalid (protocol §6).

        Raises:
            TransactionCommittedError, TransactionPreparedError, TransactionUnknownError.
        """
        work = self._result(lambda answer: Abort(answer, pointer), is_limited=is_limited)
        return _ended(await work)

    async def invalidate(self, pointer: int) -> Outcome:
        """End as invalid, durably; its rows are rolled back in the background.

        Raises:
            TransactionCommittedError, TransactionAbortedError, TransactionPreparedError,
            TransactionUnknownError.
        """
        return _ended(await self._result(lambda answer: Invalidate(answer, pointer)))

    async def outcome(self, pointer: int) -> OpenTransaction | Outcome:
        """The transaction, or how it ended. That it ended, or is prepared, is only reported once it
        is durable.

        Raises:
            TransactionUnknownError: it never was, or ended too long ago.
        """
        found = self._durable.state.find(pointer)
        if isinstance(found, Outcome):
            if not self._durable.state.is_durable(found.lsn):
                await self._durable.synced_in_time(found.lsn)
        elif found.prepared is not None:
            await self._durable.synced_in_time(found.prepared.lsn)
        return found

    def topics(self, transaction: OpenTransaction | Outcome) -> list[str]:
        """`ns:topic` of each topic that the transaction published to or stored for, sorted."""
        return self._machine.topics(transaction)

    async def _result(self, make: Callable[[Answer], Call], *, is_limited: bool = True) -> object:
        future: asyncio.Future[object] = asyncio.get_running_loop().create_future()
        self.take([make(partial(settle, future))], are_limited=is_limited)
        return await future

    def _outcome(self, pointer: int) -> Outcome:
        return _ended(self._durable.decided.find(pointer))


class _Together:
    """What limits the time of calls that arrived together."""

    __slots__ = ("_calls",)

    def __init__(self, calls: Sequence[Call]) -> None:
        self._calls = calls

    def done(self) -> bool:
        # The last one is looked at first: it is answered with the others, or after them.
        calls = self._calls
        return not calls or (calls[-1].is_answered and all(map(_IS_ANSWERED, calls)))

    def set_exception(self, error: Exception) -> None:
        for call in self._calls:
            call.finish(error)


class _Patience:
    """What limits the wait of a commit for a prepared transaction."""

    def __init__(self, call: Commit, waited_enough: Callable[[Commit], None]) -> None:
        self._call = call
        self._waited_enough = waited_enough
        self._is_over = False

    def done(self) -> bool:
        return self._is_over or self._call.is_decided

    def set_exception(self, _error: Exception) -> None:
        self._is_over = True
        self._waited_enough(self._call)


def _begin(work: Coroutine[Any, Any, None]) -> None:
    FutureTask(work, refusals=TuffError).go_on()


def _opened(result: object) -> OpenTransaction:
    assert isinstance(result, OpenTransaction)
    return result


def _ended(result: object) -> Outcome:
    assert isinstance(result, Outcome)
    return result


def _log_expired(reason: InvalidReason, pointers: Sequence[int]) -> None:
    """One line for all that expire together, however many they are."""
    level = logging.WARNING if reason is InvalidReason.BLOCKED_READERS else logging.INFO
    shown = ", ".join(map(str, pointers[:EXPIRED_SHOWN_MAX]))
    more = ", and more" if len(pointers) > EXPIRED_SHOWN_MAX else ""
    extra = event("transactions_expired", reason=reason.value, count=len(pointers))
    log.log(level, "transactions became invalid (%s): %s%s", reason.value, shown, more, extra=extra)
