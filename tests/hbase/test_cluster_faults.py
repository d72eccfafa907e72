"""The faults that need a JVM for each part of HBase: the region server or the master fails under
load. No acknowledged message is lost, no uncommitted one is shown, and the server recovers
(promises 1 to 4)."""

from collections.abc import Iterator

import pytest

from tests.hbase.conftest import NewServer
from tests.hbase.deployments import deploy, settings_of
from tests.hbase.local_hbase import Cluster
from tests.hbase.marks import NEEDS_HBASE
from tests.hbase.publish_load import loaded

pytestmark = [*NEEDS_HBASE, pytest.mark.cluster]

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
    """The killed one is not started again. Its regions move once ZooKeeper notices."""
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


def test_the_region_server_hangs(cluster: Cluster, new_server: NewServer) -> None:
    """The gateway waits for it. Whether calls of that time are carried out is unknown."""
    place = deploy(settings_of(cluster.ports))
    with loaded(new_server(place, f"hbase.timeout={SHORT_S}")) as load:
        cluster.jvms["region-server"].pause()
        load.is_refused("did not answer")
        cluster.jvms["region-server"].resume()
