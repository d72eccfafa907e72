"""A real HBase for tests: ZooKeeper, master, region server and both gateways, in one JVM or five.

A JVM ends with its standard input, so it never outlives the tests.

`python -m tests.hbase.local_hbase` stores the classes that an HBase has loaded. Later JVMs map that
file, and start in half the processor time.
"""

import random
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
JARS = ROOT / "build" / "hbase" / "lib"
OPTIONS = ROOT / "coprocessor" / "runtime" / "jvm.options"
CLASSES = ROOT / "build" / "hbase" / "classes.jsa"
LAUNCHER = "tuff.runtime.LocalHBase"
ANSWERS_WITHIN_S = 180.0  # seconds; a busy machine takes many times the four of an idle one
STOPS_WITHIN_S = 60.0
SERVER_PORTS = range(10_000, 32_000)  # below those that Linux gives to connections
PARTS = ("zookeeper", "master", "region-server", "thrift", "thrift2")


class Ports(NamedTuple):
    """The ports of the parts, on 127.0.0.1."""

    zookeeper: int
    master: int
    region_server: int
    thrift: int
    thrift2: int

    @classmethod
    def free(cls) -> "Ports":
        """Ports that are free now. A JVM binds them seconds later, and meanwhile no connection gets
        one of them as its own."""
        found: list[int] = []
        with ExitStack() as held:
            for port in random.sample(SERVER_PORTS, len(SERVER_PORTS)):
                probe = held.enter_context(socket.socket())
                with suppress(OSError):
                    probe.bind(("127.0.0.1", port))
                    found.append(port)
                if len(found) == len(cls._fields):
                    break
        return cls(*found)


class CommandError(Exception):
    """HBase refused a command, or its JVM ended; the text is HBase's."""


class Jvm:
    """One JVM with one part of HBase, or with all of them."""

    def __init__(
        self,
        home: Path,
        ports: Ports,
        part: str = "all",
        *,
        environment: Mapping[str, str] | None = None,
        archive: str = f"-XX:SharedArchiveFile={CLASSES}",
    ) -> None:
        """Start it, and return once it can be used. Its log is `HOME/PART.log`. `environment` None:
        that of the tests. `archive`: the option by which Java reads or writes stored classes."""
        home.mkdir(parents=True, exist_ok=True)
        self.log = home / f"{part}.log"
        command = ["java", archive, f"@{OPTIONS}", "-cp", f"{JARS}/*", LAUNCHER, part, str(home)]
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, *map(str, ports)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment,
                start_new_session=True,  # Ctrl-C ends the tests, and the JVM with them
            )
        self._unread = b""
        try:
            self._answer("READY")
        except BaseException:
            self.kill()
            raise

    @property
    def pid(self) -> int:
        return self._process.pid

    def command(self, *words: str) -> list[str]:
        """Execute one of the launcher's commands. Returns the lines of data in its answer.

        Raises: CommandError.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(words).encode() + b"\n")
        self._process.stdin.flush()
        return self._answer("OK")

    def kill(self) -> None:
        """SIGKILL: nothing is flushed."""
        self._process.kill()
        self._process.wait()
        self._close()

    def pause(self) -> None:
        """SIGSTOP: it keeps its connections and answers nothing, until `resume`."""
        self._process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """End it in good order; kill it if that takes too long."""
        self._close()
        try:
            self._process.wait(STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            self.kill()

    def _close(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(BrokenPipeError):
                pipe.close()

    def _answer(self, expected: str) -> list[str]:
        data = []
        while True:
            line = self._line()
            word, _, rest = line.partition(" ")
            if word == expected:
                return data
            if word == "ERR":
                raise CommandError(rest)
            if word == "CELL":
                data.append(rest)

    def _line(self) -> str:
        """The next line. The deadline keeps a hanging JVM from hanging the tests."""
        assert self._process.stdout is not None
        deadline_s = time.monotonic() + ANSWERS_WITHIN_S
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._unread:
                if not selector.select(max(0.0, deadline_s - time.monotonic())):
                    raise CommandError(f"no answer in {ANSWERS_WITHIN_S} s; see {self.log}")
                piece = self._process.stdout.read1(1 << 16)  # type: ignore[attr-defined]  # a pipe
                if not piece:
                    raise CommandError(f"the JVM ended; see {self.log}")
                self._unread += piece
        line, _, self._unread = self._unread.partition(b"\n")
        return line.decode()


class LocalHBase:
    """All of HBase in one JVM. A restart on the same home continues with its files."""

    def __init__(self, home: Path, *, environment: Mapping[str, str] | None = None) -> None:
        self.home = home
        self.ports = Ports.free()
        self.jvm = Jvm(home, self.ports, environment=environment)

    def command(self, *words: str) -> list[str]:
        return self.jvm.command(*words)

    def kill(self) -> None:
        self.jvm.kill()

    def restart(self) -> None:
        """Start it again after `kill`, on the same ports."""
        self.jvm = Jvm(self.home, self.ports)

    def gateway(self, port: int) -> Jvm:
        """One more gateway, in a JVM of its own, to be killed or paused."""
        return Jvm(self.home / f"gateway-{port}", self.ports._replace(thrift=port), "thrift")

    def stop(self) -> None:
        self.jvm.stop()


class Cluster:
    """HBase with a JVM for each part, so that one can be killed beside the others."""

    def __init__(self, home: Path, parts: Sequence[str] = PARTS) -> None:
        self.home = home
        self.ports = Ports.free()
        self.jvms: dict[str, Jvm] = {}
        try:
            for part in parts:
                self.start(part)
        except BaseException:
            self.stop()
            raise

    def start(self, part: str) -> None:
        """Start a part, or start it again after `kill`, on the same port."""
        self.jvms[part] = Jvm(self.home, self.ports, part)

    def replace(self, part: str) -> Jvm:
        """Start one more of this part, on its own port, which is the part from now on. Returns the
        present one, which still runs."""
        before, field = self.jvms[part], part.replace("-", "_")
        self.ports = self.ports._replace(**{field: getattr(Ports.free(), field)})
        self.start(part)
        return before

    def kill(self, part: str) -> None:
        """SIGKILL of this part alone."""
        self.jvms[part].kill()

    def command(self, *words: str) -> list[str]:
        """Execute one of the launcher's commands, in the part that no test disturbs."""
        return self.jvms["zookeeper"].command(*words)

    def stop(self) -> None:
        for part in reversed(PARTS):
            if part in self.jvms:
                self.jvms[part].stop()


def why_missing() -> str | None:
    """What this machine lacks for an HBase, in a sentence; None if nothing."""
    if not any(JARS.glob("hbase-server-*.jar")):
        return f"there is no HBase in {JARS}; `make test-hbase` gets it, with Maven and a JDK 17"
    return None


def store_classes() -> None:
    """Write the file of the classes that an HBase has loaded by its start and its end. Java takes
    it only with the same jars in the same place, and starts without it otherwise."""
    with tempfile.TemporaryDirectory() as home:
        Jvm(Path(home), Ports.free(), archive=f"-XX:ArchiveClassesAtExit={CLASSES}").stop()


if __name__ == "__main__":
    store_classes()
