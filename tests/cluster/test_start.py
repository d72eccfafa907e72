"""The start of a real server of a cluster, as far as it gets without HBase and ZooKeeper."""

import http.client
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.http.client import until
from tests.http.forking import fork_server
from tests.http.process import ServerProcess
from tests.metadata.zookeeper_server import free_port

WITHIN_S = 60.0


@contextmanager
def started(home: Path, port: int, metadata: str) -> Iterator[ServerProcess]:
    settings = [
        "server.host=0.0.0.0",
        "server.allow_remote=true",
        "server.max_request_bytes=8388608",
        "messaging.store=hbase",
        "cluster.server_id=s1",
        f"cluster.address=http://s1.example:{port}",
        f"cluster.metadata={metadata}",
        f"cluster.transactions_directory={home / 'transactions'}",
    ]
    flags = [word for each in settings for word in ("--set", each)]
    arguments = ["--data", f"{home / 'data'}", "--port", f"{port}", *flags]
    server = ServerProcess(home, *arguments, forks=fork_server())
    try:
        yield server
    finally:
        server.kill()


def status(port: int, host: str) -> int:
    """The status of a request that names a host; 0 while nobody listens."""
    try:
        with closing(http.client.HTTPConnection("127.0.0.1", port, timeout=WITHIN_S)) as connection:
            connection.request("GET", "/health/ready", headers={"Host": host})
            return connection.getresponse().status
    except OSError:
        return 0


def test_addresses_of_zookeeper_that_are_none_end_the_start_with_one_sentence(
    tmp_path: Path,
) -> None:
    with started(tmp_path, free_port(), "zookeeper://127.0.0.1:port/tuff") as server:
        assert server.process.wait(WITHIN_S) == 1

        assert server.stderr().splitlines()[-1] == (
            "tuff: cluster.metadata can't be used: '127.0.0.1:port' are not addresses of "
            "ZooKeeper: they have the form HOST:PORT,HOST:PORT/PATH"
        )


def test_requests_may_name_the_host_of_the_cluster_address_and_no_other_name(
    tmp_path: Path,
) -> None:
    port = free_port()

    def statuses() -> list[int]:
        with started(tmp_path, port, f"zookeeper://127.0.0.1:{free_port()}/tuff"):
            until(lambda: status(port, "localhost") != 0, within_s=WITHIN_S, what="the listener")
            return [status(port, host) for host in (f"s1.example:{port}", "10.1.2.3", "lb.example")]

    # Without ZooKeeper the server is starting for five seconds, and then it ends. A busy machine
    # may need more time for three requests.
    while 0 in (found := statuses()):
        pass
    assert found == [503, 503, 403]
