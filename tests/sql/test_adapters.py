"""Each library: rows and messages commit together, or neither does."""

import asyncio
from pathlib import Path
from typing import Any

import asyncpg
import psycopg
import pytest

import tuff
from tests.http.client import until
from tests.sql.deciding_server import FIRST_POINTER, AsyncDecidingServer, DecidingServer
from tests.sql.libraries import (
    ASYNCIO,
    BLOCKING,
    Blocking,
    Library,
    OnLoop,
    items,
    on_a_loop,
    sell,
    sell_async,
)
from tests.sql.test_psycopg import ORDERS
from tuff.sql.asyncpg import AsyncpgDatabase


class LosesAnswer:
    """A connection that commits, and then loses the answer."""

    def __init__(self, inner: Any, *, is_async: bool) -> None:
        self._inner = inner
        self.commit = self._commit_async if is_async else self._commit

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def _commit(self) -> None:
        self._inner.commit()
        raise ConnectionError("the answer was lost")

    async def _commit_async(self) -> None:
        await self._inner.commit()
        raise ConnectionError("the answer was lost")


def lose_answers(shop: Any, *, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    joined = shop.joined
    monkeypatch.setattr(shop, "joined", lambda one: LosesAnswer(joined(one), is_async=is_async))


@BLOCKING
def test_both_commit(
    client: tuff.Client, server: DecidingServer, dsn: str, path: Path, library: Blocking
) -> None:
    with library(dsn, path) as one:
        sell(client, one)

    assert (items(dsn, path), server.visible) == (["apple"], ["sold one apple"])
    assert server.states == {FIRST_POINTER: "committed"}


@ASYNCIO
def test_both_commit_on_a_loop(
    server: DecidingServer, dsn: str, path: Path, library: OnLoop
) -> None:
    on_a_loop(server, dsn, library, sell_async)

    assert (items(dsn, path), server.visible) == (["apple"], ["sold one apple"])
    assert server.states == {FIRST_POINTER: "committed"}


@BLOCKING
def test_a_refused_prepare_rolls_back(
    client: tuff.Client, server: DecidingServer, dsn: str, path: Path, library: Blocking
) -> None:
    server.at["prepare"] = lambda: server.states.update({FIRST_POINTER: "aborted"})

    with library(dsn, path) as one, pytest.raises(tuff.errors.TransactionTimedOutError):
        sell(client, one)

    assert (items(dsn, path), server.visible) == ([], [])


@ASYNCIO
def test_a_refused_prepare_rolls_back_on_a_loop(
    server: DecidingServer, dsn: str, path: Path, library: OnLoop
) -> None:
    server.at["prepare"] = lambda: server.states.update({FIRST_POINTER: "aborted"})

    with pytest.raises(tuff.errors.TransactionTimedOutError):
        on_a_loop(server, dsn, library, sell_async)

    assert (items(dsn, path), server.visible) == ([], [])


@BLOCKING
def test_a_lost_answer_of_the_commit_is_asked_for(
    client: tuff.Client, server: DecidingServer, dsn: str, path: Path, library: Blocking,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    with library(dsn, path) as one:
        lose_answers(one.shop, is_async=False, monkeypatch=monkeypatch)
        sell(client, one)

    assert (items(dsn, path), server.visible) == (["apple"], ["sold one apple"])


@ASYNCIO
def test_a_lost_answer_of_the_commit_is_asked_for_on_a_loop(
    server: DecidingServer, dsn: str, path: Path, library: OnLoop, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def work(client: tuff.AsyncClient, one: Library) -> None:
        lose_answers(one.shop, is_async=True, monkeypatch=monkeypatch)
        await sell_async(client, one)

    on_a_loop(server, dsn, library, work)

    assert (items(dsn, path), server.visible) == (["apple"], ["sold one apple"])


@BLOCKING
def test_a_connection_serves_many_blocks_also_after_an_error(
    client: tuff.Client, server: DecidingServer, dsn: str, path: Path, library: Blocking
) -> None:
    with library(dsn, path) as one:
        sell(client, one)
        with pytest.raises(Exception, match=r"(?i)unique"):
            sell(client, one)
        with client.sql_transaction(one.shop, one.connection) as tx:
            one.execute("DELETE FROM orders")
            tx.publish(ORDERS, "no apples")

    assert (items(dsn, path), server.visible) == ([], ["sold one apple", "no apples"])


@ASYNCIO
def test_a_resolver_settles_on_a_loop(
    server: DecidingServer, dsn: str, path: Path, library: OnLoop
) -> None:
    async def work(client: tuff.AsyncClient, one: Library) -> None:
        settled = asyncio.Event()
        server.lose_request["resolve"] = 1
        await sell_async(client, one)
        server.at["resolve"] = settled.set
        async with client.sql_resolver(one.shop, every=0.01):
            await settled.wait()

    on_a_loop(server, dsn, library, work)

    assert (items(dsn, path), server.visible) == (["apple"], ["sold one apple"])


def test_a_connection_of_a_pool_of_asyncpg_is_checked_once(
    server: DecidingServer, dsn: str
) -> None:
    seen: list[str] = []

    def note(logged: Any) -> None:
        seen.append(logged.query.split()[0])

    async def main() -> None:
        shop = AsyncpgDatabase(dsn, "shop")
        async with (
            tuff.AsyncClient(transport=AsyncDecidingServer(server), retries=0) as client,
            asyncpg.create_pool(dsn, min_size=1, max_size=1) as pool,
        ):
            for _ in range(2):
                seen.clear()
                async with pool.acquire() as connection:
                    connection.add_query_logger(note)
                    async with client.sql_transaction(shop, connection) as tx:
                        await tx.publish(ORDERS, "sold one apple")

    asyncio.run(main())

    # The mark of the transaction; the row, read back; and the pool's reset.
    assert seen == ["BEGIN;", "SELECT", "INSERT", "COMMIT;", "SELECT", "SELECT"]
    assert len(server.visible) == 2


WAITING_COMMIT = """
CREATE FUNCTION waits() RETURNS trigger LANGUAGE plpgsql AS
    $$ BEGIN PERFORM pg_advisory_xact_lock(1); RETURN NULL; END $$;
CREATE CONSTRAINT TRIGGER waits AFTER INSERT ON orders
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION waits();
"""


@ASYNCIO
def test_a_cancellation_during_the_commit_leaves_both_or_neither(
    server: DecidingServer, dsn: str, path: Path, library: OnLoop
) -> None:
    with psycopg.connect(dsn) as connection:
        connection.execute(WAITING_COMMIT)
    holder = psycopg.connect(dsn, autocommit=True)
    holder.execute("SELECT pg_advisory_lock(1)")

    def commit_waits() -> bool:
        return bool(holder.execute("SELECT 1 FROM pg_locks WHERE NOT granted").fetchall())

    async def work(client: tuff.AsyncClient, one: Library) -> None:
        task = asyncio.get_running_loop().create_task(sell_async(client, one))
        await asyncio.to_thread(until, commit_waits)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        holder.close()
        await client.sql_resolver(one.shop).once()

    on_a_loop(server, dsn, library, work)

    assert len(items(dsn, path)) == len(server.visible)
    assert server.states[FIRST_POINTER] in ("committed", "aborted")
