"""Several servers of a cluster, and a real HBase with its ZooKeeper, on this machine.

    python -m tests.cluster.local_cluster [--servers N] [--port P] [--metadata zookeeper|hbase]
                                          [--data DIR]

prints the addresses, and runs until the end of its input (Ctrl-D). A line of input with the id of a
server kills it, and starts it again. `make cluster` calls this. Without --data everything is in a
temporary directory.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.hbase.local_hbase import LocalHBase, Ports, why_missing
from tuff.launch import LaunchError, ServerProcess, server_command

FIRST_PORT = 7411
SALTS = 4  # regions of a table; they are created quickly


class LocalCluster:
    """The servers s1, s2, … with their data below one directory. `ports` are those of HBase, and
    `settings` those of every server."""

    def __init__(
        self, home: Path, ports: Ports, *, metadata: str, settings: Sequence[str] = ()
    ) -> None:
        self.home = home
        self._settings = settings
        self._hbase = [
            f"hbase.gateways=['127.0.0.1:{ports.thrift}']",
            f"hbase.admin_gateway=127.0.0.1:{ports.thrift2}",
            f"hbase.salts={SALTS}",
        ]
        zookeeper = f"zookeeper://127.0.0.1:{ports.zookeeper}/tuff"
        self._metadata = zookeeper if metadata == "zookeeper" else metadata
        self.servers: dict[str, ServerProcess] = {}
        (home / "transactions").mkdir(parents=True, exist_ok=True)

    def deploy(self) -> None:
        """Create the tables. Raises: CalledProcessError."""
        command = server_command(["hbase", "deploy", *_assigned(self._hbase)])
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def start(self, number: int, *, port: int = 0) -> ServerProcess:
        """Start a server, or start it again. Raises: LaunchError."""
        name = f"s{number}"
        server = self.launch(self.home / name, name, port=port)
        self.servers[name] = server
        return server

    def launch(self, data: Path, server_id: str, *settings: str, port: int = 0) -> ServerProcess:
        """Start a server that the caller stops. Raises: LaunchError."""
        given = [
            *self._hbase,
            "messaging.store=hbase",
            "server.max_request_bytes=8388608",
            f"cluster.server_id={server_id}",
            f"cluster.metadata={self._metadata}",
            f"cluster.transactions_directory={self.home / 'transactions'}",
            *self._settings,
            *settings,
        ]
        arguments = ["--port", str(port), *_assigned(given)]
        return ServerProcess(data, log=data.with_suffix(".log"), arguments=arguments)

    @property
    def url(self) -> str:
        """The addresses of all servers, separated by commas, as clients take them."""
        return ",".join(each.url for each in self.servers.values())

    def start_again(self, server_id: str) -> str:
        """Kill a server, unless it has ended, and start it again at its address; what to tell the
        user."""
        server = self.servers.get(server_id)
        if server is None:
            return f"there is no server {server_id!r}; there are {', '.join(self.servers)}"
        server.kill()
        try:
            again = self.start(int(server_id[1:]), port=int(server.url.rpartition(":")[2]))
        except LaunchError as error:
            return str(error)
        return _shown(server_id, again)

    def stop(self) -> None:
        """Stop all servers, one after the other."""
        for server in self.servers.values():
            server.stop()


@contextmanager
def local_cluster(
    home: Path,
    *,
    count: int,
    first_port: int = 0,
    metadata: str = "zookeeper",
    settings: Sequence[str] = (),
) -> Iterator[LocalCluster]:
    """HBase, and this number of servers; with a first port, on consecutive ports.

    Raises: LaunchError, CommandError, CalledProcessError.
    """
    hbase = LocalHBase(home / "hbase")
    try:
        cluster = LocalCluster(home, hbase.ports, metadata=metadata, settings=settings)
        cluster.deploy()
        try:
            for number in range(1, count + 1):
                cluster.start(number, port=first_port and first_port + number - 1)
            yield cluster
        finally:
            cluster.stop()
    finally:
        hbase.stop()


def _assigned(settings: Sequence[str]) -> list[str]:
    return [word for each in settings for word in ("--set", each)]


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--servers", type=int, default=3, metavar="N")
    parser.add_argument("--port", type=int, default=FIRST_PORT, help="of the first server")
    parser.add_argument("--data", type=Path, metavar="DIR")
    parser.add_argument("--metadata", choices=("zookeeper", "hbase"), default="zookeeper")
    options = parser.parse_args(arguments)
    if reason := why_missing():
        sys.stderr.write(f"{reason}\n")
        return 2
    with ExitStack() as stack:
        home = options.data or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tuff-cluster-"))
        )
        sys.stdout.write(f"Starting HBase and {options.servers} servers; data are in {home}.\n")
        sys.stdout.flush()
        try:
            cluster = stack.enter_context(
                local_cluster(
                    home,
                    count=options.servers,
                    first_port=options.port,
                    metadata=options.metadata,
                )
            )
        except LaunchError as error:
            sys.stderr.write(f"{error}\n")
            return 1
        for name, server in cluster.servers.items():
            _say(_shown(name, server))
        _say(f"export TUFF_URL={cluster.url}")
        _say("The id of a server (s1) kills it and starts it again. Ctrl-D stops everything.")
        for line in sys.stdin:
            _say(cluster.start_again(line.strip()))
    return 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _shown(server_id: str, server: ServerProcess) -> str:
    return f"{server_id}  {server.url}  process {server.pid}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
