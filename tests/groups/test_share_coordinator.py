"""Share groups over a store: loading, failed writes, summaries, limits and handover."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Coroutine, Sequence
from contextlib import suppress
from typing import TypeVar

import pytest

from messaging.groups import group_logs
from messaging.groups import share_coordinator as share_groups
from messaging.groups import share_decisions as share_state
from messaging.groups.share_coordinator import Given, LeaseRequest
from messaging.groups.share_decisions import Acknowledgement, ProcessingOrder
from messaging.model.row_format import MESSAGES
from messaging.read.poll import Poll
from messaging.service import MessagingService
from messaging.settings import MessagingSettings
from tests.messaging.members import Member, new_tables
from tests.messaging.world import AUDIT, FlakyWorld, World, settle_down
from tuff.protocol.attributes import Attributes
from tuff.protocol.errors import (
    DamagedRecordError,
    LeaseLostError,
    OwnershipMovingError,
    StorageUnavailableError,
    TooManyGroupsError,
)
from tuff.protocol.leases import AttemptReport, LeaseAction, LeaseOutcome
from tuff.protocol.requests import PublishRequest

LOG = AUDIT.share_log("billing")
T = TypeVar("T")


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def service(world: World) -> AsyncIterator[MessagingService]:
    async with world.running(audit={}) as running:
        await create(running)
        yield running


async def create(service: MessagingService, order: ProcessingOrder = ProcessingOrder.NONE) -> None:
    await service.share_groups.create(
        AUDIT, "billing", start="earliest", order=order, lease_ms=1_000
    )


async def publish(service: MessagingService, *payloads: str, pointer: int | None = None) -> None:
    request = PublishRequest(pointer, [each.encode() for each in payloads])
    await service.publisher.publish(AUDIT, request)


async def publish_with_keys(service: MessagingService, *messages: tuple[str, str]) -> None:
    """Pairs of a key and a payload."""
    attributes = tuple(Attributes(key=key.encode()) for key, _ in messages)
    request = PublishRequest(None, [each.encode() for _, each in messages], attributes=attributes)
    await service.publisher.publish(AUDIT, request)


async def lease(service: MessagingService, count: int = 10, *, wait_s: float = 0) -> list[Given]:
    request = LeaseRequest(count=count)
    return (await service.share_groups.lease(AUDIT, "billing", request, wait_s=wait_s)).messages


async def acknowledge(
    service: MessagingService,
    *given: Given,
    action: LeaseAction = LeaseAction.ACCEPT,
    pointer: int | None = None,
    ms: int | None = None,
    attempt: AttemptReport | None = None,
) -> list[LeaseOutcome]:
    asked = [
        Acknowledgement(
            id=each.lease.id, token=each.lease.token, action=action, ms=ms, attempt=attempt
        )
        for each in given
    ]
    return await service.share_groups.acknowledge(AUDIT, "billing", asked, pointer=pointer)


async def release(
    service: MessagingService,
    *given: Given,
    ms: int | None = None,
    attempt: AttemptReport | None = None,
) -> list[LeaseOutcome]:
    return await acknowledge(service, *given, action=LeaseAction.RELEASE, ms=ms, attempt=attempt)


def attempts(given: Sequence[Given]) -> dict[str, int]:
    return {each.payload.decode(): each.lease.attempts for each in given}


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
            AUDIT, name, start="earliest", order=ProcessingOrder.NONE, lease_ms=1_000
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
            AUDIT, "new", start="earliest", order=ProcessingOrder.NONE, lease_ms=1_000
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
        assert await acknowledge(service, b) == [LeaseOutcome.LEASE_LOST]
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
        assert await acknowledge(service, before) == [LeaseOutcome.LEASE_LOST]
        assert await acknowledge(service, after) == [LeaseOutcome.ACCEPTED]


async def test_a_summary_replaces_the_log_before_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_logs, "SUMMARY_BYTES_MIN", 320)
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
            assert await acknowledge(service, held) == [LeaseOutcome.ACCEPTED]
        else:
            with pytest.raises(StorageUnavailableError):
                await acknowledge(service, held)
            assert await acknowledge(service, held) == [LeaseOutcome.ACCEPTED]

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
    assert await acknowledge(service, second) == [LeaseOutcome.ACCEPTED]


async def test_a_full_window_waits_for_one_of_its_messages(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running(audit={}) as service:
        monkeypatch.setattr(service.share_groups, "window", 3)
        await create(service)
        await publish(service, *"abcde")
        given = await lease(service)
        assert payloads(given) == ["a", "b", "c"]
        assert await lease(service) == []

        await acknowledge(service, *given[1:])

        assert payloads(await lease(service)) == ["d", "e"]


async def test_a_message_that_waits_for_its_retry_stops_no_other(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with world.running(audit={}) as service:
        monkeypatch.setattr(service.share_groups, "window", 3)
        await create(service)
        await publish(service, *map(str, range(20)))
        (waiting,) = await lease(service, 1)
        await acknowledge(service, waiting, action=LeaseAction.RELEASE, ms=600_000)

        others = list[str]()
        while given := await lease(service, 2):
            others += payloads(given)
            await acknowledge(service, *given)

        assert others == [str(each) for each in range(1, 20)]
        counts = (await service.share_groups.show(AUDIT, "billing")).counts
        assert (counts["waiting"], counts["done"]) == (1, 19)


async def work_off(world: World, service: MessagingService) -> list[str]:
    """Process what is left once the retry is due."""
    world.clock.now_ms += 600_000
    found = list[str]()
    while given := await lease(service):
        found += payloads(given)
        await acknowledge(service, *given)
    return found


@pytest.mark.parametrize("has_restarted", [False, True])
async def test_a_key_that_waits_for_its_retry_stops_no_other_key(
    world: World, monkeypatch: pytest.MonkeyPatch, *, has_restarted: bool
) -> None:
    monkeypatch.setattr(share_state, "KEY_COUNT_MAX", 2)
    monkeypatch.setattr(group_logs, "SUMMARY_BYTES_MIN", 1)
    async with world.running(audit={}) as service:
        monkeypatch.setattr(service.share_groups, "window", 4)
        await create(service, order=ProcessingOrder.KEY)
        await publish_with_keys(service, *(("hot", f"hot {number}") for number in range(9)))
        await publish_with_keys(service, ("b", "b"), ("c", "c"), ("d", "d"))
        (hot,) = await lease(service, 1)
        await acknowledge(service, hot, action=LeaseAction.RELEASE, ms=600_000)
        others = list[str]()
        while given := await lease(service):
            others += payloads(given)
            await acknowledge(service, *given)
        if not has_restarted:
            ordered = await work_off(world, service)
    if has_restarted:
        async with world.running(audit=None) as service:
            ordered = await work_off(world, service)

    assert others == ["b", "c", "d"]
    assert ordered == [f"hot {number}" for number in range(9)]


async def test_expired_and_truncated_messages_leave_the_group(world: World) -> None:
    async with world.running(audit={"ttl": "10"}) as service:
        await create(service)
        await publish(service, "a")
        world.clock.now_ms += 5_000
        await publish(service, "b", "c")
        (expired,) = await lease(service, 1)
        world.clock.now_ms += 6_000

        assert payloads(await lease(service, 1)) == ["b"]
        assert await acknowledge(service, expired) == [LeaseOutcome.ACCEPTED]
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
    key = max(each for each in world.rows if each.startswith(MESSAGES) and b"share" not in each)
    world.rows[key] = world.rows[key][:-1] + b"?"

    async with world.running() as service:
        (again,) = await lease(service)
        with pytest.raises(DamagedRecordError):
            await lease(service)
        assert await acknowledge(service, held) == [LeaseOutcome.LEASE_LOST]
        await acknowledge(service, again, action=LeaseAction.RELEASE)
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
        assert await acknowledge(b.service, second) == [LeaseOutcome.LEASE_LOST]
        assert await acknowledge(b.service, again) == [LeaseOutcome.ACCEPTED]
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


@pytest.mark.parametrize("order", list(ProcessingOrder))
async def test_a_lease_has_no_more_bytes_than_a_reply_to_a_poll(
    world: World, order: ProcessingOrder
) -> None:
    world.settings = MessagingSettings(poll_bytes_max=10)
    async with world.running(audit={}) as service:
        await create(service, order)
        for digit in "01234":
            await publish(service, digit * 4)
        held = await lease(service)
        first = payloads(held)
        assert first == ["0000", "1111"]
        await acknowledge(service, *held, action=LeaseAction.RELEASE)
        assert payloads(await lease(service)) == first
        assert payloads(await lease(service)) == ["2222", "3333"]


HOUR_MS = 3_600_000


async def test_delays_and_attempts_outlive_a_restart(world: World) -> None:
    """After a restart, a message with a delay of an hour was leased at once, as attempt 1."""
    async with world.running(audit={}) as service:
        await create(service)
        await publish(service, "a", "b")
        for _ in range(4):
            await release(service, *await lease(service, 1))
        await release(service, *await lease(service, 1), ms=HOUR_MS)

    async with world.running() as service:
        assert attempts(await lease(service)) == {"b": 1}
        world.clock.now_ms += HOUR_MS - 1
        assert payloads(await lease(service)) == ["b"]
        world.clock.now_ms += 1
        assert attempts(await lease(service)) == {"a": 6}


async def test_delays_and_attempts_move_with_the_topic() -> None:
    tables = new_tables()
    async with Member(tables, "a").serving(AUDIT) as a, Member(tables, "b").serving() as b:
        await create(a.service)
        await publish(a.service, "a", "b")
        first, second = await lease(a.service)
        await release(a.service, first, ms=HOUR_MS)
        await release(a.service, second)

        await a.pass_on(AUDIT, b)

        assert attempts(await lease(b.service)) == {"b": 2}


async def test_a_summary_keeps_delays_and_attempts(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_logs, "SUMMARY_BYTES_MIN", 200)
    async with world.running(audit={}) as service:
        await create(service)
        await publish(service, *"abcdef")
        first, second, *others = await lease(service)
        await release(service, first, ms=HOUR_MS)
        await release(service, second)
        for each in others:
            await acknowledge(service, each)
        assert (await records(service))[0].startswith(b'{"type":"summary"')

    async with world.running() as service:
        assert attempts(await lease(service)) == {"b": 2}
        world.clock.now_ms += HOUR_MS
        assert attempts(await lease(service)) == {"a": 2}


@pytest.mark.parametrize("takes_effect", [False, True])
async def test_a_release_is_answered_once_it_is_durable(*, takes_effect: bool) -> None:
    world = FlakyWorld()
    async with world.running(audit={}) as service:
        await create(service)
        await publish(service, "a")
        (held,) = await lease(service)
        world.fail_write(0, takes_effect=takes_effect)

        with suppress(StorageUnavailableError):
            await release(service, held, ms=HOUR_MS)
            assert takes_effect

        expected = {} if takes_effect else {"a": 1}
        assert attempts(await lease(service)) == expected


async def test_a_message_that_was_leased_and_not_begun_was_not_attempted(
    service: MessagingService,
) -> None:
    """After four deploys of the workers, messages that failed once were dead letters."""
    await publish(service, *"abc")
    for _ in range(4):
        await release(service, *await lease(service), attempt=AttemptReport.NONE)

    held = await lease(service)
    assert attempts(held) == {"a": 1, "b": 1, "c": 1}
    await release(service, held[1])
    await release(service, held[0], held[2], attempt=AttemptReport.NONE)
    assert attempts(await lease(service)) == {"a": 1, "b": 2, "c": 1}


async def test_a_message_that_its_workers_die_of_is_found_out(
    world: World, service: MessagingService
) -> None:
    await publish(service, "good", "bad", "also good")
    await lease(service)  # and the worker dies of the second one
    killed = []

    for _ in range(3):
        world.clock.now_ms += 2_000
        while (given := await lease(service)) and payloads(given) != ["bad"]:
            await acknowledge(service, *given)
        killed += [(each.lease.attempts, each.lease.lost) for each in given]

    assert killed == [(1, 0), (3, 2), (4, 3)]  # the first death counts once it is known to be its
    assert (await service.share_groups.show(AUDIT, "billing")).counts["leased"] == 1


async def test_a_worker_says_which_message_it_has_begun_when_it_renews(
    world: World, service: MessagingService
) -> None:
    await publish(service, *"abc")
    first, second, third = await lease(service)
    await acknowledge(service, first)
    await acknowledge(service, second, action=LeaseAction.RENEW, attempt=AttemptReport.BEGUN)
    await acknowledge(service, third, action=LeaseAction.RENEW)
    world.clock.now_ms += 2_000

    assert attempts(await lease(service)) == {"b": 2}
    assert attempts(await lease(service)) == {"c": 1}


async def test_of_a_worker_that_can_not_say_what_it_began_each_message_is_given_out_alone(
    service: MessagingService,
) -> None:
    await publish(service, *"ab")
    await release(service, *await lease(service), attempt=AttemptReport.UNKNOWN)

    assert attempts(await lease(service)) == {"a": 1}
    assert attempts(await lease(service)) == {"b": 1}


async def test_what_workers_died_of_outlives_a_restart(world: World) -> None:
    async with world.running(audit={}) as service:
        await create(service)
        await publish(service, "bad", "good")
        for _ in range(2):
            await lease(service)
            world.clock.now_ms += 2_000

    async with world.running() as service:
        (given,) = await lease(service)
        assert (given.payload, given.lease.attempts, given.lease.lost) == (b"bad", 3, 2)


@pytest.mark.parametrize(("ttl_s", "own_ttl_s"), [("4", None), ("600", 4)])
async def test_a_message_that_would_expire_before_its_retry_is_not_released(
    world: World, ttl_s: str, own_ttl_s: int | None
) -> None:
    """It was gone without a word: no third attempt, and no dead letter."""
    async with world.running(audit={"ttl": ttl_s}) as service:
        await create(service)
        request = PublishRequest(None, [b"a"], ttls_s=[own_ttl_s])
        await service.publisher.publish(AUDIT, request)
        assert await release(service, *await lease(service), ms=1_000) == [LeaseOutcome.RELEASED]
        world.clock.now_ms += 1_000
        (held,) = await lease(service)

        assert await release(service, held, ms=3_000) == [LeaseOutcome.EXPIRES]
        assert await release(service, held, ms=3_000) == [LeaseOutcome.EXPIRES]

        pointer = world.transactions.start(1)  # that publishes the dead letter
        rejected = await acknowledge(service, held, action=LeaseAction.REJECT, pointer=pointer)
        assert rejected == [LeaseOutcome.REJECTED]
        world.commit(service, pointer)
        assert await lease(service) == []


@pytest.mark.parametrize("ending", ["expired", "truncated"])
async def test_what_a_worker_does_with_a_message_that_is_gone_counts(
    world: World, ending: str
) -> None:
    """It was told that other workers have it, and rolled its finished work back."""
    async with world.running(audit={"ttl": "10"}) as service:
        await create(service)
        await publish(service, *"abcde")
        a, b, c, d, e = await lease(service)
        first, second = world.transactions.start(1), world.transactions.start(2)
        await acknowledge(service, e, pointer=first)
        if ending == "truncated":
            world.clock.now_ms += 1
            await service.topics.truncate(AUDIT, world.clock.now_ms)
        else:
            world.clock.now_ms += 11_000

        assert await acknowledge(service, a) == [LeaseOutcome.ACCEPTED]
        assert await acknowledge(service, a) == [LeaseOutcome.ACCEPTED]
        assert await acknowledge(service, b, pointer=first) == [LeaseOutcome.ACCEPTED]
        assert await acknowledge(service, c, action=LeaseAction.RENEW) == [LeaseOutcome.RENEWED]
        assert await release(service, c) == [LeaseOutcome.EXPIRES]
        assert await acknowledge(service, c, action=LeaseAction.REJECT) == [LeaseOutcome.REJECTED]
        assert await release(service, d, attempt=AttemptReport.NONE) == [LeaseOutcome.RELEASED]
        for each in (a, b, e):
            with pytest.raises(LeaseLostError):
                await acknowledge(service, each, pointer=second)
        world.commit(service, first)
        with pytest.raises(LeaseLostError):
            await acknowledge(service, b, pointer=second)
        assert await lease(service) == []


@pytest.mark.parametrize("own_ttl_s", [None, 2])
async def test_a_message_that_expires_after_it_was_begun_is_logged(
    world: World, caplog: pytest.LogCaptureFixture, own_ttl_s: int | None
) -> None:
    async with world.running(audit={"ttl": "3"}) as service:
        await create(service)
        request = PublishRequest(None, [b"a", b"b"], ttls_s=[own_ttl_s, None])
        await service.publisher.publish(AUDIT, request)
        await release(service, *await lease(service, 1))
        world.clock.now_ms += 3_000

        assert await lease(service) == []

    (line,) = [each.getMessage() for each in caplog.records if "begun" in each.getMessage()]
    assert line.startswith("1 messages that workers of the share group")


async def test_after_an_acknowledgement_whose_caller_is_gone_the_state_is_that_of_the_log(
    service: MessagingService,
) -> None:
    await publish(service, "a", "b")
    first, _ = await lease(service)
    acknowledging = await begun(acknowledge(service, first))
    acknowledging.cancel()
    with pytest.raises(asyncio.CancelledError):
        await acknowledging

    assert payloads(await lease(service)) == ["b"]
    assert await acknowledge(service, first) == [LeaseOutcome.LEASE_LOST]


@pytest.mark.parametrize("rounds", range(12))
async def test_a_caller_that_goes_before_it_has_its_messages_gets_none(
    service: MessagingService, rounds: int
) -> None:
    await publish(service, "a", "b")
    (first,) = await lease(service, 1)
    acknowledging = await begun(acknowledge(service, first))  # it has the turn
    leasing = await begun(lease(service))
    for _ in range(rounds):
        await asyncio.sleep(0)
    is_answered = leasing.done()
    leasing.cancel()
    await asyncio.wait([acknowledging, leasing])

    if rounds < 3:
        assert not is_answered
    if not is_answered:
        assert attempts(await lease(service)) == {"b": 1}


@pytest.mark.parametrize("rounds", range(2))
async def test_a_caller_that_goes_while_its_messages_are_read_gets_none(
    world: World, rounds: int
) -> None:
    world.settings = MessagingSettings(tail_bytes_max=0)
    async with world.running(audit={}) as service:
        await create(service)
        await publish(service, "a")
        await release(service, *await lease(service), attempt=AttemptReport.NONE)
        leasing = await begun(lease(service))
        for _ in range(rounds):
            await asyncio.sleep(0)
        leasing.cancel()
        await asyncio.wait([leasing])

        assert leasing.cancelled()
        assert payloads(await lease(service)) == ["a"]


async def begun(work: Coroutine[None, None, T]) -> asyncio.Task[T]:
    """A task that has run up to its first wait."""
    task = asyncio.ensure_future(work)
    await asyncio.sleep(0)
    assert not task.done()
    return task
