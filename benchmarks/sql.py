"""`python -m benchmarks.sql`: rows of PostgreSQL with a message each, in four ways.

    python -m benchmarks.sql [--clients N] [--seconds N]

    plain       the row alone: the limit
    separate    the row, then the message: a crash in between loses it
    outbox      the row and a row of an outbox; a poller publishes every 100 ms
    ours        `client.sql_transaction`

All clients are tasks of one process, with a connection each. A consumer in a process of its own
reads the topic by long polls. The time to the consumer begins when the client asks for the commit,
which is in the payload. `statements` counts those of one transaction, begin and commit included.
PostgreSQL and the server are as shipped, and write to the same disk.
"""

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles
from typing import Any

import asyncpg

import tuff
from benchmarks.processes import ROOT
from benchmarks.processes import tuff as tuff_server
from tests.sql.databases import Postgresql
from tuff.sql.asyncpg import AsyncpgDatabase
from tuff.sql.dialects import POSTGRESQL

ORDERS = tuff.TopicId("bench", "orders")
POLLER_S = 0.1  # seconds between two looks of the poller
POLLER_COUNT_MAX = 10_000  # messages of one look
INSERT = "INSERT INTO orders (item) VALUES ($1)"
INSERT_OUTBOX = "INSERT INTO outbox (payload) VALUES ($1)"


@dataclass(frozen=True, slots=True)
class Parts:
    """What a transaction needs."""

    client: tuff.AsyncClient
    pool: Any
    shop: AsyncpgDatabase


Way = Callable[[Parts, Any], Awaitable[None]]


def stamp() -> str:
    """The time of the commit, in ns, which the consumer subtracts from its own."""
    return str(time.time_ns())


async def plain(_parts: Parts, connection: Any) -> None:
    async with connection.transaction():
        await connection.execute(INSERT, "apple")


async def separate(parts: Parts, connection: Any) -> None:
    async with connection.transaction():
        await connection.execute(INSERT, "apple")
        stamped = stamp()
    await parts.client.publish(ORDERS, stamped)


async def outbox(_parts: Parts, connection: Any) -> None:
    async with connection.transaction():
        await connection.execute(INSERT, "apple")
        await connection.execute(INSERT_OUTBOX, stamp())


async def ours(parts: Parts, connection: Any) -> None:
    async with parts.client.sql_transaction(parts.shop, connection) as tx:
        await connection.execute(INSERT, "apple")
        await tx.publish(ORDERS, stamp())


WAYS: dict[str, Way] = {"plain": plain, "separate": separate, "outbox": outbox, "ours": ours}


async def poll_outbox(parts: Parts) -> None:
    """Publish what is in the outbox, and delete it."""
    while True:
        async with parts.pool.acquire() as connection, connection.transaction():
            rows = await connection.fetch(
                f"DELETE FROM outbox WHERE id IN (SELECT id FROM outbox ORDER BY id LIMIT "
                f"{POLLER_COUNT_MAX} FOR UPDATE SKIP LOCKED) RETURNING id, payload"
            )
            if rows:
                payloads = [row["payload"] for row in sorted(rows, key=lambda row: row["id"])]
                await parts.client.publish(ORDERS, *payloads)
        await asyncio.sleep(POLLER_S)


async def statements_of(parts: Parts, way: Way) -> int:
    """How many statements one transaction sends."""
    seen: list[object] = []
    async with parts.pool.acquire() as connection:
        connection.add_query_logger(seen.append)
        await way(parts, connection)
        connection.remove_query_logger(seen.append)
    return len(seen)


@asynccontextmanager
async def beside(work: Awaitable[None] | None) -> AsyncIterator[None]:
    """The poller of the outbox."""
    if work is None:
        yield
        return
    task = asyncio.ensure_future(work)
    try:
        yield
    finally:
        await asyncio.sleep(2 * POLLER_S)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def rate_of(parts: Parts, way: Way, *, clients: int, seconds: float) -> float:
    """Transactions per second."""
    done = 0
    end_s = time.perf_counter() + seconds

    async def run() -> None:
        nonlocal done
        async with parts.pool.acquire() as connection:
            while time.perf_counter() < end_s:
                await way(parts, connection)
                done += 1

    began_s = time.perf_counter()
    await asyncio.gather(*(run() for _ in range(clients)))
    return done / (time.perf_counter() - began_s)


async def measure(url: str, dsn: str, *, clients: int, seconds: float) -> None:
    options = {"min_size": clients + 1, "max_size": clients + 1}
    async with tuff.AsyncClient(url) as client, asyncpg.create_pool(dsn, **options) as pool:
        parts = Parts(client, pool, AsyncpgDatabase(dsn, "bench"))
        await prepare(parts)
        print(f"{'way':10} {'per s':>8} {'p50 ms':>8} {'p99 ms':>8} {'statements':>11}")
        for name, way in WAYS.items():
            await client.topics.create(ORDERS)
            async with beside(poll_outbox(parts) if way is outbox else None):
                await rate_of(parts, way, clients=clients, seconds=1)  # warms up
                statements = await statements_of(parts, way)
                consumer = consumer_of(url)
                rate = await rate_of(parts, way, clients=clients, seconds=seconds)
            consumer.terminate()
            latencies_ms = [float(line) for line in consumer.communicate()[0].split()]
            cuts = quantiles(latencies_ms, n=100) if len(latencies_ms) > 1 else None
            shown = "        -        -" if cuts is None else f"{cuts[49]:8.1f} {cuts[98]:8.1f}"
            print(f"{name:10} {rate:8.0f} {shown} {statements:11}", flush=True)
            await client.topics.delete(ORDERS)


async def prepare(parts: Parts) -> None:
    async with parts.pool.acquire() as connection:
        await connection.execute(POSTGRESQL.create_table)
        await connection.execute("CREATE TABLE orders (id BIGSERIAL PRIMARY KEY, item TEXT)")
        await connection.execute("CREATE TABLE outbox (id BIGSERIAL PRIMARY KEY, payload TEXT)")
    # The first block of a process also checks the database.
    async with (
        parts.pool.acquire() as connection,
        parts.client.sql_transaction(parts.shop, connection),
    ):
        pass


def consumer_of(url: str) -> "subprocess.Popen[str]":
    consumer = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.sql", "--consume", url],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert consumer.stdout is not None, "it is a pipe"
    consumer.stdout.readline()
    return consumer


def consume(url: str) -> None:
    """Print the latency of each new message, in ms, after a first line."""
    with tuff.Client(url) as client:
        print("ready", flush=True)
        for message in client.subscribe(ORDERS, "latest"):
            late_ms = (time.time_ns() - int(message.payload)) / 1e6
            sys.stdout.write(f"{late_ms:.3f}\n")
            sys.stdout.flush()


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sql")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--consume", metavar="URL", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.consume:
        consume(options.consume)
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    with (
        tempfile.TemporaryDirectory(prefix="tuff-benchmark-sql-") as directory,
        Postgresql(Path(directory, "postgresql"), "max_connections=200") as postgresql,
        tuff_server(Path(directory, "server")) as server,
    ):
        url = f"http://{server.addr}"
        work = measure(url, postgresql.dsn, clients=options.clients, seconds=options.seconds)
        asyncio.run(work)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
