"""The databases of Django: `pip install 'tuff-messaging[django]'`."""

from typing import Any

from tuff.errors import WrongStateError
from tuff.optional_packages import Extra
from tuff.sql import dialects
from tuff.sql.database import NOT_COMMITTED, DbApiConnection, SqlBlock, checked_name
from tuff.sql.dialects import Dialect

with Extra("tuff.sql.django", "django"):
    from django.db import connections, transaction


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
            raise TypeError(
                "a block of Django uses the connection of its thread; give None in its place"
            )
        return _Block(connections[self._alias], self._alias)


class _Connection(DbApiConnection):
    """A connection for a question, in a transaction of its own."""

    def begin(self) -> None:
        self._connection.set_autocommit(False)


class _Block(DbApiConnection, SqlBlock):
    """The connection of the thread in an atomic block, in which Django refuses that the program
    commits or rolls back."""

    def __init__(self, connection: Any, alias: str) -> None:
        super().__init__(connection)
        self._block = transaction.atomic(using=alias, durable=True)

    def begin(self) -> None:
        if self._connection.in_atomic_block or not self._connection.get_autocommit():
            raise WrongStateError(
                "the block begins a transaction of its own; don't nest it in `atomic` or in "
                "ATOMIC_REQUESTS, and test it with a TransactionTestCase"
            )
        self._block.__enter__()

    def before_prepare(self) -> None:
        """Raises: WrongStateError: Django would roll back in place of the commit."""
        if self._connection.needs_rollback:
            raise WrongStateError(
                "the program ignored an error of the database, or asked for a roll-back, so the "
                "block can't commit; let the error end it"
            )

    def record(self, dialect: Dialect, pointer: int) -> None:
        self.execute(dialect.insert_of_commit(pointer))

    def commit(self) -> None:
        self._make_hooks_robust()
        self._block.__exit__(None, None, None)

    def _make_hooks_robust(self) -> None:
        """Let Django log the error of an `on_commit` function, and run those behind it. The commit
        can't be undone any more, and the block must not look as if it had been."""
        hooks = self._connection.run_on_commit
        hooks[:] = [(savepoints, function, True) for savepoints, function, _ in hooks]

    def rollback(self) -> None:
        if self._connection.in_atomic_block:
            self._connection.needs_rollback = True
            self._block.__exit__(None, None, None)

    def recorded(self, dialect: Dialect, pointer: int) -> list[Any]:
        if self._connection.in_atomic_block or not self._connection.get_autocommit():
            raise WrongStateError(NOT_COMMITTED)
        return self.fetch(dialect.select_committed(pointer))
