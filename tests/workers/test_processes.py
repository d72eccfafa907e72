"""Workers that don't start, with other programs in their place."""

import asyncio
import logging
from pathlib import Path

import pytest

from process.allowed_hosts import AllowedHosts
from process.dispatch import Admission, Dispatcher
from process.http_connection import HttpService
from process.listener import Listener, ListenerStartError
from process.metrics import Metrics
from process.settings import ServerSettings, Settings
from tuff.disk.event_loop import Arrivals
from workers import processes
from workers.answering import Answering
from workers.processes import Workers

ENDS = "import sys\nsys.exit(3)\n"
# Says that it is ready, and ends.
ENDS_LATER = """
import socket, sys
import msgpack
link = socket.socket(fileno=int(sys.argv[2]))
link.recv(1 << 16)
link.sendall(msgpack.packb([16]))
sys.exit(3)
"""
# Says that it is ready, and answers nothing until the test has ended.
HANGS = ENDS_LATER.replace("sys.exit(3)", "while link.recv(1 << 16): pass")


def started_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str) -> Workers:
    """Workers that run this program in place of the server's."""
    file = tmp_path / "program.py"
    file.write_text(program)
    monkeypatch.setattr(processes, "SERVER", file)
    arrivals = Arrivals()
    admission = Admission(pending_max=9, waiting=lambda: 0, arrivals=arrivals)
    dispatcher = Dispatcher(admission, Metrics(), elapsed_s=lambda: 0.0)
    service = HttpService(
        [], [], dispatcher, AllowedHosts(), max_request_bytes=99, now_ms=lambda: 0
    )
    tasks: set[asyncio.Task[None]] = set()
    return Workers(
        Settings(server=ServerSettings(workers=1)),
        Answering([], [], dispatcher, require_access=lambda _operation, _head: None),
        Listener(service, connections_max=9),
        spawn=lambda work: tasks.add(asyncio.get_running_loop().create_task(work)),
        now_ms=lambda: 0,
        begin_session=lambda _transport, _head: None,
    )


async def test_a_worker_that_ends_at_the_start_fails_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = started_by(tmp_path, monkeypatch, ENDS)
    await workers.listen("127.0.0.1", 0)

    with pytest.raises(ListenerStartError, match="has ended at its start"):
        await workers.started()

    await workers.close(within_s=0.0)


async def test_a_worker_that_does_not_get_ready_fails_the_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "START_S_MAX", 0.3)
    workers = started_by(tmp_path, monkeypatch, "import time\ntime.sleep(30)\n")
    await workers.listen("127.0.0.1", 0)

    with pytest.raises(ListenerStartError, match=r"not ready within 0\.3 s"):
        await workers.started()

    await workers.close(within_s=0.0)


async def test_a_worker_that_does_not_answer_a_stop_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A stop took all the time that clients have to read their replies."""
    monkeypatch.setattr(processes, "STOP_UNANSWERED_S_MAX", 0.01)
    workers = started_by(tmp_path, monkeypatch, HANGS)
    await workers.listen("127.0.0.1", 0)
    await workers.started()

    await workers.close(within_s=3600.0)

    assert workers.running == {}
    assert "worker 0 has not answered for 0.01 s at the stop, and is killed" in caplog.messages


class Ends(logging.Handler):
    """Records the ends of workers; `done` is set after so many."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.found: list[tuple[int, float]] = []  # exit code, pause in seconds
        self.done = asyncio.Event()
        self._count = count

    def emit(self, record: logging.LogRecord) -> None:
        if record.__dict__.get("code") == "worker_ended":
            fields = record.__dict__["fields"]
            self.found.append((fields["exit"], fields["restart_s"]))
        if len(self.found) == self._count:
            self.done.set()


async def test_a_worker_that_ends_again_and_again_starts_after_growing_pauses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(processes, "RESTART_S_MIN", 0.001)
    monkeypatch.setattr(processes, "RESTART_S_MAX", 0.003)
    ends = Ends(4)
    processes.log.addHandler(ends)
    workers = started_by(tmp_path, monkeypatch, ENDS_LATER)
    await workers.listen("127.0.0.1", 0)
    await workers.started()

    await ends.done.wait()

    processes.log.removeHandler(ends)
    await workers.close(within_s=0.0)
    assert ends.found[:4] == [(3, 0.001), (3, 0.002), (3, 0.003), (3, 0.003)]
