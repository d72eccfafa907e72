"""Writes that fail in a row are a state of the store, which health shows (protocol §7)."""

import logging

import pytest

from messaging.engines.engine_interface import StoreDamagedError, StoreError
from messaging.service import MessagingService
from messaging.write.failed_writes import CALM_S, TRY_AGAIN_S_MAX, FailedWrites
from tests.messaging.world import FlakyWorld, polled, publish
from tuff.protocol.errors import StorageUnavailableError

CORRUPT = "Corruption: block checksum mismatch: /data/messages/000005.ldb"


class FailingWorld(FlakyWorld):
    """A world whose store fails each write while `error` is set, and answers reads."""

    def __init__(self) -> None:
        super().__init__()
        self.error: Exception | None = None
        self.written = 0
        open_flaky = self.open_store

        def open_store() -> object:
            store = open_flaky()
            write = store.write

            def failing(batch: object) -> None:
                self.written += 1
                if self.error is not None:
                    raise self.error
                write(batch)

            store.write = failing
            return store

        self.open_store = open_store


async def refusal(service: MessagingService) -> str:
    with pytest.raises(StorageUnavailableError) as caught:
        await publish(service, b"x")
    assert caught.value.code == "storage_unavailable"
    return caught.value.detail


@pytest.fixture
def world() -> FailingWorld:
    return FailingWorld()


async def test_a_damaged_file_that_stops_all_writes_is_a_state_and_reads_go_on(
    world: FailingWorld, caplog: pytest.LogCaptureFixture
) -> None:
    """Each publish failed for 9.5 minutes, with 1,630 stack traces, while health was ok."""
    async with world.running(audit={}) as service:
        await publish(service, b"kept")
        world.error = StoreDamagedError(CORRUPT)

        assert CORRUPT in await refusal(service)
        assert service.status[0] == "down"
        assert str(service.status[1]).startswith(
            f"no message can be written, as a file is damaged: {CORRUPT}"
        )
        assert "`tuff fsck`" in str(service.status[1])
        written, opened = world.written, world.open_count
        for _ in range(100):
            detail = await refusal(service)
        assert detail == f"nothing was written: {service.status[1]}"
        assert (world.written, world.open_count) == (written, opened)
        assert await polled(service) == [b"kept"]
        for _ in range(20):
            world.elapsed_s += TRY_AGAIN_S_MAX
            await refusal(service)
        assert world.written == written + 20
        assert len([each for each in caplog.records if each.exc_info]) == 1


async def test_a_store_that_writes_a_moment_after_it_was_opened_is_still_damaged(
    world: FailingWorld,
) -> None:
    async with world.running(audit={}) as service:
        world.error = StoreDamagedError(CORRUPT)
        await refusal(service)
        world.error = None
        world.elapsed_s += TRY_AGAIN_S_MAX

        await publish(service, b"a")
        assert service.status[0] == "down"
        world.elapsed_s += CALM_S
        await publish(service, b"b")

        assert service.status == ("ok", None)


async def test_two_failed_writes_in_a_row_are_a_state_that_one_success_ends(
    world: FailingWorld, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    async with world.running(audit={}) as service:
        world.error = StoreError("Input/output error")
        assert "try again" in await refusal(service)
        assert service.status == ("ok", None)

        await refusal(service)
        assert service.status == (
            "down",
            "the last 2 writes failed: Input/output error; check the disk. Writes are tried again",
        )
        world.error = None
        assert "the last 2 writes failed" in await refusal(service)
        world.elapsed_s += TRY_AGAIN_S_MAX

        await publish(service, b"a")

        assert service.status == ("ok", None)
        assert "takes writes again, after 2 failed writes" in caplog.text
        assert "store_writes_again" in [getattr(each, "code", "") for each in caplog.records]


async def test_a_server_that_nothing_is_published_to_finds_out_that_writes_succeed_again(
    world: FailingWorld,
) -> None:
    async with world.running(audit={}) as service:
        world.error = StoreError("Input/output error")
        await refusal(service)
        await refusal(service)
        world.error = None
        world.elapsed_s += TRY_AGAIN_S_MAX

        await service.tick()

        assert service.status == ("ok", None)


def test_the_next_try_comes_after_half_a_second_and_never_after_more_than_five() -> None:
    now_s = 0.0
    failed = FailedWrites(lambda: now_s)
    waits = []
    for _ in range(1_100):
        failed.failed(StoreDamagedError("x"))
        began_s = now_s
        while failed.refusal is not None:
            now_s += 0.25
        waits.append(now_s - began_s)

    assert waits[:6] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0]
    assert max(waits) == 5.0
