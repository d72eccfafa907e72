"""The databases of Django: `pip install 'tuff-messaging[django]'`."""

from typing import Any

from django.db import connections, transaction

from tuff.client_errors import WrongStateError
from tuff.sql import dialects
from tuff.sql.database import DbApiConnection, checked_name
from tuff.sql.dialects import Dialect


class DjangoDatabase:
    """A database of the settings, which decides transactions.

        shop = DjangoDatabase("shop")
        with client.sql_transaction(shop, None) as tx:
            Order.objects.create(item="apple")
            tx.publish(orders, "sold one apple")

    The block is one of `transaction.atomic(durable=True)`. `name`: the same in all processes;
    `alias`: of the setting DATABASES.
    """

    def __init__(self, name: str, alias: str = "default") -> None:
        self.name = checked_name(name)
        self._alias = alias

    @property
    def dialect(self) -> Dialect:
        vendor = connections[self._alias].vendor
        if vendor not in dialects.BY_NAME:
            raise ValueError(
                f"{vendor} is not one of the databases that can decide: {sorted(dialects.BY_NAME)}"
            )
        return dialects.BY_NAME[vendor]

    def connect(self) -> "_Connection":
        return _Connection(connections.create_connection(self._alias))

    def joined(self, connection: None) -> "_Block":
        if connection is not None:
            raise WrongStateError(
                "a block of Django uses the connection of its thread; give None in its place"
            )
        own = connections[self._alias]
        if own.in_atomic_block or not own.get_autocommit():
            raise WrongStateError(
                "the block begins a transaction of its own; don't nest it in `atomic` or in "
                "ATOMIC_REQUESTS, and test it with a TransactionTestCase"
            )
        return _Block(own, self._alias)


class _Connection(DbApiConnection):
    """A connection for a question, in a transaction of its own."""

    def begin(self) -> None:
        self._connection.set_autocommit(False)


class _Block(DbApiConnection):
    """The connection of the thread in an atomic block, in which Django refuses that the program
    commits or rolls back."""

    def __init__(self, connection: Any, alias: str) -> None:
        super().__init__(connection)
        self._block = transaction.atomic(using=alias, durable=True)

    def begin(self) -> None:
        self._block.__enter__()

    def before_prepare(self) -> None:
        """Raises: WrongStateError: Django would roll back in place of the commit."""
        if self._connection.needs_rollback:
            raise WrongStateError(
                "the program ignored an error of the database, or asked for a roll-back, so the "
                "block can't commit; let the error end it"
            )

    def commit(self) -> None:
        self._block.__exit__(None, None, None)

    def rollback(self) -> None:
        if self._connection.in_atomic_block:
            self._connection.needs_rollback = True
            self._block.__exit__(None, None, None)
