"""Writes that fail: no false answer, nothing lost, ids only rise (design §5)."""

import asyncio

import pytest

from messaging.engines.engine_interface import StoreError
from tests.messaging.world import (
    AUDIT,
    COMMITTED,
    FlakyWorld,
    World,
    polled,
    publish,
    request,
    settle_down,
)
from tuff.protocol.errors import (
    StorageOutcomeUnknownError,
    StorageUnavailableError,
    TopicExistsError,
    TopicNotFoundError,
)
from tuff.protocol.ids import MessageId
from tuff.protocol.requests import Ack


@pytest.fixture
def world() -> FlakyWorld:
    return FlakyWorld()


@pytest.mark.parametrize("takes_effect", [False, True])
async def test_a_failed_write_is_answered_by_what_the_reopened_store_contains(
    world: FlakyWorld, takes_effect: bool
) -> None:
    async with world.running(audit={}) as service:
        first = await publish(service, b"before")
        world.fail_write(0, takes_effect=takes_effect)

        if takes_effect:
            await publish(service, b"in doubt")
        else:
            with pytest.raises(StorageUnavailableError) as caught:
                await publish(service, b"in doubt")
            assert (caught.value.code, caught.value.retry_safe) == ("storage_unavailable", True)

        after = await publish(service, b"after")
        in_doubt = [b"in doubt"] if takes_effect else []
        assert await polled(service) == [b"before", *in_doubt, b"after"]
        assert after.first > first.last
        assert service.status == ("ok", None)


@pytest.mark.parametrize("takes_effect", [False, True])
@pytest.mark.parametrize("failing", range(6))
async def test_acknowledged_messages_are_there_in_order_whichever_write_fails(
    world: FlakyWorld, failing: int, takes_effect: bool
) -> None:
    acknowledged: list[bytes] = []
    last = MessageId(0, 0)
    async with world.running(audit={}) as service:
        world.fail_write(failing, takes_effect=takes_effect)
        for number in range(8):
            payload = b"%d" % number
            world.clock.now_ms -= 10
            try:
                published = await publish(service, payload)
            except StorageUnavailableError:
                continue
            assert published.first > last
            last = published.last
            acknowledged.append(payload)

        assert await polled(service) == acknowledged

    async with world.running() as service:
        assert await polled(service) == acknowledged


async def test_a_store_that_can_not_be_opened_is_down_until_it_can(world: FlakyWorld) -> None:
    world.is_barred = True
    async with world.running() as service:
        for _ in range(3):
            await service.tick()

        assert service.status == ("down", "the disk is gone")
        with pytest.raises(StorageUnavailableError):
            await service.offsets.offsets(AUDIT)

        world.is_barred = False
        await service.tick()
        assert service.status == ("ok", None)


async def test_a_store_that_was_closed_between_two_writes_is_opened_again(
    world: FlakyWorld,
) -> None:
    async with world.running(audit={}) as service:
        await publish(service, b"before")
        await service.store.close("another server has taken it over")

        await service.tick()

        await publish(service, b"after")
        assert await polled(service) == [b"before", b"after"]


async def test_a_store_that_can_not_even_be_closed_is_opened_again(
    world: FlakyWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def close() -> None:
        raise StoreError("the disk is gone")

    async with asyncio.timeout(10), world.running(audit={}) as service:
        world.fail_write(0, takes_effect=True)
        monkeypatch.setattr(world.store, "close", close)

        await publish(service, b"in doubt")

        assert await polled(service) == [b"in doubt"]


async def test_a_batch_in_doubt_is_resolved_when_the_store_opens_again(
    world: FlakyWorld,
) -> None:
    pointer = world.transactions.start(7)
    async with world.running(audit={}) as service:
        world.fail_write(0, takes_effect=True)
        world.is_barred = True

        with pytest.raises(StorageOutcomeUnknownError) as in_doubt:
            await publish(service, b"in doubt", pointer=pointer)
        assert in_doubt.value.code == "storage_outcome_unknown"
        assert in_doubt.value.outcome_unknown
        assert not in_doubt.value.retry_safe
        with pytest.raises(StorageUnavailableError) as refused:
            await publish(service, b"refused")
        assert (refused.value.code, refused.value.outcome_unknown) == ("storage_unavailable", False)
        with pytest.raises(StorageUnavailableError):
            await polled(service)
        assert service.status == ("down", "the disk is gone")
        # It is unknown whether its row is there: the transaction must not end meanwhile.
        assert not world.transactions.permits[0].is_left

        world.is_barred = False
        await service.tick()

        assert world.transactions.permits[0].is_left
        assert service.rows.is_carried(pointer)
        assert await polled(service) == [b"in doubt"]


async def test_a_lost_batch_is_undone_in_memory_too(world: FlakyWorld) -> None:
    pointer = world.transactions.start(7)
    async with world.running(audit={}) as service:
        await service.publisher.store(AUDIT, request(b"stored", pointer=pointer))
        world.fail_write(0, takes_effect=False)
        with pytest.raises(StorageUnavailableError):
            await publish(service, pointer=pointer)

        await publish(service, pointer=pointer)

        assert await polled(service) == [b"stored"]


async def test_what_a_lost_batch_stored_and_published_is_neither(world: FlakyWorld) -> None:
    pointer = world.transactions.start(7)
    async with world.running(audit={}) as service:
        world.fail_write(0, takes_effect=False)
        answers = await asyncio.gather(
            service.publisher.store(AUDIT, request(b"stored", pointer=pointer)),
            publish(service, pointer=pointer),
            return_exceptions=True,
        )

        assert [type(answer) for answer in answers] == [StorageUnavailableError] * 2
        assert not service.rows.is_carried(pointer)
        await publish(service, pointer=pointer)
        assert await polled(service) == []


async def test_a_refusal_based_on_a_pending_change_fails_with_it(world: FlakyWorld) -> None:
    """Two creations in one batch: the second gets "exists" only if the first is durable."""
    async with world.running() as service:
        world.fail_write(0, takes_effect=False)
        answers = await asyncio.gather(
            service.topics.create(AUDIT, {}),
            service.topics.create(AUDIT, {}),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [StorageUnavailableError] * 2
        assert await service.topics.live("default") == []

        answers = await asyncio.gather(
            service.topics.create(AUDIT, {}),
            service.topics.create(AUDIT, {}),
            return_exceptions=True,
        )
        assert [type(answer) for answer in answers] == [type(None), TopicExistsError]


async def test_a_mark_that_fails_is_retried_until_it_succeeds(world: FlakyWorld) -> None:
    pointer = world.transactions.start(7)
    async with world.running(audit={}) as service:
        await publish(service, b"taken back", pointer=pointer)
        world.transactions.end(pointer, world.transactions.aborted)
        world.fail_write(0, takes_effect=False)
        with pytest.raises(StorageUnavailableError):
            await service.rows.roll_back([pointer])
        assert service.rows.is_carried(pointer)
        assert service.rows.published_by(1 << 60) == []

        await service.tick()

        assert not service.rows.is_carried(pointer)
        assert await polled(service, COMMITTED) == []
        assert await polled(service) == [b"taken back"]


async def test_a_nearly_full_disk_takes_only_internal_writes() -> None:
    world = World()
    async with world.running(audit={}) as service:
        pointer = world.transactions.start(7)
        await publish(service, b"a", pointer=pointer)
        world.lack_of_space = "only 3 MiB are free"
        await service.tick()

        with pytest.raises(StorageUnavailableError, match="nothing was written: only 3 MiB"):
            await publish(service, b"b")
        assert await polled(service) == [b"a"]
        world.transactions.end(pointer, world.transactions.invalid)
        await service.rows.roll_back([pointer])
        assert not service.rows.is_carried(pointer)

        world.lack_of_space = None
        await service.tick()
        await publish(service, b"c")
        assert await polled(service) == [b"a", b"c"]


async def test_a_store_is_opened_by_one_at_a_time(world: FlakyWorld) -> None:
    async with world.running(audit={}) as service:
        world.is_barred = True
        world.fail_write(0, takes_effect=False)
        with pytest.raises(StorageUnavailableError):
            await publish(service, b"lost")
        world.is_barred = False
        world.open_count = 0

        await asyncio.gather(*(service.tick() for _ in range(3)))

        assert world.open_count == 1
        await publish(service, b"again")


async def test_a_publish_is_answered_at_its_level_and_read_once_it_is_durable() -> None:
    world = World()
    gate = world.gate_writes()
    async with world.running(audit={}) as service:
        gate.clear()

        service.publisher.enqueue(AUDIT, request(b"none"))
        durable = asyncio.ensure_future(publish(service, b"durable"))
        early = await service.publisher.publish(AUDIT, request(b"received"), ack=Ack.RECEIVED)
        assert not durable.done()
        assert await polled(service) == []

        gate.set()
        await durable
        assert await polled(service) == [b"none", b"received", b"durable"]
        assert early.last < durable.result().first


@pytest.mark.parametrize("takes_effect", [False, True])
async def test_what_was_answered_early_counts_as_lost_once_that_is_proven(
    world: FlakyWorld, caplog: pytest.LogCaptureFixture, takes_effect: bool
) -> None:
    async with world.running(audit={}) as service:
        world.fail_write(0, takes_effect=takes_effect)
        world.is_barred = True
        service.publisher.enqueue(AUDIT, request(b"none"))
        await service.publisher.publish(AUDIT, request(b"received"), ack=Ack.RECEIVED)
        await settle_down(service.tick())
        assert (service.status[0], service.committer.lost_count) == ("down", 0)

        world.is_barred = False
        await service.tick()

        found = [b"none", b"received"] if takes_effect else []
        assert await polled(service) == found
        assert service.committer.lost_count == 2 - len(found)
        logged = [record for record in caplog.messages if "before it was durable is lost" in record]
        assert len(logged) == (0 if takes_effect else 1)
        codes = {getattr(record, "code", None) for record in caplog.records}
        assert {"store_write_failed", "store_opened_again"} <= codes
        assert ("publish_lost" in codes) is not takes_effect


async def test_a_publish_that_no_batch_takes_is_refused_or_counted(world: FlakyWorld) -> None:
    async with world.running(audit={}) as service:
        deletion = asyncio.ensure_future(service.topics.delete(AUDIT))
        await asyncio.sleep(0)
        service.publisher.enqueue(AUDIT, request(b"none"))
        with pytest.raises(TopicNotFoundError):
            await service.publisher.publish(AUDIT, request(b"received"), ack=Ack.RECEIVED)
        await deletion

        assert service.committer.lost_count == 1
