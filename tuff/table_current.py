"""Which transaction is current on a table, in each task and thread (docs/howto/participant.md)."""

from contextvars import ContextVar
from threading import Lock
from weakref import WeakValueDictionary

from tuff.participants import hook_transaction_id
from tuff.protocol.errors import BadRequestError
from tuff.protocol.transaction import Transaction
from tuff.table_rows import Version
from tuff.table_work import Work, WorkState

NESTED_COUNT_MAX = 64  # transactions open in one task; more are left behind, and not nested


class Current:
    """The transactions that were begun on one table and have not ended: a stack in each context,
    whose top is the current one.

    Any thread may call; `_joining` guards `_works` and `_doubtful`.
    """

    def __init__(self, table_name: str) -> None:
        self._table_name = table_name
        self._stack: ContextVar[tuple[Work, ...]] = ContextVar(f"table {table_name}", default=())
        self._joining = Lock()
        self._works: WeakValueDictionary[int, Work] = WeakValueDictionary()
        self._doubtful: dict[int, Version] = {}  # one that nobody knows of, of each of them

    def start(self, transaction: Transaction) -> None:
        """Make it current here; one that is current elsewhere too is shared.

        Raises: BadRequestError: too many are open here.
        """
        with self._joining:
            work = self._works.get(transaction.transaction_id)
            if work is None or work.has_ended:
                work = self._works[transaction.transaction_id] = Work(transaction)
                if (doubt := self._doubtful.get(transaction.transaction_id)) is not None:
                    work.in_doubt = [doubt]
        self._push(work)

    def doubt(self, work: Work) -> None:
        """Nobody knows what is on disk of it. Whoever starts it anew, as to roll it back, has to
        know: what was taken for nothing came to light when the table was opened again."""
        with self._joining:
            self._doubtful[work.transaction_id] = work.in_doubt[0]

    def settle(self, work: Work) -> None:
        """It is known now."""
        with self._joining:
            self._doubtful.pop(work.transaction_id, None)

    def get(self) -> Work:
        """The one that reads and writes go to. Raises: BadRequestError: there is none."""
        stack = self._stack.get()
        if not stack:
            raise self.outside()
        return self.require_open(stack[-1])

    def require_open(self, work: Work) -> Work:
        """Raises: BadRequestError: it is committing, or has ended."""
        if work.state is not WorkState.OPEN:
            raise self.outside()
        return work

    def outside(self) -> BadRequestError:
        """What tells a program that it forgot its block."""
        return BadRequestError(
            f"{self._table_name} is in no transaction here; use it inside of `with "
            "client.transaction(…)`"
        )

    def meant(self) -> Work:
        """Whom a hook means: its own transaction, wherever that was begun; called by hand, the
        latest one here.

        It was the latest one always. Then a generator's transaction, ended inside of another block,
        committed that block's rows, and its own were rolled back with that block.

        Raises: BadRequestError: it was not begun, or nobody has it any more.
        """
        transaction_id = hook_transaction_id()
        if transaction_id is None:
            return self._latest()
        work = self._works.get(transaction_id)
        if work is None:
            raise BadRequestError(
                f"transaction {transaction_id} has nothing on {self._table_name} any more: the "
                "task or thread in which it was started there is gone"
            )
        return work

    def end(self, work: Work) -> None:
        """Let it be current here no more."""
        # The last one stays, so that a rollback may be repeated. The same transaction may be there
        # twice, since two participants may share the table: were both ended by the first of two
        # hooks, the second one ended the transaction around them.
        stack = self._stack.get()
        if len(stack) > 1:
            self._stack.set(_without_last(stack, work.transaction_id))

    def leave(self) -> None:
        """Let the one that is meant be current here no more; harmless where there is none."""
        stack = self._stack.get()
        transaction_id = hook_transaction_id()
        if transaction_id is None:
            self._stack.set(stack[:-1])
        else:
            self._stack.set(_without_last(stack, transaction_id))

    def _push(self, work: Work) -> None:
        stack = self._stack.get()
        if len(stack) == 1 and stack[0].has_ended:
            stack = ()
        if len(stack) >= NESTED_COUNT_MAX:
            stack = tuple(one for one in stack if not one.has_ended)
        if len(stack) >= NESTED_COUNT_MAX:
            raise BadRequestError(
                f"{len(stack)} transactions on {self._table_name} were started here and never "
                "ended; end them, or call leave_tx for each that ended without the table"
            )
        self._stack.set((*stack, work))

    def _latest(self) -> Work:
        stack = self._stack.get()
        if not stack:
            raise BadRequestError(
                f"no transaction was started on {self._table_name} here; call start_tx"
            )
        return stack[-1]


def _without_last(stack: tuple[Work, ...], transaction_id: int) -> tuple[Work, ...]:
    """Less the last entry of a transaction; all, where it has none."""
    for place in range(len(stack) - 1, -1, -1):
        if stack[place].transaction_id == transaction_id:
            return stack[:place] + stack[place + 1 :]
    return stack
