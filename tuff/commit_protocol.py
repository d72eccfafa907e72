"""The commit protocol over participants, as flows (design §7).

    start, start_tx of all; the work; tx_changes of all, can-commit, commit_tx of all in the order
    they joined; commit together with the messages; post_commit of all

After an error before the commit: rollback_tx of all; abort if every one succeeded, else invalidate.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Generic, NoReturn, Protocol, TypeVar

from tuff import read_calls, transaction_calls
from tuff.errors import ConnectionLostError, OutcomeUnknownError, WrongStateError
from tuff.flows_and_repeated_calls import (
    Backoff,
    Call,
    Flow,
    Retries,
    ask,
    attempt,
    hook,
    note,
    run_all,
    unless,
)
from tuff.participant import AsyncTransactionAware, checked_changes, checked_participant
from tuff.protocol.errors import (
    BadRequestError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionConflictError,
    TransactionInvalidatedError,
    TransactionTimedOutError,
    TuffError,
)
from tuff.protocol.ids import TopicLike
from tuff.protocol.json_bodies import shown
from tuff.protocol.requests import PublishEntry, RollbackDetail
from tuff.protocol.transaction import Transaction, TransactionType, TransactionTypeLike
from tuff.publish_calls import Addition, MessageBuffer, note_block, open_blocks
from tuff.read_calls import PollQuestion
from tuff.replies import Poll, Published, Renewed
from tuff.requests_and_responses import number_of, of_type
from tuff.stop_signals import Stop, StoppedError

C = TypeVar("C")
T = TypeVar("T")


# The first attempt after a conflict comes almost at once; the waits grow, so that others finish.
CONFLICT_BACKOFF = Backoff(0.005, 0.5, random.random)
# Seconds in which a block has to begin to use the transaction that the commit before it started. An
# older snapshot conflicts with more of what others commit.
CHAINED_AGE_S_MAX = 0.1
_ENDED_BY_SERVER = (TransactionTimedOutError, TransactionInvalidatedError)
# Seconds that the transaction of a batch lives without being renewed. What processes the batch
# renews it three times in this time, so a handler may take any time, and a process that died
# holds its messages back for no longer.
LEASE_S = 30.0
RENEW_S = LEASE_S / 3
_RUN_AGAIN = "it is rolled back; run the block again, with a longer `timeout` if it takes so long"


@dataclass(frozen=True, slots=True)
class _Ending:
    """The end of a commit: `committed` is None if that is unknown; `error` is to be raised."""

    committed: bool | None
    error: BaseException | None


class Block(Protocol):
    """The block of a transaction, which the server decides (`CommitProtocol`) or a database
    (`SqlProtocol`). One transaction at a time; reusable after it has ended. Belongs to one thread
    or task at a time."""

    retries: Retries
    _of_its_own: ClassVar[str]  # what a forked process needs for another transaction
    _process: int  # in which the transaction was begun
    _entry: object | None  # the block that is in it, from its begin to its end
    _has_committed: bool
    _is_unknown: bool
    _interrupts: list[BaseException]  # those that became notes on another error
    _messages: MessageBuffer
    _rollback_only: WrongStateError | None  # why it can't commit any more

    @property
    def is_in_transaction(self) -> bool: ...
    def renewal(self) -> Call[Renewed] | None: ...
    def begin(self, entry: object, stop: Stop | None = None) -> Flow[None]: ...
    def publish(self, addition: Addition) -> Flow[Published]: ...
    def finish(self) -> Flow[None]: ...
    def _undo(self, cause: BaseException) -> Flow[None]: ...

    @property
    def is_of_group(self) -> bool:
        """Whether its transactions commit offsets or acknowledgements within Tuff, too."""
        return False

    @property
    def has_committed(self) -> bool:
        """Whether the latest transaction committed, even if a `post_commit` failed after it."""
        return self._has_committed

    @property
    def may_have_committed(self) -> bool:
        """Whether the latest transaction committed, or its outcome is not known."""
        return self._has_committed or self._is_unknown

    @property
    def interrupt(self) -> BaseException | None:
        """An interrupt or a cancellation that came during the clean-up after an error, and became a
        note on that error. A caller that would continue after the error raises this instead."""
        return self._interrupts[0] if self._interrupts else None

    def undo(self, cause: BaseException) -> Flow[None]:
        """End the block and roll back; errors of that become notes on `cause`. A process that
        was forked within the block does nothing: the transaction is its parent's."""
        if self._is_of_parent():
            return
        try:
            yield from self._undo(cause)
        finally:
            self._entry = None

    def withdraw(self, entry: object, cause: BaseException) -> Flow[None]:
        """`undo`, unless another block than `entry` is in it."""
        if self._entry is entry:
            yield from self.undo(cause)

    def _begin_anew(self, entry: object | None) -> None:
        """Forget the transaction before; the block `entry` is in the next one."""
        self._process, self._entry = os.getpid(), entry
        self._has_committed = self._is_unknown = False
        self._interrupts = []
        self._messages = MessageBuffer()
        self._rollback_only = None

    def _require_own_process(self) -> None:
        """Raises: WrongStateError: the process was forked within the block. If both committed, the
        messages of the second one would be lost, since a commit can be repeated."""
        if self._is_of_parent():
            raise WrongStateError(
                "the transaction of this context was begun before this process was forked, and "
                f"belongs to its parent {self._process}; begin another one here, "
                f"{self._of_its_own} of its own"
            )

    def _is_of_parent(self) -> bool:
        return self._entry is not None and self._process != os.getpid()

    def _add(self, transaction: Transaction, addition: Addition) -> Flow[Published]:
        """Let the commit publish these messages; store those that do not fit into memory."""
        pointer = transaction.write_pointer
        try:
            return (yield from in_block(self._messages.add(pointer, addition, self.retries)))
        except GeneratorExit:
            raise
        except BaseException as error:
            # Some of them may be stored, and a commit would publish those, even if the program
            # ignored this error, and twice if it published them again.
            self._rollback_only = rollback_only(
                f"messages of this transaction could not be stored ({error})", "publish", error
            )
            raise


class CommitProtocol(Block):
    """A transaction over its participants, which the server decides."""

    _of_its_own = "with a context"

    def __init__(
        self,
        retries: Retries,
        participants: Collection[AsyncTransactionAware],
        *,
        type: TransactionTypeLike,
        timeout_s: float | None,
        client: str,
        offsets: Callable[[int], Call[None]] | None = None,
        chain_elapsed_s: Callable[[], float] | None = None,
        is_renewed: bool = False,
    ) -> None:
        """`offsets`: commits offsets of a consumer group within the transaction of a pointer.
        `is_renewed`, or with `offsets`: without a time-out, it lives while `renewal` is sent.
        `chain_elapsed_s`: each commit also starts the next transaction, which the next block uses
        if it begins in time; by this clock, in seconds, which never goes back.

        Raises: ValueError: a chain of long transactions. Each that no block used would stay on the
            list of invalid transactions.
        """
        if chain_elapsed_s is not None and type != TransactionType.SHORT:
            raise ValueError("chain is for short transactions")
        self.retries = retries
        self._offsets = offsets
        # Compared by identity, here and below: two equal participants may hold different writes.
        self._participants: list[AsyncTransactionAware] = list(
            {id(one): checked_participant(one) for one in participants}.values()
        )
        self._has_lease = timeout_s is None and (is_renewed or offsets is not None)
        lease_s = LEASE_S if self._has_lease else None
        self._start = partial(
            transaction_calls.start, type=type, timeout_s=timeout_s, client=client, lease_s=lease_s
        )
        self._chain_elapsed_s = chain_elapsed_s
        self._is_messages_only = False  # the transaction that was started last, by its start
        self._next: Transaction | None = None  # which the last commit has started
        self._next_until_s = 0.0
        self._is_last = False  # the commit of this block starts no other transaction
        self._current: Transaction | None = None
        self._was_aborted = False
        self._is_sent = False  # a commit may have been sent
        self._begin_anew(None)
        self._details: list[RollbackDetail] = []  # of the latest commit
        self._changes: set[bytes] = set()  # of no participant

    @property
    def transaction(self) -> Transaction:
        """The current transaction. Raises: WrongStateError: there is none."""
        self._require_own_process()
        if self._current is None:
            if self._entry is not None and self._was_aborted:
                raise WrongStateError(
                    "the block has aborted its transaction; do the rest in another block"
                )
            raise WrongStateError(
                "the context is not in a transaction; enter it with `with client.transaction(…)`"
            )
        return self._current

    @property
    def is_in_transaction(self) -> bool:
        """Whether there is a current transaction."""
        return self._current is not None

    @property
    def is_of_group(self) -> bool:
        return self._offsets is not None

    def renewal(self) -> Call[Renewed] | None:
        """What has to be sent each `RENEW_S` seconds while there is a transaction; None without
        one, and without a lease. Any thread may call it."""
        current = self._current
        if current is None or not self._has_lease:
            return None
        return transaction_calls.renew(current.transaction_id)

    def begin(self, entry: object, stop: Stop | None = None) -> Flow[None]:
        """Start a transaction for the block `entry`, and call `start_tx` of every participant.

        Raises:
            WrongStateError: another block is in it, or was when the process was forked.
            StoppedError: `stop` was set before there was a transaction.
        """
        self._require_own_process()
        if self._entry is not None:
            raise WrongStateError(
                "the context is in a transaction already, whose block has not ended; use another "
                "context, as each belongs to one thread or task at a time"
            )
        if self._process != os.getpid():
            self._next = None  # the parent uses the transaction that its last commit has started
        self._begin_anew(entry)
        self._is_sent = self._was_aborted = False
        self._details, self._changes = [], set()
        try:
            transaction = yield from self._begun(stop)
        except BaseException:
            self._entry = None
            raise
        self._current = transaction
        note_block(self)

    def _begun(self, stop: Stop | None) -> Flow[Transaction]:
        transaction = yield from self._started(stop)
        started: list[AsyncTransactionAware] = []
        try:
            for participant in self._participants:
                yield from hook(partial(participant.start_tx, transaction))
                started.append(participant)
        except GeneratorExit:
            raise
        except BaseException as error:
            # Nothing was written yet, so there is nothing to roll back.
            yield from self._attempt(self._leave(transaction, started), cause=error)
            yield from self._attempt(self._abort(transaction), cause=error)
            raise
        return transaction

    def end_chain(self) -> Flow[None]:
        """Let the commit of this block start no other transaction; outside of a block, end the one
        that the last commit has started."""
        self._is_last = self._entry is not None
        yield from self.end_unused(self.retries)

    def end_unused(self, retries: Retries) -> Flow[None]:
        """End the transaction that the last commit has started, with these retries."""
        unused, self._next = self._next, None
        if unused is not None:
            yield from retries.ask(transaction_calls.abort(unused.transaction_id))

    def _chained(self) -> Flow[Transaction | None]:
        """The transaction that the last commit has started, while its snapshot is young, and unless
        a participant has joined since."""
        self._is_last = False
        if self._chain_elapsed_s is None or self._next is None:
            return None
        has_joined = self._is_messages_only and self._participants
        if has_joined or self._chain_elapsed_s() >= self._next_until_s:
            with suppress(TuffError):  # it may have timed out
                yield from self.end_unused(self.retries)
            return None
        following, self._next = self._next, None
        return following

    def _started(self, stop: Stop | None) -> Flow[Transaction]:
        following = yield from self._chained()
        if following is not None:
            return following
        asked = self.retries.ask(self._starting())
        if stop is None:
            return (yield from asked)
        transaction = yield from unless(stop, asked)
        if transaction is None:
            raise StoppedError
        return transaction

    def _starting(self) -> Call[Transaction]:
        self._is_messages_only = not self._participants
        return self._start(
            request_id=transaction_calls.new_request_id(), messages_only=self._is_messages_only
        )

    def finish(self) -> Flow[None]:
        """Commit; after an error before the commit, roll back and raise that error.

        Raises: WrongStateError: the transaction has ended, and this block did not abort it; or it
            belongs to another process.
        """
        self._require_own_process()
        try:
            yield from self._finish()
        except GeneratorExit:
            raise
        except BaseException as error:
            # Around all of `_finish`: an interrupt between two `try` blocks in it was not handled.
            if not self._is_sent:
                yield from self._undo(error)
            raise
        finally:
            self._entry = None

    def _finish(self) -> Flow[None]:
        transaction = self._current
        if transaction is None:
            if self._was_aborted:
                return
            raise WrongStateError(
                "the transaction of this block was ended by another user of the same context; "
                "nothing was committed"
            )
        try:
            changes, entries = yield from self._write(transaction)
            yield from self._commit(transaction, changes, entries)
            ending = _Ending(committed=True, error=None)
        except GeneratorExit:
            raise
        except BaseException as error:
            if not self._is_sent:
                raise
            ending = yield from self._ending_of_failed(transaction, error)
        yield from self._conclude(transaction, ending)

    def _conclude(self, transaction: Transaction, ending: _Ending) -> Flow[None]:
        """Call the hooks for the end of the commit, and raise its error."""
        cause = ending.error
        if cause is not None and ending.committed is False:
            yield from self._undo(cause)
            raise cause
        self._current = None
        if cause is not None and ending.committed is None:
            self._is_unknown = True
            yield from self._attempt(self._leave(transaction, self._participants), cause=cause)
            raise_unknown(
                f"whether transaction {transaction.transaction_id} committed can't be learned now; "
                f"ask `tuff tx show {transaction.transaction_id}` before going on",
                cause,
            )
        self._has_committed = True
        after = self._each(transaction, [one.post_commit for one in self._participants])
        if cause is not None:
            yield from self._attempt(after, cause=cause)
            raise cause
        yield from after

    def _undo(self, cause: BaseException) -> Flow[None]:
        if self._current is not None:
            yield from self._attempt(self._roll_back(self._current), cause=cause)

    def abort(self) -> Flow[None]:
        """Roll back and end the transaction without an error."""
        transaction = self.transaction
        self._was_aborted = True
        yield from self._roll_back(transaction)

    def add(self, participant: AsyncTransactionAware) -> Flow[None]:
        """Let a participant join; inside a transaction its `start_tx` runs at once. Nothing happens
        if it has joined already: a second `start_tx` would discard what it wrote."""
        if any(other is participant for other in self._participants):
            return
        self._require_own_process()
        checked_participant(participant)
        if self._current is not None:
            yield from self._let_stores_join(self._current)
            yield from hook(partial(participant.start_tx, self._current))
        self._participants.append(participant)

    def _let_stores_join(self, transaction: Transaction) -> Flow[None]:
        # Before the participant writes: the server forgets an invalid transaction of messages only.
        if self._is_messages_only:
            yield from self._asked(transaction_calls.join(transaction.transaction_id))
            self._is_messages_only = False

    def remove(self, participant: AsyncTransactionAware) -> bool:
        """Returns whether it had joined. Raises: WrongStateError: inside a transaction."""
        if self._current is not None:
            raise WrongStateError(f"{participant.name} can't leave inside a transaction")
        before = len(self._participants)
        self._participants = [other for other in self._participants if other is not participant]
        return len(self._participants) < before

    def checkpoint(self) -> Flow[None]:
        """Give all participants a new write pointer in the same transaction."""
        pointer = self.transaction.transaction_id
        current = yield from self._asked(transaction_calls.checkpoint(pointer))
        self._current = current
        try:
            for participant in self._participants:
                yield from hook(partial(participant.update_tx, current))
        except BaseException as error:
            # Some participants still use the old pointer: what they write now would count as
            # written before the checkpoint.
            self._rollback_only = rollback_only(
                f"a participant could not follow a checkpoint ({error})", "checkpoint", error
            )
            raise

    def publish(self, addition: Addition) -> Flow[Published]:
        """Let the commit publish these; returns what is known of them now. Messages that do not fit
        into memory are stored now, and those with a delay are published under the transaction."""
        return (yield from self._add(self.transaction, addition))

    @property
    def published(self) -> list[Published]:
        """What each `publish` of the latest transaction has written.

        Raises: WrongStateError: it has not committed.
        """
        if not self._has_committed:
            raise WrongStateError("what a transaction publishes has ids once it has committed")
        return self._messages.published(self._details)

    def add_changes(self, keys: Collection[bytes]) -> None:
        """Let the transaction conflict with those that change one of these keys.

        Raises:
            TypeError: one of them is not bytes.
            WrongStateError: there is no transaction, or a long one.
        """
        checked = [of_type(key, bytes, "a key") for key in keys]
        self._require_own_process()
        if self._current is None:
            raise WrongStateError("add_changes is called inside of the block of a transaction")
        if self._current.type is TransactionType.LONG:
            raise WrongStateError(
                "a long transaction is never checked for conflicts, so it takes no keys; use a "
                "short one"
            )
        self._changes.update(checked)

    def poll(self, topic: TopicLike, question: PollQuestion) -> Flow[Poll]:
        """Read in the transaction's snapshot."""
        reading = read_calls.read(self.retries, read_calls.poll, topic, question)
        return (yield from in_block(reading))

    def _write(self, transaction: Transaction) -> Flow[tuple[frozenset[bytes], list[PublishEntry]]]:
        if self._rollback_only is not None:
            raise self._rollback_only
        changes = frozenset(self._changes)
        for participant in self._participants:
            keys: Collection[bytes] = yield from hook(partial(participant.tx_changes, transaction))
            changes |= checked_changes(participant, keys)
        if self._participants:
            pointer = transaction.transaction_id
            yield from self._asked(transaction_calls.can_commit(pointer, changes))
        for participant in self._participants:
            yield from hook(partial(participant.commit_tx, transaction))
        if self._offsets is not None:
            # Last: a member that was fenced before this can't commit, and one that is fenced after
            # this has a successor that waits for the end of this transaction.
            yield from self._asked(self._offsets(transaction.transaction_id))
        return changes, self._messages.entries()

    def _commit(
        self, transaction: Transaction, changes: frozenset[bytes], entries: list[PublishEntry]
    ) -> Flow[None]:
        writes = changes or entries or transaction.checkpoint_write_pointers or self._offsets
        read_only = not writes
        commit = partial(transaction_calls.commit, transaction.transaction_id, changes, entries)
        self._is_sent = True
        try:
            yield from self._send_commit(commit(read_only=read_only))
        except BadRequestError:
            if not read_only:
                raise
            # The program published in this transaction by `client.publish(…, transaction=)`, which
            # only the server knows. The refused commit has changed nothing.
            yield from self._send_commit(commit(read_only=False))

    def _send_commit(self, commit: Call[list[RollbackDetail]]) -> Flow[None]:
        if self._chain_elapsed_s is None or self._is_last:
            self._details = yield from self._asked(commit)
            return
        call = transaction_calls.commit_and_start(commit, self._starting())
        self._details, self._next = yield from self._asked(call)
        self._next_until_s = self._chain_elapsed_s() + CHAINED_AGE_S_MAX

    def _asked(self, call: Call[T]) -> Flow[T]:
        try:
            return (yield from in_block(self.retries.ask(call)))
        except TransactionConflictError as error:
            _advise(error, "run the block again, as `client.run` does")
            if error.key is not None and (name := self._name_of(error.key)) is not None:
                shown_key = shown(error.members["key"])
                error.detail = error.detail.replace(f"the same change {shown_key}", name)
                error.args = (error.detail,)
            raise

    def _name_of(self, key: bytes) -> str | None:
        """What a changed key is for the program; None where the key itself says it."""
        found = (one.name_of_change(key) for one in self._participants)
        return next((name for name in found if name is not None), None)

    def _ending_of_failed(self, transaction: Transaction, error: BaseException) -> Flow[_Ending]:
        """The end of a commit that raised, and may have been sent."""
        if _did_not_happen(error):
            return _Ending(committed=False, error=error)
        committed = yield from self._fence(transaction, cause=error)
        # After a successful commit an interrupt is still raised. A lost reply is not: it only left
        # the outcome open, which is known now.
        is_settled = committed is True and isinstance(error, Exception)
        return _Ending(committed=committed, error=None if is_settled else error)

    def _fence(self, transaction: Transaction, *, cause: BaseException) -> Flow[bool | None]:
        # A commit whose reply was lost may still be on its way: participants that rolled back on
        # "in progress" would see it commit a moment later. Invalidating the transaction returns its
        # outcome and prevents a later commit in one step (decision 0010).
        try:
            yield from self.retries.ask(transaction_calls.invalidate(transaction.transaction_id))
        except TransactionCommittedError:
            return True
        except TransactionAbortedError:
            return False
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - becomes a note on the cause, which is raised
            when = "when the outcome was asked for"
            note(error, on=cause, interrupts=self._interrupts, when=when)
            return None
        return False

    def _roll_back(self, transaction: Transaction) -> Flow[None]:
        self._current = None
        self._messages = MessageBuffer()
        try:
            yield from self._each(transaction, [one.rollback_tx for one in self._participants])
        except GeneratorExit:
            raise
        except BaseException as error:
            yield from self._attempt(self._invalidate(transaction), cause=error)
            raise
        yield from self._abort(transaction)

    def _leave(
        self, transaction: Transaction, participants: Collection[AsyncTransactionAware]
    ) -> Flow[None]:
        """Call `leave_tx` of the participants. It undoes nothing.

        Without it, what the program wrote next in an outer transaction went into this one, which
        had ended, and was lost.
        """
        yield from self._each(transaction, [one.leave_tx for one in participants])

    def _each(
        self, transaction: Transaction, hooks: Sequence[Callable[[Transaction], object]]
    ) -> Flow[None]:
        flows = [hook(partial(one, transaction)) for one in hooks]
        yield from run_all(flows, interrupts=self._interrupts)

    def _attempt(self, flow: Flow[object], *, cause: BaseException) -> Flow[None]:
        yield from attempt(flow, cause=cause, interrupts=self._interrupts)

    def _abort(self, transaction: Transaction) -> Flow[None]:
        yield from self.retries.ask(transaction_calls.abort(transaction.transaction_id))

    def _invalidate(self, transaction: Transaction) -> Flow[None]:
        yield from self.retries.ask(transaction_calls.invalidate(transaction.transaction_id))


def in_block(flow: Flow[T]) -> Flow[T]:
    """The flow of a call within a block. If the server has ended the transaction, the error says
    what the program can do: the block itself undoes and aborts."""
    try:
        return (yield from flow)
    except _ENDED_BY_SERVER as error:
        _advise(error, _RUN_AGAIN)
        raise


def _advise(error: TuffError, advice: str) -> None:
    """Let an error of a block say this in place of the server's advice."""
    error.detail = f"{error.detail.rpartition('; ')[0] or error.detail}; {advice}"
    error.args = (error.detail,)


def is_in_group_transaction() -> bool:
    """Whether this thread or task is in the block of a transaction of a consumer group or a share
    group, or was started in it."""
    return any(each.is_of_group for each in open_blocks())


@dataclass(frozen=True, slots=True)
class Opened(Generic[C]):
    """A transaction context and its protocol."""

    protocol: Block
    context: C


def renewed(protocols: Collection[Block]) -> Flow[None]:
    """Renew the leases of these transactions that are in progress, once. What refuses or loses a
    renewal is not raised: the next one follows, and the commit says whether it came too late."""
    for protocol in protocols:
        call = protocol.renewal()
        if call is not None:
            with suppress(TuffError):
                yield from ask(call)


def end_chains(protocols: Collection[CommitProtocol]) -> Flow[None]:
    """End the transactions that commits have started and no block has used, while the server
    answers. The others time out."""
    once = Retries(0)
    for protocol in tuple(protocols):
        try:
            yield from protocol.end_unused(once)
        except ConnectionLostError:
            return
        except TuffError:
            continue  # it has timed out


def during(protocol: Block, work: Flow[T], stop: Stop | None = None) -> Flow[T]:
    """Run the flow `work` in a transaction, commit, and return its result.

    An interrupt that came during the clean-up after an error is raised instead of that error, since
    the caller may continue after errors.

    Raises: StoppedError: `stop` was set before it began.
    """
    try:
        yield from protocol.begin(work, stop)
        try:
            result = yield from work
        except GeneratorExit:
            raise
        except BaseException as error:
            yield from protocol.undo(error)
            raise
        yield from protocol.finish()
    except Exception as error:
        if protocol.interrupt is not None:
            raise protocol.interrupt from error
        raise
    return result


def rerun(
    open_one: Callable[[], Opened[C]],
    work: Callable[[C], object],
    *,
    attempts: int,
    backoff: Backoff,
) -> Flow[Any]:
    """Run `work` in a transaction, and again in a new one after each conflict, `attempts` times in
    all; returns its result.

    After a conflict that a `post_commit` raises it is not run again, as it has committed.
    """
    if not callable(work):
        raise TypeError(f"the work is a function of the transaction, not {work!r:.100}")
    number_of(attempts, "attempts")
    failed_count = 0
    while True:
        opened = open_one()
        try:
            return (yield from during(opened.protocol, hook(partial(work, opened.context))))
        except TransactionConflictError:
            failed_count += 1
            if opened.protocol.has_committed or failed_count >= attempts:
                raise
        yield backoff.pause(failed_count)


def _did_not_happen(error: BaseException) -> bool:
    """Whether the error proves that the server did not carry out the commit."""
    if isinstance(error, ConnectionLostError):
        return not error.outcome_unknown
    if isinstance(error, WrongStateError):
        return True  # nothing was sent
    return isinstance(error, TuffError) and (error.retry_safe or 400 <= error.status < 500)


def raise_unknown(sentence: str, cause: BaseException) -> NoReturn:
    """Raises: OutcomeUnknownError, or `cause` with a note if it is an interrupt."""
    if not isinstance(cause, Exception):
        cause.add_note(sentence)
        raise cause
    raise OutcomeUnknownError(f"{sentence} ({type(cause).__name__}: {cause})") from cause


def rollback_only(what: str, call: str, cause: BaseException) -> WrongStateError:
    """The error of a commit after one that must not be ignored, the `cause` that `call` raised."""
    error = WrongStateError(f"{what}, so it is rolled back; let the error of {call} end the block")
    error.__cause__ = cause
    return error
