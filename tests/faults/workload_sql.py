"""One process of the application of `sql.py` or `sql_groups.py`, or its resolver; it works until it
is killed.

python -m tests.faults.workload_sql sell NAME URL DSN
python -m tests.faults.workload_sql sell-on-loop NAME URL DSN
python -m tests.faults.workload_sql consume NAME URL DSN
python -m tests.faults.workload_sql consume-on-loop NAME URL DSN
python -m tests.faults.workload_sql resolve NAME URL DSN
"""

import asyncio
import logging
import sys
import time
from itertools import count

import asyncpg
import psycopg

import tuff
from tuff.protocol.errors import TuffError
from tuff.sql.asyncpg import AsyncpgDatabase
from tuff.sql.psycopg import PsycopgDatabase

ORDERS = tuff.TopicId("faults", "orders")
COPIES = tuff.TopicId("faults", "copies")
DATABASE = "shop"
AGAIN_S = 0.05  # seconds between attempts while PostgreSQL or the server is away
RESOLVE_EVERY_S = 0.2  # seconds
# The last one: PostgreSQL ended the connection while it was idle.
ERRORS_OF_ASYNCPG = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)
TASKS = 16  # of a seller on an event loop, with a connection each


def sell(name: str, url: str, dsn: str) -> None:
    """Insert a row and publish a message, again and again. Each has a number of its own."""
    number = 0
    shop = PsycopgDatabase(dsn, DATABASE)
    with tuff.Client(url, client_id=name, timeout=10) as client:
        while True:
            try:
                with psycopg.connect(dsn) as connection:
                    while True:
                        number += 1
                        sell_one(client, shop, connection, f"{name}-{number}")
            except (TuffError, psycopg.Error):
                time.sleep(AGAIN_S)


def sell_one(
    client: tuff.Client,
    shop: PsycopgDatabase,
    connection: "psycopg.Connection[tuple[object, ...]]",
    item: str,
) -> None:
    """One transaction."""
    with client.sql_transaction(shop, connection) as tx:
        connection.execute("INSERT INTO orders VALUES (%s)", [item])
        tx.publish(ORDERS, item)


def sell_on_loop(name: str, url: str, dsn: str) -> None:
    """As `sell`, by tasks with connections of a pool, over a session."""
    asyncio.run(_sell_on_loop(name, url, dsn))


async def _sell_on_loop(name: str, url: str, dsn: str) -> None:
    numbers = count(1)
    shop = AsyncpgDatabase(dsn, DATABASE)

    async def sell_again(client: tuff.AsyncClient, pool: "asyncpg.Pool[asyncpg.Record]") -> None:
        while True:
            try:
                async with pool.acquire() as connection:
                    item = f"{name}-{next(numbers)}"
                    async with client.sql_transaction(shop, connection) as tx:
                        await connection.execute("INSERT INTO orders VALUES ($1)", item)
                        await tx.publish(ORDERS, item)
            except (TuffError, OSError, *ERRORS_OF_ASYNCPG):
                await asyncio.sleep(AGAIN_S)

    async with (
        tuff.AsyncClient(url, client_id=name, timeout=10, transport="auto") as client,
        asyncpg.create_pool(dsn, min_size=0, max_size=TASKS) as pool,
    ):
        await asyncio.gather(*(sell_again(client, pool) for _ in range(TASKS)))


def consume(name: str, url: str, dsn: str) -> None:
    """Insert a row and publish a copy for each message, as a member of a group."""
    shop = PsycopgDatabase(dsn, DATABASE)
    while True:
        try:
            with (
                tuff.Client(url, client_id=name, timeout=10) as client,
                psycopg.connect(dsn) as connection,
                client.consumer(ORDERS, group="billing", database=shop, batch=20) as consumer,
            ):
                for batch, tx in consumer.transactions(connection):
                    for message in batch:
                        item = message.payload.decode()
                        connection.execute("INSERT INTO done (item) VALUES (%s)", [item])
                        tx.publish(COPIES, item)
        except (TuffError, psycopg.Error):
            logging.exception("once more")
            time.sleep(AGAIN_S)


def consume_on_loop(name: str, url: str, dsn: str) -> None:
    """As `consume`, by asyncpg."""
    asyncio.run(_consume_on_loop(name, url, dsn))


async def _consume_on_loop(name: str, url: str, dsn: str) -> None:
    shop = AsyncpgDatabase(dsn, DATABASE)
    while True:
        try:
            async with tuff.AsyncClient(url, client_id=name, timeout=10) as client:
                connection = await asyncpg.connect(dsn)
                async with client.consumer(
                    ORDERS, group="billing", database=shop, batch=20
                ) as consumer:
                    async for batch, tx in consumer.transactions(connection):
                        rows = [(message.payload.decode(),) for message in batch]
                        await connection.executemany("INSERT INTO done (item) VALUES ($1)", rows)
                        await tx.publish(COPIES, *(message.payload for message in batch))
        except (TuffError, OSError, *ERRORS_OF_ASYNCPG):
            logging.exception("once more")
            await asyncio.sleep(AGAIN_S)


def resolve(name: str, url: str, dsn: str) -> None:
    """Settle what is prepared."""
    with tuff.Client(url, client_id=name, timeout=10) as client:
        client.sql_resolver(PsycopgDatabase(dsn, DATABASE), every=RESOLVE_EVERY_S).run()


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO)
    roles = {
        "sell": sell,
        "sell-on-loop": sell_on_loop,
        "consume": consume,
        "consume-on-loop": consume_on_loop,
        "resolve": resolve,
    }
    roles[sys.argv[1]](*sys.argv[2:])
