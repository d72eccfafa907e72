"""Where a subscriber is, kept in a row of the table that it writes to."""

from collections.abc import Collection
from typing import Protocol

from tuff.protocol.ids import MessageId
from tuff.protocol.transaction import Transaction

ROW_PREFIX = b"\x00tuff:position:"  # begins with a zero, so that it sorts before rows of programs


class Table(Protocol):
    """A participant with rows: what `tuff.TransactionalTable` is."""

    name: str

    def get(self, key: bytes, /) -> bytes | None: ...
    def put(self, key: bytes, value: bytes, /) -> None: ...
    def start_tx(self, transaction: Transaction) -> None: ...
    def update_tx(self, transaction: Transaction) -> None: ...
    def tx_changes(self) -> Collection[bytes]: ...
    def commit_tx(self) -> None: ...
    def post_commit(self) -> None: ...
    def rollback_tx(self) -> None: ...


class TablePositions:
    """The position of the subscriber `name`, as a row of `table`.

    It brings the table into the transaction: `process` reads and writes the table's rows without
    adding it, and they commit together with the position.
    """

    def __init__(self, table: Table, name: str) -> None:
        self.name = f"position of {name} in {table.name}"
        self._table = table
        self._key = ROW_PREFIX + name.encode("utf-8")
        self.start_tx = table.start_tx
        self.update_tx = table.update_tx
        self.tx_changes = table.tx_changes
        self.commit_tx = table.commit_tx
        self.post_commit = table.post_commit
        self.rollback_tx = table.rollback_tx
        self.leave_tx = getattr(table, "leave_tx", None)

    def load(self) -> MessageId | None:
        """The position that the current transaction sees; None: there is none yet."""
        stored = self._table.get(self._key)
        return None if stored is None else MessageId.from_bytes(stored)

    def save(self, id: MessageId, tx: object) -> None:
        """Keep the position, as a row that the current transaction writes."""
        self._table.put(self._key, id.to_bytes())
