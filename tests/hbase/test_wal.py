"""What an acknowledged write is in, by `hbase.wal`: HBase's log as it comes, forced to the disk, or
no log."""

from contextlib import closing
from pathlib import Path

import pytest

from tests.faults.disk import Shim, build, has_compiler
from tests.faults.powercut_disk import Call, read_trace
from tests.hbase.local import LocalHBase, why_missing

pytest.importorskip("happybase")

from messaging.storage.hbase_commits import TakenOverError
from messaging.storage.hbase_settings import HBaseSettings
from tests.hbase.conftest import NewServer
from tests.hbase.tables import deploy, settings_of, stores_of
from tests.http.calls import Topic
from tests.http.client import ok

pytestmark = [
    pytest.mark.slow,
    pytest.mark.hbase,
    pytest.mark.skipif(why_missing() is not None, reason=str(why_missing())),
]

ROWS = [(b"mns:topic:%04d" % number, b"value") for number in range(100)]
BOUNDS = b"\x00", b"\xff" * 4


def write_one_by_one(settings: HBaseSettings) -> None:
    with closing(stores_of(settings)()) as store:
        for row in ROWS:
            store.write([row])


@pytest.mark.skipif(not has_compiler(), reason="there is no C compiler")
def test_fsync_forces_every_commit_to_the_disk_and_sync_none(tmp_path: Path) -> None:
    shim = Shim(build(tmp_path), root=tmp_path / "hbase", control=tmp_path / "control")
    hbase = LocalHBase(tmp_path / "hbase", environment=shim.environment(traced=True))

    def forced() -> int:
        """How often a log was forced to the disk so far."""
        return sum(
            each.call is Call.SYNC and "/WALs/" in str(each.path) for each in read_trace(shim.trace)
        )

    try:
        plain = deploy(settings_of(hbase.ports))
        before = forced()
        write_one_by_one(plain)
        assert forced() - before < 5  # but for logs that are closed

        strict = deploy(settings_of(hbase.ports, wal="fsync"))
        before = forced()
        write_one_by_one(strict)
        assert forced() - before >= len(ROWS)

        with closing(stores_of(strict)()) as store:
            store.write([(key, None) for key, _ in ROWS[:50]])
            assert list(store.scan(*BOUNDS)) == ROWS[50:]
        with closing(stores_of(strict)()) as store:
            assert list(store.scan(*BOUNDS)) == ROWS[50:]
    finally:
        hbase.stop()


def test_without_a_log_a_crash_loses_what_was_acknowledged_and_the_store_goes_on(
    tmp_path: Path,
) -> None:
    hbase = LocalHBase(tmp_path)
    try:
        lossy = deploy(settings_of(hbase.ports, wal="skip"))
        logged = deploy(settings_of(hbase.ports))
        write_one_by_one(logged)
        write_one_by_one(lossy)
        with closing(stores_of(lossy)()) as replaced:
            stores_of(lossy)().close()

            hbase.kill()
            hbase.restart()

            with closing(stores_of(lossy)()) as store:
                assert list(store.scan(*BOUNDS)) == []
                store.write(ROWS[:1])
                assert list(store.scan(*BOUNDS)) == ROWS[:1]
            with pytest.raises(Exception, match="taken"):  # who took it over is not forgotten
                replaced.write(ROWS[1:2])
        with closing(stores_of(logged)()) as store:
            assert list(store.scan(*BOUNDS)) == ROWS
    finally:
        hbase.stop()


def test_who_lost_its_newest_commits_does_not_write_beside_who_took_over(tmp_path: Path) -> None:
    """The slot by which it was replaced is one that it had taken before, and its next one empty."""
    hbase = LocalHBase(tmp_path)
    try:
        lossy = deploy(settings_of(hbase.ports, wal="skip"))
        with closing(stores_of(lossy)()) as first:
            for row in ROWS[:20]:
                first.write([row])
            first.settle()

            hbase.kill()
            hbase.restart()

            with closing(stores_of(lossy)()) as second:
                second.write(ROWS[20:21])
                with pytest.raises(TakenOverError, match="taken"):
                    first.write(ROWS[:1])
                for row in ROWS[21:]:
                    second.write([row])
                assert list(second.scan(*BOUNDS)) == ROWS[20:]
    finally:
        hbase.stop()


def test_a_server_without_a_log_says_so(hbase: LocalHBase, new_server: NewServer) -> None:
    server = new_server(deploy(settings_of(hbase.ports)), "hbase.wal=skip")
    client = server.client()
    topic = Topic(client, "default", "lossy")
    ok(topic.create({}))
    ok(topic.publish("message"))

    ready = ok(client.get("/health/ready")).json

    assert ready["status"] == "degraded"
    assert "hbase.wal is skip" in ready["checks"]["storage"]["detail"]
    assert server.stderr().count("hbase.wal is skip") == 1
    assert topic.read() == ["message"]


def test_a_server_with_a_forced_log_serves(hbase: LocalHBase, new_server: NewServer) -> None:
    place = deploy(settings_of(hbase.ports))
    server = new_server(place, "hbase.wal=fsync", f"hbase.admin_gateway={place.admin_gateway}")
    topic = Topic(server.client(), "default", "strict")
    ok(topic.create({}))
    for number in range(20):
        ok(topic.publish(f"message {number}"))

    assert topic.committed() == [f"message {number}" for number in range(20)]
    assert ok(server.client().get("/health/ready")).json["checks"]["storage"]["status"] == "ok"
