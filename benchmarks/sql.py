"""`python -m benchmarks.sql`: rows of PostgreSQL with a message each, in four ways.

    python -m benchmarks.sql [--clients N] [--seconds N] [--processes N] [--ways NAME …]

    plain       the row alone: the limit
    separate    the row, then the message: a crash in between loses it
    outbox      the row and a row of an outbox; a poller publishes every 100 ms
    ours        `client.sql_transaction`

All clients are tasks of one process, with a connection each. A consumer in a process of its own
reads the topic by long polls. The time to the consumer begins when the client asks for the commit,
which is in the payload. `statements` counts those of one transaction, begin and commit included.
`client`, `server` and `database` are the processor time that each transaction costs there, in µs;
that of the poller is the client's. With `--processes`, several processes share the clients.
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
from benchmarks.processes import ROOT, processor_s
from benchmarks.processes import tuff as tuff_server
from tests.sql.databases import Postgresql
from tuff.sql.asyncpg import AsyncpgDatabase
from tuff.sql.dialects import POSTGRESQL

ORDERS = tuff.TopicId("bench", "orders")
POLLER_S = 0.1  # seconds between two looks of the poller
WARM_UP_S = 1.0  # seconds
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


async def run_tasks(parts: Parts, way: Way, *, clients: int, seconds: float) -> int:
    """How many transactions `clients` tasks committed."""
    done = 0
    end_s = time.perf_counter() + seconds

    async def run() -> None:
        nonlocal done
        async with parts.pool.acquire() as connection:
            while time.perf_counter() < end_s:
                await way(parts, connection)
                done += 1

    await asyncio.gather(*(run() for _ in range(clients)))
    return done


@asynccontextmanager
async def parts_of(options: argparse.Namespace, size: int) -> AsyncIterator[Parts]:
    pool = asyncpg.create_pool(options.dsn, min_size=size, max_size=size)
    client = tuff.AsyncClient(options.url, transport=options.transport)
    async with client, pool:
        yield Parts(client, pool, AsyncpgDatabase(options.dsn, "bench"))


async def work(options: argparse.Namespace) -> None:
    """A process of clients: it warms up, waits for a line, and prints what it has done."""
    way, clients = WAYS[options.work], options.clients
    async with parts_of(options, clients) as parts:
        await run_tasks(parts, way, clients=clients, seconds=WARM_UP_S)
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        began_s, began_processor_s = time.perf_counter(), time.process_time()
        done = await run_tasks(parts, way, clients=clients, seconds=options.seconds)
        took_s, processor = time.perf_counter() - began_s, time.process_time() - began_processor_s
    print(done, took_s, processor)


async def measure(options: argparse.Namespace, server_pid: int, database_pid: int) -> None:
    async with parts_of(options, 2) as parts:
        await prepare(parts)
        print(f"{'way':10} {'per s':>7} {'p50 ms':>8} {'p99 ms':>8}", end=" ")
        print(f"{'statements':>10} {'client':>7} {'server':>7} {'database':>8}", flush=True)
        for name in options.ways:
            way = WAYS[name]
            await parts.client.topics.create(ORDERS)
            async with beside(poll_outbox(parts) if way is outbox else None):
                statements = await statements_of(parts, way)
                workers = await asyncio.to_thread(workers_of, options, name)
                consumer = process_of(["--consume", options.url])
                before = (time.process_time(), processor_s(server_pid), processor_s(database_pid))
                replies = await asyncio.to_thread(run_workers, workers)
                after = (time.process_time(), processor_s(server_pid), processor_s(database_pid))
            consumer.terminate()
            latencies_ms = [float(line) for line in consumer.communicate()[0].split()]
            done, rate, client_s = map(sum, zip(*replies, strict=True))
            used_s = [end - begin for begin, end in zip(before, after, strict=True)]
            used_s[0] += client_s
            client, server, database = (1e6 * seconds / done for seconds in used_s)
            cuts = quantiles(latencies_ms, n=100) if len(latencies_ms) > 1 else None
            shown = "        -        -" if cuts is None else f"{cuts[49]:8.1f} {cuts[98]:8.1f}"
            print(f"{name:10} {rate:7.0f} {shown}", end=" ")
            print(f"{statements:10} {client:7.0f} {server:7.0f} {database:8.0f}", flush=True)
            await parts.client.topics.delete(ORDERS)


def workers_of(options: argparse.Namespace, way: str) -> "list[subprocess.Popen[str]]":
    """The processes of the clients, when they have warmed up."""
    each = options.clients // options.processes
    arguments = [
        *("--work", way, "--url", options.url, "--dsn", options.dsn, "--clients", str(each)),
        *("--seconds", str(options.seconds), "--transport", options.transport),
    ]
    return [process_of(arguments) for _ in range(options.processes)]


def run_workers(workers: "Sequence[subprocess.Popen[str]]") -> list[tuple[float, float, float]]:
    """Of each: its transactions, those per second, and its processor time in seconds."""
    for each in workers:
        assert each.stdin is not None, "it is a pipe"
        each.stdin.write("\n")
        each.stdin.flush()
    replies = []
    for each in workers:
        done, took_s, processor = map(float, each.communicate()[0].split())
        replies.append((done, done / took_s, processor))
    return replies


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


def process_of(arguments: Sequence[str]) -> "subprocess.Popen[str]":
    """Another process of this program, when it has printed that it is ready."""
    command = [sys.executable, "-m", "benchmarks.sql", *arguments]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None, "it is a pipe"
    process.stdout.readline()
    return process


def consume(url: str) -> None:
    """Print the latency of each new message, in ms, after a first line."""
    with tuff.Client(url) as client:
        print("ready", flush=True)
        for message in client.subscribe(ORDERS, "latest"):
            late_ms = (time.time_ns() - int(message.payload)) / 1e6
            sys.stdout.write(f"{late_ms:.3f}\n")
            sys.stdout.flush()


def arguments_of(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sql")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--transport", choices=("auto", "http"), default="auto")
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    for name in ("--work", "--consume", "--url", "--dsn"):  # of the processes that it starts
        parser.add_argument(name, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = arguments_of(arguments)
    if options.consume:
        consume(options.consume)
        return 0
    if options.work:
        asyncio.run(work(options))
        return 0
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    with (
        tempfile.TemporaryDirectory(prefix="tuff-benchmark-sql-") as directory,
        Postgresql(Path(directory, "postgresql"), "max_connections=200") as postgresql,
        tuff_server(Path(directory, "server")) as server,
    ):
        options.url, options.dsn = f"http://{server.addr}", postgresql.dsn
        asyncio.run(measure(options, server.pid, postgresql.pid))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
