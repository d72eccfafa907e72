"""A transaction of the user's database that publishes messages, as flows (decision 0045 §3).

    the work, and the start at its first message; the row in tuff_commits; prepare; the commit of
    the database, which decides; resolve

The state between prepare and resolve is only in the database and the server, so a program that dies
there leaves a transaction that any resolver settles.
"""

import logging
import os
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn, TypeVar

from tuff import transaction_calls
from tuff.commit_protocol import LEASE_S, in_block, is_in_group_transaction, rollback_only
from tuff.errors import OutcomeUnknownError, WrongStateError
from tuff.flows_and_repeated_calls import Call, Flow, Retries, attempt, hook, note
from tuff.protocol.errors import TransactionCommittedError, TuffError
from tuff.protocol.transaction import Transaction
from tuff.publish_calls import Addition, MessageBuffer, note_block
from tuff.replies import Published, Renewed
from tuff.sql.database import Answer, Decider, SqlBlock
from tuff.stop_signals import Stop, StoppedError

log = logging.getLogger(__name__)

C = TypeVar("C")


class SqlProtocol:
    """One transaction of one connection at a time; reusable after it has ended. Belongs to one
    thread or task at a time."""

    def __init__(
        self,
        retries: Retries,
        decider: Decider[Any],
        block: SqlBlock,
        *,
        timeout_s: float | None,
        client: str,
        position: Callable[[], Flow[None]] | None = None,
    ) -> None:
        """`position`: stores the position of a consumer, as the last statement before the row of
        the commit. Then without a time-out the transaction of the messages lives while `renewal` is
        sent in time."""
        self._has_lease = position is not None and timeout_s is None
        self._position = position
        self.retries = retries
        self._decider = decider
        self._block = block
        self._start = partial(
            transaction_calls.start,
            type="short",
            timeout_s=timeout_s,
            client=client,
            lease_s=LEASE_S if self._has_lease else None,
            messages_only=True,  # the rows of the database do not carry the pointer
        )
        self._process = os.getpid()  # in which the block is
        self._entry: object | None = None
        self._server_name = ""
        self._transaction: Transaction | None = None
        self._messages = MessageBuffer()
        self._rollback_only: WrongStateError | None = None
        self._has_committed = self._is_unknown = False
        self._interrupts: list[BaseException] = []

    @property
    def has_committed(self) -> bool:
        """Whether the latest transaction committed."""
        return self._has_committed

    @property
    def may_have_committed(self) -> bool:
        """Whether the latest transaction committed, or its outcome is not known."""
        return self._has_committed or self._is_unknown

    @property
    def is_in_transaction(self) -> bool:
        """Whether a block is in it."""
        return self._entry is not None

    @property
    def is_of_group(self) -> bool:
        """Whether its transactions commit offsets within Tuff: a database has them."""
        return False

    @property
    def interrupt(self) -> BaseException | None:
        """An interrupt that became a note on another error."""
        return self._interrupts[0] if self._interrupts else None

    def renewal(self) -> Call[Renewed] | None:
        """As that of `CommitProtocol`."""
        current = self._transaction if self._entry is not None else None
        if current is None or not self._has_lease:
            return None
        return transaction_calls.renew(current.transaction_id)

    @property
    def transaction(self) -> Transaction | None:
        """The transaction of the messages; None before the first one."""
        return self._transaction

    def begin(self, entry: object, stop: Stop | None = None) -> Flow[None]:
        """Begin a transaction of the database for the block `entry`.

        Raises:
            WrongStateError: another block is in it, or the database is unsuitable.
            StoppedError: `stop` is set.
        """
        self._require_own_process()
        if self._entry is not None:
            raise WrongStateError("the block of this context has not ended; create another context")
        if is_in_group_transaction():
            raise WrongStateError(
                "a block of a database can't be a part of a group's transaction: the database "
                "would commit first, and an error behind it repeats the batch; use "
                "client.consumer(…, database=…), whose positions commit with the rows"
            )
        if stop is not None and stop.is_set:
            raise StoppedError
        self._entry, self._process = entry, os.getpid()
        self._transaction, self._messages = None, MessageBuffer()
        self._rollback_only, self._interrupts = None, []
        self._has_committed = self._is_unknown = False
        note_block(self)
        try:
            self._server_name = yield from self._decider.server_name(may_write=True)
            yield from self._decider.check(self._block)
            yield from self._begin()
        except BaseException:
            self._entry = None
            raise

    def _begin(self) -> Flow[None]:
        yield from self._decider.explaining(hook(self._block.begin))
        try:
            yield from self._decider.mark(self._block)
        except GeneratorExit:
            raise
        except BaseException as error:
            yield from attempt(hook(self._block.rollback), cause=error, interrupts=self._interrupts)
            raise

    def publish(self, addition: Addition) -> Flow[Published]:
        """Publish with the commit; see `CommitProtocol.publish`. The first call starts the
        transaction."""
        self._require_own_process()
        if self._entry is None:
            raise WrongStateError("publish in the block of the transaction, and not after it")
        if self._transaction is None:
            start = self._start(request_id=transaction_calls.new_request_id())
            self._transaction = yield from self.retries.ask(start)
        pointer = self._transaction.write_pointer
        try:
            return (yield from in_block(self._messages.add(pointer, addition, self.retries)))
        except GeneratorExit:
            raise
        except BaseException as error:
            self._rollback_only = rollback_only(
                f"messages of this transaction could not be stored ({error})", "publish", error
            )
            raise

    def finish(self) -> Flow[None]:
        """Prepare, commit the database, and resolve; after an error before the commit, roll back.

        Raises:
            OutcomeUnknownError: the database can't say whether it committed.
            WrongStateError: it belongs to another process.
            Exception: why it was rolled back.
        """
        self._require_own_process()
        try:
            yield from self._finish()
        finally:
            self._entry = None

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

    def _is_of_parent(self) -> bool:
        return self._entry is not None and self._process != os.getpid()

    def _require_own_process(self) -> None:
        """Raises: WrongStateError: the process was forked within the block."""
        if self._is_of_parent():
            raise WrongStateError(
                "the transaction of this context was begun before this process was forked, and "
                f"belongs to its parent {self._process}; begin another one here, on a connection "
                "of its own"
            )

    def _finish(self) -> Flow[None]:
        try:
            yield from self._decider.explaining(self._prepare())
        except GeneratorExit:
            raise
        except BaseException as error:
            yield from self._undo(error)
            raise
        try:
            yield from self._commit()
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - raised, unless the database did commit
            yield from self._settle_failed_commit(error)
        else:
            self._has_committed = True
            if self._transaction is not None:
                yield from self._resolve_committed(self._transaction)

    def _commit(self) -> Flow[None]:
        """Commit, and let the database tell that it did: the messages must not become visible
        before. A driver reports no error if its commit had nothing to commit."""
        yield from hook(self._block.commit)
        if self._transaction is not None:
            pointer = self._transaction.transaction_id
            yield from self._decider.require_committed(self._block, pointer)

    def _prepare(self) -> Flow[None]:
        if self._rollback_only is not None:
            raise self._rollback_only
        yield from hook(self._block.before_prepare)
        if self._position is not None:
            yield from self._position()
        if self._transaction is None:
            yield from self._decider.record(self._block, None)
            return
        pointer = self._transaction.transaction_id
        yield from self._decider.record(self._block, pointer)
        entries = self._messages.entries()
        prepare = transaction_calls.prepare(pointer, self._server_name, (), entries)
        yield from in_block(self.retries.ask(prepare))

    def _settle_failed_commit(self, cause: BaseException) -> Flow[None]:
        """Ask the database, and raise, unless it did commit and only its answer was lost."""
        self._is_unknown = True
        yield from attempt(hook(self._block.rollback), cause=cause, interrupts=self._interrupts)
        if self._transaction is None:
            raise cause
        answer = yield from self._settle(self._transaction, cause)
        if answer is Answer.NEVER:
            self._is_unknown = False
            raise cause
        if answer is not Answer.COMMITTED:
            _raise_unknown(self._transaction, cause)
        self._has_committed = True
        if not isinstance(cause, Exception):
            raise cause
        log.error(
            "database %s committed transaction %d, but an error came after it: the answer was "
            "lost, or code that runs after the commit failed, such as an after_commit listener",
            self._server_name,
            self._transaction.transaction_id,
            exc_info=cause,
        )

    def _undo(self, cause: BaseException) -> Flow[None]:
        try:
            yield from hook(self._block.rollback)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - becomes a note on the cause
            when = "when the database rolled back"
            note(error, on=cause, interrupts=self._interrupts, when=when)
            if self._transaction is not None:
                # The row may still be committed, by a program that goes on with the connection.
                yield from self._settle(self._transaction, cause)
            return
        if self._transaction is not None:
            abort = self.retries.ask(
                transaction_calls.resolve(self._transaction.transaction_id, "abort")
            )
            yield from attempt(abort, cause=cause, interrupts=self._interrupts)

    def _settle(self, transaction: Transaction, cause: BaseException) -> Flow[Answer | None]:
        """Ask the database, and tell the server; None: it can't be asked now."""
        pointer = transaction.transaction_id
        try:
            answer = yield from self._decider.ask(pointer)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - becomes a note on the cause
            when = "when the outcome was asked for"
            note(error, on=cause, interrupts=self._interrupts, when=when)
            return None
        if answer is Answer.COMMITTED:
            yield from self._resolve_committed(transaction)
        elif answer is Answer.NEVER:
            return (yield from self._abort_never_committed(pointer, cause))
        return answer

    def _abort_never_committed(self, pointer: int, cause: BaseException) -> Flow[Answer]:
        try:
            yield from self.retries.ask(transaction_calls.resolve(pointer, "abort"))
        except GeneratorExit:
            raise
        except TransactionCommittedError:
            # A resolver settled it and deleted its row before this block asked.
            return Answer.COMMITTED
        except BaseException as error:  # noqa: BLE001 - becomes a note on the cause
            note(error, on=cause, interrupts=self._interrupts)
        return Answer.NEVER

    def _resolve_committed(self, transaction: Transaction) -> Flow[None]:
        pointer = transaction.transaction_id
        try:
            resolve = transaction_calls.resolve(pointer, "commit")
            yield from self.retries.ask(resolve)
        except TuffError as error:
            # The program's work is done, and its rows are visible.
            log.warning(
                "database %s committed transaction %d, but the server was not told (%s); its "
                "messages become visible when a resolver settles it",
                self._server_name,
                pointer,
                error,
            )


def _raise_unknown(transaction: Transaction, cause: BaseException) -> NoReturn:
    """Raises: OutcomeUnknownError, or `cause` with a note if it is an interrupt."""
    sentence = (
        f"whether the database committed transaction {transaction.transaction_id} can't be learned "
        "now; a resolver makes its messages follow the rows; look for your rows before going on"
    )
    if not isinstance(cause, Exception):
        cause.add_note(sentence)
        raise cause
    raise OutcomeUnknownError(f"{sentence} ({type(cause).__name__}: {cause})") from cause
