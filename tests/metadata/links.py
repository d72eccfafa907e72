"""TCP links between processes of a test, each of which can be cut.

A link is a proxy, so that a cut needs no privileges. A silent cut keeps connections and passes
nothing on, like a switch that drops packets; a loud one resets connections and refuses new ones.
What was sent during a silent cut arrives after it, as TCP would send it again.
"""

import asyncio
import threading
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager, suppress
from typing import TypeVar

T = TypeVar("T")

PIECE_BYTES = 1 << 16
CALL_WITHIN_S = 30.0


class Link:
    """A proxy before one port. Belongs to the event loop of its `Links`."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._passes = asyncio.Event()
        self._passes.set()
        self._refuses = False
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def open(self, port: int) -> None:
        """Listen at this port; 0: at a free one."""
        self._server = await asyncio.start_server(self._connected, "127.0.0.1", port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def cut(self, *, silently: bool) -> None:
        if silently:
            self._passes.clear()
            return
        self._refuses = True
        self._drop()

    async def mend(self) -> None:
        self._refuses = False
        self._passes.set()

    async def close(self) -> None:
        await self.mend()
        assert self._server is not None
        self._server.close()
        self._drop()

    def _drop(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            await self._passes.wait()
            if not self._refuses:
                await self._join(reader, writer)
        except OSError:
            pass  # the target is down, so the client is hung up on
        finally:
            self._writers.discard(writer)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        its_reader, its_writer = await asyncio.open_connection("127.0.0.1", self._target)
        self._writers.add(its_writer)
        ways = [
            asyncio.ensure_future(self._pass_on(reader, its_writer)),
            asyncio.ensure_future(self._pass_on(its_reader, writer)),
        ]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._writers.discard(its_writer)
            its_writer.transport.abort()
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while piece := await reader.read(PIECE_BYTES):
                await self._passes.wait()
                writer.write(piece)
                await writer.drain()
            # What the other end sent before it closed has to arrive before the close.
            await self._passes.wait()
            writer.write_eof()
            await asyncio.sleep(0)


class Links:
    """Links on an event loop in a thread of its own. Its methods may be called from any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._links: list[Link] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="links")
        self._thread.start()

    def to(self, port: int) -> Link:
        """A new link to this port."""
        link = self._call(self._made(port))
        self._links.append(link)
        return link

    @contextmanager
    def cut(self, *links: Link, silently: bool) -> Iterator[None]:
        """Cut these links during the block."""
        for link in links:
            self._call(link.cut(silently=silently))
        try:
            yield
        finally:
            for link in links:
                self._call(link.mend())

    def close(self) -> None:
        for link in self._links:
            self._call(link.close())
        self._call(_end_tasks())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _made(self, port: int) -> Link:
        link = Link(port)
        await link.open(0)
        return link

    def _call(self, work: Awaitable[T]) -> T:
        async def done() -> T:
            return await work

        return asyncio.run_coroutine_threadsafe(done(), self._loop).result(CALL_WITHIN_S)


async def _end_tasks() -> None:
    others = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
