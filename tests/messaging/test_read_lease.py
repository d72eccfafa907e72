"""Reads of a store that another server may have taken over (decision 0038)."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import pytest

from kernel.requests_and_replies import EMPTY_REPLY, Reply, Request, Route
from messaging.engines.engine_interface import StoreError, TakenOverError
from messaging.engines.memory import MemoryStore
from messaging.engines.row_store import Store
from messaging.log.read_lease import READ_LEASE_MS, StoreHolderCheck, require_holder
from messaging.log.state_in_memory import OpenStore
from tests.made_operations import made
from tests.messaging.world import Clock, in_thread
from tuff.protocol.errors import (
    BadRequestError,
    StorageUnavailableError,
    TopicNotFoundError,
    TuffError,
)
from tuff.protocol.operations import TOPIC_PATH

T = TypeVar("T")
REQUEST = Request({}, (), None, None, b"")


class SharedTable(Store):
    """Rows in memory, which another server may own; `failure` is what a look at the owner finds."""

    def __init__(self) -> None:
        super().__init__(MemoryStore())
        self.failure: Exception | None = None
        self.looks = 0

    def require_owned(self) -> None:
        self.looks += 1
        if self.failure is not None:
            raise self.failure


class Case:
    """An engine over such rows, and what proves that they are ours."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.table = SharedTable()
        self.engine = OpenStore(
            lambda: self.table, in_thread_write=in_thread, in_thread_read=in_thread
        )
        self.gate = asyncio.Event()
        self.gate.set()
        self.holder_check = StoreHolderCheck(
            self.engine, now_ms=self.clock, in_thread=self._in_thread
        )

    async def _in_thread(self, function: Callable[[], T]) -> T:
        await self.gate.wait()
        return function()

    async def required(self) -> "asyncio.Task[None]":
        """A read that asks whether it may be answered, as far as it comes without a check."""
        task = asyncio.ensure_future(self.holder_check.require())
        await asyncio.sleep(0)
        return task


@pytest.fixture
async def case() -> Case:
    made = Case()
    await made.engine.open(lambda _store: None)
    return made


async def test_a_read_within_the_lease_causes_no_check(case: Case) -> None:
    await case.holder_check.check()
    case.clock.now_ms += READ_LEASE_MS - 1

    await case.holder_check.require()

    assert case.table.looks == 1
    assert case.holder_check.lapse is None


async def test_a_read_after_the_lease_waits_for_a_check_that_starts_later(case: Case) -> None:
    case.gate.clear()
    under_way = asyncio.ensure_future(case.holder_check.check())
    await asyncio.sleep(0)
    read = await case.required()
    case.gate.set()
    await under_way
    assert not read.done()  # who took the store over may have done so between that check and it

    await case.holder_check.check()

    await read


async def test_a_lease_starts_with_its_check_and_not_with_the_answer(case: Case) -> None:
    """The process was stopped in between, and the store was taken over meanwhile."""
    case.gate.clear()
    check = asyncio.ensure_future(case.holder_check.check())
    await asyncio.sleep(0)
    case.clock.now_ms += READ_LEASE_MS
    case.gate.set()
    await check

    read = await case.required()

    assert not read.done()
    assert case.holder_check.lapse is not None
    read.cancel()


async def test_a_read_that_waits_has_a_check_made_at_once(case: Case) -> None:
    running = asyncio.ensure_future(case.holder_check.run())
    await (await case.required())
    case.clock.now_ms += READ_LEASE_MS

    await case.holder_check.require()

    case.holder_check.close()
    await running
    assert case.table.looks >= 2


async def test_checks_continue_after_one_that_raised(case: Case) -> None:
    case.table.failure = ZeroDivisionError("a bug")
    running = asyncio.ensure_future(case.holder_check.run())
    with pytest.raises(StorageUnavailableError, match="the check failed"):
        await case.holder_check.require()
    case.table.failure = None

    await case.holder_check.require()

    case.holder_check.close()
    await running


async def test_a_server_that_was_replaced_closes_the_store_and_refuses_the_read(case: Case) -> None:
    read = await case.required()
    case.table.failure = TakenOverError("another server has taken the tables over")

    await case.holder_check.check()

    with pytest.raises(StorageUnavailableError, match="another server has taken the tables over"):
        await read
    assert not case.engine.is_up


async def test_a_check_that_fails_proves_nothing_and_the_store_stays_open(case: Case) -> None:
    await case.holder_check.check()
    case.clock.now_ms += READ_LEASE_MS
    case.table.failure = StoreError("no HBase gateway answers")
    read = await case.required()

    await case.holder_check.check()

    with pytest.raises(StorageUnavailableError, match="no HBase gateway answers"):
        await read
    assert case.engine.is_up
    assert "no HBase gateway answers" in str(case.holder_check.lapse)


async def test_a_check_of_a_store_that_was_closed_does_not_close_the_next_one(
    case: Case,
) -> None:
    """Each opening of HBase makes a claim of its own, which the one before takes for another's."""
    case.gate.clear()
    check = asyncio.ensure_future(case.holder_check.check())
    await asyncio.sleep(0)
    case.table.failure = TakenOverError("taken over")
    await case.engine.close("a write failed")
    case.table = SharedTable()
    await case.engine.open(lambda _store: None)
    case.gate.set()

    await check

    assert case.engine.is_up
    assert case.holder_check.lapse is not None


@pytest.mark.parametrize(
    ("method", "path", "error", "is_looked_at"),
    [
        ("GET", TOPIC_PATH, None, True),
        ("POST", f"{TOPIC_PATH}/poll", None, True),
        ("POST", f"{TOPIC_PATH}/publish", None, False),
        ("POST", f"{TOPIC_PATH}/publish", TopicNotFoundError("no topic"), True),
        ("POST", f"{TOPIC_PATH}/publish", BadRequestError("what?"), False),
    ],
)
async def test_reads_and_refusals_that_rest_on_a_read_need_the_lease(
    case: Case, method: str, path: str, error: TuffError | None, *, is_looked_at: bool
) -> None:
    case.table.failure = StoreError("no HBase gateway answers")

    async def answer(_request: Request) -> Reply:
        if error is not None:
            raise error
        return EMPTY_REPLY

    replying = asyncio.ensure_future(
        _reply(require_holder(Route(made(method, path), answer), case.holder_check))
    )
    await asyncio.sleep(0)
    await case.holder_check.check()

    expected = StorageUnavailableError.code if is_looked_at else error.code if error else None
    assert await replying == expected


async def _reply(route: Route) -> str | None:
    try:
        await route.handler(REQUEST)
    except TuffError as error:
        return error.code
    return None
