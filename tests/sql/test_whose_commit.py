"""The commit of a block is that of its database transaction: one that the block began, that nothing
else ended, and whose row is there afterwards. Otherwise no message of the block is visible."""

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest
from django.db import connections
from sqlalchemy import create_engine, event, text
from sqlalchemy.orm import Session
from sqlalchemy.pool import NullPool

import tuff
from tests.sql.deciding_server import AsyncDecidingServer, DecidingServer
from tests.sql.delaying_proxy import DelayingProxy
from tests.sql.libraries import (
    ASYNCIO,
    BLOCKING,
    INSERT,
    Blocking,
    Library,
    OnLoop,
    items,
    on_a_loop,
    sell,
    sell_async,
)
from tests.sql.test_psycopg import ORDERS
from tests.sql.test_psycopg import items as items_of
from tuff.errors import WrongStateError
from tuff.sql.asyncpg import AsyncpgDatabase
from tuff.sql.django import DjangoDatabase
from tuff.sql.psycopg import PsycopgDatabase
from tuff.sql.sqlalchemy import SqlAlchemyDatabase

ENDINGS = pytest.mark.parametrize(
    "ending", [["ROLLBACK"], ["ROLLBACK", "BEGIN"], ["COMMIT", "BEGIN"]], ids=" ".join
)
# What something else does with the connection between the row and the commit.
INTERFERENCES = pytest.mark.parametrize(
    "statements", [["ROLLBACK"], ["ROLLBACK", "BEGIN"], ["SELECT no_column"]], ids=" ".join
)


ANSWER_COUNT = 7  # of PostgreSQL in a block, at the most


class TestWithinTheBlock:
    """The program ends the transaction by a statement, which no driver prevents."""

    @BLOCKING
    @ENDINGS
    def test_an_end_of_the_transaction_is_found(
        self, client: tuff.Client, server: DecidingServer, dsn: str, path: Path,
        library: Blocking, ending: Sequence[str],
    ) -> None:  # fmt: skip
        def ends_it(one: Library) -> None:
            with client.sql_transaction(one.shop, one.connection) as tx:
                tx.publish(ORDERS, "sold one apple")
                for statement in ending:
                    one.execute(statement)
                one.execute(INSERT)

        with library(dsn, path) as one, pytest.raises(WrongStateError, match="within the block"):
            ends_it(one)

        assert server.visible == []

    @ASYNCIO
    @ENDINGS
    def test_an_end_of_the_transaction_is_found_on_a_loop(
        self, server: DecidingServer, dsn: str, library: OnLoop, ending: Sequence[str]
    ) -> None:
        async def ends_it(client: tuff.AsyncClient, one: Library) -> None:
            async with client.sql_transaction(one.shop, one.connection) as tx:
                await tx.publish(ORDERS, "sold one apple")
                for statement in ending:
                    await one.execute(statement)
                await one.execute(INSERT)

        with pytest.raises(WrongStateError, match="within the block"):
            on_a_loop(server, dsn, library, ends_it)

        assert server.visible == []

    @ENDINGS
    def test_an_end_of_the_transaction_is_found_with_django(
        self, client: tuff.Client, server: DecidingServer, alias: str,
        ending: Sequence[str],
    ) -> None:  # fmt: skip
        def ends_it() -> None:
            with client.sql_transaction(DjangoDatabase("shop", alias), None) as tx:
                tx.publish(ORDERS, "sold one apple")
                with connections[alias].cursor() as cursor:
                    for statement in (*ending, INSERT):
                        cursor.execute(statement)

        with pytest.raises(WrongStateError, match="within the block"):
            ends_it()

        assert server.visible == []

    @BLOCKING
    def test_a_block_without_messages_finds_it_too(
        self, client: tuff.Client, dsn: str, path: Path, library: Blocking
    ) -> None:
        def ends_it(one: Library) -> None:
            with client.sql_transaction(one.shop, one.connection):
                one.execute("ROLLBACK")
                one.execute("BEGIN")
                one.execute(INSERT)

        with library(dsn, path) as one, pytest.raises(WrongStateError, match="within the block"):
            ends_it(one)

        assert items(dsn, path) == []


class TestBehindTheRow:
    """Something else uses the connection between the row and the commit."""

    @BLOCKING
    @INTERFERENCES
    def test_a_commit_that_commits_nothing_publishes_nothing(
        self, client: tuff.Client, server: DecidingServer, dsn: str, path: Path,
        library: Blocking, statements: Sequence[str],
    ) -> None:  # fmt: skip
        with library(dsn, path) as one:
            server.at["prepare"] = lambda: run_all(one, statements)
            failed = failure_of(lambda: sell(client, one))

        assert len(items(dsn, path)) == len(server.visible)
        assert (failed is None) == (len(server.visible) == 1)

    @ASYNCIO
    @INTERFERENCES
    def test_a_commit_that_commits_nothing_publishes_nothing_on_a_loop(
        self, server: DecidingServer, dsn: str, path: Path, library: OnLoop,
        statements: Sequence[str],
    ) -> None:  # fmt: skip
        async def main() -> None:
            transport = Interfering(server)
            async with (
                tuff.AsyncClient(transport=transport, retries=0) as client,
                library(dsn) as one,
            ):
                transport.one, transport.statements = one, statements
                await sell_async(client, one)

        failed = failure_of(lambda: asyncio.run(main()))
        assert failed is not None

        assert (items(dsn, path), server.visible) == ([], [])
        assert list(server.states.values()) == ["aborted"]

    @INTERFERENCES
    def test_a_commit_that_commits_nothing_publishes_nothing_with_django(
        self, client: tuff.Client, server: DecidingServer, dsn: str, alias: str,
        statements: Sequence[str],
    ) -> None:  # fmt: skip
        def interfere() -> None:
            with connections[alias].cursor() as cursor:
                for statement in statements:
                    failure_of(partial(cursor.execute, statement))
            connections[alias].needs_rollback = False

        server.at["prepare"] = interfere

        def sells() -> None:
            with client.sql_transaction(DjangoDatabase("shop", alias), None) as tx:
                with connections[alias].cursor() as cursor:
                    cursor.execute(INSERT)
                tx.publish(ORDERS, "sold one apple")

        with pytest.raises(WrongStateError, match="did not commit"):
            sells()

        assert (items_of(dsn), server.visible) == ([], [])
        assert list(server.states.values()) == ["aborted"]

    def test_a_listener_of_a_session_that_ends_the_transaction_is_found(
        self, client: tuff.Client, server: DecidingServer, dsn: str
    ) -> None:
        engine = create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))

        def ends_it(session: Session) -> None:
            session.connection().exec_driver_sql("ROLLBACK")

        with Session(engine) as session:
            event.listen(session, "before_commit", ends_it)
            one = Library(
                SqlAlchemyDatabase(engine, "shop"), session, lambda one: session.execute(text(one))
            )
            with pytest.raises(WrongStateError, match="did not commit"):
                sell(client, one)
        engine.dispose()

        assert (items_of(dsn), server.visible) == ([], [])
        assert list(server.states.values()) == ["aborted"]


class Interfering(AsyncDecidingServer):
    """Uses the connection of a block at the prepare, as a task does that was left behind."""

    one: Library
    statements: Sequence[str]

    async def send(self, call: Any) -> Any:
        if call.request.path.endswith("/prepare"):
            for statement in self.statements:
                with suppress(Exception):
                    await self.one.execute(statement)
        return await super().send(call)


def failure_of(function: Any) -> Exception | None:
    try:
        function()
    except Exception as error:  # noqa: BLE001 - returned
        return error
    return None


def run_all(one: Library, statements: Sequence[str]) -> None:
    for statement in statements:
        failure_of(partial(one.execute, statement))


class TestTheBegin:
    """A block begins a transaction, or is refused."""

    def test_a_transaction_that_began_after_the_context_was_made_is_refused_and_kept(
        self, client: tuff.Client, server: DecidingServer, dsn: str
    ) -> None:
        with psycopg.connect(dsn) as connection:
            block = client.sql_transaction(PsycopgDatabase(dsn, "shop"), connection)
            connection.execute(INSERT)
            with pytest.raises(WrongStateError, match="commit it before the block begins"):
                block.__enter__()
            connection.commit()

        assert (items_of(dsn), server.visible) == (["apple"], [])

    def test_a_pipeline_of_psycopg_is_refused(self, client: tuff.Client, dsn: str) -> None:
        shop = PsycopgDatabase(dsn, "shop")
        with (
            psycopg.connect(dsn) as connection,
            connection.pipeline(),
            pytest.raises(WrongStateError, match="begin and end the block outside of it"),
            client.sql_transaction(shop, connection),
        ):
            raise AssertionError("the block must not run")

    def test_a_pipeline_of_psycopg_within_the_block_works(
        self, client: tuff.Client, server: DecidingServer, dsn: str
    ) -> None:
        with (
            psycopg.connect(dsn) as connection,
            client.sql_transaction(PsycopgDatabase(dsn, "shop"), connection) as tx,
        ):
            with connection.pipeline():
                connection.execute(INSERT)
                connection.execute("INSERT INTO orders VALUES ('pear')")
            tx.publish(ORDERS, "sold both")

        assert (items_of(dsn), server.visible) == (["apple", "pear"], ["sold both"])

    def test_a_session_that_is_bound_to_a_connection_is_refused(
        self, client: tuff.Client, server: DecidingServer, dsn: str
    ) -> None:
        engine = create_engine(
            dsn.replace("postgresql:", "postgresql+psycopg:"), poolclass=NullPool
        )
        shop = SqlAlchemyDatabase(engine, "shop")
        with (
            engine.connect() as outer,
            outer.begin(),
            Session(outer) as session,
            pytest.raises(WrongStateError, match=r"bind it to the engine: Session\(engine\)"),
            client.sql_transaction(shop, session),
        ):
            raise AssertionError("the block must not run")

    def test_a_second_connection_to_the_same_database_is_refused(
        self, client: tuff.Client, server: DecidingServer, dsn: str
    ) -> None:
        url = dsn.replace("postgresql:", "postgresql+psycopg:")
        engine = create_engine(url, poolclass=NullPool)
        other = create_engine(url, poolclass=NullPool)

        def uses_both(session: Session) -> None:
            with client.sql_transaction(SqlAlchemyDatabase(engine, "shop"), session) as tx:
                tx.publish(ORDERS, "sold one apple")
                session.execute(text(INSERT), bind_arguments={"bind": other})

        with Session(engine) as session, pytest.raises(WrongStateError, match="second connection"):
            uses_both(session)

        assert (items_of(dsn), server.visible) == ([], [])

    def test_an_engine_that_commits_each_statement_is_asked_nothing(
        self, client: tuff.Client, server: DecidingServer, dsn: str
    ) -> None:
        url = dsn.replace("postgresql:", "postgresql+psycopg:")
        automatic = create_engine(url, poolclass=NullPool, isolation_level="AUTOCOMMIT")
        server.lose_request["resolve"] = 1
        with psycopg.connect(dsn) as connection:
            sell(client, Library(PsycopgDatabase(dsn, "shop"), connection, connection.execute))

        with pytest.raises(WrongStateError, match="commits each statement by itself"):
            client.sql_resolver(SqlAlchemyDatabase(automatic, "shop")).once()

        assert list(server.states.values()) == ["prepared"]


class TestCancellation:
    """A task is cancelled while PostgreSQL answers one of the statements of its block."""

    @ASYNCIO
    def test_the_next_block_of_the_connection_agrees_with_the_database(
        self, server: DecidingServer, dsn: str, library: OnLoop
    ) -> None:
        async def main(answer: int) -> None:
            async with (
                DelayingProxy(dsn) as proxy,
                tuff.AsyncClient(transport=AsyncDecidingServer(server), retries=0) as client,
                library(proxy.dsn) as one,
            ):
                await block(client, one, f"first {answer}")
                task = asyncio.create_task(block(client, one, f"cancelled {answer}"))
                await proxy.holding(answer, task)
                assert isinstance(await failure_of_task(task), asyncio.CancelledError | None)
                failed = await failure_of_task(block(client, one, f"second {answer}"))
                assert isinstance(failed, WrongStateError | asyncpg.InterfaceError | None)
                await client.sql_resolver(AsyncpgDatabase(dsn, "shop")).once()

        for answer in range(ANSWER_COUNT):
            asyncio.run(main(answer))

            assert sorted(server.visible) == items_of(dsn)
            assert "prepared" not in server.states.values()

    def test_a_connection_works_on_after_a_cancellation_during_the_begin(
        self, server: DecidingServer, dsn: str
    ) -> None:
        async def main() -> None:
            async with (
                DelayingProxy(dsn) as proxy,
                tuff.AsyncClient(transport=AsyncDecidingServer(server), retries=0) as client,
            ):
                connection = await asyncpg.connect(proxy.dsn)
                one = Library(AsyncpgDatabase(dsn, "shop"), connection, connection.execute)
                await block(client, one, "first")
                task = asyncio.create_task(block(client, one, "cancelled"))
                await proxy.holding(0, task)
                assert isinstance(await failure_of_task(task), asyncio.CancelledError)
                await block(client, one, "second")
                await connection.close()

        asyncio.run(main())

        assert items_of(dsn) == server.visible == ["first", "second"]

    def test_a_transaction_of_the_program_whose_begin_was_cancelled_is_found(
        self, server: DecidingServer, dsn: str
    ) -> None:
        async def main() -> None:
            async with (
                DelayingProxy(dsn) as proxy,
                tuff.AsyncClient(transport=AsyncDecidingServer(server), retries=0) as client,
            ):
                connection = await asyncpg.connect(proxy.dsn)
                one = Library(AsyncpgDatabase(dsn, "shop"), connection, connection.execute)
                await block(client, one, "first")
                task = asyncio.create_task(connection.transaction().start())
                await proxy.holding(0, task)
                assert isinstance(await failure_of_task(task), asyncio.CancelledError)
                await block(client, one, "second")

        with pytest.raises((WrongStateError, asyncpg.PostgresError)):
            asyncio.run(main())

        assert items_of(dsn) == server.visible == ["first"]
        assert "prepared" not in server.states.values()


async def block(client: tuff.AsyncClient, one: Library, item: str) -> None:
    async with client.sql_transaction(one.shop, one.connection) as tx:
        await one.execute(f"INSERT INTO orders VALUES ('{item}')")
        await tx.publish(ORDERS, item)


async def failure_of_task(work: Awaitable[None]) -> BaseException | None:
    found: list[BaseException | None] = await asyncio.gather(work, return_exceptions=True)
    return found[0]
