"""The transaction state: the decided state, and the durable view, from which read snapshots are
taken. It lags behind the decided state (design §4, Two levels).

A start, a checkpoint and a read-only commit change the view at once: they exclude pointers, or have
no writes that a reader could see. An edit that makes writes visible, or stops excluding them,
changes it when the edit is synced, so that no reader sees what a crash would undo.

`apply` makes every change that was decided, in the live service as in a replay, and never refuses
an edit that a decision produced (design §4). No clock, no I/O, no event loop.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import chain
from typing import Any

from tuff.protocol.errors import TransactionUnknownError
from tuff.protocol.pointer_list import PointerList
from tuff.protocol.requests import RollbackDetail
from tuff.protocol.transaction import (
    NO_SHORT_IN_PROGRESS,
    POINTERS_PER_MS,
    Transaction,
    TransactionType,
)
from tuff.protocol.values import value
from tx.conflicts import (
    CommittedChanges,
    Committers,
    PreparedTransactions,
    in_order_of_preparation,
)
from tx.log_records import (
    Aborted,
    BlockKept,
    BlockReserved,
    BlockReturned,
    Checkpointed,
    Committed,
    Committing,
    Confirmed,
    Edit,
    EpochBegun,
    InDoubt,
    Invalidated,
    InvalidReason,
    PointerRange,
    Prepared,
    Refused,
    Restarted,
    SinkForgotten,
    Started,
    StoreJoined,
    Truncated,
)
from tx.outcomes import (
    EndedState,
    OpenTransaction,
    Outcome,
    Outcomes,
    PackedOutcomes,
    Preparation,
    lost_outcome,
)
from tx.transaction_principals import TransactionPrincipals

FENCED_COUNT_MAX = 16  # runs of a sink that are remembered; a zombie is rarely older than one run
SPAN_MS = 256  # deadlines of one span are kept together; a tick comes about that often
# The transaction id of a reader without a transaction. No row has the pointer 0: it owns no row.
READER_POINTER = 0
ONE_BY_ONE_COUNT_MAX = 16  # pointers; more are merged at once, since each addition copies a chunk


@value()
class ViewChange:
    """The change of the view by an edit, made when the edit is durable. `state` says how
    `transaction_id` ended; None for an edit that ends no transaction."""

    transaction_id: int
    state: EndedState | None
    ended: tuple[int, ...] = ()
    invalidated: tuple[int, ...] = ()
    cleared: tuple[int, ...] = ()
    read_pointer: int = 0


@value()
class View:
    """One version of the view. Versions share the parts of their lists that are equal."""

    read_pointer: int
    in_progress: PointerList
    short_in_progress: PointerList
    invalid: PointerList

    def with_started(self, pointer: int, *, is_short: bool) -> "View":
        running = self.in_progress.with_added(pointer)
        shorts = self.short_in_progress
        if is_short:
            # As long as there are no long ones, the two are one list.
            shorts = running if shorts is self.in_progress else shorts.with_added(pointer)
        return View(self.read_pointer, running, shorts, self.invalid)

    def after(self, changes: Sequence[ViewChange]) -> "View":
        """The view with all of these changes."""
        read_pointer, invalid = self.read_pointer, self.invalid
        ended: list[int] = []
        for change in changes:
            read_pointer = max(read_pointer, change.read_pointer)
            ended += change.ended
            if change.cleared:
                invalid = invalid.without(change.cleared)
            if change.invalidated:
                invalid = with_all(invalid, change.invalidated)
        running = self.in_progress.without(ended)
        shorts = self.short_in_progress
        shorts = running if shorts is self.in_progress else shorts.without(ended)
        if len(shorts) == len(running):
            shorts = running  # the last long one has ended
        return View(read_pointer, running, shorts, invalid)

    def transaction(self, pointer: int, kind: TransactionType) -> Transaction:
        """A transaction that starts now, in this snapshot."""
        shorts = self.short_in_progress
        return Transaction(
            transaction_id=pointer,
            read_pointer=self.read_pointer,
            write_pointer=pointer,
            invalids=self.invalid,
            in_progress=self.in_progress,
            first_short_in_progress=shorts[0] if shorts else NO_SHORT_IN_PROGRESS,
            type=kind,
        )

    def reader(self) -> Transaction:
        """The snapshot of a reader that is in no transaction."""
        return self.transaction(READER_POINTER, TransactionType.SHORT)

    @property
    def visibility_upper_bound(self) -> int:
        """The highest pointer such that it, and all below it, have ended."""
        return self.in_progress[0] - 1 if self.in_progress else self.read_pointer


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
class StateImage:
    """The whole state at one LSN, as a snapshot file holds it.

    `pending` are the changes that were decided and not yet in the view, with their LSNs.
    `prunable` are the ids of invalid transactions in which only messages took part.
    """

    lsn: int
    seen: int
    last_pointer: int
    highest_reserved: int
    blocks: tuple[PointerRange, ...]
    is_clean: bool
    view: View
    pending: tuple[tuple[int, ViewChange], ...]
    open: tuple[OpenTransaction, ...]
    outcomes: PackedOutcomes
    commits: tuple[CommittedChanges, ...]
    sinks: tuple[Sink, ...] = ()
    principals: tuple[tuple[int, str], ...] = ()  # transaction ids, and full names of principals
    prunable: tuple[int, ...] = ()


def with_all(pointers: PointerList, more: Iterable[int]) -> PointerList:
    """The list and all these pointers."""
    added = tuple(more)
    if len(added) > ONE_BY_ONE_COUNT_MAX:
        return PointerList(chain(pointers, added))
    for pointer in added:
        pointers = pointers.with_added(pointer)
    return pointers


def fresh_image(*, now_ms: int) -> StateImage:
    """The state of a first start: every pointer from now on is above the read pointer."""
    pointer = now_ms * POINTERS_PER_MS
    nothing = PointerList()
    return StateImage(
        lsn=0,
        seen=0,
        last_pointer=pointer,
        highest_reserved=pointer,
        blocks=(),
        is_clean=True,
        view=View(pointer, nothing, nothing, nothing),
        pending=(),
        open=(),
        outcomes=PackedOutcomes(()),
        commits=(),
    )


class TransactionState:
    """Belongs to one event loop, or during a replay to one thread; it has no lock."""

    def __init__(self, image: StateImage) -> None:
        self.lsn = image.lsn
        self.seen = image.seen
        self._confirming: set[int] = set()  # LSNs above `seen` of commits that are durable
        self.last_pointer = image.last_pointer
        self.highest_reserved = image.highest_reserved
        self._blocks = image.blocks
        self.is_clean = image.is_clean
        self.view = image.view
        self.open = {opened.transaction_id: opened for opened in image.open}
        self.principals = TransactionPrincipals(image.principals, self.open)
        # By id, in the order of their ends.
        self.prunable: dict[int, None] = dict.fromkeys(image.prunable)
        self._by_request = {
            opened.request_id: opened.transaction_id
            for opened in image.open
            if opened.request_id is not None
        }
        self.outcomes = Outcomes.of(image.outcomes)
        self.committers = Committers(image.commits)
        self.sinks = SinkTable(image.sinks)
        self._pending = deque(image.pending)
        self.invalid = _decided_invalid(image)
        self._id_by_pointer = {
            pointer: opened.transaction_id for opened in image.open for pointer in opened.pointers
        }
        self._seen_by_short = {
            opened.transaction_id: opened.seen
            for opened in image.open
            if opened.is_short and opened.prepared is None
        }
        self.prepared = PreparedTransactions()
        self._deadlines = Deadlines()
        for opened in image.open:
            if opened.prepared is None:
                self._deadlines.set(opened.transaction_id, opened.expires_at_ms)
        for opened in in_order_of_preparation(image.open):
            self.prepared.add(opened)
        self._appliers = self._all_appliers()

    def _all_appliers(self) -> Mapping[type[Edit], Callable[[Any], None]]:
        """How each kind of edit changes the state."""
        return {
            Started: self._start,
            EpochBegun: self._start,
            Committed: self._commit,
            InDoubt: self._note,
            Confirmed: self._confirm,
            Aborted: self._abort,
            Invalidated: self._invalidate,
            Checkpointed: self._checkpoint,
            Committing: self._note,
            Refused: self._note,
            Prepared: self._note,
            StoreJoined: self._note,
            BlockReserved: self._reserve,
            BlockKept: self._reserve,
            BlockReturned: self._reserve,
            Truncated: self._drop,
            SinkForgotten: self._drop,
            Restarted: self._restart,
        }

    def image(self) -> StateImage:
        """The state as it is; later edits don't change the image."""
        return StateImage(
            lsn=self.lsn,
            seen=self.seen,
            last_pointer=self.last_pointer,
            highest_reserved=self.highest_reserved,
            blocks=self.blocks,
            is_clean=self.is_clean,
            view=self.view,
            pending=tuple(self._pending),
            open=tuple(self.open.values()),
            outcomes=self.outcomes.image(),
            commits=self.committers.in_order(),
            sinks=tuple(self.sinks),
            principals=self.principals.image(),
            prunable=tuple(self.prunable),
        )

    def find(self, pointer: int) -> OpenTransaction | Outcome:
        """The transaction of an id or a checkpoint pointer, open or ended.

        Raises:
            TransactionUnknownError: there never was one, or it ended too long ago.
        """
        if (transaction_id := self._id_by_pointer.get(pointer)) is not None:
            return self.open[transaction_id]
        if (outcome := self.outcomes.find(pointer)) is not None:
            return outcome
        if pointer in self.invalid:
            return lost_outcome(pointer)
        raise TransactionUnknownError(
            f"no transaction {pointer} is remembered: it never started, or ended too long ago"
        )

    def maybe_find(self, pointer: int) -> OpenTransaction | Outcome | None:
        """What `find` returns; None where nothing is remembered."""
        try:
            return self.find(pointer)
        except TransactionUnknownError:
            return None

    def invalid_reason(self, pointer: int) -> InvalidReason:
        """Why a pointer is on the invalid list."""
        return self.outcomes.reason(pointer) or InvalidReason.LOST_IN_CRASH

    def opened(self, pointer: int) -> OpenTransaction | None:
        """The transaction of an id or a checkpoint pointer while it is open, else None."""
        transaction_id = self._id_by_pointer.get(pointer)
        return None if transaction_id is None else self.open[transaction_id]

    def of_request(self, request_id: str) -> OpenTransaction | None:
        """The open transaction whose start had this request id; None without one."""
        transaction_id = self._by_request.get(request_id)
        return None if transaction_id is None else self.open[transaction_id]

    def expired(self, now_ms: int) -> list[OpenTransaction]:
        """The open transactions whose time is over."""
        return [self.open[transaction_id] for transaction_id in self._deadlines.passed(now_ms)]

    @property
    def blocks(self) -> tuple[PointerRange, ...]:
        """The ranges of pointers that are reserved and not handed out yet, ascending."""
        lowest = self.last_pointer + 1
        return tuple(
            PointerRange(max(block.start, lowest), block.stop)
            for block in self._blocks
            if block.stop > lowest
        )

    @property
    def next_block_start(self) -> int:
        """The lowest pointer that is in no block and was not handed out."""
        return max([self.last_pointer + 1, *(block.stop for block in self._blocks)])

    def apply(self, lsn: int, edit: Edit) -> None:
        """Change the state by the next edit of the log."""
        assert lsn == self.lsn + 1, f"edit {lsn} after edit {self.lsn}"
        self.lsn = lsn
        self.is_clean = isinstance(edit, BlockReturned)
        self._appliers[type(edit)](edit)

    def advance_view(self, lsn: int) -> list[ViewChange]:
        """Make the changes of the view by edits up to this LSN, which are durable. Returns them."""
        reached = []
        while self._pending and self._pending[0][0] <= lsn:
            reached.append(self._pending.popleft()[1])
        if reached:
            self.view = self.view.after(reached)
        self.seen = max(self.seen, lsn)
        if self._confirming:
            self._confirming = {each for each in self._confirming if each > self.seen}
        self._forget_commits()
        return reached

    @property
    def last_pending_lsn(self) -> int:
        """The LSN of the newest end or prepare that may not be durable yet; 0: there is none."""
        ended = self._pending[-1][0] if self._pending else 0
        return max(ended, self.prepared.last_lsn)

    def _start(self, edit: Started | EpochBegun) -> None:
        # The view has exactly the ends that were durable at the start: a commit that was pending
        # then must stay invisible to this transaction, and conflict with it, after a replay too.
        if edit.seen > self.seen:
            self.advance_view(edit.seen)
        is_short = edit.type is TransactionType.SHORT
        self.open[edit.pointer] = OpenTransaction(
            transaction=self.view.transaction(edit.pointer, edit.type),
            seen=edit.seen,
            client=edit.client,
            timeout_ms=edit.timeout_ms,
            started_at_ms=edit.at_ms,
            expires_at_ms=edit.expires_at_ms,
            lease_ms=edit.lease_ms,
            request_id=edit.request_id,
            is_messages_only=edit.is_messages_only,
        )
        if edit.request_id is not None:
            self._by_request[edit.request_id] = edit.pointer
        if edit.principal is not None:
            self.principals.start(edit.pointer, edit.principal)
        self._id_by_pointer[edit.pointer] = edit.pointer
        self._deadlines.set(edit.pointer, edit.expires_at_ms)
        if isinstance(edit, EpochBegun):
            self.sinks.begin(self.lsn, edit)
        if is_short:
            self._seen_by_short[edit.pointer] = edit.seen
        self.last_pointer = edit.pointer
        self.view = self.view.with_started(edit.pointer, is_short=is_short)

    def _checkpoint(self, edit: Checkpointed) -> None:
        opened = self.open[edit.transaction_id]
        transaction = opened.transaction.checkpointed(edit.pointer)
        self.open[edit.transaction_id] = replace(opened, transaction=transaction)
        self._id_by_pointer[edit.pointer] = edit.transaction_id
        # As in Tephra, a checkpoint pointer counts as short, also of a long transaction.
        self.last_pointer = edit.pointer
        self.view = self.view.with_started(edit.pointer, is_short=True)

    def _note(self, edit: Committing | Refused | Prepared | StoreJoined | InDoubt) -> None:
        opened = self.open[edit.transaction_id]
        if isinstance(edit, Refused):
            self.open[edit.transaction_id] = replace(opened, conflict=edit.conflict)
        elif isinstance(edit, StoreJoined):
            self.open[edit.transaction_id] = replace(opened, is_messages_only=False)
        elif isinstance(edit, InDoubt):
            self.open[edit.transaction_id] = replace(opened, doubt=edit)
        elif isinstance(edit, Prepared):
            self._prepare(edit, opened)
        else:
            changes = edit.changes | (opened.changes or frozenset())
            self.open[edit.transaction_id] = replace(opened, changes=changes)

    def _prepare(self, edit: Prepared, opened: OpenTransaction) -> None:
        transaction_id = edit.transaction_id
        # It checks nothing any more, so it needs no commits to be remembered.
        self._seen_by_short.pop(transaction_id, None)
        self._deadlines.discard(transaction_id, opened.expires_at_ms)
        self.open[transaction_id] = prepared = replace(
            opened,
            changes=edit.changes | (opened.changes or frozenset()),
            prepared=Preparation(self.lsn, edit.at_ms, edit.database, edit.published),
        )
        self.prepared.add(prepared)

    def is_durable(self, lsn: int) -> bool:
        """Whether no crash can undo the end of a transaction by this edit. A confirmed commit is
        durable by the edit before, which said that it was in doubt."""
        return lsn <= self.seen or lsn in self._confirming

    def _confirm(self, edit: Confirmed) -> None:
        doubt = self.open[edit.transaction_id].doubt
        assert doubt is not None, f"{edit} is of a transaction that is not in doubt"
        self._confirming.add(self.lsn)
        self._commit(doubt)

    def _commit(self, edit: Committed | InDoubt) -> None:
        opened = self._close(edit, EndedState.COMMITTED, None, edit.published, edit.request_id)
        pointers = opened.pointers
        changes = edit.changes | opened.changes if opened.changes else edit.changes
        if changes:
            self.committers.add(
                CommittedChanges(self.lsn, opened.transaction_id, opened.client, changes)
            )
        change = ViewChange(
            edit.transaction_id, EndedState.COMMITTED, pointers, read_pointer=pointers[-1]
        )
        # A confirmed commit is durable by the edit that said so in doubt, and by its rows.
        if isinstance(edit, InDoubt) or edit.is_read_only:
            self.view = self.view.after([change])
            self._forget_commits()
        else:
            self._pending.append((self.lsn, change))

    def _abort(self, edit: Aborted) -> None:
        if edit.transaction_id not in self.open:
            self._abort_invalid(edit)
            return
        pointers = self._close(edit, EndedState.ABORTED, None).pointers
        change = ViewChange(
            edit.transaction_id, EndedState.ABORTED, pointers, read_pointer=pointers[-1]
        )
        self._pending.append((self.lsn, change))

    def _invalidate(self, edit: Invalidated) -> None:
        opened = self._close(edit, EndedState.INVALID, edit.reason)
        pointers = opened.pointers
        self.invalid = with_all(self.invalid, pointers)
        if opened.is_messages_only:
            self.prunable[edit.transaction_id] = None
        # An invalid long transaction was not undone, so it does not move the read pointer.
        read_pointer = pointers[-1] if opened.is_short else 0
        change = ViewChange(
            edit.transaction_id, EndedState.INVALID, pointers, pointers, read_pointer=read_pointer
        )
        self._pending.append((self.lsn, change))

    def _close(
        self,
        edit: Committed | InDoubt | Aborted | Invalidated,
        state: EndedState,
        reason: InvalidReason | None,
        published: tuple[RollbackDetail, ...] = (),
        request_id: str | None = None,
    ) -> OpenTransaction:
        """The transaction ends: it is open no more, and has an outcome."""
        transaction_id = edit.transaction_id
        opened = self.open.pop(transaction_id)
        transaction = opened.transaction
        del self._id_by_pointer[transaction_id]
        for pointer in transaction.checkpoint_write_pointers:
            del self._id_by_pointer[pointer]
        if opened.request_id is not None:
            self._by_request.pop(opened.request_id, None)
        self._seen_by_short.pop(transaction_id, None)
        if opened.prepared is None:
            self._deadlines.discard(transaction_id, opened.expires_at_ms)
        else:
            self.prepared.discard(opened)
        if self.principals:
            self.principals.end(transaction_id, is_invalid=state is EndedState.INVALID)
        outcome = Outcome(
            transaction_id, state, reason, transaction.type, opened.client, opened.started_at_ms,
            opened.expires_at_ms, edit.at_ms, transaction.checkpoint_write_pointers, published,
            edit.topics, request_id, self.lsn,
        )  # fmt: skip
        self.outcomes.put(outcome)
        if self.sinks:
            self.sinks.end(outcome)
        return opened

    def _abort_invalid(self, edit: Aborted) -> None:
        outcome = self.outcomes.find(edit.transaction_id)
        assert outcome is not None, f"{edit} is of a transaction that is not recorded"
        aborted = replace(
            outcome,
            state=EndedState.ABORTED,
            reason=None,
            ended_at_ms=edit.at_ms,
            topics=edit.topics,
            lsn=self.lsn,
        )
        self.outcomes.put(aborted)
        self.invalid = self.invalid.without(outcome.pointers)
        self.principals.abort_invalid(outcome.transaction_id)
        self.prunable.pop(outcome.transaction_id, None)
        change = ViewChange(outcome.transaction_id, EndedState.ABORTED, cleared=outcome.pointers)
        self._pending.append((self.lsn, change))

    def _reserve(self, edit: BlockReserved | BlockKept | BlockReturned) -> None:
        match edit:
            case BlockReserved():
                self._blocks = (*self.blocks, edit.block)
                self.highest_reserved = max(self.highest_reserved, edit.block.stop - 1)
            case BlockKept():
                shared = (block.shared(edit.block) for block in self.blocks)
                self._blocks = tuple(block for block in shared if block.count)
            case BlockReturned():
                self._blocks = ()

    def _drop(self, edit: Truncated | SinkForgotten) -> None:
        if isinstance(edit, SinkForgotten):
            self.sinks.forget(self.lsn, edit.sink)
            return
        self.invalid = self.invalid.without(edit.pointers)
        self.principals.forget(edit.pointers)
        for pointer in edit.pointers:
            self.prunable.pop(pointer, None)
        self._pending.append((self.lsn, ViewChange(0, None, cleared=edit.pointers)))

    def _restart(self, edit: Restarted) -> None:
        self.advance_view(self.lsn - 1)
        lost = tuple(pointer for r in edit.lost for pointer in range(r.start, r.stop))
        self._blocks = ()
        if lost:
            self.last_pointer = max(self.last_pointer, lost[-1])
            self.invalid = with_all(self.invalid, lost)
            self._pending.append((self.lsn, ViewChange(0, None, invalidated=lost)))
        self._deadlines = Deadlines()
        for opened in self.open.values():
            if opened.prepared is not None:
                continue
            # A clock that was set back must not keep a transaction open beyond its time-out.
            expires_at_ms = min(opened.expires_at_ms, edit.at_ms + opened.timeout_ms)
            self._deadlines.set(opened.transaction_id, expires_at_ms)
            self.open[opened.transaction_id] = replace(
                opened,
                expires_at_ms=expires_at_ms,
                survived_crash=opened.survived_crash or edit.is_after_crash,
            )

    def _forget_commits(self) -> None:
        # Starts are in the order of `seen`, so the oldest open one saw the least.
        self.committers.forget(next(iter(self._seen_by_short.values()), self.seen))


class SinkTable:
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


class Deadlines:
    """The deadline of each transaction. No clock, no event loop.

    A heap of single deadlines would keep those of transactions that ended in time; spans drop
    them at once.
    """

    def __init__(self) -> None:
        # By the number of the span; None where all have ended, until the span has passed.
        self._spans: dict[int, dict[int, int] | None] = {}
        self._order: list[int] = []  # a heap of these numbers

    def set(self, transaction_id: int, at_ms: int) -> None:
        """Add the deadline of a transaction that has none here."""
        number = at_ms // SPAN_MS
        span = self._spans.get(number)
        if span is None:
            if number not in self._spans:
                heappush(self._order, number)
            span = self._spans[number] = {}
        span[transaction_id] = at_ms

    def discard(self, transaction_id: int, at_ms: int) -> None:
        """Drop its deadline, if it has this one."""
        number = at_ms // SPAN_MS
        span = self._spans.get(number)
        if span is not None:
            span.pop(transaction_id, None)
            if not span:
                self._spans[number] = None

    def passed(self, now_ms: int) -> list[int]:
        """Every transaction whose deadline is not above this time, roughly in order; they stay
        until they are discarded."""
        begun: list[tuple[int, dict[int, int]]] = []
        while self._order and self._order[0] * SPAN_MS <= now_ms:
            number = heappop(self._order)
            span = self._spans[number]
            if span is None:
                del self._spans[number]
            else:
                begun.append((number, span))
        for number, _ in begun:
            heappush(self._order, number)
        return [each for _, span in begun for each, at_ms in span.items() if at_ms <= now_ms]


def _decided_invalid(image: StateImage) -> PointerList:
    invalid = image.view.invalid
    for _, change in image.pending:
        invalid = with_all(invalid.without(change.cleared), change.invalidated)
    return invalid
