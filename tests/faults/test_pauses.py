"""A client or a server that is suspended longer than a timeout does no harm when it continues."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

import tuff
from tests.faults.paused_client import ROW, TOPIC
from tests.faults.pauses import main, suspended
from tests.http.calls import Topic, Tx, begin
from tests.http.client import Client, ok, refused, until
from tests.http.conftest import NewServer
from tests.http.process import REPOSITORY, ServerProcess

TIMEOUT_S = 2.0  # seconds; what has to be done in this time is done on a busy machine, too


@pytest.fixture
def running(new_server: NewServer) -> ServerProcess:
    server = new_server()
    ok(topic_of(server.client()).create())
    return server


def topic_of(client: Client) -> Topic:
    return Topic(client, TOPIC.namespace, TOPIC.name)


@contextmanager
def paused_client(
    server: ServerProcess, table: Path
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """A client in the middle of its transaction, and the transaction's id."""
    url = f"http://127.0.0.1:{server.port}"
    command = [
        sys.executable,
        "-m",
        "tests.faults.paused_client",
        url,
        str(table),
        str(TIMEOUT_S),
    ]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as program:
        try:
            assert program.stdout is not None
            word, pointer = program.stdout.readline().split()
            assert word == "in"
            yield program, pointer
        finally:
            program.kill()


def test_a_client_that_is_suspended_past_its_timeout_commits_nothing(
    running: ServerProcess, tmp_path: Path
) -> None:
    client = running.client()
    topic = topic_of(client)
    with (
        tuff.Client(f"http://127.0.0.1:{running.port}") as user,
        tuff.TransactionalTable(tmp_path / "table") as table,
        user.transaction(table),
    ):
        table.put(ROW, b"before")

    with paused_client(running, tmp_path / "table") as (program, pointer):
        with suspended(program.pid):
            until(lambda: Tx(client, {"transactionId": pointer}).state() == "invalid")
            assert topic.committed() == []
        said, _ = program.communicate("go on\n", timeout=20)

    assert said.splitlines() == ["refused transaction_timed_out", "row b'before'"]
    assert topic.committed() == []
    assert topic.read(isolation="all") == ["of the paused one"]
    # Everything that it wrote is rolled back, so it has left the invalid list.
    assert Tx(client, {"transactionId": pointer}).state() == "aborted"


def test_a_suspended_server_times_out_late_transactions_and_loses_nothing(
    running: ServerProcess,
) -> None:
    client, other = running.client(), running.client()
    topic = topic_of(client)
    late = begin(client, timeout=TIMEOUT_S)
    ok(topic.publish("of the late one", tx=late.id))
    early = begin(client, timeout=60)
    ok(topic.publish("of the early one", tx=early.id))
    publishing = Thread(target=lambda: ok(topic_of(other).publish("while it stood still")))

    with suspended(running.pid):
        publishing.start()
        publishing.join(2 * TIMEOUT_S)
        assert publishing.is_alive()
    publishing.join()

    refused(late.commit(), 409, "transaction_timed_out")
    ok(early.commit())
    assert topic.committed() == ["of the early one", "while it stood still"]


@pytest.mark.slow
def test_clients_of_a_repeatedly_suspended_server_are_isolated(tmp_path: Path) -> None:
    kept = tmp_path / "history.jsonl"

    assert main(["--pauses", "4", "--attempts", "1200", "--keep", str(kept)]) == 0
