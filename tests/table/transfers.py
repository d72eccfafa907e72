"""A program that transfers money between rows of a table until it is killed. Its arguments are the
server's URL, the table's directory and a name of the run.

It prints the name of each transfer after its commit.
"""

import random
import sys
from itertools import count
from threading import Thread

import tuff
from tuff.tables.versioned_table import VersionedTable

ACCOUNT_COUNT = 6
TOTAL = 600
THREAD_COUNT = 4


def account(number: int) -> bytes:
    return b"account/%d" % number


def fill(client: tuff.Client, table: VersionedTable) -> None:
    with client.transaction(table):
        for number in range(ACCOUNT_COUNT):
            table.put(account(number), b"%d" % (TOTAL // ACCOUNT_COUNT))


def total(table: VersionedTable) -> int:
    """The sum of all accounts in the current transaction."""
    return sum(int(value) for _, value in table.scan(b"account/", b"account0"))


def move(client: tuff.Client, table: VersionedTable, name: str, chance: random.Random) -> None:
    """One transfer, and a row with its name. Raises: TransactionConflictError."""
    taker, giver = (account(number) for number in chance.sample(range(ACCOUNT_COUNT), 2))
    with client.transaction(table):
        amount = chance.randrange(20)
        for key, change in ((taker, amount), (giver, -amount)):
            value = table.get(key)
            assert value is not None
            table.put(key, b"%d" % (int(value) + change))
        table.put(b"done/" + name.encode(), b"")
        assert total(table) == TOTAL


def main(url: str, directory: str, run: str) -> None:
    client, table = tuff.Client(url), tuff.TransactionalTable(directory)

    def work(thread: int) -> None:
        chance = random.Random(f"{run}/{thread}")
        for number in count():
            name = f"{run}/{thread}/{number}"
            try:
                move(client, table, name, chance)
            except tuff.TransactionConflictError:
                continue
            sys.stdout.write(f"{name}\n")
            sys.stdout.flush()

    for thread in range(THREAD_COUNT):
        Thread(target=work, args=(thread,)).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
