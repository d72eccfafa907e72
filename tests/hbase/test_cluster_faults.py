"""Each part of HBase in a JVM of its own, one of which fails under load: nothing acknowledged is
lost, nothing undecided is seen, and the server comes back by itself (promises 1 to 4)."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from tests.hbase.local_hbase import Cluster, why_missing

pytest.importorskip("happybase")

from messaging.storage.hbase.layout import Layout
from messaging.storage.hbase.table_admin import TableAdmin
from tests.hbase.conftest import NewServer
from tests.hbase.deployments import SALTS, deploy, settings_of
from tests.hbase.publish_load import loaded

pytestmark = [
    pytest.mark.slow,
    pytest.mark.hbase,
    pytest.mark.cluster,
    pytest.mark.skipif(why_missing() is not None, reason=str(why_missing())),
]

SHORT_S = 6.0  # seconds; the time-out of a call where a gateway is to hang beyond it


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    running = Cluster(tmp_path_factory.mktemp("cluster"))
    yield running
    running.stop()


def test_a_region_server_is_killed_and_started_again(
    cluster: Cluster, new_server: NewServer
) -> None:
    with loaded(new_server(deploy(settings_of(cluster.ports)))) as load:
        cluster.kill("region-server")
        cluster.start("region-server")
        load.goes_on(100)


def test_another_region_server_takes_over(cluster: Cluster, new_server: NewServer) -> None:
    """Nobody starts the dead one again. Its regions move once ZooKeeper noticed."""
    with loaded(new_server(deploy(settings_of(cluster.ports)))) as load:
        cluster.replace("region-server").kill()
        load.goes_on(100)


def test_the_master_is_killed_and_started_again(cluster: Cluster, new_server: NewServer) -> None:
    with loaded(new_server(deploy(settings_of(cluster.ports)))) as load:
        cluster.kill("master")
        load.goes_on(100)  # rows need no master
        assert load.refusals == []
        cluster.start("master")
        load.goes_on(100)
        deploy(settings_of(cluster.ports))  # it does a master's work again


def test_the_gateway_is_killed_and_started_again(cluster: Cluster, new_server: NewServer) -> None:
    with loaded(new_server(deploy(settings_of(cluster.ports)))) as load:
        cluster.kill("thrift")
        load.is_refused("no HBase gateway answers at 127.0.0.1")
        cluster.start("thrift")


def test_the_gateway_hangs_longer_than_anybody_waits(
    cluster: Cluster, new_server: NewServer
) -> None:
    place = deploy(settings_of(cluster.ports))
    with loaded(new_server(place, f"hbase.timeout={SHORT_S}")) as load:
        cluster.jvms["thrift"].pause()
        load.is_refused("did not answer")
        cluster.jvms["thrift"].resume()


def test_the_region_server_hangs_longer_than_anybody_waits(
    cluster: Cluster, new_server: NewServer
) -> None:
    """The gateway lives, and waits for it; what it is told by the end is carried out, or not."""
    place = deploy(settings_of(cluster.ports))
    with loaded(new_server(place, f"hbase.timeout={SHORT_S}")) as load:
        cluster.jvms["region-server"].pause()
        load.is_refused("did not answer")
        cluster.jvms["region-server"].resume()


def test_regions_are_split_under_load(cluster: Cluster, new_server: NewServer) -> None:
    place = deploy(settings_of(cluster.ports))
    with loaded(new_server(place)) as load:
        middle = Layout(SALTS).place(b"mdefault:load:" + bytes.fromhex("00000001") + b"\x00")[1]
        for table, row in (("message", middle), ("metadata", b"p")):
            cluster.command("split", f"{place.prefix}{table}", row.hex())
            load.goes_on(100)


def test_a_table_is_disabled_for_a_while(cluster: Cluster, new_server: NewServer) -> None:
    place = deploy(settings_of(cluster.ports))
    with closing(TableAdmin(place.admin_address())) as admin, loaded(new_server(place)) as load:
        admin.disable(f"{place.prefix}message")
        load.is_refused("is disabled; enable it")
        admin.enable(f"{place.prefix}message")
