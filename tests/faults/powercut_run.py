"""A recorded run: a server that is started several times, clients, a table, a backup and a salvage,
with the trace of all their file calls."""

import errno
import json
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.disk import Shim, failing
from tests.faults.history import Attempt, load
from tests.faults.workload_powercut import NAMESPACE, TOPICS, last_time_at
from tests.http.calls import Topic
from tests.http.client import ok
from tests.http.process import ENDS_WITH_PARENT, REPOSITORY, SERVER, ServerProcess, serve

SMALL_BUFFER = Path(__file__).with_name("small_buffer_server.py")
COPIES = {"backup": "backup", "restore": "restored", "salvage": "salvaged"}
NEVER = 1 << 62  # a position beyond the end of every trace
FAILURES = (
    failing("fdatasync", "snapshots/txlog", errno.EIO, first=9, count=1),
    failing("fdatasync", "messages/", errno.EIO, first=15, count=1),
)


@dataclass(frozen=True, slots=True)
class Copy:
    """A directory that a command made from the data. Before `complete_at` it may be absent."""

    name: str
    complete_at: int
    is_exact: bool  # its files are the same in every state


@dataclass(frozen=True, slots=True)
class Recording:
    """A run below `root`: its trace, its history, and where in the trace the topics existed."""

    root: Path
    trace: Path
    history: Sequence[Attempt]
    topics_at: int
    copies: Sequence[Copy]

    def count_at(self, position: int) -> int:
        """How many replies clients had at this position."""
        now = last_time_at(position)
        told = sum(each.completed is not None and each.completed <= now for each in self.history)
        return told + sum(each.pointer is not None and each.invoked <= now for each in self.history)

    @property
    def data(self) -> Path:
        return self.root / "data"

    @property
    def table(self) -> Path:
        return self.root / "table"

    @property
    def engines(self) -> Collection[Path]:
        return {self.data / "messages", self.table, *(
            self.root / f"{copy.name}.part" / "messages" for copy in self.copies
            if not copy.is_exact
        )}  # fmt: skip


class TracedRun:
    """Makes a recording; `control` has the files that are not part of it."""

    def __init__(self, library: Path, root: Path, control: Path) -> None:
        root.mkdir()
        self._root, self._control = root, control
        self._shim = Shim(library, root=root, control=control)
        self._histories: list[Path] = []
        self._topics_at = NEVER
        self._copies: list[Copy] = []

    def record(self, *, lives: int, units: int, copies: bool) -> Recording:
        """Start a server `lives` times, for so many attempts (`units`) of each of five clients.

        The last life ends with SIGTERM, the others with SIGKILL, and in every second one a sync
        fails. With `copies`, a backup, a restore and a salvage follow.
        """
        for life in range(lives):
            self._state(life, units, is_last=life == lives - 1)
        data, backup = str(self._root / "data"), str(self._root / "backup")
        commands = (("backup", data), ("restore", backup), ("salvage", data)) if copies else ()
        for command, source in commands:
            self._command(command, source, COPIES[command])
        history = [attempt for path in self._histories for attempt in load(path)]
        return Recording(
            self._root, self._shim.trace, history, self._topics_at, tuple(self._copies)
        )

    def _state(self, life: int, units: int, *, is_last: bool) -> None:
        environment = self._shim.environment(traced=True)
        # A small write buffer, so that LevelDB writes tables and replaces its log within a run.
        program = SERVER if life % 2 else SMALL_BUFFER
        server = serve(self._root, environment=environment, program=program)
        try:
            if life == 0:
                self._make_topics(server)
            if not life % 2:
                self._shim.set_rules(*FAILURES)
                server.may_log_traces = True
            self._load(life, units, server, is_killed=not is_last)
        finally:
            self._shim.set_rules()
            server.end()

    def _make_topics(self, server: ServerProcess) -> None:
        for name in TOPICS:
            ok(Topic(server.client(), NAMESPACE, name).create())
        self._topics_at = self._shim.position()

    def _load(self, life: int, units: int, server: ServerProcess, *, is_killed: bool) -> None:
        history = self._control / f"history-{life}.jsonl"
        history.touch()
        self._histories.append(history)
        options = {
            "port": server.port, "trace": str(self._shim.trace), "history": str(history),
            "units": units, "life": life, "table": str(self._root / "table"),
        }  # fmt: skip
        module = "tests.faults.workload_powercut"
        process = subprocess.Popen(
            [*ENDS_WITH_PARENT, sys.executable, "-m", module, json.dumps(options)],
            cwd=REPOSITORY,
            env=self._shim.environment(traced=True),
        )
        try:
            if is_killed:
                _wait_until_most_is_done(history, units, process)
                with self._shim.between_calls():
                    server.kill()
            assert process.wait(120) == 0
        finally:
            process.kill()
            process.wait()

    def _command(self, command: str, source: str, target: str) -> None:
        arguments = [sys.executable, str(SERVER), command, source, str(self._root / target)]
        done = subprocess.run(
            arguments, env=self._shim.environment(traced=True), capture_output=True, text=True,
            timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        self._copies.append(Copy(target, self._shim.position(), command != "salvage"))


def _wait_until_most_is_done(history: Path, units: int, process: "subprocess.Popen[bytes]") -> None:
    while history.read_bytes().count(b'"Publish"') < 4 * units and process.poll() is None:
        try:
            process.wait(0.02)
        except subprocess.TimeoutExpired:
            continue
