"""Transactions over one table that do not end in reverse order of their starts, on a real server.

A generator that holds a `with` block runs in its caller's context. The block ends where the
generator is exhausted, or where its last reference is deleted.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

import tuff
from tests.client.proxy import losing
from tests.http.process import ServerProcess
from tests.table.test_server import put, read
from tuff.errors import WrongStateError
from tuff.tables.versioned_table import VersionedTable


@pytest.fixture
def stock(client: tuff.Client, table: VersionedTable) -> VersionedTable:
    """Two apples."""
    put(client, table, b"apple", b"2")
    return table


def rows_of(client: tuff.Client, table: VersionedTable) -> Iterator[tuple[bytes, bytes]]:
    """Scan the table in a transaction of its own."""
    with client.transaction(table):
        yield from table.scan()


def test_a_generator_that_ends_inside_a_block_does_not_commit_the_block(
    client: tuff.Client, stock: VersionedTable
) -> None:
    reader = rows_of(client, stock)
    next(reader)

    def fail() -> None:
        with client.transaction(stock):
            stock.put(b"apple", b"never")
            assert list(reader) == []
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert read(client, stock) == {b"apple": b"2"}


def test_a_generator_dropped_inside_a_block_does_not_roll_the_block_back(
    client: tuff.Client, stock: VersionedTable
) -> None:
    reader = rows_of(client, stock)
    next(reader)

    with client.transaction(stock):
        stock.put(b"apple", b"1")
        del reader  # its block ends here, by GeneratorExit
        assert stock.get(b"apple") == b"1"
    assert read(client, stock) == {b"apple": b"1"}


def test_an_unknown_outcome_does_not_affect_a_later_transaction(
    server: ServerProcess, client: tuff.Client, stock: VersionedTable
) -> None:
    with losing(server.url) as (url, losses), tuff.Client(url, retries=0) as unlucky:
        first = unlucky.transaction(stock)
        first.__enter__()
        losses.lose_request("commit")
        losses.lose_request("invalidate")

        with client.transaction(stock):
            with pytest.raises(tuff.OutcomeUnknownError):
                first.__exit__(None, None, None)
            stock.put(b"apple", b"1")

    assert read(client, stock) == {b"apple": b"1"}


@pytest.mark.parametrize("first_commits", [True, False])
def test_two_transactions_may_end_in_the_order_of_their_starts(
    client: tuff.Client, stock: VersionedTable, first_commits: bool
) -> None:
    first, second = client.transaction(stock), client.transaction(stock)
    failure = ZeroDivisionError()
    first.__enter__()
    stock.put(b"first", b"")
    second.__enter__()
    stock.put(b"second", b"")

    for context, commits in ((first, first_commits), (second, not first_commits)):
        if commits:
            context.__exit__(None, None, None)
        else:
            context.__exit__(ZeroDivisionError, failure, None)

    assert not hasattr(failure, "__notes__"), failure.__notes__
    assert set(read(client, stock)) == {b"apple", b"first" if first_commits else b"second"}


async def test_an_async_generator_that_ends_inside_a_block_does_not_commit_the_block(
    loop_client: tuff.AsyncClient, client: tuff.Client, stock: VersionedTable
) -> None:
    async def rows() -> AsyncIterator[tuple[bytes, bytes]]:
        async with loop_client.transaction(stock):
            for row in stock.scan():
                yield row

    async def fail() -> None:
        reader = rows()
        await anext(reader)
        async with loop_client.transaction(stock):
            stock.put(b"apple", b"never")
            assert [row async for row in reader] == []
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await asyncio.to_thread(read, client, stock) == {b"apple": b"2"}


async def test_a_table_that_joined_in_a_task_that_ended_commits_with_the_block(
    loop_client: tuff.AsyncClient, client: tuff.Client, stock: VersionedTable
) -> None:
    """Its hooks went to the latest transaction of the block's own task, which had ended; later they
    refused, since the work was gone with the task."""
    async with loop_client.transaction(stock):
        pass
    context = loop_client.transaction()

    async def join() -> None:
        await context.add(stock)
        stock.put(b"apple", b"1")

    async with context:
        await asyncio.create_task(join())

    assert await asyncio.to_thread(read, client, stock) == {b"apple": b"1"}


def test_a_row_written_after_tx_changes_fails_the_commit(
    client: tuff.Client, stock: VersionedTable
) -> None:
    """Two transactions that counted at once both committed, and one update was lost."""

    class Counter(tuff.TransactionAware):
        """Counts in the table, in its own `commit_tx`."""

        name = "counter"

        def tx_changes(self, transaction: tuff.Transaction) -> list[bytes]:
            return []

        def commit_tx(self, transaction: tuff.Transaction) -> None:
            stock.put(b"count", b"1")

        def rollback_tx(self, transaction: tuff.Transaction) -> None: ...

    def late() -> None:
        with client.transaction(Counter(), stock):
            stock.get(b"count")

    with pytest.raises(WrongStateError, match=r"'count' of .* too late to be checked"):
        late()
    assert read(client, stock) == {b"apple": b"2"}

    with client.transaction(stock) as tx:
        # Outside of a commit, more writes may follow.
        assert list(stock.tx_changes(tx.transaction)) == []
        stock.put(b"apple", b"1")
    assert read(client, stock) == {b"apple": b"1"}
