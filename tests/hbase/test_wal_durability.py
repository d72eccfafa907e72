"""Whether HBase forces its log to disk before it acknowledges a write."""

from contextlib import closing
from pathlib import Path

from messaging.engines.hbase.settings import HBaseSettings
from tests.faults.disk import Shim, build
from tests.faults.powercut_disk import Call, read_trace
from tests.hbase.conftest import NewServer
from tests.hbase.deployments import deploy, settings_of, stores_of
from tests.hbase.local_hbase import LocalHBase
from tests.hbase.marks import NEEDS_HBASE
from tests.http.calls import Topic
from tests.http.client import ok
from tests.messaging.world import rows_of
from tests.programs import needs

pytestmark = NEEDS_HBASE

ROWS = [(b"mns:topic:%04d" % number, b"value") for number in range(100)]
BOUNDS = b"\x00", b"\xff" * 4


def write_one_by_one(settings: HBaseSettings) -> None:
    with closing(stores_of(settings)()) as store:
        for row in ROWS:
            store.write([row])


@needs("cc")
def test_fsync_forces_every_commit_to_disk_and_sync_none(tmp_path: Path) -> None:
    shim = Shim(build(tmp_path), root=tmp_path / "hbase", control=tmp_path / "control")
    hbase = LocalHBase(tmp_path / "hbase", environment=shim.environment(traced=True))

    def forced() -> int:
        """The number of syncs of a log so far."""
        return sum(
            each.call is Call.SYNC and "/WALs/" in str(each.path) for each in read_trace(shim.trace)
        )

    try:
        plain = deploy(settings_of(hbase.ports))
        before = forced()
        write_one_by_one(plain)
        assert forced() - before < 5  # only of logs that are closed

        strict = deploy(settings_of(hbase.ports, wal="fsync"))
        before = forced()
        write_one_by_one(strict)
        assert forced() - before >= len(ROWS)

        with closing(stores_of(strict)()) as store:
            store.write([(key, None) for key, _ in ROWS[:50]])
            assert rows_of(store.scan(*BOUNDS)) == ROWS[50:]
        with closing(stores_of(strict)()) as store:
            assert rows_of(store.scan(*BOUNDS)) == ROWS[50:]
    finally:
        hbase.stop()


def test_a_server_with_fsync_serves(hbase: LocalHBase, new_server: NewServer) -> None:
    place = deploy(settings_of(hbase.ports))
    server = new_server(place, "hbase.wal=fsync", f"hbase.admin_gateway={place.admin_gateway}")
    topic = Topic(server.client(), "default", "strict")
    ok(topic.create({}))
    for number in range(20):
        ok(topic.publish(f"message {number}"))

    assert topic.committed() == [f"message {number}" for number in range(20)]
    assert ok(server.client().get("/health/ready")).json["checks"]["storage"]["status"] == "ok"
