"""Members of a group with its positions in PostgreSQL are killed: is a row missing, or there twice?

    python -m tests.faults.sql_groups [--members N] [--partitions N] [--faults N] [--messages N]

Members are processes, half of them with psycopg and half with asyncpg. Each inserts a row and
publishes a copy for every message of its batches, into a table that takes an item twice. The
program publishes all the time, adds a partition half-way, and kills a member, the server or
PostgreSQL by SIGKILL, or suspends a member until others have its partitions, and lets it go on.
At the end it compares:

    every message is one row and one copy, and the rows of a partition are in its order
"""

import argparse
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psycopg

import tuff
from tests.faults.sql import kill, report, resolve, start_process
from tests.faults.workload_sql import COPIES, ORDERS
from tests.http.client import until
from tests.http.process import ServerProcess, serve
from tests.sql.databases import Postgresql
from tuff.sql.dialects import CREATE_POSITIONS, POSTGRESQL

SESSION_S = 1.0  # seconds
BEFORE_A_FAULT_S = (0.3, 1.2)  # seconds of work between two faults
DOWN_S = 0.3  # seconds that a killed server or database stays away, at most
WITHIN_S = 60.0
# How often each happens: most steps are in the members, and the others take long to start.
FAULTS = {"kill of a member": 6, "pause": 3, "kill of the server": 1, "kill of postgresql": 1}


def judge(published: Sequence[str], rows: Sequence[str], copies: Sequence[str]) -> list[str]:
    """What should not have happened, in sentences. The items of a partition are `PARTITION-NUMBER`,
    and the rows are in the order of their commits within each partition."""
    wrong = []
    for name, found in (("row", Counter(rows)), ("copy", Counter(copies))):
        wrong += [f"{item} has no {name}" for item in published if not found[item]]
        wrong += [f"{item} has {n} of its {name}" for item, n in found.items() if n > 1]
    last: dict[str, int] = {}
    for item in rows:
        partition, _, number = item.partition("-")
        if int(number) < last.get(partition, -1):
            wrong.append(f"{item} came after a later one of its partition")
        last[partition] = max(int(number), last.get(partition, -1))
    return wrong


class Shop:
    """The members, the resolver, the server and PostgreSQL."""

    def __init__(self, home: Path, members: int, partitions: int, chance: random.Random) -> None:
        self._home, self._chance = home, chance
        self.postgresql = Postgresql(home / "postgresql", "max_connections=100").start()
        self.server = self._serve()
        self.published: list[str] = []
        self._counts: Counter[int] = Counter()
        self._partitions = partitions
        self.faults: Counter[str] = Counter()
        with psycopg.connect(self.postgresql.dsn) as connection:
            for statement in (POSTGRESQL.create_table, CREATE_POSITIONS):
                connection.execute(statement)
            connection.execute("CREATE TABLE done (id BIGSERIAL, item TEXT)")
        with self.client() as client:
            client.topics.create(ORDERS, partitions=partitions)
            client.topics.create(COPIES)
        self._names = iter(range(1_000_000))
        self._roles = [("consume", "consume-on-loop")[at % 2] for at in range(members)]
        self._members = [self._start(role) for role in self._roles]
        self._resolver = self._start("resolve")

    def _serve(self, port: int = 0) -> ServerProcess:
        settings = (
            f"groups.session_timeout={SESSION_S}", "groups.heartbeat_interval=0.2",
            "groups.rebalance_timeout=5",
        )  # fmt: skip
        return serve(self._home / "server", *settings, port=port).wait_ready()

    def client(self) -> tuff.Client:
        return tuff.Client(self.server.url)

    def _start(self, role: str) -> "subprocess.Popen[bytes]":
        name = f"{role}-{next(self._names)}"
        log = self._home / f"{name}.txt"
        return start_process(role, name, self.server.url, self.postgresql.dsn, log=log)

    def publish(self, count: int) -> None:
        """Publish so many messages to each partition."""
        with self.client() as client:
            for partition in range(self._partitions):
                first = self._counts[partition]
                items = [f"{partition}-{number}" for number in range(first, first + count)]
                client.publish(ORDERS.partition(partition), *items)
                self._counts[partition] += count
                self.published += items

    def add_partition(self) -> None:
        self._partitions += 1
        with self.client() as client:
            client.topics.update(ORDERS, partitions=self._partitions)

    def fail_one(self) -> None:
        """Work for a while, then one of the faults."""
        time.sleep(self._chance.uniform(*BEFORE_A_FAULT_S))
        fault = self._chance.choices(list(FAULTS), list(FAULTS.values()))[0]
        self.faults[fault] += 1
        at = self._chance.randrange(len(self._members))
        match fault:
            case "kill of a member":
                kill(self._members[at])
                self._members[at] = self._start(self._roles[at])
            case "pause":
                self._members[at].send_signal(signal.SIGSTOP)
                time.sleep(2 * SESSION_S)
                self._members[at].send_signal(signal.SIGCONT)
            case "kill of the server":
                self.server.kill()
                time.sleep(self._chance.uniform(0, DOWN_S))
                self.server = self._serve(self.server.port)
            case _:
                self.postgresql.kill()
                time.sleep(self._chance.uniform(0, DOWN_S))
                self.postgresql.start()

    def rows(self) -> list[str]:
        with psycopg.connect(self.postgresql.dsn) as connection:
            return [row[0] for row in connection.execute("SELECT item FROM done ORDER BY id")]

    def copies(self) -> list[str]:
        found: list[str] = []
        with self.client() as client:
            poll = client.poll(COPIES)
            while poll:
                found += [message.payload.decode() for message in poll]
                poll = client.poll(COPIES, poll.next_id, inclusive=False)
        return found

    def settle(self) -> None:
        """Wait until all is processed, as far as it will be, and nothing is prepared."""
        count = len(self.published)
        until(lambda: len(self.rows()) >= count, within_s=WITHIN_S, what=f"{count} rows")
        time.sleep(2 * SESSION_S)  # for rows that should not come
        for process in (*self._members, self._resolver):
            kill(process)
        with self.client() as client:
            resolve(client, self.postgresql.dsn)

    def close(self) -> None:
        for process in (*self._members, self._resolver):
            kill(process)
        self.server.kill()
        self.postgresql.stop()


@contextmanager
def shop_of(members: int, partitions: int, chance: random.Random) -> Iterator[Shop]:
    home = Path(tempfile.mkdtemp(prefix="tuff-sql-groups-"))
    try:
        shop = Shop(home, members, partitions, chance)
        try:
            yield shop
        finally:
            shop.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def run(
    *, members: int, partitions: int, faults: int, messages: int, seed: int
) -> tuple[list[str], str]:
    """What should not have happened, and the figure."""
    with shop_of(members, partitions, random.Random(seed)) as shop:
        for number in range(faults):
            if number == faults // 2:
                shop.add_partition()
            shop.publish(messages // faults)
            shop.fail_one()
        shop.settle()
        wrong = judge(shop.published, shop.rows(), shop.copies())
        kinds = ", ".join(f"{count} {name}" for name, count in shop.faults.items())
    return wrong, f"{len(shop.published)} messages are one row and one copy each; faults: {kinds}"


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.sql_groups", description=__doc__)
    parser.add_argument("--members", type=int, default=4)
    parser.add_argument("--partitions", type=int, default=4)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--messages", type=int, default=2_000, help="of each partition")
    parser.add_argument("--seed", type=int, default=1)
    return report(*run(**vars(parser.parse_args(arguments))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
