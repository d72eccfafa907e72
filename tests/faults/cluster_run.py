"""A real cluster on this machine: HBase, ZooKeeper, and three servers in networks that can be cut.

A server that ends by itself is started again, as systemd would. One that was replaced, or whose
session is lost, ends with exit code 1 (decision 0042).
"""

import os
import re
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path

from tests.faults.cluster_network import HBASE, ZOOKEEPER, Machine, machines
from tests.faults.disk import Shim
from tests.faults.pauses import suspended
from tests.hbase.deployments import deploy, server_settings, settings_of
from tests.hbase.local_hbase import LocalHBase
from tests.http.client import REPLY_TIMEOUT_S, Client
from tests.http.process import ServerProcess
from tests.metadata.zookeeper_server import ZooKeeperServer, free_port

SERVER_COUNT = 3
LOOPBACK = "127.0.0.1"
AGAIN_S = 0.5  # seconds until a server that ended is started again
TEND_S = 0.05
READY_WITHIN_S = 60.0
EXIT_REPLACED = 1

# What may be logged with a trace: writes that failed while HBase could not be reached.
TRACES = ("component=messaging.write.write_queue",)
_BUG = re.compile(r"Traceback|never retrieved|level=error component=asyncio")


class ClusterServer:
    """One server of the cluster, through all its starts, always at the same port."""

    def __init__(
        self,
        cluster: "RunningCluster",
        number: int,
        *,
        machine: Machine | None,
        library: Path | None,
    ) -> None:
        """`machine` None: at a loopback address, with the services."""
        self.id = f"s{number}"
        self._home = cluster.home / self.id
        self._home.mkdir()
        self.machine = machine
        self.host = LOOPBACK if machine is None else machine.address
        self.port = free_port()
        self.url = f"http://{self.host}:{self.port}"
        hbase, zookeeper = (LOOPBACK, LOOPBACK) if machine is None else (HBASE, ZOOKEEPER)
        tables = replace(cluster.tables, gateways=(f"{hbase}:{cluster.hbase.ports.thrift}",))
        metadata = "hbase"
        if cluster.zookeeper is not None:
            metadata = f"zookeeper://{zookeeper}:{cluster.zookeeper.port}/tuff"
        self._shim: Shim | None = None
        if library is not None:
            self._shim = Shim(library, root=self._home, control=cluster.home / f"{self.id}-shim")
        settings = [
            *server_settings(tables),
            "server.allow_remote=true",
            f"cluster.server_id={self.id}",
            f"cluster.address={self.url}",
            f"cluster.metadata={metadata}",
            f"cluster.session_timeout={cluster.session_s}",
            f"cluster.transactions_directory={cluster.home / 'transactions'}",
            "cluster.rebalance_interval=8",  # so that a server that was started again gets topics
            "tx.max_timeout=600",
            "tx.outcome_retention=14400",  # longer than a run, at whose end all are asked for
        ]
        place = ("--host", self.host, "--port", str(self.port))
        flags = [word for setting in settings for word in ("--set", setting)]
        self._arguments = ["--data", str(self._home / "data"), *place, *flags]
        self.exits: list[int] = []
        self.reasons: Counter[str] = Counter()  # why it ended by itself
        self.is_held = False  # ended on purpose, and not to be started yet
        self._again_s = 0.0
        self.process = self._launch()

    def _launch(self) -> ServerProcess:
        environment = None if self._shim is None else self._shim.environment()
        process = ServerProcess(
            self._home,
            *self._arguments,
            environment=environment,
            under=() if self.machine is None else self.machine.under,
        )
        process.may_log_traces = True  # of writes that failed while HBase could not be reached
        return process

    def set_clock(self, shift_s: float) -> None:
        """Shift its wall clock, now and after restarts."""
        assert self._shim is not None, "clocks need a C compiler"
        self._shim.set_clock(wall_s=shift_s)

    def tend(self) -> None:
        """Start it again if it has ended by itself."""
        code = self.process.process.poll()
        if code is None or self.is_held:
            return
        if not self._again_s:
            self.exits.append(code)
            self._require_clean()
            if code == EXIT_REPLACED:
                self.reasons[self._last_words()] += 1
            assert code in (0, EXIT_REPLACED, -signal.SIGKILL), (
                f"{self.id} ended with {code}: {self.process.stderr()[-2_000:]}"
            )
            self._again_s = time.monotonic() + AGAIN_S
        elif time.monotonic() >= self._again_s:
            self._again_s = 0.0
            self.process = self._launch()

    def _last_words(self) -> str:
        lines = (self.process.stderr() + self.process.stdout()).strip().splitlines()
        errors = [each for each in lines if "level=error" in each] or lines[-1:]
        found = re.search(r'event="(.{0,160})', errors[-1]) if errors else None
        return found[1] if found else "".join(errors[-1:])[:160]

    def kill(self) -> None:
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.process.wait(10)

    def is_ready(self) -> bool:
        if self.process.process.poll() is not None:
            return False
        client = self.client(timeout_s=2.0)
        try:
            return client.get("/health/ready").status == 200
        except OSError:
            return False
        finally:
            client.close()

    def client(self, *, timeout_s: float = REPLY_TIMEOUT_S) -> Client:
        """A connection to it, to be closed."""
        return Client(self.port, host=self.host, timeout_s=timeout_s, is_checked=False)

    def end(self) -> None:
        self.process.end()
        self._require_clean()

    def _require_clean(self) -> None:
        """Nothing but failed writes may leave a trace in the log."""
        for line in self.process.stderr().splitlines():
            is_fault = any(each in line for each in TRACES)
            assert is_fault or not _BUG.search(line), f"{self.id} says: {line[:5_000]}"


class RunningCluster:
    """All of it. Use it as a context; one thread does everything with it."""

    def __init__(
        self,
        home: Path,
        *,
        metadata: str,
        session_s: float,
        has_network: bool,
        library: Path | None = None,
    ) -> None:
        """`metadata`: "zookeeper" or "hbase"; `has_network`: each server is a machine of its own,
        which needs a process that entered a network namespace; `library`: the shim, with which
        clocks can be set."""
        self.home = home
        self.session_s = session_s
        self.servers: list[ClusterServer] = []
        self.zookeeper: ZooKeeperServer | None = None
        self._ends = ExitStack()
        try:
            hosts: Sequence[Machine | None] = [None] * SERVER_COUNT
            if has_network:
                hosts = [self._ends.enter_context(closing(m)) for m in machines(SERVER_COUNT)]
            self.hbase = LocalHBase(home / "hbase")
            self._ends.callback(self.hbase.stop)
            self.tables = deploy(settings_of(self.hbase.ports, prefix="faults_"))
            if metadata == "zookeeper":
                self.zookeeper = ZooKeeperServer(home / "zookeeper")
                self._ends.callback(self.zookeeper.kill)
            for number, machine in enumerate(hosts, 1):
                server = ClusterServer(self, number, machine=machine, library=library)
                self.servers.append(server)
                self._ends.callback(server.end)
                server.process.wait_ready()
        except BaseException:
            self._ends.close()
            raise

    def __enter__(self) -> "RunningCluster":
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def tend(self) -> None:
        """Start servers that ended."""
        for server in self.servers:
            server.tend()

    def wait(self, seconds: float) -> None:
        """Tend it for so long."""
        end_s = time.monotonic() + seconds
        while time.monotonic() < end_s:
            self.tend()
            time.sleep(TEND_S)

    def until(self, condition: Callable[[], object], *, within_s: float, what: str) -> None:
        """Tend it until the condition holds."""
        end_s = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < end_s, f"not within {within_s:g} s: {what}"
            self.wait(TEND_S)

    def until_ready(self) -> None:
        """Tend it until all servers are ready."""
        for server in self.servers:
            self.until(server.is_ready, within_s=READY_WITHIN_S, what=f"{server.id} is ready")

    @contextmanager
    def paused(self, server: ClusterServer) -> Iterator[None]:
        """A server is suspended during the block."""
        with suspended(server.process.pid):
            yield
