"""Starts the worker processes, watches them, replaces those that end, and stops them.

The main process binds the sockets of all workers, and keeps them open. So connections that wait to
be accepted survive the end of a worker: its successor accepts them.
"""

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from process import listening_sockets
from process.health import Check, Status
from process.listener import CLOSE_S_MIN, LISTEN_BACKLOG, Listener, ListenerStartError
from process.metrics import Gauge
from process.settings import Settings
from tuff.log_events import event
from workers.answering import Answering, WorkerLink
from workers.connection_counts import ConnectionCounts, new_descriptor
from workers.link_frames import Hello
from workers.relays import Arriving, BeginSession, receive

log = logging.getLogger(__name__)

SERVER = Path(__file__).resolve().parents[1] / "server.py"
START_S_MAX = 30.0  # seconds until all workers must be ready; a busy machine takes a few
PING_S = 1.0
UNANSWERED_COUNT_MAX = 10  # pings; nothing that a worker does keeps its event loop for as long
START_COUNT_MAX = 30  # the same for one that starts, on a busy machine
# Seconds after which a stop kills a worker that has not answered. Others may take the time that the
# clients of a stop have (server.py).
STOP_UNANSWERED_S_MAX = 2.0
# Seconds between the end of a worker and its next start, doubled for each that ends at once.
RESTART_S_MIN, RESTART_S_MAX = 0.1, 10.0
STEADY_S = 60.0  # a worker that ran for so long begins again with the shortest pause
# Looks at whether a process has ended that has closed its link, and seconds between two of them.
END_LOOKS, LOOK_S = 25, 0.02


class Workers:
    """All worker processes. It is a listener, as process/listener.py; `local` serves the Unix
    socket in the main process. Lives on one event loop."""

    def __init__(
        self,
        settings: Settings,
        answering: Answering,
        local: Listener,
        *,
        spawn: Callable[[Coroutine[Any, Any, None]], None],
        now_ms: Callable[[], int],
        begin_session: BeginSession,
    ) -> None:
        count = settings.server.workers
        descriptor = new_descriptor(count)
        self.counts = ConnectionCounts(descriptor, count)
        self._hello = replace(_hello_of(settings, answering), workers=count, counts=descriptor)
        self._answering = answering
        self._local = local
        self._spawn = spawn
        self._now_ms = now_ms
        self._begin_session = begin_session
        self._sockets: list[list[socket.socket]] = []
        self._stop = asyncio.Event()
        self._all_ready = asyncio.Event()
        self._is_started = False  # all were ready once
        self.restarts_count = 0
        self.running: dict[int, _Running] = {}  # by the number of the worker
        self._count = count

    async def listen(self, host: str, port: int) -> int:
        """Bind the sockets, and start the workers; returns the port. Raises: OSError: the port, or
        the Unix socket, can't be had."""
        self._sockets = await listening_sockets.bind(host, port, count=self._count)
        addresses = listening_sockets.addresses(self._sockets[0])
        try:
            await self._local.serve(host, [], addresses)
        except OSError:
            listening_sockets.close(self._sockets)
            raise
        self._hello = replace(self._hello, host=host, addresses=addresses)
        for group in self._sockets:
            for each in group:
                each.listen(LISTEN_BACKLOG)
        for number in range(self._count):
            self._spawn(self._keep(number))
        self._spawn(self._watch())
        return listening_sockets.port(self._sockets[0])

    async def started(self) -> None:
        """Wait until all workers accept connections. Raises: ListenerStartError."""
        try:
            await asyncio.wait_for(self._all_ready.wait(), START_S_MAX)
        except TimeoutError:
            raise ListenerStartError(
                f"a worker process was not ready within {START_S_MAX:g} s; its log says why, or "
                "the machine is overloaded"
            ) from None
        if not self._is_started:
            raise ListenerStartError("a worker process has ended at its start; its log says why")

    def end_with_replies(self) -> None:
        """End each connection with its next reply."""
        self._local.end_with_replies()
        for each in self.running.values():
            each.link.end_with_replies()

    async def close(self, *, within_s: float) -> None:
        """Close the sockets and every connection, as a listener, and end the workers."""
        self._stop.set()
        self._all_ready.set()
        listening_sockets.close(self._sockets)
        for each in self.running.values():
            each.link.close(within_s=within_s)
            each.link.ping(now_ms=self._now_ms())
        loop = asyncio.get_running_loop()
        killing = loop.call_later(STOP_UNANSWERED_S_MAX, self._kill_unanswering)
        closing = asyncio.gather(self._local.close(within_s=within_s), self._gone())
        with suppress(TimeoutError):
            await asyncio.wait_for(closing, max(within_s, CLOSE_S_MIN))
        killing.cancel()
        for number, each in self.running.items():
            log.warning(
                "worker %d has not ended in time, and is killed",
                number,
                extra=event("worker_hangs", worker=number),
            )
            each.process.kill()
        with suppress(TimeoutError):
            await asyncio.wait_for(self._gone(), END_LOOKS * LOOK_S)

    def _kill_unanswering(self) -> None:
        for number, each in self.running.items():
            if each.link.unanswered_count:
                log.warning(
                    "worker %d has not answered for %g s at the stop, and is killed",
                    number,
                    STOP_UNANSWERED_S_MAX,
                    extra=event("worker_hangs", worker=number),
                )
                each.process.kill()

    async def _gone(self) -> None:
        """Wait until no worker runs any more."""
        await asyncio.gather(*(each.gone.wait() for each in tuple(self.running.values())))

    def check(self) -> Check:
        """The state of the workers, for `/health/ready`."""
        down = [number for number in range(self._count) if not self._is_up(number)]
        if not down or not self._is_started:
            return Check(Status.OK, f"worker processes that accept connections: {self._count}")
        names = ", ".join(map(str, down))
        return Check(
            Status.DEGRADED,
            f"worker processes that are starting again, of {self._count}: {names}; the log says "
            "why they ended",
        )

    def gauges(self) -> list[Gauge]:
        """The metrics of the workers."""
        restarts = Gauge(
            "worker_restarts",
            "Worker processes that ended and were started again.",
            lambda: self.restarts_count,
            is_counter=True,
        )
        return [*(each for n in range(self._count) for each in self._gauges_of(n)), restarts]

    def _gauges_of(self, number: int) -> list[Gauge]:
        labels = (("worker", str(number)),)
        return [
            Gauge(
                "worker_up",
                "1 while a worker process accepts connections.",
                lambda: float(self._is_up(number)),
                labels=labels,
            ),
            Gauge(
                "worker_connections",
                "Open connections of a worker process.",
                lambda: self.counts.of(number),
                labels=labels,
            ),
            Gauge(
                "worker_cpu_seconds",
                "Processor time of a worker process since its start; no sample while it is down.",
                lambda: self._processor_s(number),
                is_counter=True,
                labels=labels,
            ),
        ]

    def _processor_s(self, number: int) -> float | None:
        found = self.running.get(number)
        try:
            stat = "" if found is None else Path(f"/proc/{found.process.pid}/stat").read_text()
        except OSError:
            return None
        fields = stat.rpartition(")")[2].split()
        return sum(map(int, fields[11:13])) / os.sysconf("SC_CLK_TCK") if fields else None

    def _is_up(self, number: int) -> bool:
        found = self.running.get(number)
        return found is not None and found.is_ready

    async def _keep(self, number: int) -> None:
        """Run a worker, again and again until the stop."""
        loop = asyncio.get_running_loop()
        pause_s = RESTART_S_MIN
        while not self._stop.is_set():
            began_s = loop.time()
            code = await self._run(number)
            if self._stop.is_set():
                return
            if not self._is_started:
                self._all_ready.set()  # the start fails
                return
            if loop.time() - began_s >= STEADY_S:
                pause_s = RESTART_S_MIN
            log.error(
                "worker %d has ended with code %d, and its connections with it; it starts again in "
                "%g s",
                number,
                code,
                pause_s,
                extra=event("worker_ended", worker=number, exit=code, restart_s=pause_s),
            )
            self.restarts_count += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), pause_s)
            pause_s = min(pause_s * 2, RESTART_S_MAX)

    async def _run(self, number: int) -> int:
        """Start a worker, and wait until it has ended; returns its exit code."""
        lost = asyncio.Event()
        link_end, theirs = socket.socketpair()
        receiving, sending = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        for each in (link_end, receiving):
            each.settimeout(0)
        with theirs, sending, receiving:
            listening = [each.fileno() for each in self._sockets[number]]
            hello = replace(
                self._hello, number=number, listening=listening, handover=sending.fileno(),
                now_ms=self._now_ms(),
            )  # fmt: skip
            link = WorkerLink(
                self._answering, hello, ready=lambda: self._note_ready(number), lost=lost.set
            )
            loop = asyncio.get_running_loop()
            await loop.connect_accepted_socket(lambda: link, link_end)
            process = _start(theirs.fileno(), [*listening, hello.handover, hello.counts])
            theirs.close()
            sending.close()
            self.running[number] = running = _Running(process, link)
            loop.add_reader(receiving, self._take_session, receiving)
            try:
                await lost.wait()
            finally:
                loop.remove_reader(receiving)
                self.counts.clear(number)
        code = await _end_of(process)
        running.gone.set()
        del self.running[number]
        return code

    def _note_ready(self, number: int) -> None:
        self.running[number].is_ready = True
        if not self._is_started and all(map(self._is_up, range(self._count))):
            self._is_started = True
            self._all_ready.set()
        log.info("worker %d is ready", number, extra=event("worker_ready", worker=number))

    def _take_session(self, receiving: socket.socket) -> None:
        arrived = receive(receiving)
        if arrived is None:
            return
        connection, head = arrived
        self._spawn(_accept(connection, Arriving(self._begin_session, head)))

    async def _watch(self) -> None:
        """End a worker that answers no ping for long. Pings are counted, and not seconds: after a
        pause of the whole machine no worker is at fault."""
        while not self._stop.is_set():
            for number, each in self.running.items():
                limit = UNANSWERED_COUNT_MAX if each.is_ready else START_COUNT_MAX
                if each.link.unanswered_count < limit:
                    each.link.ping(now_ms=self._now_ms())
                    continue
                log.error(
                    "worker %d has answered no ping for %g s, and is killed",
                    number,
                    limit * PING_S,
                    extra=event("worker_hangs", worker=number),
                )
                each.process.kill()
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stop.wait(), PING_S)


@dataclass(slots=True)
class _Running:
    process: subprocess.Popen[bytes]
    link: WorkerLink
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    is_ready: bool = False


def _start(link: int, inherited: list[int]) -> subprocess.Popen[bytes]:
    # A session of its own: a Ctrl-C in a terminal goes to the main process alone.
    return subprocess.Popen(
        [sys.executable, "-P", str(SERVER), "worker", str(link)],
        pass_fds=[link, *inherited],
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    )


async def _end_of(process: subprocess.Popen[bytes]) -> int:
    """The exit code of a process whose link is closed. One that does not end is killed."""
    for _ in range(END_LOOKS):
        if (code := process.poll()) is not None:
            return code
        await asyncio.sleep(LOOK_S)
    process.kill()
    while (code := process.poll()) is None:  # noqa: ASYNC110 - no event says it
        await asyncio.sleep(LOOK_S)
    return code


async def _accept(connection: socket.socket, protocol: asyncio.Protocol) -> None:
    await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, connection)


def _hello_of(settings: Settings, answering: Answering) -> Hello:
    """What workers are told, without what differs between them."""
    server = settings.server
    files = (server.tls_certificate_file, server.tls_key_file, server.tls_client_ca_file)
    return Hello(
        number=0,
        listening=(),
        handover=0,
        counts=0,
        workers=0,
        routes=answering.routes,
        streams=answering.streams,
        host="",
        addresses=(),
        allowed_hosts=(*server.allowed_hosts, *settings.cluster.hosts()),
        max_request_bytes=server.max_request_bytes,
        max_connections=server.max_connections,
        tls_files=files if server.has_tls else (),
        checks_heads=bool(server.access_file),
        log_level=server.log_level,
        log_format=server.log_format,
        now_ms=0,
    )
