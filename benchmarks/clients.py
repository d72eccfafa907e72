"""`python -m benchmarks.clients`: whole transactions through the Python clients, beside psycopg 3.

    python -m benchmarks.clients [--tasks N] [--threads N] [--seconds N] [--rounds N] [--ways …]

Each transaction changes the state of one of a million keys, and publishes an event. For PostgreSQL
these are a row of state and a row of an outbox. Here they are two messages of 256 bytes, and a
change of the key, so that two transactions that change one key conflict.

    tasks, threads             our client over a session: start, commit
    tasks-chain, threads-chain the same with `chain=True`: one call, commit
    tasks-http, threads-http   the same over HTTP
    tasks-psycopg, threads-psycopg   psycopg 3, a connection for each

The clients of a way are one process. `client` and `server` are the processor time of a transaction
in µs, there and in the server or PostgreSQL, with its processes. Both write to the same disk, as
shipped. The ways take turns, and each figure is the median of the rounds. Targets are judged by the
best rounds, for other numbers of tasks and threads, too.
"""

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import psycopg

import tuff
from benchmarks.processes import ROOT, processor_s
from benchmarks.processes import tuff as tuff_server
from benchmarks.results import Report, Results
from benchmarks.tables import print_targets
from benchmarks.targets import CLIENTS
from tests.sql.databases import Postgresql
from tuff.address import TransportName

STATE = tuff.TopicId("bench", "state")
EVENTS = tuff.TopicId("bench", "events")
PAYLOAD = "p" * 256
KEYS = 1_000_000
WARM_UP_S = 1.0  # seconds
TABLES = (
    "CREATE TABLE state (id bigint PRIMARY KEY, value text NOT NULL)",
    "CREATE TABLE outbox (id bigserial PRIMARY KEY, payload text NOT NULL)",
)
UPSERT = (
    "INSERT INTO state (id, value) VALUES (%s, %s) "
    "ON CONFLICT (id) DO UPDATE SET value = excluded.value"
)
INSERT = "INSERT INTO outbox (payload) VALUES (%s)"
WAYS = tuple(
    f"{kind}{how}" for kind in ("tasks", "threads") for how in ("", "-chain", "-http", "-psycopg")
)

FIGURES = ("per_s", "client_us", "server_us")


async def tasks_of_ours(options: argparse.Namespace, how: str, until_s: float) -> int:
    """How many transactions the tasks committed."""
    transport: TransportName = "http" if how == "-http" else "auto"

    async def run(client: tuff.AsyncClient) -> int:
        done = 0
        transaction = client.transaction(chain=how == "-chain")
        while time.perf_counter() < until_s:
            with suppress(tuff.TransactionConflictError):  # two of 64 tasks may take one key
                async with transaction as tx:
                    tx.add_changes(b"state/%d" % random.randrange(KEYS))
                    await tx.publish(STATE, PAYLOAD)
                    await tx.publish(EVENTS, PAYLOAD)
                done += 1
        await transaction.end_chain()
        return done

    async with tuff.AsyncClient(options.url, transport=transport) as client:
        return sum(await asyncio.gather(*(run(client) for _ in range(options.tasks))))


async def tasks_of_psycopg(options: argparse.Namespace, until_s: float) -> int:
    async def run() -> int:
        done = 0
        async with await psycopg.AsyncConnection.connect(options.dsn) as connection:
            while time.perf_counter() < until_s:
                async with connection.transaction():
                    await connection.execute(UPSERT, (random.randrange(KEYS), PAYLOAD))
                    await connection.execute(INSERT, (PAYLOAD,))
                done += 1
        return done

    return sum(await asyncio.gather(*(run() for _ in range(options.tasks))))


def threads_of_ours(options: argparse.Namespace, how: str, until_s: float) -> int:
    transport: TransportName = "http" if how == "-http" else "auto"

    def run(client: tuff.Client) -> int:
        done = 0
        transaction = client.transaction(chain=how == "-chain")
        while time.perf_counter() < until_s:
            with suppress(tuff.TransactionConflictError):  # two of 64 tasks may take one key
                with transaction as tx:
                    tx.add_changes(b"state/%d" % random.randrange(KEYS))
                    tx.publish(STATE, PAYLOAD)
                    tx.publish(EVENTS, PAYLOAD)
                done += 1
        transaction.end_chain()
        return done

    with (
        tuff.Client(options.url, transport=transport) as client,
        ThreadPoolExecutor(options.threads) as threads,
    ):
        return sum(threads.map(run, [client] * options.threads))


def threads_of_psycopg(options: argparse.Namespace, until_s: float) -> int:
    def run(_number: int) -> int:
        done = 0
        with psycopg.connect(options.dsn) as connection:
            while time.perf_counter() < until_s:
                with connection.transaction():
                    connection.execute(UPSERT, (random.randrange(KEYS), PAYLOAD))
                    connection.execute(INSERT, (PAYLOAD,))
                done += 1
        return done

    with ThreadPoolExecutor(options.threads) as threads:
        return sum(threads.map(run, range(options.threads)))


def run_way(options: argparse.Namespace, way: str, seconds: float) -> int:
    """How many transactions the clients of a way committed in so many seconds."""
    kind, dash, how = way.partition("-")
    until_s = time.perf_counter() + seconds
    if kind == "threads":
        if how == "psycopg":
            return threads_of_psycopg(options, until_s)
        return threads_of_ours(options, dash + how, until_s)
    if how == "psycopg":
        return asyncio.run(tasks_of_psycopg(options, until_s))
    return asyncio.run(tasks_of_ours(options, dash + how, until_s))


def work(options: argparse.Namespace) -> None:
    """A process of clients: it warms up, waits for a line, and prints what it has done."""
    run_way(options, options.work, WARM_UP_S)
    print("ready", flush=True)
    sys.stdin.readline()
    began_s, began_processor_s = time.perf_counter(), time.process_time()
    done = run_way(options, options.work, options.seconds)
    took_s, used_s = time.perf_counter() - began_s, time.process_time() - began_processor_s
    print(done, took_s, used_s)


def measure(options: argparse.Namespace, way: str, server_pid: int) -> Report:
    """What one process of clients did; the times are of the processor, in µs of a transaction."""
    command = [
        *(sys.executable, "-m", "benchmarks.clients", "--work", way, "--url", options.url),
        *("--dsn", options.dsn, "--seconds", str(options.seconds)),
        *("--tasks", str(options.tasks), "--threads", str(options.threads)),
    ]
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None, "it is a pipe"
    process.stdout.readline()
    before_s = processor_s(server_pid)
    done, took_s, used_s = map(float, process.communicate("\n")[0].split())
    server_s = processor_s(server_pid) - before_s
    figures = (done / took_s, 1e6 * used_s / done, 1e6 * server_s / done)
    return dict(zip(FIGURES, figures, strict=True))


def measure_all(options: argparse.Namespace, server_pid: int, database_pid: int) -> None:
    with tuff.Client(options.url) as client:
        client.topics.create(STATE)
        client.topics.create(EVENTS)
    with psycopg.connect(options.dsn) as connection:
        for table in TABLES:
            connection.execute(table)
    pids = {way: database_pid if way.endswith("psycopg") else server_pid for way in options.ways}
    rounds = [
        {way: measure(options, way, pid) for way, pid in pids.items()}
        for _ in range(options.rounds)
    ]
    results = Results(machine={}, missing={}, rounds=rounds)
    print(f"{'way':16} {'per s':>7} {'client':>7} {'server':>7}")
    for way in options.ways:
        medians = (results.median(way, figure) or 0.0 for figure in FIGURES)
        print(f"{way:16}", *(f"{median:7.0f}" for median in medians))
    print_targets(CLIENTS, results)


def arguments_of(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.clients")
    parser.add_argument("--tasks", type=int, default=64)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    for name in ("--work", "--url", "--dsn"):  # of the processes that it starts
        parser.add_argument(name, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    options = arguments_of(arguments)
    if options.work:
        work(options)
        return 0
    print(f"load of the machine: {os.getloadavg()[0]:.1f} on {os.cpu_count()} processors")
    with (
        tempfile.TemporaryDirectory(prefix="tuff-benchmark-clients-") as directory,
        Postgresql(Path(directory, "postgresql"), "max_connections=200") as postgresql,
        tuff_server(Path(directory, "server")) as server,
    ):
        options.url, options.dsn = f"http://{server.addr}", postgresql.dsn
        measure_all(options, server.pid, postgresql.pid)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
