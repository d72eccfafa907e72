"""A disk that takes no more: every file of the server is held at its size (design §4, §5).

The kernel's limit on file sizes stands in for a full disk: appends fail, or are torn in the middle,
in the transaction log and in the message store alike, until the limit is lifted.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.faults.disk_writer import told
from tests.faults.kill import TOPICS, check_outcomes, read_all, resolved, topic_of
from tests.faults.ledger import Fate, Unit, check_committed, payloads
from tests.http.calls import TRANSACTIONS, begin, entry
from tests.http.client import Client, Reply, ok, problem_of, until
from tests.http.conftest import NewServer
from tests.http.process import ServerProcess

UNLIMITED = resource.RLIM_INFINITY


@contextmanager
def files_held_at(server: ServerProcess, size_bytes: int) -> Iterator[None]:
    server.may_log_traces = True  # of what the disk said
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size_bytes, UNLIMITED))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))


@pytest.fixture
def running(new_server: NewServer) -> ServerProcess:
    server = new_server()
    client = server.client()
    for name in TOPICS:
        ok(topic_of(client, name).create())
    return server


class Writer:
    """Publishes and commits, and enters what it was told in a ledger."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self.units: list[Unit] = []

    def publish(self) -> bool:
        number = len(self.units)
        sent = payloads(0, number, 0, 2)
        done = told(topic_of(self.client, TOPICS[0]).publish(*sent), "storage_unavailable")
        fate = Fate.SEEN if done else Fate.MAYBE
        unit = Unit(client=0, number=number, fate=fate, requests=((TOPICS[0], sent),))
        self.units.append(unit)
        return done

    def commit(self) -> bool:
        """A commit with publish, if a transaction can be started at all."""
        started = self.client.post(TRANSACTIONS)
        if started.status != 201:
            return told(started, "transactions_unavailable")
        number, pointer = len(self.units), started.json["transactionId"]
        sent = payloads(1, number, 0, 2)
        body: dict[str, object] = {
            "changes": ["k"], "publish": [entry(topic_of(self.client, TOPICS[1]), *sent)],
        }  # fmt: skip
        reply = self.client.post(f"{TRANSACTIONS}/{pointer}/commit", body)
        if reply.status == 409:
            problem_of(reply)
            done = False
        else:
            done = told(reply, "storage_unavailable", "transactions_unavailable")
        fate = Fate.SEEN if done else Fate.ASK
        self.units.append(
            Unit(client=1, number=number, fate=fate, requests=((TOPICS[1], sent),),
                 pointer=pointer, body=body)
        )  # fmt: skip
        return done


@pytest.mark.parametrize(
    "torn_bytes", [40, *(pytest.param(torn, marks=pytest.mark.slow) for torn in (0, 1, 300))]
)
def test_a_full_disk_loses_nothing_and_the_server_comes_back_by_itself(
    new_server: NewServer, running: ServerProcess, torn_bytes: int
) -> None:
    client = running.client()
    writer = Writer(client)
    open_one = begin(client, client="open before")
    for _ in range(20):
        assert writer.publish()
        assert writer.commit()
    size = max(path.stat().st_size for path in running.data.rglob("*") if path.is_file())

    with files_held_at(running, torn_bytes and size + torn_bytes):
        for _ in range(20):
            writer.publish()
            writer.commit()
        ok(client.get("/health/live"))

    until(writer.publish, within_s=15, what="the store to take messages again")
    until(writer.commit, within_s=15, what="transactions to come back")
    assert open_one.state() in {"in_progress", "invalid"}
    _account(client, writer.units)

    running.kill()
    client = new_server(home=running.home).client()
    _account(client, writer.units)


def _account(client: Client, units: list[Unit]) -> None:
    units[:] = [resolved(client, unit) for unit in units]
    check_committed(units, read_all(client, isolation="committed"), in_order=False)
    check_outcomes(client, units)


def test_a_store_that_takes_nothing_is_told_by_readiness(running: ServerProcess) -> None:
    client = running.client()
    writer = Writer(client)

    with files_held_at(running, 0):
        until(lambda: not writer.publish(), what="a publish to be refused")
        reply = until(lambda: _not_ready(client), what="readiness to say so")

    assert reply is not None
    assert reply.json["checks"]["storage"]["status"] != "ok"
    until(writer.publish, within_s=15, what="the store to take messages again")
    until(lambda: client.get("/health/ready").status == 200)


def _not_ready(client: Client) -> Reply | None:
    reply = client.get("/health/ready")
    return reply if reply.status == 503 else None
