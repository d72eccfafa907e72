"""Rows of PostgreSQL and messages, while everything is killed: is there one without the other?

    python -m tests.faults.sql [--sellers N] [--kills N] [--transactions N] [--max-block SECONDS]

Sellers are processes that insert a row and publish a message in one transaction: half of them one
after another by psycopg, the others by many tasks at once by asyncpg. Resolvers run beside them.
The program kills, by SIGKILL and at random times, a seller, a resolver, the server or PostgreSQL,
and starts it again, until there were as many kills as asked for, spread over as many committed
transactions. Then it stops the sellers, lets a resolver work, and compares:

    every committed row has exactly one message, every message exactly one row, and no transaction
    is left prepared

`messaging.max_block` is short, so that messages of killed programs are set aside, and return.
"""

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psycopg

import tuff
from tests.faults.workload_sql import DATABASE, ORDERS
from tests.http.client import until
from tests.http.process import ENDS_WITH_PARENT, REPOSITORY, ServerProcess, serve
from tests.sql.databases import Postgresql
from tuff.sql.dialects import POSTGRESQL
from tuff.sql.psycopg import PsycopgDatabase

BEFORE_A_KILL_S = (0.05, 0.6)  # seconds of work between two kills
DOWN_S = 0.3  # seconds that a killed server or database stays away, at most
COUNTED_EVERY_S = 0.5
WITHIN_S = 120.0
SETTLED_WITHIN_S = 60.0
# How often each is killed: most steps are in the sellers, and the others take long to start.
VICTIMS = {"seller": 6, "resolver": 1, "server": 2, "postgresql": 1}


def judge(rows: Counter[str], messages: Counter[str]) -> list[str]:
    """What should not have happened, in sentences."""
    wrong = [f"row {item} has no message" for item in rows - messages]
    return wrong + [f"message {item} has no row, or is there twice" for item in messages - rows]


class Shop:
    """The processes of the application, the server and PostgreSQL."""

    def __init__(
        self, home: Path, sellers: int, chance: random.Random, *, max_block_s: float
    ) -> None:
        self._home = home
        self._chance = chance
        self._setting = f"messaging.max_block={max_block_s}"
        self.set_aside_count = 0  # by servers that were killed
        # A killed program's connections stay for a moment, and there are 16 for each on a loop.
        self.postgresql = Postgresql(home / "postgresql", "max_connections=300").start()
        self.server = self._serve()
        self._create()
        self._names = iter(range(1_000_000))
        self._roles = [("sell", "sell-on-loop")[at % 2] for at in range(sellers)]
        self._sellers = [self._start(role) for role in self._roles]
        self._resolver = self._start("resolve")
        self.kills: Counter[str] = Counter()

    def _create(self) -> None:
        with psycopg.connect(self.postgresql.dsn) as connection:
            connection.execute(POSTGRESQL.create_table)
            connection.execute("CREATE TABLE orders (item TEXT PRIMARY KEY)")
        with self.client() as client:
            client.topics.create(ORDERS)

    def _serve(self, port: int = 0) -> ServerProcess:
        return serve(self._home / "server", self._setting, port=port).wait_ready()

    def _kill_server(self) -> None:
        self.server.kill()
        self.set_aside_count += self.server.stderr().count("code=messages_set_aside")

    def client(self) -> tuff.Client:
        return tuff.Client(self.server.url)

    def _start(self, role: str) -> "subprocess.Popen[bytes]":
        name = f"{role}-{next(self._names)}"
        log = self._home / f"{name}.txt"
        return start_process(role, name, self.server.url, self.postgresql.dsn, log=log)

    def kill_one(self) -> None:
        """SIGKILL to one of them, and another one in its place."""
        time.sleep(self._chance.uniform(*BEFORE_A_KILL_S))
        victim = self._chance.choices(list(VICTIMS), list(VICTIMS.values()))[0]
        self.kills[victim] += 1
        match victim:
            case "seller":
                at = self._chance.randrange(len(self._sellers))
                kill(self._sellers[at])
                self._sellers[at] = self._start(self._roles[at])
            case "resolver":
                kill(self._resolver)
                self._resolver = self._start("resolve")
            case "server":
                self._kill_server()
                time.sleep(self._chance.uniform(0, DOWN_S))
                self.server = self._serve(self.server.port)
            case _:
                self.postgresql.kill()
                time.sleep(self._chance.uniform(0, DOWN_S))
                self.postgresql.start()

    def stop_programs(self) -> None:
        """SIGKILL to all programs: what is prepared then is left to a resolver."""
        for process in (*self._sellers, self._resolver):
            kill(process)

    def settle(self) -> int:
        """Resolve by hand until nothing is prepared; returns how many were left."""
        with self.client() as client:
            left_count = len(client.transactions.prepared())
            resolve(client, self.postgresql.dsn)
        return left_count

    def work_until(self, transactions: int) -> None:
        """Wait until so many have committed. Counting them all the time would slow them down."""
        before, last_s = -1, time.monotonic()
        while (count := self.row_count()) < transactions:
            if count > before:
                before, last_s = count, time.monotonic()
            assert time.monotonic() < last_s + WITHIN_S, f"none committed for {WITHIN_S} s"
            time.sleep(COUNTED_EVERY_S)

    def row_count(self) -> int:
        with psycopg.connect(self.postgresql.dsn) as connection:
            found = connection.execute("SELECT count(*) FROM orders").fetchone()
        assert found is not None, "a count is one row"
        return int(found[0])

    def rows(self) -> Counter[str]:
        with psycopg.connect(self.postgresql.dsn) as connection:
            return Counter(row[0] for row in connection.execute("SELECT item FROM orders"))

    def messages_once_returned(self) -> Counter[str]:
        """All messages. Those that were set aside return soon after the last resolve."""
        count = self.row_count()
        with suppress(AssertionError):  # too few: the judge says which
            until(lambda: self.messages().total() >= count)
        return self.messages()

    def messages(self) -> Counter[str]:
        found: Counter[str] = Counter()
        with self.client() as client:
            poll = client.poll(ORDERS, isolation="committed")
            while poll:
                found.update(message.payload.decode() for message in poll)
                poll = client.poll(ORDERS, poll.next_id, inclusive=False, isolation="committed")
        return found

    def close(self) -> None:
        self.stop_programs()
        self._kill_server()
        self.postgresql.stop()


def start_process(*arguments: str, log: Path) -> "subprocess.Popen[bytes]":
    """A process of the application, which prints into this file: ROLE NAME URL DSN."""
    with log.open("wb") as output:
        return subprocess.Popen(
            [*ENDS_WITH_PARENT, sys.executable, "-m", "tests.faults.workload_sql", *arguments],
            cwd=REPOSITORY,
            stdout=output,
            stderr=output,
        )


def kill(process: "subprocess.Popen[bytes]") -> None:
    """SIGKILL, and the process has ended."""
    process.kill()
    process.wait(WITHIN_S)


def resolve(client: tuff.Client, dsn: str) -> None:
    """Resolve by hand until nothing is prepared."""
    resolver = client.sql_resolver(PsycopgDatabase(dsn, DATABASE))

    def is_settled() -> bool:
        resolver.once()
        return not client.transactions.prepared()

    until(is_settled, within_s=SETTLED_WITHIN_S, what="nothing to be prepared")


@contextmanager
def shop_of(sellers: int, chance: random.Random, *, max_block_s: float) -> Iterator[Shop]:
    home = Path(tempfile.mkdtemp(prefix="tuff-sql-"))
    try:
        shop = Shop(home, sellers, chance, max_block_s=max_block_s)
        try:
            yield shop
        finally:
            shop.close()
    finally:
        shutil.rmtree(home, ignore_errors=True)


def run(
    *, sellers: int, kills: int, transactions: int, seed: int, max_block_s: float
) -> tuple[list[str], str]:
    """What should not have happened, and the figure."""
    with shop_of(sellers, random.Random(seed), max_block_s=max_block_s) as shop:
        for number in range(1, kills + 1):
            shop.kill_one()
            shop.work_until(transactions * number // kills)
        shop.stop_programs()
        left_count = shop.settle()
        rows, messages = shop.rows(), shop.messages_once_returned()
        wrong = judge(rows, messages)
        kinds = ", ".join(f"{count} of a {name}" for name, count in shop.kills.items())
    set_aside = f"messages were set aside {shop.set_aside_count} times"
    figure = (
        f"{rows.total()} rows and {messages.total()} messages agree after {kills} kills ({kinds}); "
        f"{left_count} were left prepared, and settled; {set_aside}"
    )
    return wrong, figure


def report(wrong: Sequence[str], figure: str) -> int:
    """Print what should not have happened, and the figure; returns the exit code."""
    for sentence in wrong[:20]:
        print(sentence)
    print(f"{len(wrong)} wrong: {figure}" if wrong else figure)
    return 1 if wrong else 0


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.sql", description=__doc__)
    parser.add_argument("--sellers", type=int, default=4)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--transactions", type=int, default=1_000)
    parser.add_argument(
        "--max-block", type=float, default=1.0, dest="max_block_s", metavar="SECONDS"
    )
    parser.add_argument("--seed", type=int, default=1)
    return report(*run(**vars(parser.parse_args(arguments))))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
