"""A real ZooKeeper server for tests, from the jars that Spark brings, on a free loopback port.

A shell starts the JVM, and kills it when its own standard input ends. So the JVM never outlives the
tests, however they end.
"""

import os
import signal
import socket
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from glob import glob
from pathlib import Path

import pytest

from tests.http.client import until
from tests.spark.session import HOW_TO, java

JARS = ("zookeeper-3", "zookeeper-jute", "slf4j-api", "metrics-core", "snappy-java")
OPTIONS = (
    "-Xmx64m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Djava.net.preferIPv4Stack=true",
)
MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
MAIN_OF_SEVERAL = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
TICK_MS = 100  # a session ends with the tick behind its timeout
SESSION_MS_MAX = 60_000  # without it: 20 ticks
ANSWERS_WITHIN_S = 60.0  # seconds; 0.3 on an idle machine
COMMAND_S_MAX = 2.0  # a server that starts accepts a connection, and may forget it
ENDS_WITHIN_S = 60.0
SHELL = 'java=$1; shift; "$java" "$@" </dev/null & echo $!; read -r end; kill -KILL $! 2>&-; wait'


class ZooKeeperServer:
    """One server. A restart continues with its data and its sessions, on the same port."""

    def __init__(
        self, home: Path, *, session_ms_max: int = SESSION_MS_MAX, peers: Sequence[str] = ()
    ) -> None:
        """Start it, and return once it serves. Its log is `HOME/zookeeper.log`.

        peers: the settings that make it one of several servers; then `start` it.
        """
        self.port = free_port()
        self.address = f"127.0.0.1:{self.port}"
        self._log = home / "zookeeper.log"
        self._settings = home / "zoo.cfg"
        self._main = MAIN_OF_SEVERAL if peers else MAIN
        (home / "data").mkdir(parents=True, exist_ok=True)
        lines = [
            f"tickTime={TICK_MS}",
            f"maxSessionTimeout={session_ms_max}",
            f"dataDir={home / 'data'}",
            f"clientPort={self.port}",
            "clientPortAddress=127.0.0.1",  # as an argument, the port is one of all interfaces
            "maxClientCnxns=0",
            "admin.enableServer=false",
            "4lw.commands.whitelist=srvr",
            *peers,
        ]
        self._settings.write_text("\n".join(lines), "utf-8")
        if not peers:
            self.start()

    def start(self) -> None:
        """Start it, with the data that it has, and return once it serves."""
        self.launch()
        self.wait()

    def launch(self) -> None:
        """Start it; of several servers none serves before most of them were started."""
        command = [str(java()), *OPTIONS, "-cp", class_path(), self._main, str(self._settings)]
        with self._log.open("ab") as log:
            self._shell = subprocess.Popen(
                ["sh", "-c", SHELL, "sh", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,  # Ctrl-C ends the tests, and the JVM with them
            )
        assert self._shell.stdout is not None
        self.pid = int(self._shell.stdout.readline())

    def wait(self) -> None:
        """Return once it serves."""
        try:
            until(self._serves, within_s=ANSWERS_WITHIN_S, what=f"ZooKeeper serves, {self._log}")
        except BaseException:
            self.kill()
            raise

    def stop(self) -> None:
        """SIGTERM, and wait for its end. Its sessions stay for their timeouts."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing, until `resume`."""
        os.kill(self.pid, signal.SIGSTOP)
        # A thread of it that runs on another core stops a moment later.
        threads = f"/proc/{self.pid}/task/*/stat"
        until(
            lambda: all(_is_stopped(Path(each)) for each in glob(threads)), within_s=ENDS_WITHIN_S
        )

    def resume(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def command(self, word: str) -> str:
        """The answer to one of its commands of four letters."""
        with socket.create_connection(("127.0.0.1", self.port), COMMAND_S_MAX) as connection:
            connection.sendall(word.encode())
            with connection.makefile("rb") as answer:
                return answer.read().decode()

    def _serves(self) -> bool:
        with suppress(OSError):
            return self.command("srvr").startswith("Zookeeper version")
        assert self.is_running(), f"ZooKeeper ended; see {self._log}"
        return False

    def is_running(self) -> bool:
        """Whether its process has not ended."""
        return is_running(self.pid)

    def _end(self, by: signal.Signals) -> None:
        if self._shell.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, by)
            until(lambda: not self.is_running(), within_s=ENDS_WITHIN_S)
            self._shell.communicate()


def _is_stopped(thread: Path) -> bool:
    with suppress(FileNotFoundError):
        return thread.read_text("ascii").rpartition(")")[2].split()[0] == "T"
    return True


def is_running(pid: int) -> bool:
    """Whether there is such a process, and it is no zombie."""
    with suppress(FileNotFoundError):
        status = Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()[0]
        return status != "Z"
    return False


def launch_ensemble(home: Path, count: int) -> list[ZooKeeperServer]:
    """Servers that form one ZooKeeper, once they serve."""
    numbers = range(1, count + 1)
    members = [f"server.{number}=127.0.0.1:{free_port()}:{free_port()}" for number in numbers]
    servers = []
    for number in numbers:
        directory = home / f"{number}"
        peers = [*members, "initLimit=100", "syncLimit=50"]
        servers.append(ZooKeeperServer(directory, peers=peers))
        (directory / "data" / "myid").write_text(f"{number}", "ascii")
        servers[-1].launch()
    return servers


def free_port() -> int:
    """A loopback port that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def class_path() -> str:
    import pyspark

    jars = Path(pyspark.__file__).parent / "jars"
    return os.pathsep.join(str(next(jars.glob(f"{name}*.jar"))) for name in JARS)


def why_missing() -> str | None:
    """What this machine lacks for a ZooKeeper, in a sentence; None if nothing."""
    if java() is None:
        return f"ZooKeeper needs Java, which is not installed: {HOW_TO}"
    return None


NEEDS_JAVA = pytest.mark.skipif(why_missing() is not None, reason=str(why_missing()))
