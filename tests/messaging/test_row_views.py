"""A view of rows may be read slowly: neither writes nor a closing store wait for it."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import closing
from itertools import islice
from pathlib import Path
from threading import Event
from typing import Any, TypeVar

import pytest

from messaging.engines.engine_interface import Chunks, Rows, StoreDamagedError
from messaging.engines.leveldb import LevelDbStore
from messaging.engines.memory import MemoryStore
from messaging.log.state_in_memory import OpenStore
from tests.messaging.world import leveldb
from tuff.protocol.errors import StorageUnavailableError

T = TypeVar("T")

ROWS = [(bytes((number,)), b"value") for number in range(10)]
HANGS_S = 5.0  # seconds; a wait that ends is not measured, one that does not fails


def in_thread(function: Callable[[], T]) -> Awaitable[T]:
    return asyncio.to_thread(function)


@pytest.fixture
async def engine(tmp_path: Path) -> OpenStore:
    made = OpenStore(
        lambda: leveldb(tmp_path / "store"),
        in_thread_write=in_thread,
        in_thread_read=in_thread,
    )
    await made.open(lambda store: store.write(ROWS))
    return made


class SlowStore(LevelDbStore):
    """Its scans wait in the middle of the first row."""

    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self.is_reading, self.may_go_on = Event(), Event()

    def scan(self, start: bytes, stop: bytes, **how: Any) -> Chunks:
        return self._slowly(super().scan(start, stop, **how))

    def _slowly(self, chunks: Chunks) -> Chunks:
        with closing(chunks):
            for chunk in chunks:
                self.is_reading.set()
                self.may_go_on.wait()
                yield chunk


def two(rows: Rows) -> list[tuple[bytes, bytes]]:
    return list(islice(rows, 2))


async def test_a_view_shows_the_rows_as_of_its_creation(engine: OpenStore) -> None:
    with engine.view(b"", b"\xff") as view:
        await engine.write(lambda store: store.write([(b"\x00", None), (b"\x01", b"later")]))

        found = [row for _ in range(6) for row in await view.read(two)]

        assert found == ROWS
    await engine.close("the test is over")


async def test_a_read_of_unreadable_rows_raises_the_reason(engine: OpenStore) -> None:
    def broken(_rows: object) -> None:
        raise StoreDamagedError("a block is damaged")

    with engine.view(b"", b"\xff") as view:
        for read in (lambda: view.read(broken), lambda: engine.read(broken)):
            with pytest.raises(StorageUnavailableError, match="be read: a block is damaged"):
                await read()


async def test_a_store_closes_at_once_beside_views_that_are_not_read(engine: OpenStore) -> None:
    """It once waited for the view: a stalled client then delayed the recovery of all writes."""
    with engine.view(b"", b"\xff") as untouched, engine.view(b"", b"\xff") as begun:
        assert await begun.read(two) == ROWS[:2]

        await asyncio.wait_for(engine.close("a write failed"), HANGS_S)

        for view in (untouched, begun):
            with pytest.raises(StorageUnavailableError, match="a write failed"):
                await view.read(two)


async def test_views_are_closed_before_their_store() -> None:
    events: list[str] = []

    class Noting(MemoryStore):
        def scan(self, start: bytes, stop: bytes, **how: Any) -> Chunks:
            try:
                yield from super().scan(start, stop, **how)
            finally:
                events.append("view")

        def close(self) -> None:
            events.append("store")

    engine = OpenStore(
        lambda: Noting(dict(ROWS)), in_thread_write=in_thread, in_thread_read=in_thread
    )
    await engine.open(lambda _store: None)
    with engine.view(b"", b"\xff") as view:
        await view.read(next)

        await engine.close("a write failed")

        assert events == ["view", "store"]


async def test_a_store_that_closes_during_a_read_of_a_view_waits_for_that_only(
    tmp_path: Path,
) -> None:
    table = SlowStore(tmp_path / "store")
    engine = OpenStore(lambda: table, in_thread_write=in_thread, in_thread_read=in_thread)
    await engine.open(lambda store: store.write(ROWS))
    with engine.view(b"", b"\xff") as view:
        reading = asyncio.ensure_future(view.read(next))
        await asyncio.to_thread(table.is_reading.wait)
        store_closing = asyncio.ensure_future(engine.close("a write failed"))
        await asyncio.sleep(0)
        table.may_go_on.set()

        assert await reading == ROWS[0]
        await asyncio.wait_for(store_closing, HANGS_S)
        with pytest.raises(StorageUnavailableError, match="a write failed"):
            await view.read(next)
