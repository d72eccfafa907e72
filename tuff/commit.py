"""The commit protocol over participants, as flows (design §7).

    start, start_tx of all; the work; tx_changes of all, can-commit, commit_tx of all in the order
    they joined; commit, which carries the messages, so that they go out last; post_commit of all

An error before the commit: rollback_tx of all; abort if every one succeeded, else invalidate.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, NoReturn, TypeVar

from tuff import calls, transaction_calls
from tuff.calls import Payload, PollQuestion, payloads_of
from tuff.flows import Backoff, Flow, Hook, attempt, hook, run_all, unless
from tuff.outgoing import Outgoing
from tuff.participants import AsyncTransactionAware
from tuff.protocol.errors import (
    BadRequestError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionConflictError,
    TuffError,
)
from tuff.protocol.names import TopicId
from tuff.protocol.requests import PublishEntry
from tuff.protocol.transaction import Transaction
from tuff.replies import Poll
from tuff.retries import Retries
from tuff.stopping import Stop, StoppedError
from tuff.transport import ConnectionLostError

C = TypeVar("C")
T = TypeVar("T")


class OutcomeUnknownError(ConnectionLostError):
    """Neither `rollback_tx` nor `post_commit` has run: the transaction may have committed."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, outcome_unknown=True)


@dataclass(frozen=True, slots=True)
class _Ending:
    """How a commit went: `committed` is None while nobody knows; `error` is what it raised."""

    committed: bool | None
    error: BaseException | None


class CommitProtocol:
    """One transaction at a time over its participants; it can be used again after it ended.

    Belongs to one thread, or one task, at a time.
    """

    def __init__(
        self,
        retries: Retries,
        participants: Collection[AsyncTransactionAware],
        *,
        type: str,
        timeout_s: float | None,
        client: str,
    ) -> None:
        self._retries = retries
        self._participants = list(participants)
        self._start = transaction_calls.start(type=type, timeout_s=timeout_s, client=client)
        self._current: Transaction | None = None
        self._messages = Outgoing()
        self._failed_store: BaseException | None = None

    @property
    def transaction(self) -> Transaction:
        """The current transaction. Raises: BadRequestError: there is none."""
        if self._current is None:
            raise BadRequestError(
                "the context is not in a transaction; enter it with `with client.transaction(…)`"
            )
        return self._current

    def begin(self, stop: Stop | None = None) -> Flow[None]:
        """Start a transaction, and let every participant know.

        Raises: StoppedError: `stop` was set before there was one; nobody heard of it.
        """
        if self._current is not None:
            raise BadRequestError("the context is in a transaction already; use another one")
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
            yield from attempt(_leave(started), cause=error)
            yield from attempt(self._abort(transaction), cause=error)
            raise
        self._current = transaction
        self._messages = Outgoing()
        self._failed_store = None

    def _started(self, stop: Stop | None) -> Flow[Transaction]:
        asked = self._retries.ask(self._start)
        if stop is None:
            return (yield from asked)
        # It may be there all the same. It has written nothing, so it can wait for its time-out.
        transaction = yield from unless(stop, asked)
        if transaction is None:
            raise StoppedError
        return transaction

    def finish(self) -> Flow[None]:
        """Commit; after an error that came before it, roll back, and raise that error."""
        if self._current is None:
            return
        transaction = self._current
        try:
            changes, entries = yield from self._write(transaction)
        except GeneratorExit:
            raise
        except BaseException as error:
            yield from self.undo(error)
            raise
        ending = yield from self._commit(transaction, changes, entries)
        cause = ending.error
        if cause is not None and ending.committed is False:
            yield from self.undo(cause)
            raise cause
        self._current = None
        if cause is not None and ending.committed is None:
            yield from attempt(_leave(self._participants), cause=cause)
            _raise_unknown(transaction, cause)
        after = run_all([participant.post_commit for participant in self._participants])
        if cause is not None:
            yield from attempt(after, cause=cause)
            raise cause
        yield from after

    def undo(self, cause: BaseException) -> Flow[None]:
        """Roll back and end the transaction; what goes wrong is noted on `cause`."""
        if self._current is not None:
            yield from attempt(self._roll_back(self._current), cause=cause)

    def abort(self) -> Flow[None]:
        """Roll back and end the transaction, which is no error."""
        yield from self._roll_back(self.transaction)

    def add(self, participant: AsyncTransactionAware) -> Flow[None]:
        """Let a participant join; inside a transaction its `start_tx` runs at once."""
        if self._current is not None:
            yield from hook(partial(participant.start_tx, self._current))
        self._participants.append(participant)

    def remove(self, participant: AsyncTransactionAware) -> bool:
        """Whether the participant was there. Raises: BadRequestError: inside a transaction."""
        if self._current is not None:
            raise BadRequestError(f"{participant.name} can't leave in the middle of a transaction")
        before = len(self._participants)
        self._participants = [other for other in self._participants if other is not participant]
        return len(self._participants) < before

    def checkpoint(self) -> Flow[None]:
        """Give everybody a new write pointer in the same transaction."""
        pointer = self.transaction.transaction_id
        current = yield from self._retries.ask(transaction_calls.checkpoint(pointer))
        self._current = current
        for participant in self._participants:
            yield from hook(partial(participant.update_tx, current))

    def publish(
        self, topic: TopicId, messages: Sequence[Payload], *, ttl_s: int | None
    ) -> Flow[None]:
        """Have the commit publish these; what does not fit into memory is stored now."""
        pointer = self.transaction.write_pointer
        for call in self._messages.add(topic, pointer, payloads_of(messages), ttl_s=ttl_s):
            try:
                yield from self._retries.ask(call)
            except GeneratorExit:
                raise
            except BaseException as error:
                # It may be stored, or a part of it: a commit would bring that, whatever the
                # program made of this error, and publishing it again would bring it twice.
                self._failed_store = error
                raise

    def poll(self, topic: TopicId, question: PollQuestion) -> Flow[Poll]:
        """Read in the transaction's snapshot."""
        return (yield from self._retries.ask(calls.poll(topic, question)))

    def _write(self, transaction: Transaction) -> Flow[tuple[frozenset[bytes], list[PublishEntry]]]:
        if self._failed_store is not None:
            raise BadRequestError(
                f"messages of this transaction could not be stored ({self._failed_store}), so it "
                "is rolled back; let the error of publish end the block"
            ) from self._failed_store
        changes: frozenset[bytes] = frozenset()
        for participant in self._participants:
            changes |= frozenset((yield Hook(participant.tx_changes)))
        if self._participants:
            pointer = transaction.transaction_id
            yield from self._retries.ask(transaction_calls.can_commit(pointer, changes))
        for participant in self._participants:
            yield from hook(participant.commit_tx)
        return changes, self._messages.entries()

    def _commit(
        self, transaction: Transaction, changes: frozenset[bytes], entries: list[PublishEntry]
    ) -> Flow[_Ending]:
        read_only = not (changes or entries or transaction.checkpoint_write_pointers)
        pointer = transaction.transaction_id
        try:
            yield from self._retries.ask(
                transaction_calls.commit(pointer, changes, entries, read_only=read_only)
            )
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - how it ended decides who raises it
            if _did_not_happen(error):
                return _Ending(committed=False, error=error)
            committed = yield from self._did_commit(transaction, cause=error)
            # The program is told of an interrupt also where the commit was done; of a lost reply
            # it is not, as all it wanted to know is known now.
            is_over = committed is True and isinstance(error, Exception)
            return _Ending(committed=committed, error=None if is_over else error)
        return _Ending(committed=True, error=None)

    def _did_commit(self, transaction: Transaction, *, cause: BaseException) -> Flow[bool | None]:
        # A commit whose reply was lost may still be on its way, so merely reading its state decides
        # nothing: participants that rolled back on "in progress" would see it commit a moment
        # later. Invalidating asks and closes that door at once.
        try:
            yield from self._retries.ask(transaction_calls.invalidate(transaction.transaction_id))
        except TransactionCommittedError:
            return True
        except TransactionAbortedError:
            return False
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - noted on its cause, which is raised
            cause.add_note(f"and when the outcome was asked for: {type(error).__name__}: {error}")
            return None
        return False

    def _roll_back(self, transaction: Transaction) -> Flow[None]:
        self._current = None
        self._messages = Outgoing()
        try:
            yield from run_all([participant.rollback_tx for participant in self._participants])
        except GeneratorExit:
            raise
        except BaseException as error:
            yield from attempt(self._invalidate(transaction), cause=error)
            raise
        yield from self._abort(transaction)

    def _abort(self, transaction: Transaction) -> Flow[None]:
        yield from self._retries.ask(transaction_calls.abort(transaction.transaction_id))

    def _invalidate(self, transaction: Transaction) -> Flow[None]:
        yield from self._retries.ask(transaction_calls.invalidate(transaction.transaction_id))


@dataclass(frozen=True, slots=True)
class Opened(Generic[C]):
    """A context as the program sees it, and the protocol behind it."""

    protocol: CommitProtocol
    context: C


def during(protocol: CommitProtocol, work: Flow[T], stop: Stop | None = None) -> Flow[T]:
    """What the flow `work` returns, run in a transaction that is committed after it.

    Raises: StoppedError: `stop` was set before it began.
    """
    yield from protocol.begin(stop)
    try:
        result = yield from work
    except GeneratorExit:
        raise
    except BaseException as error:
        yield from protocol.undo(error)
        raise
    yield from protocol.finish()
    return result


def rerun(
    open_one: Callable[[], Opened[C]],
    work: Callable[[C], object],
    *,
    attempts: int,
    backoff: Backoff,
) -> Flow[Any]:
    """What `work` returns in a transaction; in a new one after each conflict, `attempts` in all."""
    if attempts < 1:
        raise BadRequestError(f"attempts is a number from 1 on, not {attempts}")
    failed_count = 0
    while True:
        try:
            opened = open_one()
            return (yield from during(opened.protocol, hook(partial(work, opened.context))))
        except TransactionConflictError:
            failed_count += 1
            if failed_count >= attempts:
                raise
        yield backoff.pause(failed_count)


def _leave(participants: Collection[AsyncTransactionAware]) -> Flow[None]:
    """Tell those that nest transactions, by a `leave_tx`, that this one is over; it undoes nothing.

    Without it what the program wrote next, into the transaction around this one, went into the
    one that had ended, and was lost.
    """
    hooks = [getattr(participant, "leave_tx", None) for participant in participants]
    yield from run_all([leave for leave in hooks if leave is not None])


def _did_not_happen(error: BaseException) -> bool:
    """Whether the server, or the want of one, proves that this commit did not happen."""
    if isinstance(error, ConnectionLostError):
        return not error.outcome_unknown
    return isinstance(error, TuffError) and (error.retry_safe or 400 <= error.status < 500)


def _raise_unknown(transaction: Transaction, cause: BaseException) -> NoReturn:
    sentence = (
        f"whether transaction {transaction.transaction_id} committed can't be learned now; ask "
        f"`tuff tx show {transaction.transaction_id}` before going on"
    )
    if not isinstance(cause, Exception):
        cause.add_note(sentence)
        raise cause
    raise OutcomeUnknownError(f"{sentence} ({type(cause).__name__}: {cause})") from cause
