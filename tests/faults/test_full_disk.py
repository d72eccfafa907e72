"""A full disk, simulated by a limit on file sizes (design §4, §5).

Appends to the transaction log and to the message store fail, or are torn in the middle, until the
limit is lifted.
"""

import resource
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.faults.workload_disk import Writer
from tests.http.calls import Topic, begin, metrics_of
from tests.http.client import Client, Reply, ok, until
from tests.http.conftest import NewServer
from tests.http.process import ServerProcess

UNLIMITED = resource.RLIM_INFINITY
FAILED = "tuff_unacknowledged_publishes_failed_total"


@contextmanager
def files_held_at(server: ServerProcess, size_bytes: int) -> Iterator[None]:
    server.may_log_traces = True  # of the error of the disk
    resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (size_bytes, UNLIMITED))
    try:
        yield
    finally:
        resource.prlimit(server.pid, resource.RLIMIT_FSIZE, (UNLIMITED, UNLIMITED))


@pytest.mark.parametrize(
    "torn_bytes", [40, *(pytest.param(torn, marks=pytest.mark.slow) for torn in (0, 1, 300))]
)
def test_a_full_disk_loses_nothing_and_the_server_recovers_by_itself(
    new_server: NewServer, torn_bytes: int
) -> None:
    running = new_server()
    client = running.client()
    writer = Writer(client).make_topics()
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
    writer.account(client)

    running.kill()
    writer.account(new_server(home=running.home).client())


def test_readiness_reports_a_store_that_can_not_write(new_server: NewServer) -> None:
    running = new_server()
    client = running.client()
    writer = Writer(client).make_topics()

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


def test_publishes_that_were_answered_early_are_counted_if_the_disk_loses_them(
    new_server: NewServer,
) -> None:
    running = new_server()
    client = running.client()
    topic = Topic(client, "default", "failing")
    ok(topic.create())
    ok(topic.publish("0"))
    assert metrics_of(client)[FAILED] == 0
    size = max(path.stat().st_size for path in running.data.rglob("*") if path.is_file())
    answered = 1

    with files_held_at(running, size + 40):
        for number in range(1, 100):
            reply = topic.publish(str(number), ack=("none", "received")[number % 2])
            answered += reply.status == 200
    until(lambda: topic.publish("last").status == 200, within_s=15)

    failed_count = metrics_of(client)[FAILED]
    assert failed_count > 0
    assert len(topic.read()) - 1 + failed_count == answered
