"""Share groups over a store: loading, failed writes, summaries, limits and handover."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Sequence

import pytest

from messaging.groups import share_groups
from messaging.groups.share_groups import Given, LeaseRequest
from messaging.groups.share_records import Order
from messaging.groups.share_state import Acknowledgement, Action, Outcome
from messaging.read.poll import Poll
from messaging.service import MessagingService
from messaging.settings import MessagingSettings
from messaging.storage.rows import MESSAGES
from tests.messaging.members import Member, new_tables
from tests.messaging.world import AUDIT, FlakyWorld, World, settle_down
from tuff.protocol.errors import (
    DamagedRecordError,
    OwnershipMovingError,
    StorageUnavailableError,
    TooManyGroupsError,
)
from tuff.protocol.requests import PublishRequest

LOG = AUDIT.share_log("billing")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def service(world: World) -> AsyncIterator[MessagingService]:
    async with world.running(audit={}) as running:
        await create(running)
        yield running


async def create(service: MessagingService, order: Order = Order.NONE) -> None:
    await service.share_groups.create(
        AUDIT, "billing", start="earliest", order=order, lease_ms=1_000
    )


async def publish(service: MessagingService, *payloads: str, pointer: int | None = None) -> None:
    request = PublishRequest(pointer, [each.encode() for each in payloads])
    await service.publisher.publish(AUDIT, request)


async def lease(service: MessagingService, count: int = 10, *, wait_s: float = 0) -> list[Given]:
    request = LeaseRequest(count=count)
    return await service.share_groups.lease(AUDIT, "billing", request, wait_s=wait_s)


async def acknowledge(
    service: MessagingService,
    *given: Given,
    action: Action = Action.ACCEPT,
    pointer: int | None = None,
) -> list[Outcome]:
    return await service.share_groups.acknowledge(
        AUDIT,
        "billing",
        [
            Acknowledgement(id=each.lease.id, token=each.lease.token, action=action)
            for each in given
        ],
        pointer=pointer,
    )


def payloads(given: Sequence[Given]) -> list[str]:
    return [each.payload.decode() for each in given]


async def records(service: MessagingService) -> list[bytes]:
    return [payload for _, payload in (await service.polls.poll(LOG, Poll())).items]


async def test_a_topic_has_a_limited_number_of_share_groups(
    service: MessagingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_groups, "GROUPS_COUNT_MAX", 2)

    def created(name: str) -> Awaitable[None]:
        return service.share_groups.create(
            AUDIT, name, start="earliest", order=Order.NONE, lease_ms=1_000
        )

    # Both are decided in one batch: the second one does not see the first one as durable.
    done = await asyncio.gather(created("b"), created("c"), return_exceptions=True)
    with pytest.raises(TooManyGroupsError, match="2 share groups"):
        await created("d")

    assert [type(each) for each in done] == [type(None), TooManyGroupsError]
    assert service.share_groups.names(AUDIT) == ["b", "billing"]
    await created("billing")  # the same again
    await service.share_groups.delete(AUDIT, "b")
    await created("d")


async def test_a_refused_share_group_is_not_kept_in_memory(
    service: MessagingService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_groups, "GROUPS_COUNT_MAX", 1)

    with pytest.raises(TooManyGroupsError):
        await service.share_groups.create(
            AUDIT, "new", start="earliest", order=Order.NONE, lease_ms=1_000
        )

    assert service.state.topics.maybe_find(AUDIT.share_log("new")) is None


async def test_a_lease_writes_nothing(service: MessagingService) -> None:
    await publish(service, "a")

    await lease(service)

    assert await records(service) == []


async def test_a_restart_keeps_what_is_done_and_settles_transactions(world: World) -> None:
    async with world.running(audit={}) as service:
        await create(service)
        await publish(service, "a", "b", "c", "d")
        a, b, c, _ = await lease(service)
        await acknowledge(service, a)
        await acknowledge(service, b, pointer=world.transactions.start(1))
        await acknowledge(service, c, pointer=world.transactions.start(2))

    async with world.running() as service:
        assert payloads(await lease(service)) == ["d"]
        assert await acknowledge(service, b) == [Outcome.LEASE_LOST]
        world.commit(service, 1)
        await world.abort(service, 2)
        assert payloads(await lease(service)) == ["c"]


async def test_tokens_do_not_repeat_after_a_restart(world: World) -> None:
    async with world.running(audit={}) as service:
        await create(service)
        await publish(service, "a")
        (before,) = await lease(service)

    async with world.running() as service:
        (after,) = await lease(service)
        assert before.lease.token != after.lease.token
        assert await acknowledge(service, before) == [Outcome.LEASE_LOST]
        assert await acknowledge(service, after) == [Outcome.ACCEPTED]


async def test_a_summary_replaces_the_log_before_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(share_groups, "SUMMARY_IDS_MIN", 5)
    async with world.running(audit={}) as service:
        await create(service)
        await publish(service, *map(str, range(40)), "undecided", "kept")
        *others, undecided, _ = await lease(service, 50)
        for each in others[:30]:
            await acknowledge(service, each)
        assert (await records(service))[0].startswith(b'{"type":"summary"')
        await acknowledge(service, undecided, pointer=world.transactions.start(1))
        await acknowledge(service, *others[30:])
        assert len(await records(service)) < 20

    async with world.running() as service:
        assert payloads(await lease(service, 50)) == ["kept"]
        await world.abort(service, 1)
        assert payloads(await lease(service, 50)) == ["undecided"]


@pytest.mark.parametrize("takes_effect", [False, True])
async def test_after_a_failed_write_the_state_is_that_of_the_log(*, takes_effect: bool) -> None:
    world = FlakyWorld()
    async with world.running(audit={}) as service:
        await create(service)
        await publish(service, "a")
        (held,) = await lease(service)
        world.fail_write(0, takes_effect=takes_effect)

        if takes_effect:
            assert await acknowledge(service, held) == [Outcome.ACCEPTED]
        else:
            with pytest.raises(StorageUnavailableError):
                await acknowledge(service, held)
            assert await acknowledge(service, held) == [Outcome.ACCEPTED]

        assert await lease(service) == []


async def test_a_refused_transaction_takes_no_lease_from_others(
    world: World, service: MessagingService
) -> None:
    await publish(service, "a", "b")
    first, second = await lease(service)
    world.transactions.end(world.transactions.start(1), world.transactions.aborted)

    with pytest.raises(Exception, match="ended"):
        await acknowledge(service, first, pointer=1)

    assert await lease(service) == []
    assert await acknowledge(service, second) == [Outcome.ACCEPTED]


async def test_a_full_window_waits_for_the_oldest_message(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running(audit={}) as service:
        monkeypatch.setattr(service.share_groups, "window", 3)
        await create(service)
        await publish(service, *"abcde")
        given = await lease(service)
        assert payloads(given) == ["a", "b", "c"]
        await acknowledge(service, *given[1:])
        assert await lease(service) == []

        await acknowledge(service, given[0])

        assert payloads(await lease(service)) == ["d", "e"]


async def test_expired_and_truncated_messages_leave_the_group(world: World) -> None:
    async with world.running(audit={"ttl": "10"}) as service:
        await create(service)
        await publish(service, "a")
        world.clock.now_ms += 5_000
        await publish(service, "b", "c")
        (expired,) = await lease(service, 1)
        world.clock.now_ms += 6_000

        assert payloads(await lease(service, 1)) == ["b"]
        assert await acknowledge(service, expired) == [Outcome.LEASE_LOST]
        await service.topics.truncate(AUDIT, world.clock.now_ms)
        world.clock.now_ms += 2_000
        assert await lease(service) == []
        await publish(service, "d")
        assert payloads(await lease(service)) == ["d"]


async def test_a_message_whose_own_time_is_over_is_not_given_out_again(
    world: World, service: MessagingService
) -> None:
    request = PublishRequest(None, [b"short", b"long"], ttls_s=[2, None])
    await service.publisher.publish(AUDIT, request)
    await lease(service)
    world.clock.now_ms += 3_000

    assert payloads(await lease(service)) == ["long"]


async def test_a_damaged_record_holds_up_what_is_behind_it_only(world: World) -> None:
    async with world.running(audit={}) as service:
        await create(service)
        await publish(service, "a")
        (held,) = await lease(service)
        await publish(service, "b")
    key = max(each for each in world.rows if each.startswith(MESSAGES))
    world.rows[key] = world.rows[key][:-1] + b"?"

    async with world.running() as service:
        (again,) = await lease(service)
        with pytest.raises(DamagedRecordError):
            await lease(service)
        assert await acknowledge(service, held) == [Outcome.LEASE_LOST]
        await acknowledge(service, again, action=Action.RELEASE)
        assert payloads(await lease(service)) == ["a"]


async def test_a_caller_that_is_gone_takes_no_message(
    world: World, service: MessagingService
) -> None:
    gone = await settle_down(lease(service, wait_s=60))
    gone.cancel()
    with pytest.raises(asyncio.CancelledError):
        await gone
    await publish(service, "a")

    assert payloads(await lease(service)) == ["a"]


async def test_two_that_wait_get_one_message_each(service: MessagingService) -> None:
    first = await settle_down(lease(service, 1, wait_s=60))
    second = await settle_down(lease(service, 1, wait_s=60))

    await publish(service, "a", "b")

    assert sorted(payloads(await first) + payloads(await second)) == ["a", "b"]


async def test_a_request_that_waits_is_answered_when_the_server_stops(world: World) -> None:
    async with world.running(audit={}) as service:
        await create(service)
        waiting = await settle_down(lease(service, wait_s=60))

    assert await waiting == []


async def test_a_group_moves_with_its_topic() -> None:
    tables = new_tables()
    async with Member(tables, "a").serving(AUDIT) as a, Member(tables, "b").serving() as b:
        await create(a.service)
        await publish(a.service, "a", "b")
        first, second = await lease(a.service)
        await acknowledge(a.service, first)

        await a.pass_on(AUDIT, b)

        with pytest.raises(OwnershipMovingError):
            await acknowledge(a.service, second)
        assert b.service.share_groups.names(AUDIT) == ["billing"]
        (again,) = await lease(b.service)
        assert again.payload == b"b"
        assert await acknowledge(b.service, second) == [Outcome.LEASE_LOST]
        assert await acknowledge(b.service, again) == [Outcome.ACCEPTED]
        a.service.share_groups.forget_moved()
        await b.pass_on(AUDIT, a)
        assert await lease(a.service) == []


async def test_a_deleted_group_begins_anew(service: MessagingService) -> None:
    await publish(service, "a")
    await acknowledge(service, *await lease(service))

    await service.share_groups.delete(AUDIT, "billing")
    await create(service)

    view = await service.share_groups.show(AUDIT, "billing")
    assert (view.oldest, view.counts["available"], view.behind_ms) == (view.end, 1, 0)


async def test_messages_that_are_gone_do_not_hold_up_those_behind_them(
    world: World, service: MessagingService
) -> None:
    request = PublishRequest(None, [b"short", b"long"], ttls_s=[2, None])
    await service.publisher.publish(AUDIT, request)
    await service.share_groups.show(AUDIT, "billing")  # which reads them into the window
    world.clock.now_ms += 3_000

    assert payloads(await lease(service, 1)) == ["long"]


@pytest.mark.parametrize("order", list(Order))
async def test_a_lease_has_no_more_bytes_than_a_reply_to_a_poll(world: World, order: Order) -> None:
    world.settings = MessagingSettings(poll_bytes_max=10)
    async with world.running(audit={}) as service:
        await create(service, order)
        for digit in "01234":
            await publish(service, digit * 4)
        first = payloads(await lease(service))
        assert first == ["0000", "1111"]
        world.clock.now_ms += 2_000  # the leases end
        assert payloads(await lease(service)) == first
        assert payloads(await lease(service)) == ["2222", "3333"]
