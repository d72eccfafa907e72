"""Where a subscriber is, kept in a row of the table that it writes to."""

from collections.abc import Collection
from typing import Protocol

from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import MessageId
from tuff.protocol.names import TopicId
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
    """The position of the subscriber `name` in one topic, as a row of `table`.

    Each topic has a row of its own, so a program that reads several makes one of these for each of
    them, all of the same name if it likes.

    It brings the table into the transaction: `process` reads and writes the table's rows without
    adding it, and they commit together with the position.
    """

    def __init__(self, table: Table, name: str) -> None:
        self.name = f"position of {name} in {table.name}"
        self._table = table
        self._name = name
        self._topic: TopicId | None = None
        self.start_tx = table.start_tx
        self.update_tx = table.update_tx
        self.tx_changes = table.tx_changes
        self.commit_tx = table.commit_tx
        self.post_commit = table.post_commit
        self.rollback_tx = table.rollback_tx
        self.leave_tx = getattr(table, "leave_tx", None)

    def keep_for(self, topic: TopicId) -> None:
        """Keep the position in this topic; `client.subscriber` says it.

        Raises: BadRequestError: it is kept for another one already.
        """
        if self._topic not in (None, topic):
            raise BadRequestError(
                f"{self.name} is kept for {self._topic}, and a position in one topic is none in "
                f"{topic}; make a tuff.TablePositions for each"
            )
        self._topic = topic

    def load(self) -> MessageId | None:
        """The position that the current transaction sees; None: there is none yet."""
        stored = self._table.get(self._key())
        return None if stored is None else MessageId.from_bytes(stored)

    def save(self, id: MessageId, tx: object) -> None:
        """Keep the position, as a row that the current transaction writes."""
        self._table.put(self._key(), id.to_bytes())

    def _key(self) -> bytes:
        if self._topic is None:
            raise BadRequestError(f"{self.name} is for no topic yet; say `keep_for(topic)` first")
        # No name of a topic has a colon, so the first two parts end where they should.
        return ROW_PREFIX + f"{self._topic}:{self._name}".encode()
