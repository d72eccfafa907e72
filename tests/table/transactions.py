"""Transactions over tables, with the hooks in the order of a `TransactionContext`, and the model of
the service."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.table.service_model import Service
from tuff.protocol.transaction import Transaction
from tuff.tables.versioned_table import VersionedTable


@contextmanager
def transaction(service: Service, *tables: VersionedTable) -> Iterator[Transaction]:
    """A transaction on these tables."""
    started = service.start()
    for table in tables:
        table.start_tx(started)
    try:
        yield started
    except BaseException:
        for table in tables:
            table.rollback_tx(started)
        service.abort(started)
        raise
    for table in tables:
        table.commit_tx(started)
    service.commit(started)
    for table in tables:
        table.post_commit(started)


def fill(service: Service, table: VersionedTable, *names: str) -> None:
    """Commit a row for each name, with the name as its value."""
    with transaction(service, table):
        for name in names:
            table.put(name.encode(), name.encode())


def write(service: Service, table: VersionedTable, **rows: bytes | None) -> Transaction:
    """Commit these rows; None deletes."""
    with transaction(service, table) as started:
        for name, value in rows.items():
            if value is None:
                table.delete(name.encode())
            else:
                table.put(name.encode(), value)
    return started


def left_invalid(
    service: Service, table: VersionedTable, key: bytes, value: bytes = b"never"
) -> Transaction:
    """A transaction that stored a write and then timed out."""
    started = service.start()
    table.start_tx(started)
    table.put(key, value)
    table.commit_tx(started)
    table.leave_tx(started)
    service.invalidate(started)
    return started


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
