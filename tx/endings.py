"""Endings: how a transaction commits, aborts or becomes invalid (design §4, Endings).

At most one ending edit of a transaction is ever on its way to the disk: an ending takes its turn at
the transaction's gate. Only an invalidation doesn't wait for the gate; it waits for a commit whose
rows are being written, which has passed its check and holds a claim.
"""

from collections.abc import Coroutine, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn, TypeVar

from tuff.disk.steps import Patience, Promised
from tuff.protocol.errors import TransactionsUnavailableError, TuffError
from tuff.protocol.requests import PublishEntry, RollbackDetail
from tuff.protocol.values import value
from tx import decisions
from tx.claims import Claims
from tx.edits import (
    Aborted,
    Committed,
    Committing,
    Conflict,
    Invalidated,
    InvalidReason,
    Refused,
)
from tx.gates import Gates
from tx.ledger import Ledger
from tx.markings import Markings
from tx.records import EndedState, OpenTransaction, Outcome, conflict_error, ended_error
from tx.surroundings import Surroundings

T = TypeVar("T")


@value(kw_only=True)
class CommitRequest:
    """What a commit asks for. `changes` None: it leaves them to the can-commits before."""

    changes: frozenset[bytes] | None = None
    publish: Sequence[PublishEntry] = ()
    is_read_only: bool = False
    request_id: str | None = None

    @property
    def names_changes(self) -> bool:
        """Whether it says itself what changed, be it nothing."""
        return self.changes is not None or self.is_read_only


class Endings:
    """Ends transactions. Lives on one event loop, without locks; see `tx.gates` for turns."""

    def __init__(
        self,
        ledger: Ledger,
        gates: Gates,
        claims: Claims,
        markings: Markings,
        around: Surroundings,
    ) -> None:
        self._ledger = ledger
        self._gates = gates
        self._claims = claims
        self._markings = markings
        self._leases = around.leases
        self._rows = around.rows
        self._settings = around.settings
        self._now_ms = around.now_ms
        self._counters = around.counters
        self._patience = Patience(around.settings.ending_timeout_s, too_late=self._too_late)

    async def can_commit(self, pointer: int, changes: frozenset[bytes]) -> None:
        """See `TransactionManager.can_commit`."""
        opened = await self.open_now(pointer)
        self._ledger.require_room()
        edit = decisions.can_commit(
            self._ledger.state, opened, changes, settings=self._settings, now_ms=self._now_ms()
        )
        if isinstance(edit, Committing):
            lsn = self._ledger.record(edit)
            if opened.changes is not None and edit.changes:
                # Were it lost in a crash, and the first one not, nobody could tell that a commit
                # which leaves the changes to both skips the check of these.
                await self.durable_soon(lsn)
        else:
            # Recorded at once: until work that is handed over begins, an ending may come between,
            # and then the log held a refusal of what had ended, at which every recovery failed.
            self._record_refusal(edit)
            await self.bounded(self._raise_conflict(edit.transaction_id, edit.conflict))

    async def open_now(self, pointer: int) -> OpenTransaction:
        """The transaction, in progress, within its time, not refused, and with no ending under
        way. What it returns is of this moment: it holds until the caller waits for something.

        Raises:
            TransactionError (its kinds): it has ended, or was refused; durably so.
        """
        while True:
            opened = await self._require_open(pointer)
            await self._require_unrefused(opened)
            if not self._gates.has_ending(opened.transaction_id):
                return opened
            await self.bounded(self._gates.reopened(opened.transaction_id))

    async def commit(self, pointer: int, request: CommitRequest) -> Outcome:
        """See `TransactionManager.commit`."""
        transaction_id = self._ledger.state.find(pointer).transaction_id
        return await self.bounded(self.commit_unbounded(transaction_id, request))

    async def commit_unbounded(self, transaction_id: int, request: CommitRequest) -> Outcome:
        """A commit that waits for as long as it takes."""
        if not self._gates.close_now(transaction_id):
            await self._gates.close(transaction_id)
        try:
            found = self._ledger.state.find(transaction_id)
            if isinstance(found, Outcome):
                await self._ledger.durable(found.lsn)
                if found.state is EndedState.COMMITTED:
                    return found
                raise ended_error(found)
            return await self._commit(transaction_id, request)
        finally:
            self._gates.reopen(transaction_id)

    async def _commit(self, transaction_id: int, request: CommitRequest) -> Outcome:
        while True:
            opened = self._ready(transaction_id)
            if opened is None:
                opened = await self._require_open(transaction_id)
                await self._require_unrefused(opened)
            if decisions.loses_changes(opened, names_changes=request.names_changes):
                await self._fail_as(opened, InvalidReason.LOST_IN_CRASH)
            entries, changes = self._check(opened, request)
            holder = self._claims.holder_of(changes)
            if holder is None:
                break
            # Whether these changes are taken is decided when the other one's rows are written.
            await self._claims.released(holder)
        conflict = self._ledger.state.committers.conflict(opened.transaction, changes)
        if conflict is not None and opened.is_short:
            self._record_refusal(Refused(self._now_ms(), transaction_id, conflict))
            await self._raise_conflict(transaction_id, conflict)
        self._ledger.require_room()
        if entries:
            return await self._publish_and_commit(opened, changes, entries, request)
        lsn = self._record_commit(opened, changes, (), request)
        if request.is_read_only:
            self._markings.ended_unwritten(opened.pointers, partial(self._ledger.durable, lsn))
        else:
            await self._ledger.durable(lsn)
        return self._outcome(transaction_id)

    def _check(
        self, opened: OpenTransaction, request: CommitRequest
    ) -> tuple[Sequence[PublishEntry], frozenset[bytes]]:
        """The entries with their pointers, and all changes; raises what can be refused before a
        row is written, except for a conflict."""
        named = request.changes
        if request.is_read_only:
            decisions.check_read_only(
                opened,
                changes=named or frozenset(),
                publish=request.publish,
                is_carried=self._rows.is_carried,
            )
        entries = decisions.resolve_entries(opened, request.publish)
        changes = decisions.all_changes(opened, named or frozenset(), settings=self._settings)
        if entries:
            self._rows.check_entries(entries)
        return entries, changes

    async def _publish_and_commit(
        self,
        opened: OpenTransaction,
        changes: frozenset[bytes],
        entries: Sequence[PublishEntry],
        request: CommitRequest,
    ) -> Outcome:
        transaction_id, epoch = opened.transaction_id, self._ledger.epoch
        self._claims.claim(transaction_id, pointers=opened.pointers, changes=changes)
        try:
            written = await self._write_rows(transaction_id, entries)
            if self._ledger.epoch != epoch:
                # Recovery found a commit that was cut off, and has invalidated it.
                raise TransactionsUnavailableError(
                    f"the transaction log failed during the commit of {transaction_id}; ask how it "
                    "ended"
                )
            if isinstance(written, Exception):
                lsn = self._invalidate(opened, InvalidReason.INVALIDATED)
            else:
                lsn = self._record_commit(opened, changes, tuple(written), request)
        finally:
            self._claims.release(transaction_id)
        await self._ledger.durable(lsn)
        outcome = self._outcome(transaction_id)
        if isinstance(written, Exception):
            await self._markings.marked(outcome.transaction_id, outcome.pointers)
            raise written
        return outcome

    async def _write_rows(
        self, transaction_id: int, entries: Sequence[PublishEntry]
    ) -> list[RollbackDetail] | Exception:
        # Counted as a write, so that no marking runs before it is done, whatever happens to the
        # service meanwhile.
        self._gates.enter(transaction_id)
        try:
            return await self._rows.publish_final(entries)
        except Exception as error:  # noqa: BLE001 - whatever it was, the rows must be taken back
            return error
        finally:
            self._gates.leave(transaction_id)

    def _record_commit(
        self,
        opened: OpenTransaction,
        changes: frozenset[bytes],
        published: tuple[RollbackDetail, ...],
        request: CommitRequest,
    ) -> int:
        self._counters.commits += 1
        return self._record_ending(
            Committed(
                self._now_ms(),
                opened.transaction_id,
                changes - opened.changes if opened.changes else changes,
                request.is_read_only,
                published,
                tuple(self._rows.topics(opened.pointers)),
                request.request_id,
            )
        )

    async def abort(self, pointer: int) -> Outcome:
        """See `TransactionManager.abort`."""
        transaction_id = self._ledger.state.find(pointer).transaction_id
        return await self.bounded(self.abort_unbounded(transaction_id))

    async def abort_unbounded(self, transaction_id: int) -> Outcome:
        """An abort that waits for as long as it takes."""
        async with self._gates.ending(transaction_id):
            found = self._ledger.state.find(transaction_id)
            if isinstance(found, OpenTransaction):
                self._counters.note_abort(is_short=found.is_short)
                self._record_ending(
                    decisions.abort(
                        found,
                        is_carried=self._rows.is_carried,
                        topics=self._topics,
                        now_ms=self._now_ms(),
                    )
                )
            outcome = self._outcome(transaction_id)
            await self._ledger.durable(outcome.lsn)
            if outcome.state is EndedState.COMMITTED:
                raise ended_error(outcome)
            if outcome.state is EndedState.ABORTED:
                return outcome
            is_marked = await self._markings.marked(outcome.transaction_id, outcome.pointers)
            if not is_marked or not decisions.may_be_aborted(outcome):
                return outcome
            # Only now: a pointer off the invalid list hides nothing any more.
            lsn = self._ledger.record(
                Aborted(self._now_ms(), transaction_id, self._all_topics(outcome))
            )
            await self._ledger.durable(lsn)
            return self._outcome(transaction_id)

    async def invalidate(self, pointer: int, reason: InvalidReason) -> Outcome:
        """See `TransactionManager.invalidate`."""
        transaction_id = self._ledger.state.find(pointer).transaction_id
        return await self.bounded(self._invalidate_now(transaction_id, reason))

    async def _invalidate_now(self, transaction_id: int, reason: InvalidReason) -> Outcome:
        while self._claims.holds(transaction_id):
            await self._claims.released(transaction_id)
        found = self._ledger.state.find(transaction_id)
        if isinstance(found, OpenTransaction):
            self._invalidate(found, reason)
        outcome = self._outcome(transaction_id)
        await self._ledger.durable(outcome.lsn)
        if outcome.state is not EndedState.INVALID:
            raise ended_error(outcome)
        return outcome

    async def renew(self, pointer: int) -> OpenTransaction:
        """See `TransactionManager.renew`."""
        opened = await self.bounded(self._require_open(pointer))
        self._leases.renew(opened)
        return opened

    def expire(self) -> None:
        """Invalidate what has not ended in its time. A commit whose rows are being written has
        passed its check in time, and is looked at again once it is through."""
        state = self._ledger.state
        late = state.expired(self._now_ms())
        self._counters.timeouts += len(self._invalidate_soon(late, InvalidReason.TIMED_OUT))
        lapsed = self._leases.lapsed(state)
        self._counters.lapses += len(self._invalidate_soon(lapsed, InvalidReason.LEASE_EXPIRED))

    def release_readers(self, pointers: Iterable[int]) -> list[int]:
        """See `TransactionManager.release_readers`."""
        state = self._ledger.state
        owners = {opened.transaction_id for each in pointers if (opened := state.opened(each))}
        late = (state.open[each] for each in sorted(owners))
        return self._invalidate_soon(late, InvalidReason.BLOCKED_READERS)

    def _invalidate_soon(self, late: Iterable[OpenTransaction], reason: InvalidReason) -> list[int]:
        # One sync for all of them: ten thousand that are late together must not wait in a row.
        ended = [one for one in late if not self._claims.holds(one.transaction_id)]
        for opened in ended:
            self._ledger.want(self._invalidate(opened, reason))
        return [opened.transaction_id for opened in ended]

    async def bounded(self, work: Coroutine[Any, Any, T]) -> T:
        """Wait for this, but no longer than `tx.ending_timeout`; it goes on by itself.

        Raises:
            TransactionsUnavailableError: the time is over, and how it ends is not known yet.
        """
        promised = Promised(work, refusals=TuffError)
        promised.go_on()
        done = promised.done
        if not done.done():
            self._patience.watch(done)
        try:
            return await done
        finally:
            done.cancel()  # where the caller gave up

    def _too_late(self) -> TransactionsUnavailableError:
        return TransactionsUnavailableError(
            f"storage took more than {self._settings.ending_timeout_s:g} seconds; this is still "
            "under way, so ask later how the transaction ended"
        )

    async def durable_soon(self, lsn: int) -> None:
        """Wait until this edit is durable, for no longer than `tx.ending_timeout`. Raises: as
        `bounded`."""
        if lsn > self._ledger.state.seen:
            await self.bounded(self._ledger.durable(lsn))

    def _ready(self, pointer: int) -> OpenTransaction | None:
        """The transaction, if it may go on and nobody has to be waited for to say so."""
        found = self._ledger.state.find(pointer)
        if isinstance(found, Outcome) or found.conflict is not None:
            return None
        is_over = self._now_ms() >= found.expires_at_ms or self._leases.is_over(found)
        return None if is_over else found

    async def _require_open(self, pointer: int) -> OpenTransaction:
        found = self._ledger.state.find(pointer)
        if isinstance(found, Outcome):
            await self._ledger.durable(found.lsn)
            raise ended_error(found)
        # The tick may come late; no decision is made for a transaction whose time is over.
        is_late = self._now_ms() >= found.expires_at_ms
        if self._claims.holds(found.transaction_id):
            return found
        if is_late:
            self._counters.timeouts += 1
            await self._fail_as(found, InvalidReason.TIMED_OUT)
        if self._leases.is_over(found):
            self._counters.lapses += 1
            await self._fail_as(found, InvalidReason.LEASE_EXPIRED)
        return found

    async def _require_unrefused(self, opened: OpenTransaction) -> None:
        if opened.conflict is not None:
            await self._raise_conflict(opened.transaction_id, opened.conflict)

    def _record_refusal(self, edit: Refused) -> None:
        self._counters.conflicts += 1
        self._ledger.record(edit)

    async def _raise_conflict(self, transaction_id: int, conflict: Conflict) -> NoReturn:
        # A refusal speaks of somebody's commit, so that has to be durable first.
        await self._ledger.durable(conflict.committer_lsn)
        raise conflict_error(transaction_id, conflict)

    async def _fail_as(self, opened: OpenTransaction, reason: InvalidReason) -> NoReturn:
        lsn = self._invalidate(opened, reason)
        await self._ledger.durable(lsn)
        raise ended_error(self._outcome(opened.transaction_id))

    def _invalidate(self, opened: OpenTransaction, reason: InvalidReason) -> int:
        self._counters.invalidations += 1
        now_ms = self._now_ms()
        edit = decisions.invalidated(opened, reason, topics=self._topics, now_ms=now_ms)
        return self._record_ending(edit)

    def _record_ending(self, edit: Committed | Aborted | Invalidated) -> int:
        lsn = self._ledger.record(edit)
        self._leases.forget(edit.transaction_id)
        return lsn

    def _outcome(self, transaction_id: int) -> Outcome:
        # Whoever ended it before the service was stopped is told, and does not do it all again.
        found = self._ledger.decided.find(transaction_id)
        assert isinstance(found, Outcome), f"transaction {transaction_id} has not ended"
        return found

    def _topics(self, pointers: Iterable[int]) -> list[str]:
        return self._rows.topics(tuple(pointers))

    def _all_topics(self, outcome: Outcome) -> tuple[str, ...]:
        return tuple(sorted({*outcome.topics, *self._rows.topics(outcome.pointers)}))
