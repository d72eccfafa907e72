"""The alerts of a cluster, which a real Prometheus fires by their causes."""

import pytest

from tests.hbase.marks import NEEDS_HBASE
from tests.hbase.test_cluster import Cluster, Parts
from tests.hbase.test_cluster import in_parts as in_parts
from tests.hbase.test_cluster import links as links
from tests.hbase.test_cluster import zookeeper as zookeeper
from tests.metadata.zookeeper_server import ZooKeeperServer
from tests.monitoring.test_alerts_in_prometheus import Prometheus
from tests.monitoring.test_alerts_in_prometheus import prometheus as prometheus
from tests.programs import needs

pytestmark = [*NEEDS_HBASE, needs("prometheus")]


@pytest.fixture
def watched(in_parts: tuple[Cluster, Parts], prometheus: Prometheus) -> tuple[Cluster, Parts]:
    for server in in_parts[0].servers.values():
        prometheus.watch(server)
    return in_parts


def test_what_a_cluster_needs_is_away(
    watched: tuple[Cluster, Parts], prometheus: Prometheus, zookeeper: ZooKeeperServer
) -> None:
    cluster, parts = watched
    with parts.links.cut(*parts.gateways.values(), silently=True):
        for server in cluster.servers.values():
            prometheus.fires("TuffHbaseUnreachable", server)

    for server_id in cluster.servers:
        parts.unmount(server_id)
    for server in cluster.servers.values():
        prometheus.fires("TuffDirectoryUnreachable", server)

    leader = cluster.leader()
    assert leader is not None
    cluster.servers.pop(leader).kill()
    prometheus.fires("TuffClusterTransactionsDown")  # no other one reaches the transaction files

    zookeeper.kill()
    for server in cluster.servers.values():
        prometheus.fires("TuffSuspended", server)
    zookeeper.start()
