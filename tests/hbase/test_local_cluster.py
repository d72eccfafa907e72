"""The cluster that `make cluster` runs: real servers, HBase and ZooKeeper (docs/cluster.md)."""

import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest

import tuff
from tests.cluster.local_cluster import LocalCluster, local_cluster
from tests.hbase.marks import NEEDS_HBASE
from tests.http.client import Client as HttpClient
from tests.http.client import ok, until
from tuff.launch import LaunchError, ServerProcess
from tuff.protocol.transaction import POINTERS_PER_MS

pytestmark = NEEDS_HBASE

ORDERS = tuff.TopicId("shop", "orders")
TAKEN_OVER_WITHIN_S = 60.0  # seconds; a session, and a busy machine


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with local_cluster(tmp_path_factory.mktemp("cluster"), count=2) as made:
        yield made


def test_a_topic_moves_and_its_messages_stay(cluster: LocalCluster) -> None:
    with tuff.Client(cluster.url, retries=20) as client:
        client.topics.create(ORDERS)
        client.publish(ORDERS, "first")
        for server_id in ("s1", "s2", "s1"):
            (owner,) = client.cluster.topics().owners
            if owner.server_id != server_id:
                client.cluster.move(ORDERS, server_id)
            client.publish(ORDERS, server_id)

        shown = client.cluster.topics("s1").owners
        payloads = [each.payload for each in client.poll(ORDERS)]

    assert [each.topic for each in shown] == [ORDERS]
    assert payloads == [b"first", b"s1", b"s2", b"s1"]


def test_a_drained_server_is_stopped_and_comes_back_undrained(cluster: LocalCluster) -> None:
    with tuff.Client(cluster.servers["s1"].url, retries=20) as client:
        assert client.cluster.drain("s2", wait=30).topics == 0
        assert cluster.servers["s2"].stop() == 0

        def servers() -> dict[str, tuff.admin.ClusterServer]:
            """Those that s1 knows."""
            return {each.server_id: each for each in client.cluster.get().servers}

        until(lambda: servers().keys() == {"s1"}, what="s1 to be alone")
        cluster.start(2)
        until(lambda: "s2" in servers(), what="s2 to be back")
        back = servers()["s2"]

    assert (back.incarnation, back.is_draining) == (2, False)


def test_a_server_is_killed_and_started_again_by_its_id(cluster: LocalCluster) -> None:
    url = cluster.servers["s2"].url
    until(lambda: cluster.start_again("s2").startswith(f"s2  {url}  process "), within_s=60)

    assert cluster.start_again("s7") == "there is no server 's7'; there are s1, s2"


def test_an_id_in_use_and_other_tables_are_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="the server id s2 is already in use by"):
        cluster.launch(tmp_path, "s2")
    with pytest.raises(LaunchError, match="its messages are in 'hbase tuff_'"):
        cluster.launch(tmp_path, "s9", "hbase.prefix=other_")


def test_an_older_copy_of_the_shared_directory_opens_no_transactions(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """It was used without an error, and commits since the copy were lost."""
    directory, newest = cluster.home / "transactions", tmp_path / "newest"
    shutil.copytree(directory, tmp_path / "copy")
    with tuff.Client(cluster.url, retries=20) as client:
        first = client.transactions.overview().write_pointer

        def are_seconds_later() -> bool:
            with client.transaction():
                pass
            write_pointer = client.transactions.overview().write_pointer
            return write_pointer > first + 5_000 * POINTERS_PER_MS

        # So that new pointers are reserved, and the cluster has noted that.
        until(are_seconds_later, within_s=30)
    with cluster.launch(tmp_path, "s8") as other:
        for server in cluster.servers.values():
            os.kill(server.pid, signal.SIGKILL)
        directory.rename(newest)
        shutil.copytree(tmp_path / "copy", directory)

        with tuff.Client(other.url, retries=0) as client:
            until(
                lambda: "files are older" in client.health().checks["transactions"].detail,
                within_s=TAKEN_OVER_WITHIN_S,
                what="the election of s8",
            )
            with pytest.raises(tuff.errors.TransactionsUnavailableError):
                client.transactions.start()

            shutil.rmtree(directory)
            newest.rename(directory)
            with closing(HttpClient(_port(other))) as http:
                ok(http.post("/v1/transactions/service/start"))
            with client.transaction():
                pass
    for server_id in tuple(cluster.servers):
        until(partial(_is_started_again, cluster, server_id), within_s=60)


def _port(server: ServerProcess) -> int:
    return int(server.url.rpartition(":")[2])


def _is_started_again(cluster: LocalCluster, server_id: str) -> bool:
    return "process" in cluster.start_again(server_id)


def test_a_server_without_the_shared_directory_does_not_begin_with_an_empty_state(
    cluster: LocalCluster, tmp_path: Path
) -> None:
    """It led, and transactions that were rolled back became visible."""
    with tuff.Client(cluster.url, retries=20) as client, client.transaction():
        pass
    unmounted = cluster.launch(
        tmp_path, "s9", f"cluster.transactions_directory={tmp_path / 'unmounted'}"
    )
    for server in cluster.servers.values():
        os.kill(server.pid, signal.SIGKILL)

    with unmounted, tuff.Client(unmounted.url, retries=0) as client:

        def is_refused() -> bool:
            check = client.health().checks["transactions"]
            return "holds no transaction files" in check.detail

        until(is_refused, within_s=TAKEN_OVER_WITHIN_S, what="the election of s9")
        with pytest.raises(tuff.errors.TransactionsUnavailableError):
            client.transactions.start()
