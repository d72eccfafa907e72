"""A disk whose syncs take their time keeps those waiting who wait for a sync, and nobody else."""

import re
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from tests.faults.disk import Shim, slow
from tests.faults.workload_disk import Writer, topics_of
from tests.http.calls import begin
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
    """Something that waits for a slow sync, in a thread of its own."""

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


def checked(client: Client, name: str) -> tuple[str, str]:
    """The status and the detail of one check of readiness."""
    check = ok(client.get("/health/ready")).json["checks"][name]
    return check["status"], check["detail"]


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
    assert checked(other, check)[0] == "ok"

    with shim.injecting(slow("fdatasync", part, wait_ms=WAIT_MS, count=2)):
        waiting = Waiting(writer, held)
        until(lambda: checked(other, check)[0] == "degraded", within_s=60)
        detail = checked(other, check)[1]
        shown = dict(
            line.rsplit(" ", 1) for line in ok(other.get("/metrics")).body.decode().splitlines()
        )
        assert not waiting.done
    waiting.end()

    assert re.search(r"the oldest write has been on its way for \d+ s: does the disk hang", detail)
    assert float(shown[figure]) >= 5.0
    assert float(shown["tuff_requests_under_way"]) == 1
    until(lambda: checked(client, check)[0] == "ok")


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
    """The event loop asked for it: all that the server does stood still until it was told."""
    client, other = running.client(), running.client()
    writer = Writer(client).make_topics()

    with shim.injecting(slow("statvfs", "/", wait_ms=WAIT_MS)):
        until(lambda: len(shim.hits()) >= 2)
        assert writer.publish()
        assert writer.commit()
        reads_and_starts(other)
        until(lambda: checked(other, "disk")[0] == "degraded", within_s=60)
        detail = checked(other, "disk")[1]
        shown = dict(
            line.rsplit(" ", 1) for line in ok(other.get("/metrics")).body.decode().splitlines()
        )
        assert len(shim.hits()) == 2  # one question to each disk, and no other behind it
    until(lambda: checked(client, "disk")[0] == "ok")

    assert re.search(r"the disk at \S+ has not answered for \d+ s; before that, \d+ MiB", detail)
    assert float(shown['tuff_disk_unanswered_seconds{store="messages"}']) >= 5.0


@pytest.mark.slow
def test_a_disk_that_does_not_report_its_free_space_does_not_delay_a_stop(
    shim: Shim, running: ServerProcess
) -> None:
    with shim.injecting(slow("statvfs", "/", wait_ms=WAIT_MS)):
        until(lambda: len(shim.hits()) >= 2)

        assert running.terminate() == 0
