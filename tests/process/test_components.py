"""Both components together: a transaction that holds readers back ends in time (design §6)."""

import asyncio
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kernel.event_loop import InThread
from messaging.engines.engine_interface import StoreError
from messaging.engines.leveldb import LevelDbStore
from process.component_link import ComponentLink
from process.components import Components
from process.directory_locks import DataDirectories
from process.runtime import Runtime
from process.settings import SettingsError, load
from tests.process.manual_clock import ManualClock
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import PublishRequest
from tuff.protocol.transaction import TransactionType
from tx.calls import StartRequest
from tx.log_records import InvalidReason
from tx.outcomes import OpenTransaction, Outcome

ORDERS = TopicId("shop", "orders")
SETTINGS = ["tx.default_timeout=3600", "messaging.max_block=30"]
TICK_WITHIN_S = 60.0  # seconds; a tick that waits for what never comes is stuck


def _directories(directory: Path) -> DataDirectories:
    (directory / "snapshots").mkdir(parents=True, exist_ok=True)
    return DataDirectories(directory / "messages", directory / "snapshots", ())


@asynccontextmanager
async def components_over(
    directory: Path, manual: ManualClock, *more: str, log_disk: threading.Event | None = None
) -> AsyncIterator[Components]:
    """The real components over a directory and a clock that the test sets; no loop ticks by itself.

    While `log_disk` is not set, the disk of the transaction log answers nothing.
    """
    pools: list[ThreadPoolExecutor] = []
    tasks: set[asyncio.Task[None]] = set()

    def spawn(work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    def threads(name: str, count: int, *, is_joined: bool = True) -> InThread:
        pool = ThreadPoolExecutor(count)
        pools.append(pool)

        def run(function: Callable[[], Any]) -> Any:
            if name.startswith("transaction-") and log_disk is not None:
                log_disk.wait()
            return function()

        return lambda function: asyncio.get_running_loop().run_in_executor(pool, run, function)

    components = Components(
        load(None, [*SETTINGS, *more]),
        _directories(directory),
        Runtime(
            clock=manual.clock(),
            elapsed_s=lambda: 0.0,
            new_store_id=lambda: "5" * 32,
            spawn=spawn,
            spawn_writer=spawn,
            threads=threads,
            background=lambda _name: lambda _work: None,  # memory needs none
            die=pytest.fail,
        ),
    )
    await components.open()
    try:
        yield components
    finally:
        await components.close()
        await asyncio.gather(*tasks)
        for pool in pools:
            pool.shutdown()


async def published_in_progress(components: Components) -> int:
    opened = await components.transactions.runner.start(StartRequest(client="writer"))
    request = PublishRequest(pointer=opened.transaction_id, payloads=[b"held"])
    await components.messaging.publisher.publish(ORDERS, request)
    return opened.transaction_id


async def outcome_of(components: Components, pointer: int) -> OpenTransaction | Outcome:
    return await components.transactions.runner.outcome(pointer)


async def reason_of(components: Components, pointer: int) -> InvalidReason | None:
    found = await outcome_of(components, pointer)
    return found.reason if isinstance(found, Outcome) else None


async def test_after_max_block_the_holder_is_invalid(tmp_path: Path, manual: ManualClock) -> None:
    async with components_over(tmp_path, manual) as components:
        await components.messaging.topics.create(ORDERS, {})
        pointer = await published_in_progress(components)

        manual.pass_ms(29_000)
        await components.tick()
        before = await reason_of(components, pointer)
        manual.pass_ms(1_100)
        await components.tick()

        assert (before, await reason_of(components, pointer)) == (
            None,
            InvalidReason.BLOCKED_READERS,
        )


# Invalidated one after the other, each with a sync of its own, a thousand clients that vanished
# together held readers back for eight seconds more than they may, and time-outs came as late.
async def test_late_transactions_are_invalidated_without_waiting_for_the_disk(
    tmp_path: Path, manual: ManualClock
) -> None:
    disk = threading.Event()
    disk.set()
    async with components_over(tmp_path, manual, log_disk=disk) as components:
        await components.messaging.topics.create(ORDERS, {})
        pointers = [await published_in_progress(components) for _ in range(3)]
        manual.pass_ms(30_100)

        disk.clear()
        try:
            async with asyncio.timeout(TICK_WITHIN_S):
                await components.tick()
        finally:
            disk.set()

        reasons = [await reason_of(components, pointer) for pointer in pointers]
        assert reasons == [InvalidReason.BLOCKED_READERS] * 3


async def test_max_block_counts_across_a_restart(tmp_path: Path, manual: ManualClock) -> None:
    async with components_over(tmp_path, manual) as components:
        await components.messaging.topics.create(ORDERS, {})
        pointer = await published_in_progress(components)
        manual.pass_ms(20_000)

    async with components_over(tmp_path, manual) as components:
        manual.pass_ms(10_100)
        await components.tick()

        assert await reason_of(components, pointer) is InvalidReason.BLOCKED_READERS


# Counted from the publish alone, an hour that the clock was set back kept readers waiting for an
# hour and thirty seconds.
async def test_a_clock_set_back_over_a_restart_frees_readers_in_time(
    tmp_path: Path, manual: ManualClock
) -> None:
    async with components_over(tmp_path, manual) as components:
        await components.messaging.topics.create(ORDERS, {})
        pointer = await published_in_progress(components)
    manual.wall_ns -= 3_600_000 * 1_000_000

    async with components_over(tmp_path, manual) as components:
        await components.tick()
        before = await reason_of(components, pointer)
        manual.pass_ms(30_100)
        await components.tick()

        assert (before, await reason_of(components, pointer)) == (
            None,
            InvalidReason.BLOCKED_READERS,
        )


async def test_a_transaction_that_commits_in_time_is_not_invalidated(
    tmp_path: Path, manual: ManualClock
) -> None:
    async with components_over(tmp_path, manual) as components:
        await components.messaging.topics.create(ORDERS, {})
        pointer = await published_in_progress(components)
        await components.transactions.runner.commit(pointer, changes=())

        manual.pass_ms(60_000)
        await components.tick()

        assert await reason_of(components, pointer) is None


async def test_transactions_that_wait_for_the_store_id_say_why(
    tmp_path: Path, manual: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_table: LevelDbStore, _batch: object) -> None:
        raise StoreError("the disk is broken")

    monkeypatch.setattr(LevelDbStore, "write", fails)

    async with components_over(tmp_path, manual) as components:
        reason = components.transactions.status.reason

    assert reason.startswith("the message store can't record its id: ")


async def test_a_stored_payload_alone_holds_no_reader_back(
    tmp_path: Path, manual: ManualClock
) -> None:
    async with components_over(tmp_path, manual) as components:
        await components.messaging.topics.create(ORDERS, {})
        long = StartRequest(type=TransactionType.LONG, client="writer")
        opened = await components.transactions.runner.start(long)
        request = PublishRequest(pointer=opened.transaction_id, payloads=[b"not yet"])
        await components.messaging.publisher.store(ORDERS, request)

        manual.pass_ms(60_000)
        await components.tick()

        assert isinstance(await outcome_of(components, opened.transaction_id), OpenTransaction)


async def test_a_block_that_a_crash_can_still_take_is_not_recorded(
    tmp_path: Path, manual: ManualClock
) -> None:
    """Else the files that a power cut leaves are called older than the messages beside them."""
    disk = threading.Event()
    disk.set()
    async with components_over(tmp_path, manual, log_disk=disk) as components:
        await components.tick()
        reserved = components.transactions.durable.decided.image().highest_reserved

        disk.clear()
        try:
            while components.transactions.durable.decided.image().highest_reserved == reserved:
                start = StartRequest(client="needs pointers")
                await components.transactions.runner.start(start)
                await asyncio.sleep(0)
            # Its first record comes while a block is being reserved, as after a failed write.
            await _link_of(components).tick()
        finally:
            disk.set()

        facts = components.messaging.recorded_metadata()
        assert facts is not None
        assert (facts.store_id, facts.highest_pointer) == (
            components.transactions.durable.store_id,
            reserved,
        )


def _link_of(components: Components) -> ComponentLink:
    return ComponentLink(
        components.messaging,
        components.transactions,
        keeps_messages=True,
        new_store_id=lambda: "6" * 32,
        cluster=None,
    )


async def test_without_pyarrow_a_server_with_an_archive_does_not_start(
    tmp_path: Path, manual: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.delitem(sys.modules, "messaging.read.archive", raising=False)

    with pytest.raises(SettingsError, match=r"needs pyarrow, .*tuff-messaging\[arrow\]"):
        async with components_over(tmp_path, manual, "messaging.archive_directory=archive"):
            pass
