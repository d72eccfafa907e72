"""A connection whose client does not read is aborted; one whose client reads slowly is not."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from process import slow_readers
from process.http_connection import HttpConnection
from process.slow_readers import SlowReader
from tests.process.served import Served, until

LARGE = b"GET /v1/large HTTP/1.1\r\nHost: x\r\n\r\n"
LARGE_BYTES = 8 << 20
PIECE_BYTES = 1 << 18
RECEIVED_BYTES = 1 << 16  # that the kernel takes for the client, so that the server sees it read


@pytest.fixture
async def way(server: Served) -> "Way":
    return Way(server)


class Way:
    """The way to the server, and the slow readers that are watched."""

    def __init__(self, server: Served) -> None:
        self.port = server.port
        self._connections = server.connections

    @property
    def count(self) -> int:
        return len(self._connections)

    async def unread(self) -> SlowReader:
        """What is watched of the only connection, once its client is behind."""
        await until(lambda: any(map(_is_watched, self._connections)))
        (connection,) = self._connections
        assert connection._slow_reader is not None
        return connection._slow_reader


async def test_a_client_that_reads_nothing_is_disconnected(
    way: Way, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(slow_readers, "UNREAD_S_MAX", 0.0)
    caplog.set_level("INFO")
    async with behind(way.port) as (reader, writer):
        writer.write(LARGE)
        watched = await way.unread()

        def is_given_up() -> bool:
            if watched._timer is not None:  # it goes on for as long as a kernel has room for it
                watched.check()
            return way.count == 0

        await until(is_given_up)
        assert "slow_client_closed" in {getattr(each, "code", "") for each in caplog.records}
        with pytest.raises((asyncio.IncompleteReadError, ConnectionError)):
            await reader.readexactly(LARGE_BYTES)


async def test_a_slow_client_gets_everything(way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slow_readers, "UNREAD_S_MAX", 0.0)
    async with behind(way.port) as (reader, writer):
        writer.write(LARGE)
        watched = await way.unread()
        for _ in range(3):
            await reader.readexactly(PIECE_BYTES)
            await until(lambda: watched._count() < watched._left_bytes)
            watched.check()

        await reader.readexactly(LARGE_BYTES - 3 * PIECE_BYTES)
        await until(lambda: watched._timer is None)
        assert way.count == 1


async def test_a_client_that_has_not_read_for_less_than_a_minute_is_kept(way: Way) -> None:
    async with behind(way.port) as (_, writer):
        writer.write(LARGE)
        watched = await way.unread()

        for _ in range(3):
            watched.check()

        assert way.count == 1


async def test_a_connection_that_closes_is_watched_until_all_is_read(server: Served) -> None:
    """Its transport says that the client has nearly all, and never closes while it has not all."""
    async with behind(server.port) as (_, writer):
        writer.write(LARGE)
        watched = await Way(server).unread()
        (connection,) = server.connections

        connection.close()
        connection.resume_writing()

        assert watched._timer is not None


@asynccontextmanager
async def behind(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A client whose kernel reads little ahead of it."""
    with socket.socket() as link:
        link.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVED_BYTES)
        link.setblocking(False)
        await asyncio.get_running_loop().sock_connect(link, ("127.0.0.1", port))
        reader, writer = await asyncio.open_connection(sock=link)
        try:
            yield reader, writer
        finally:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


def _is_watched(connection: HttpConnection) -> bool:
    return connection._slow_reader is not None and connection._slow_reader._timer is not None


async def test_a_connection_that_is_already_closed_can_be_watched() -> None:
    """uvloop's transport for TLS has no socket by then, and a stop met that."""
    watched = SlowReader(asyncio.Transport())

    watched.watch()
    watched.check()

    watched.stop()
