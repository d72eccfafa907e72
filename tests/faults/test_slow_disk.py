"""A slow sync delays the requests that need it, and no others."""

import re
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.faults.disk import Shim, slow
from tests.faults.workload_disk import Writer, readiness_of, topics_of
from tests.http.calls import begin, metrics_of
from tests.http.client import Client, ok, until
from tests.http.process import ServerProcess, serve

WAIT_MS = 120_000  # ms; of each sync, unless it is let go before: longer than any test waits
PATIENT = ("tx.default_timeout=600", "messaging.max_block=600")


@pytest.fixture
def running(shim: Shim, tmp_path: Path) -> Iterator[ServerProcess]:
    server = serve(tmp_path / "home", *PATIENT, environment=shim.environment())
    yield server
    server.end()


class Waiting:
    """A write that waits for a slow sync, in a thread of its own."""

    def __init__(self, writer: Writer, kind: str) -> None:
        self.done: list[bool] = []
        work = {"publish": writer.publish, "commit": writer.commit}[kind]
        self._thread = Thread(target=lambda: self.done.append(work()))
        self._thread.start()

    def end(self) -> None:
        self._thread.join()
        assert self.done == [True]


def reads_and_starts(client: Client) -> None:
    for topic in topics_of(client):
        ok(topic.poll(isolation="committed"))
    begin(client)
    ok(client.get("/health/live"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "held", "check", "figure"),
    [
        ("snapshots/txlog", "commit", "transactions", "tuff_log_oldest_write_seconds"),
        ("messages/", "publish", "storage", "tuff_store_oldest_write_seconds"),
    ],
)
def test_readiness_and_metrics_report_a_write_that_hangs(
    shim: Shim, running: ServerProcess, part: str, held: str, check: str, figure: str
) -> None:
    client, other = running.client(), running.client()
    writer = Writer(client).make_topics()
    assert writer.publish()
    assert readiness_of(other, check)["status"] == "ok"

    with shim.injecting(slow("fdatasync", part, wait_ms=WAIT_MS, count=2)):
        waiting = Waiting(writer, held)
        until(lambda: readiness_of(other, check)["status"] == "degraded", within_s=60)
        ok(other.get("/health/ready"))  # degraded is still ready
        detail = readiness_of(other, check)["detail"]
        metrics = metrics_of(other)
        assert not waiting.done
    waiting.end()

    assert re.search(r"the oldest write has been on its way for \d+ s: does the disk hang", detail)
    assert metrics[figure] >= 5.0
    assert metrics["tuff_requests_under_way"] == 1
    until(lambda: readiness_of(client, check)["status"] == "ok")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("part", "held", "may_publish"),
    [("snapshots/txlog", "commit", True), ("messages/", "publish", False)],
)
def test_a_slow_sync_delays_only_requests_that_need_it(
    shim: Shim, running: ServerProcess, part: str, held: str, *, may_publish: bool
) -> None:
    client, other = running.client(), running.client()
    writer = Writer(client).make_topics()
    assert writer.publish()
    assert writer.commit()

    with shim.injecting(slow("fdatasync", part, wait_ms=WAIT_MS, count=2)):
        waiting = Waiting(writer, held)
        while not shim.hits():
            reads_and_starts(other)
        reads_and_starts(other)
        if may_publish:
            ok(topics_of(other)[0].publish("free"))
        assert not waiting.done, "the write was answered before its sync"
    waiting.end()
    reads_and_starts(client)


@pytest.mark.slow
def test_a_disk_that_does_not_report_its_free_space_blocks_nothing(
    shim: Shim, running: ServerProcess
) -> None:
    """The event loop once queried it, and the whole server stood still until the disk answered."""
    client, other = running.client(), running.client()
    writer = Writer(client).make_topics()

    with shim.injecting(slow("statvfs", "/", wait_ms=WAIT_MS)):
        until(lambda: len(shim.hits()) >= 2)
        assert writer.publish()
        assert writer.commit()
        reads_and_starts(other)
        until(lambda: readiness_of(other, "disk")["status"] == "degraded", within_s=60)
        ok(other.get("/health/ready"))  # degraded is still ready
        detail = readiness_of(other, "disk")["detail"]
        metrics = metrics_of(other)
        assert len(shim.hits()) == 2  # one question to each disk, and no other behind it
    until(lambda: readiness_of(client, "disk")["status"] == "ok")

    assert re.search(r"the disk at \S+ has not answered for \d+ s; before that, \d+ MiB", detail)
    assert metrics['tuff_disk_unanswered_seconds{store="messages"}'] >= 5.0


@pytest.mark.slow
def test_a_disk_that_does_not_report_its_free_space_does_not_delay_a_stop(
    shim: Shim, running: ServerProcess
) -> None:
    with shim.injecting(slow("statvfs", "/", wait_ms=WAIT_MS)):
        until(lambda: len(shim.hits()) >= 2)

        assert running.terminate() == 0
