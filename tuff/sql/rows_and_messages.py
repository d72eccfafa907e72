"""A transaction of the user's database that publishes messages, as flows (decision 0045 §3).

    the work, and the start at its first message; the row in tuff_commits; prepare; the commit of
    the database, which decides; resolve

The state between prepare and resolve is only in the database and the server, so a program that dies
there leaves a transaction that any resolver settles.
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

from tuff import transaction_calls
from tuff.commit_protocol import LEASE_S, Block, in_block, is_in_group_transaction, raise_unknown
from tuff.errors import WrongStateError
from tuff.flows_and_repeated_calls import Call, Flow, Retries, attempt, hook, note
from tuff.protocol.errors import TransactionCommittedError, TuffError
from tuff.protocol.transaction import Transaction
from tuff.publish_calls import Addition, note_block
from tuff.replies import Published, Renewed
from tuff.sql.database import Answer, Decider, SqlBlock
from tuff.stop_signals import Stop, StoppedError

log = logging.getLogger(__name__)


class SqlProtocol(Block):
    """A transaction of one connection, which its database decides."""

    _of_its_own = "on a connection"

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
        self._server_name = ""
        self._transaction: Transaction | None = None
        self._begin_anew(None)

    @property
    def is_in_transaction(self) -> bool:
        """Whether a block is in it."""
        return self._entry is not None

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
        self._begin_anew(entry)
        self._transaction = None
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
        return (yield from self._add(self._transaction, addition))

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
            raise_unknown(
                f"whether the database committed transaction {self._transaction.transaction_id} "
                "can't be learned now; a resolver makes its messages follow the rows; look for "
                "your rows before going on",
                cause,
            )
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
