"""A model of the transaction service, with the calls of a client that `compact` needs.

tests/table/test_server.py runs tables with the real service.
"""

from dataclasses import dataclass

from tuff.protocol.transaction import Transaction, TransactionType

FIRST = 1000


@dataclass(frozen=True, slots=True)
class Overview:
    """The part of the overview that a table needs."""

    visibility_upper_bound: int


class Service:
    """Pointers count up from `FIRST`; every end takes effect at once."""

    def __init__(self) -> None:
        self.transactions = self
        self.open: dict[int, Transaction] = {}
        self.invalids: set[int] = set()
        self._read_pointer = FIRST
        self._last = FIRST

    def start(self, kind: TransactionType = TransactionType.SHORT) -> Transaction:
        pointers = [pointer for one in self.open.values() for pointer in pointers_of(one)]
        self._last += 1
        transaction = Transaction(
            transaction_id=self._last,
            read_pointer=self._read_pointer,
            write_pointer=self._last,
            invalids=tuple(sorted(self.invalids)),
            in_progress=tuple(sorted(pointers)),
            type=kind,
        )
        self.open[transaction.transaction_id] = transaction
        return transaction

    def checkpoint(self, transaction: Transaction) -> Transaction:
        self._last += 1
        made = transaction.checkpointed(self._last)
        self.open[transaction.transaction_id] = made
        return made

    def commit(self, transaction: Transaction, *, read_only: bool = False) -> None:
        self._end(transaction)

    def abort(self, transaction: Transaction) -> None:
        if transaction.transaction_id in self.open:
            self._end(transaction)
        self.invalids -= set(pointers_of(transaction))

    def invalidate(self, transaction: Transaction) -> None:
        self.invalids |= set(pointers_of(self._end(transaction)))

    def truncate(self, pointers: list[int]) -> None:
        self.invalids -= set(pointers)

    def overview(self) -> Overview:
        first = next(iter(self.open.values()), None)
        return Overview(self._read_pointer if first is None else first.visibility_upper_bound)

    def _end(self, transaction: Transaction) -> Transaction:
        ended = self.open.pop(transaction.transaction_id)
        self._read_pointer = max(self._read_pointer, *pointers_of(ended))
        return ended


def pointers_of(transaction: Transaction) -> tuple[int, ...]:
    """All pointers that a transaction ever wrote under."""
    return (transaction.transaction_id, *transaction.checkpoint_write_pointers)
