"""The group coordinator on a message store: its log, restarts, failed writes and transactions."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from messaging.groups import group_logs
from messaging.groups.consumer_coordinator import GroupCoordinator, MemberView
from messaging.groups.consumer_decisions import GroupState, Heartbeat
from messaging.groups.group_log_records import CONSUMER_RECORDS, MemberRecord
from messaging.read.counts import MessageCount
from messaging.read.poll import Poll
from messaging.service import MessagingService
from tests.messaging.world import AUDIT, FlakyWorld, World, publish, settle_down
from tuff.protocol.errors import (
    DamagedRecordError,
    FuturePositionError,
    GroupNotEmptyError,
    GroupNotFoundError,
    PartitionNotAssignedError,
    StorageUnavailableError,
    UnknownMemberError,
)
from tuff.protocol.group_preferences import GroupPreferences, GroupStart
from tuff.protocol.ids import LAST_ID, MessageId, TopicId
from tuff.protocol.requests import PublishRequest

LOG = TopicId("default", "billing:group")
NAME = AUDIT.partition(0).name


async def joined(
    groups: GroupCoordinator, member_id: str = "m1", start: GroupStart | None = None
) -> MemberView:
    request = MemberRecord(member_id=member_id, topics=(AUDIT.name,), assignor="range")
    return await groups.join(LOG, request, start)


async def beat(groups: GroupCoordinator, view: MemberView, *owned: str) -> MemberView:
    return await groups.heartbeat(
        LOG,
        Heartbeat(
            member_id=view.member_id,
            epoch=view.epoch,
            group_epoch=view.group_epoch,
            owned=frozenset(owned),
        ),
    )


async def commit(
    groups: GroupCoordinator, number: int, *, pointer: int | None = None, member_id: str = "m1"
) -> None:
    await groups.commit(LOG, member_id, 1, {NAME: MessageId(number, 0)}, pointer=pointer)


async def committed(groups: GroupCoordinator) -> int | None:
    state = await groups.committed(LOG)
    return state.offsets[NAME].after.publish_timestamp_ms if NAME in state.offsets else None


async def records(service: MessagingService) -> list[bytes]:
    return [payload for _, payload in (await service.polls.poll(LOG, Poll())).items]


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
async def service(world: World) -> AsyncIterator[MessagingService]:
    async with world.running(audit={}) as running:
        yield running


async def test_a_restart_keeps_members_assignments_and_offsets(world: World) -> None:
    async with world.running(audit={}) as service:
        view = await joined(service.groups)
        await commit(service.groups, 7)
        before = await service.groups.committed(LOG)

    async with world.running() as service:
        assert await service.groups.committed(LOG) == before
        assert await beat(service.groups, view, NAME) == view
        await commit(service.groups, 8)


async def test_a_heartbeat_writes_nothing_when_nothing_changes(service: MessagingService) -> None:
    view = await joined(service.groups)
    before = await records(service)

    for _ in range(3):
        await beat(service.groups, view, NAME)

    assert await records(service) == before


async def test_after_a_restart_a_member_has_one_session_to_be_heard_of(world: World) -> None:
    async with world.running(audit={}) as service:
        await joined(service.groups)
    world.clock.now_ms += 3_600_000

    async with world.running() as service:
        await service.groups.committed(LOG)
        world.clock.now_ms += 44_999
        await service.groups.tick()
        assert list((await service.groups.committed(LOG)).members) == ["m1"]
        world.clock.now_ms += 1
        await service.groups.tick()
        assert list((await service.groups.committed(LOG)).members) == []


async def test_a_group_without_members_is_left_alone_by_ticks(service: MessagingService) -> None:
    await joined(service.groups)
    await service.groups.leave(LOG, "m1", keeps_assignment=False)
    before = await records(service)

    await service.groups.tick()

    assert await records(service) == before


async def test_a_summary_replaces_the_log_before_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_logs, "SUMMARY_BYTES_MIN", 2_000)
    async with world.running(audit={}) as service:
        await joined(service.groups)
        for number in range(1, 50):
            await commit(service.groups, number)
        before = await service.groups.committed(LOG)

        assert len(await records(service)) < 30
        assert (await records(service))[0] == b'{"type":"summary"}'

    async with world.running() as service:
        assert await service.groups.committed(LOG) == before


async def test_records_are_written_again_before_they_expire(world: World) -> None:
    world.settings = type(world.settings)(max_ttl=1_000, default_ttl=1_000)
    async with world.running(audit={}) as service:
        view = await joined(service.groups)
        for _ in range(6):
            world.clock.now_ms += 400_000
            await commit(service.groups, world.clock.now_ms)
            await beat(service.groups, view, NAME)

    async with world.running() as service:
        assert await committed(service.groups) == world.clock.now_ms
        assert list((await service.groups.committed(LOG)).members) == ["m1"]


@pytest.mark.parametrize("takes_effect", [False, True])
async def test_after_a_failed_write_the_state_is_that_of_the_log(takes_effect: bool) -> None:
    world = FlakyWorld()
    async with world.running(audit={}) as service:
        view = await joined(service.groups)
        world.fail_write(0, takes_effect=takes_effect)

        if takes_effect:
            await commit(service.groups, 7)
        else:
            with pytest.raises(StorageUnavailableError):
                await commit(service.groups, 7)

        assert await committed(service.groups) == (7 if takes_effect else None)
        await commit(service.groups, 8)
        assert await committed(service.groups) == 8
        assert await beat(service.groups, view, NAME) == view


async def test_a_request_whose_client_is_gone_counts_for_the_next_one(world: World) -> None:
    gate = world.gate_writes()
    async with world.running(audit={}) as service:
        await joined(service.groups)
        gate.clear()
        left = await settle_down(service.groups.leave(LOG, "m1", keeps_assignment=False))
        left.cancel()
        late = await settle_down(commit(service.groups, 7))
        gate.set()

        with pytest.raises(UnknownMemberError):
            await late
        with pytest.raises(asyncio.CancelledError):
            await left


async def test_offsets_of_a_transaction_count_once_it_has_committed(
    world: World, service: MessagingService
) -> None:
    await joined(service.groups)
    await commit(service.groups, 5, pointer=world.transactions.start(1))
    assert await committed(service.groups) is None
    assert (await service.groups.committed(LOG)).undecided_partitions() == {NAME}
    await commit(service.groups, 6, pointer=world.transactions.start(2))

    await world.abort(service, 2)
    assert (await service.groups.committed(LOG)).undecided.keys() == {1}
    world.commit(service, 1)

    assert await committed(service.groups) == 5
    assert (await service.groups.committed(LOG)).undecided == {}


@pytest.mark.parametrize("is_committed", [False, True])
async def test_a_restart_settles_offsets_of_transactions(
    world: World, *, is_committed: bool
) -> None:
    async with world.running(audit={}) as service:
        await joined(service.groups)
        await commit(service.groups, 4)
        await commit(service.groups, 5, pointer=world.transactions.start(1))
        await commit(service.groups, 6, pointer=world.transactions.start(2))

    async with world.running() as service:
        if is_committed:
            world.commit(service, 1)
        else:
            await world.abort(service, 1)
        assert await committed(service.groups) == (5 if is_committed else 4)
        assert (await service.groups.committed(LOG)).undecided.keys() == {2}


async def test_an_aborted_offset_does_not_count_once_its_pointer_is_forgotten(
    world: World, service: MessagingService
) -> None:
    """The list of invalid transactions forgets those whose rows are marked as rolled back."""
    await joined(service.groups)
    await commit(service.groups, 5, pointer=world.transactions.start(1))
    await world.abort(service, 1)
    assert world.transactions.reader().is_visible(1)

    assert await committed(service.groups) is None


async def test_a_reset_after_a_commit_in_a_transaction_survives_a_restart(world: World) -> None:
    async with world.running(audit={}) as service:
        await joined(service.groups)
        await commit(service.groups, 9, pointer=world.transactions.start(1))
        await service.groups.leave(LOG, "m1", keeps_assignment=False)
        with pytest.raises(GroupNotEmptyError, match="a transaction in progress"):
            await service.groups.reset(LOG, {NAME: MessageId(3, 0)})
        world.commit(service, 1)
        await service.groups.reset(LOG, {NAME: MessageId(3, 0)})

    async with world.running() as service:
        assert await committed(service.groups) == 3


async def test_a_group_without_transactions_needs_no_transaction_service(
    world: World, service: MessagingService
) -> None:
    world.transactions.is_up = False

    await joined(service.groups)
    await commit(service.groups, 5)

    assert await committed(service.groups) == 5


async def test_requests_of_one_group_take_turns(service: MessagingService) -> None:
    await joined(service.groups)

    await asyncio.gather(*(commit(service.groups, number) for number in range(1, 20)))
    await asyncio.gather(*(joined(service.groups, f"m{number}") for number in range(2, 10)))

    state = await service.groups.committed(LOG)
    assert await committed(service.groups) == 19
    assert len(state.members) == 9
    assert loaded(await records(service)) == state


def loaded(payloads: list[bytes]) -> GroupState:
    state = GroupState()
    for payload in payloads:
        state.apply(CONSUMER_RECORDS.from_bytes(payload))
    return state


async def test_a_deleted_group_begins_again(service: MessagingService) -> None:
    await joined(service.groups)
    await commit(service.groups, 5)
    with pytest.raises(GroupNotEmptyError):
        await service.groups.delete(LOG)
    await service.groups.leave(LOG, "m1", keeps_assignment=False)

    await service.groups.delete(LOG)

    assert service.groups.names("default") == []
    with pytest.raises(GroupNotFoundError):
        await service.groups.committed(LOG)
    await joined(service.groups)
    assert service.groups.names("default") == ["billing"]
    assert await committed(service.groups) is None


async def test_nothing_of_a_log_counts_once_it_was_deleted(service: MessagingService) -> None:
    """A former coordinator, for example, has the group in memory."""
    await joined(service.groups)
    await commit(service.groups, 5)
    await service.topics.delete(LOG)

    await joined(service.groups, "m2")

    state = await service.groups.committed(LOG)
    assert (list(state.members), state.offsets) == (["m2"], {})


async def test_a_record_that_can_not_be_read_is_reported_with_its_place(world: World) -> None:
    async with world.running(audit={}) as service:
        await joined(service.groups)
        written = await service.publisher.publish(LOG, PublishRequest(None, [b"{}"]))

    async with world.running() as service:
        with pytest.raises(DamagedRecordError, match=f"at {written.first.hex()}"):
            await service.groups.committed(LOG)


async def test_a_group_is_not_reset_into_the_future(
    world: World, service: MessagingService
) -> None:
    await joined(service.groups)
    await service.groups.leave(LOG, "m1", keeps_assignment=False)
    future = MessageId(world.clock.now_ms + 1, 0)

    for reset in (future, LAST_ID):
        with pytest.raises(FuturePositionError):
            await service.groups.reset(LOG, {NAME: reset})

    assert await committed(service.groups) is None
    world.clock.now_ms += 1
    await service.groups.reset(LOG, {NAME: future})


async def test_the_lag_is_the_number_of_unread_messages_and_the_age_of_the_oldest(
    world: World, service: MessagingService
) -> None:
    await joined(service.groups)
    published = await publish(service, b"a", b"b", b"c")
    await service.groups.commit(LOG, "m1", 1, {NAME: published.first}, pointer=None)
    world.clock.now_ms += 5_000

    found = (await service.groups.lags(LOG, await service.groups.committed(LOG)))[NAME][1]
    (shown,) = await service.groups.all_lags(count_max=10)

    assert found is not None
    assert (found.behind_ms, found.unread.count) == (0, 2)
    assert found.unread.age_ms(now_ms=world.clock.now_ms) == 5_000
    assert shown.lags == {NAME: found}


async def test_a_group_without_members_and_offsets_shows_what_waits_for_it(
    service: MessagingService,
) -> None:
    await joined(service.groups)
    await service.groups.leave(LOG, "m1", keeps_assignment=False)
    await publish(service, b"a", b"b")

    found = (await service.groups.lags(LOG, await service.groups.committed(LOG)))[NAME][1]
    (shown,) = await service.groups.all_lags(count_max=10)

    assert found is not None
    assert found.unread.count == 2
    assert shown.lags == {NAME: found}


async def test_rows_that_were_rolled_back_are_no_lag(
    world: World, service: MessagingService
) -> None:
    await joined(service.groups)
    published = await publish(service, b"a")
    await service.groups.commit(LOG, "m1", 1, {NAME: published.last}, pointer=None)
    world.clock.now_ms += 5_000
    await publish(service, b"b", pointer=world.transactions.start(1))
    await world.abort(service, 1)

    found = (await service.groups.lags(LOG, await service.groups.committed(LOG)))[NAME][1]
    (shown,) = await service.groups.all_lags(count_max=10)

    assert found is not None
    assert (found.behind_ms, found.unread) == (0, MessageCount())
    assert shown.lags == {NAME: found}


async def test_a_deleted_topic_is_taken_from_its_member(service: MessagingService) -> None:
    view = await joined(service.groups)
    await service.topics.delete(AUDIT)

    view = await beat(service.groups, view, NAME)

    assert view.assigned == ()
    await beat(service.groups, view)
    with pytest.raises(PartitionNotAssignedError):
        await commit(service.groups, 7)


class OtherServer:
    """Counts the questions about the partitions of its topics."""

    def __init__(self) -> None:
        self.asked_count = 0

    async def partitions(self, _topic: TopicId) -> list[int]:
        self.asked_count += 1
        return [0, 1]


async def test_the_partitions_of_another_server_are_asked_for_again_once_the_clock_was_set_back(
    world: World, service: MessagingService
) -> None:
    """A group would not learn of new partitions until the clock has passed its old time again."""
    other = OtherServer()

    async def ask() -> list[str]:
        found = await service.groups._foreign_partitions(other, AUDIT, None)  # type: ignore[arg-type]  # it is asked for nothing else
        return [each.name for each in found]

    assert (await ask(), await ask(), other.asked_count) == (["audit:0", "audit:1"],) * 2 + (1,)
    world.clock.now_ms -= 3_600_000
    await ask()
    assert other.asked_count == 2


WEEK_MS = 7 * 24 * 3_600_000


async def leave(groups: GroupCoordinator) -> None:
    await groups.leave(LOG, "m1", keeps_assignment=False)


async def test_a_group_without_members_is_deleted_after_its_retention(
    world: World, service: MessagingService, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    await joined(service.groups)
    await commit(service.groups, 5)
    await leave(service.groups)
    world.clock.now_ms += WEEK_MS - 1
    await service.cleaner.run_pass()
    assert await committed(service.groups) == 5

    world.clock.now_ms += 1
    await service.cleaner.run_pass()

    assert service.groups.names("default") == []
    with pytest.raises(GroupNotFoundError):
        await committed(service.groups)
    (line,) = [each for each in caplog.records if getattr(each, "code", "") == "group_expired"]
    assert line.getMessage() == (
        "deleted the consumer group default:billing, which had no member for 604800 s"
    )
    await joined(service.groups, start=GroupStart.LATEST)
    assert await committed(service.groups) is None  # there is no message to begin behind


async def test_a_group_with_a_member_is_kept_however_long_it_commits_nothing(
    world: World, service: MessagingService
) -> None:
    view = await beat(service.groups, await joined(service.groups))
    for _ in range(3):
        world.clock.now_ms += WEEK_MS
        await beat(service.groups, view, *view.assigned)
        await service.cleaner.run_pass()

    assert service.groups.names("default") == ["billing"]


async def test_a_group_with_preferences_keeps_these_and_forgets_its_offsets_once(
    world: World, service: MessagingService
) -> None:
    chosen = GroupPreferences(start=GroupStart.LATEST)
    await service.groups.change_preferences(LOG, lambda _before: chosen)
    await joined(service.groups)
    await commit(service.groups, 5)
    await leave(service.groups)
    world.clock.now_ms += WEEK_MS

    await service.cleaner.run_pass()
    written = await records(service)
    world.clock.now_ms += WEEK_MS
    await service.cleaner.run_pass()

    assert await service.groups.preferences(LOG) == chosen
    assert await committed(service.groups) is None
    assert await records(service) == written


async def test_while_the_clock_is_doubtful_no_group_is_deleted(
    world: World, service: MessagingService
) -> None:
    await joined(service.groups)
    await leave(service.groups)
    world.may_delete = False
    world.clock.now_ms += WEEK_MS

    await service.cleaner.run_pass()

    assert service.groups.names("default") == ["billing"]


async def test_after_a_start_the_members_of_a_group_have_an_hour_to_come_back(
    world: World,
) -> None:
    async with world.running(audit={}) as service:
        await joined(service.groups)
        await commit(service.groups, 5)
        await leave(service.groups)
    world.clock.now_ms += 2 * WEEK_MS

    async with world.running() as service:
        await service.cleaner.run_pass()
        assert service.groups.names("default") == ["billing"]
        world.clock.now_ms += 3_600_000
        await service.cleaner.run_pass()
        assert service.groups.names("default") == []


async def test_a_group_whose_offsets_may_still_be_committed_is_kept(
    world: World, service: MessagingService
) -> None:
    await joined(service.groups)
    await commit(service.groups, 5, pointer=world.transactions.start(7))
    await leave(service.groups)
    world.clock.now_ms += WEEK_MS
    await service.cleaner.run_pass()
    assert service.groups.names("default") == ["billing"]

    world.commit(service, 7)
    await service.cleaner.run_pass()
    assert service.groups.names("default") == []
