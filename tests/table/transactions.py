"""What a TransactionContext does with a table, played against the model of the service."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.table.service_model import Service
from tuff.protocol.transaction import Transaction
from tuff.tables.versioned_table import VersionedTable


@contextmanager
def transaction(service: Service, *tables: VersionedTable) -> Iterator[Transaction]:
    """Begins on each table, and ends it with all hooks in their order."""
    started = service.start()
    for table in tables:
        table.start_tx(started)
    try:
        yield started
    except BaseException:
        for table in tables:
            table.rollback_tx()
        service.abort(started)
        raise
    for table in tables:
        table.commit_tx()
    service.commit(started)
    for table in tables:
        table.post_commit()


def fill(service: Service, table: VersionedTable, *names: str) -> None:
    """Each name as a row with itself as its value."""
    with transaction(service, table):
        for name in names:
            table.put(name.encode(), name.encode())


def read(service: Service, table: VersionedTable) -> list[tuple[bytes, bytes]]:
    with transaction(service, table):
        return list(table.scan())


def put_and_fail(service: Service, table: VersionedTable, key: bytes, *, times: int = 1) -> None:
    def work() -> None:
        with transaction(service, *([table] * times)):
            table.put(key, b"never")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        work()
