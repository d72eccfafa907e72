"""A failed sync is final: no request is acknowledged whose bytes may not be durable.

The failure comes from a shim between a server and the C library. At the end the power is cut, and
of all traced writes only those with a successful sync are left (promise 1).
"""

import errno
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.disk import Shim, failing
from tests.faults.powercut_disk import Disk, read_trace, write_tree
from tests.faults.workload_disk import Writer, readiness_of, topics_of
from tests.http.client import ok, until
from tests.http.process import ServerProcess, serve

LOG, STORE = "snapshots/txlog", "messages/"
COME_BACK_WITHIN_S = 30.0


@pytest.fixture
def running(shim: Shim, tmp_path: Path) -> Iterator[ServerProcess]:
    server = serve(tmp_path / "home", environment=shim.environment(traced=True))
    server.may_log_traces = True  # of the error of the disk
    yield server
    server.end()


def left_by_a_power_cut(shim: Shim, server: ServerProcess, target: Path) -> Path:
    """A home with only what is certainly on the disk."""
    disk = Disk(server.home, engines=[server.data / "messages"])
    for done in read_trace(shim.trace):
        disk.follow(done)
    write_tree(disk.least(), target)
    return target


FAILURES = [
    ("fdatasync", LOG, errno.EIO),
    ("fdatasync", STORE, errno.EIO),
    ("write", LOG, errno.ENOSPC),
    ("write", STORE, errno.ENOSPC),
    ("fsync", "snapshots/", errno.EIO),
    ("fsync_directory", "snapshots", errno.EIO),
    ("rename", "snapshots/", errno.ENOSPC),
]


@pytest.mark.slow
@pytest.mark.parametrize(("call", "part", "error"), FAILURES)
@pytest.mark.parametrize("count", [1, 3])
def test_writes_acknowledged_around_a_failure_survive_a_power_cut(
    shim: Shim, running: ServerProcess, tmp_path: Path, call: str, part: str, error: int, count: int
) -> None:
    client = running.client()
    writer = Writer(client).make_topics()
    for _ in range(5):
        assert writer.publish()
        assert writer.commit()

    with shim.injecting(failing(call, part, error, first=2, count=count)):
        for number in range(30):
            writer.publish()
            writer.commit()
            if number % 10 == 0:
                client.post("/v1/transactions/snapshot")
        until(writer.publish, within_s=COME_BACK_WITHIN_S, what="the store to come back")
        until(writer.commit, within_s=COME_BACK_WITHIN_S, what="transactions to come back")

    running.kill()
    home = left_by_a_power_cut(shim, running, tmp_path / "left")
    again = serve(home)
    writer.account(again.client())
    again.end()
    assert shim.hits()


@pytest.mark.slow
@pytest.mark.parametrize(("part", "check"), [(LOG, "transactions"), (STORE, "storage")])
def test_a_disk_that_fails_every_sync_is_reported_and_the_server_recovers_by_itself(
    shim: Shim, running: ServerProcess, part: str, check: str
) -> None:
    client = running.client()
    writer = Writer(client).make_topics()
    assert writer.publish()
    assert writer.commit()

    with shim.injecting(failing("fdatasync", part, errno.EIO)):
        write = writer.commit if part == LOG else writer.publish
        until(lambda: not write(), what="a write to be refused")
        shown = readiness_of(client, check)
        assert shown["status"] != "ok"
        assert shown["detail"]
        ok(client.get("/health/live"))
        if part == LOG:
            assert writer.publish()
            assert topics_of(client)[0].read()

    until(writer.publish, within_s=COME_BACK_WITHIN_S, what="the store to come back")
    until(writer.commit, within_s=COME_BACK_WITHIN_S, what="transactions to come back")
    until(lambda: readiness_of(client, check)["status"] == "ok")
    writer.account(client)
