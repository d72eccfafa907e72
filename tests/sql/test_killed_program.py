"""A program that is killed at each step: on a real server, the resolver makes messages and rows
agree."""

import signal
import subprocess
import sys
from collections.abc import Iterator

import psycopg
import pytest

import tuff
from tests.http.process import ENDS_WITH_PARENT, REPOSITORY, ServerProcess, serve
from tests.sql.test_psycopg import items
from tuff.sql.psycopg import PsycopgDatabase

ORDERS = tuff.TopicId("shop", "orders")

# Kills itself when the named method of the connection is called, or after it.
PROGRAM = """
import os, signal, sys
import psycopg, tuff
from tuff.sql.psycopg import PsycopgDatabase
url, dsn, method, when = sys.argv[1:]

class Dies:
    def __init__(self, inner): self.inner = inner
    def __getattr__(self, name):
        found = getattr(self.inner, name)
        if name != method: return found
        def run(*given):
            if when == "before": os.kill(os.getpid(), signal.SIGKILL)
            found(*given)
            os.kill(os.getpid(), signal.SIGKILL)
        return run

shop = PsycopgDatabase(dsn, "shop")
joined = shop.joined
shop.joined = lambda connection: Dies(joined(connection))
with tuff.Client(url) as client, psycopg.connect(dsn) as connection:
    with client.sql_transaction(shop, connection) as tx:
        connection.execute("INSERT INTO orders VALUES ('apple')")
        tx.publish(tuff.TopicId("shop", "orders"), "apple")
"""


@pytest.fixture(scope="module")
def process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with serve(tmp_path_factory.mktemp("server")).wait_ready() as running:
        yield running


@pytest.fixture
def client(process: ServerProcess) -> Iterator[tuff.Client]:
    with tuff.Client(process.url) as made:
        made.topics.create(ORDERS)
        yield made
        made.topics.delete(ORDERS)


@pytest.mark.parametrize(
    ("method", "when", "committed"),
    [
        ("before_prepare", "before", False),
        ("record", "before", False),
        ("record", "after", False),
        ("commit", "before", False),
        ("commit", "after", True),
    ],
)
def test_rows_and_messages_agree_after_a_kill(
    client: tuff.Client, dsn: str, method: str, when: str, committed: bool
) -> None:
    program = [*ENDS_WITH_PARENT, sys.executable, "-c", PROGRAM]
    killed = subprocess.run([*program, client.url, dsn, method, when], cwd=REPOSITORY, check=False)

    prepared = client.transactions.prepared()
    client.sql_resolver(PsycopgDatabase(dsn, "shop")).once()

    assert killed.returncode == -signal.SIGKILL
    assert len(prepared) == (method == "commit")
    assert client.transactions.prepared() == []
    assert items(dsn) == (["apple"] if committed else [])
    assert [each.payload for each in client.poll(ORDERS)] == ([b"apple"] if committed else [])


@pytest.mark.parametrize("fails", [False, True])
def test_messages_that_do_not_fit_into_memory_follow_the_rows(
    client: tuff.Client, dsn: str, fails: bool
) -> None:
    large = ["x" * 400_000] * 5
    shop = PsycopgDatabase(dsn, "shop")

    def sell() -> None:
        with psycopg.connect(dsn) as connection, client.sql_transaction(shop, connection) as tx:
            connection.execute("INSERT INTO orders VALUES ('apple')")
            tx.publish(ORDERS, *large)
            if fails:
                raise KeyError("apple")

    if fails:
        with pytest.raises(KeyError):
            sell()
    else:
        sell()

    found = [each.payload.decode() for each in client.poll(ORDERS)]
    assert (items(dsn), found) == (([], []) if fails else (["apple"], large))
