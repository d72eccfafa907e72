"""A server that does with each request what a test says, and records the bytes that it got."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress

Behaviour = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nContent-Type: text/plain\r\n\r\nok"


class RawServer:
    """`behaviours` has one for each request in turn; the last one stays."""

    def __init__(self, *behaviours: Behaviour) -> None:
        self._behaviours = list(behaviours)
        self.heard: list[bytes] = []
        self.closed_count = 0  # connections that the other side has closed
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while (request := await _whole_request(reader)) is not None:
                self.heard.append(request)
                behaviour = self._behaviours[0]
                if len(self._behaviours) > 1:
                    del self._behaviours[0]
                await behaviour(reader, writer)
            self.closed_count += 1
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def _whole_request(reader: asyncio.StreamReader) -> bytes | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
        for line in head.split(b"\r\n"):
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                return head + await reader.readexactly(int(value))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return head


async def answer(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK)


async def hang_up(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def answer_half(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write(OK[:-1])
    await writer.drain()
    writer.close()


async def wait(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
    """Answer nothing until the other side closes the connection."""
    await reader.read()


def saying(reply: bytes) -> Behaviour:
    async def say(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply)

    return say


@asynccontextmanager
async def raw_server(*behaviours: Behaviour) -> AsyncIterator[RawServer]:
    made = RawServer(*behaviours)
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = _url_of(server)
    try:
        yield made
    finally:
        server.close()
        await asyncio.sleep(0)


async def closed_url() -> str:
    """An address at which nothing listens."""
    server = await asyncio.start_server(RawServer().serve, "127.0.0.1", 0)
    url = _url_of(server)
    server.close()
    await server.wait_closed()
    return url


def _url_of(server: asyncio.Server) -> str:
    return f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
