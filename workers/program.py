"""`server.py worker DESCRIPTOR`: the program of a worker process.

The descriptor is its end of the link to the main process, which says everything else. The worker
ends when the main process says so, or is gone.
"""

import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import uvloop

from process import garbage_collection
from process.allowed_hosts import AllowedHosts
from process.connections import Connections
from process.http_connection import HttpService
from process.listener import Listener
from process.logging_setup import log_to
from process.tls import ServerTls
from tuff.log_events import event
from workers.connection_counts import ConnectionCounts
from workers.forwarding import ForwardingDispatcher, MainLink
from workers.link_frames import Hello
from workers.relays import Handover

T = TypeVar("T")

log = logging.getLogger(__name__)

FILES_S = 0.5  # seconds between two looks at the TLS files, as in the main process
EXIT_ORPHANED = 1


def main(arguments: list[str]) -> int:
    """Serve until the main process says otherwise; returns the exit code."""
    # They may go to all processes of the server, and the main process decides about the end.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    (descriptor,) = arguments
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_run(socket.socket(fileno=int(descriptor))))


async def _run(link_socket: socket.socket) -> int:
    link = MainLink()
    await asyncio.get_running_loop().connect_accepted_socket(lambda: link, link_socket)
    hello = await link.hello
    log_to(sys.stderr, level=hello.log_level, log_format=hello.log_format)
    return await Worker(link, hello).run()


class Worker:
    """Accepts connections, and answers with what the main process says."""

    def __init__(self, link: MainLink, hello: Hello) -> None:
        self._link = link
        self._hello = hello
        self._tasks: set[asyncio.Task[None]] = set()
        counts = ConnectionCounts(hello.counts, hello.workers).own(hello.number)
        self._tls = _server_tls(hello)
        connections = Connections(counts.note)
        self._service = HttpService(
            link.routes(hello),
            link.streams(hello),
            ForwardingDispatcher(link),
            AllowedHosts(hello.allowed_hosts),
            max_request_bytes=hello.max_request_bytes,
            now_ms=link.now_ms,
            upload=link.upload(hello),
            holds_bodies=not hello.checks_heads,
            connections=connections,
        )
        sending = socket.socket(fileno=hello.handover)
        self._service.switch = Handover(sending, connections, spawn=self._spawn).begin
        self._listener = Listener(
            self._service,
            connections_max=hello.max_connections,
            tls=self._tls,
            shared=counts,
        )

    async def run(self) -> int:
        """Serve until the link ends; returns the exit code."""
        hello, link = self._hello, self._link
        sockets = [socket.socket(fileno=each) for each in hello.listening]
        await self._listener.serve(hello.host, sockets, hello.addresses)
        link.ending = self._listener.end_with_replies
        if self._tls is not None:
            self._spawn(self._refresh(self._tls))
        link.ready()
        garbage_collection.settle()
        within_s = await link.closing
        if within_s is None:
            log.error(
                "worker %d ends: the main process is gone",
                hello.number,
                extra=event("worker_orphaned", worker=hello.number),
            )
            return EXIT_ORPHANED
        await self._listener.close(within_s=within_s)
        return 0

    async def _refresh(self, tls: ServerTls) -> None:
        while True:
            await asyncio.sleep(FILES_S)
            await tls.refresh(_in_thread)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.add(task := asyncio.get_running_loop().create_task(work))
        task.add_done_callback(self._tasks.discard)


def _in_thread(function: Callable[[], T]) -> Awaitable[T]:
    return asyncio.get_running_loop().run_in_executor(None, function)


def _server_tls(hello: Hello) -> ServerTls | None:
    if not hello.tls_files:
        return None
    certificate, key, authority = hello.tls_files
    return ServerTls(Path(certificate), Path(key), Path(authority) if authority else None)
