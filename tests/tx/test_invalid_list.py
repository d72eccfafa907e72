"""The invalid list: what leaves it, and when it is shown (protocol §5.2)."""

import asyncio

import pytest

from tests.tx.service import TOPIC, NewService, Service, turns
from tx.log_records import InvalidReason
from tx.settings import TransactionSettings


async def test_what_region_servers_have_not_cleared_stays_on_the_list(
    new_service: NewService,
) -> None:
    service = await new_service(TransactionSettings(prune_invalid=True)).open()
    first, second = await service.begin(), await service.begin()
    await service.runner.invalidate(first.transaction_id)
    await service.runner.invalidate(second.transaction_id)
    service.rows.uncleared = {second.transaction_id}

    await service.later(2000)

    assert list((await service.write_permits.snapshot()).invalids) == [second.transaction_id]
    assert (await service.invalid_list.shown()).prunable == []
    _, kept = await service.invalid_list.truncate(pointers=[second.transaction_id])
    assert kept == [second.transaction_id]
    service.rows.uncleared = set()
    await service.later(2000)
    assert list((await service.write_permits.snapshot()).invalids) == []


async def test_pruning_keeps_pointers_that_a_crash_lost_for_as_long_as_outcomes(
    new_service: NewService,
) -> None:
    """Off the list, the transaction was unknown two seconds after the crash."""
    settings = TransactionSettings(prune_invalid=True, outcome_retention_s=60)
    service = await new_service(settings).open()
    service.disk.hold()
    lost = await service.begin()

    again = await service.crash()
    await again.later(0)
    await again.later(59_000)
    assert await again.state_of(lost.transaction_id) == ("invalid", "lost_in_crash")

    await again.later(2_000)
    assert list((await again.write_permits.snapshot()).invalids) == []


async def test_a_pointer_whose_outcome_is_unknown_was_lost_in_a_crash(service: Service) -> None:
    service.disk.hold()
    lost = await service.begin()

    again = await service.crash()

    by_reason = (await again.invalid_list.shown()).by_reason
    assert list(by_reason) == [InvalidReason.LOST_IN_CRASH]
    assert lost.transaction_id in by_reason[InvalidReason.LOST_IN_CRASH]


async def test_pruning_takes_off_only_what_no_row_carries(new_service: NewService) -> None:
    service = await new_service(TransactionSettings(prune_invalid=True)).open()
    service.rows.marking_fails = True
    idle, carried = await service.begin(), await service.begin()
    service.rows.carried[carried.transaction_id] = "ns:t"
    await service.runner.invalidate(idle.transaction_id)
    await service.runner.invalidate(carried.transaction_id)

    await service.later(2000)

    assert list((await service.write_permits.snapshot()).invalids) == [carried.transaction_id]


async def test_a_pointer_whose_write_is_under_way_stays_on_the_invalid_list(
    service: Service,
) -> None:
    tx = await service.begin()
    permit = await service.write_permits.enter(tx.transaction_id, TOPIC)
    await service.runner.invalidate(tx.transaction_id)

    kept = await service.invalid_list.truncate(pointers=[tx.transaction_id])
    permit.leave()
    removed = await service.invalid_list.truncate(pointers=[tx.transaction_id])

    assert (kept, removed) == ((0, [tx.transaction_id]), (1, []))


async def test_the_invalid_list_is_shown_once_no_crash_can_undo_it(service: Service) -> None:
    tx = await service.begin()
    service.disk.hold()
    ending = asyncio.ensure_future(service.runner.invalidate(tx.transaction_id))
    await turns()

    showing = asyncio.ensure_future(service.invalid_list.shown())
    await turns()

    assert not showing.done()
    service.disk.release()
    await ending
    assert (await showing).pointers == [tx.transaction_id]


async def listed(service: Service) -> list[int]:
    return list((await service.write_permits.snapshot()).invalids)


async def test_a_transaction_of_messages_only_that_wrote_nothing_leaves_nothing(
    service: Service,
) -> None:
    """The invalid list grew for ever by programs that died after a start."""
    tx = await service.begin(timeout_s=1, is_messages_only=True)
    other = await service.begin(timeout_s=1)

    await service.later(1_000)
    await service.later(1_000)

    assert await listed(service) == [other.transaction_id]
    assert await service.state_of(tx.transaction_id) == ("invalid", "timed_out")


async def test_a_transaction_of_messages_only_is_pruned_once_its_rows_are_marked(
    service: Service,
) -> None:
    tx = await service.begin(is_messages_only=True)
    checked = await service.runner.checkpoint(tx.transaction_id)
    service.rows.carried[checked.transaction.write_pointer] = "ns:t"
    service.rows.marking.clear()
    await service.runner.invalidate(tx.transaction_id)

    await service.later(2_000)
    assert await listed(service) == list(checked.pointers)

    service.rows.marking.set()
    await turns()
    await service.later(2_000)
    assert await listed(service) == []


async def test_a_transaction_of_messages_only_stays_listed_while_it_writes(
    service: Service,
) -> None:
    tx = await service.begin(is_messages_only=True)
    permit = await service.write_permits.enter(tx.transaction_id, TOPIC)
    await service.runner.invalidate(tx.transaction_id)

    await service.later(2_000)
    assert await listed(service) == [tx.transaction_id]

    permit.leave()
    await service.later(2_000)
    assert await listed(service) == []


@pytest.mark.parametrize("ends", [Service.crash, Service.restart])
@pytest.mark.parametrize("is_invalid", [True, False])
async def test_that_only_messages_take_part_is_known_after_the_server_was_started_again(
    service: Service, ends: object, *, is_invalid: bool
) -> None:
    tx = await service.begin(timeout_s=10, is_messages_only=True)
    service.rows.marking_fails = is_invalid
    service.rows.carried[tx.transaction_id] = "ns:t"
    if is_invalid:
        await service.runner.invalidate(tx.transaction_id)
    await service.durable.synced_in_time(service.durable.state.lsn)

    again = await ends(service)  # type: ignore[operator]  # one of the two methods
    await again.later(2_000)
    service.rows.marking_fails = False
    service.rows.carried.clear()
    for _ in range(8):
        await again.later(2_000)

    assert tx.transaction_id not in await listed(again)


@pytest.mark.parametrize("ends", [Service.crash, Service.restart])
async def test_a_transaction_that_another_store_has_joined_stays_on_the_list(
    service: Service, ends: object
) -> None:
    """What the store keeps under its pointers would become visible."""
    tx = await service.begin(timeout_s=10, is_messages_only=True)
    await service.runner.join(tx.transaction_id)

    again = await ends(service)  # type: ignore[operator]  # one of the two methods
    for _ in range(8):
        await again.later(2_000)

    assert tx.transaction_id in await listed(again)


async def test_a_join_waits_for_its_sync(service: Service) -> None:
    tx = await service.begin(is_messages_only=True)
    service.disk.hold()
    joining = [asyncio.create_task(service.runner.join(tx.transaction_id)) for _ in range(2)]
    await turns()
    assert not any(each.done() for each in joining)

    service.disk.release()
    await asyncio.gather(*joining)


async def test_what_an_operator_has_taken_off_the_list_does_not_keep_the_rest(
    service: Service,
) -> None:
    tx = await service.begin(is_messages_only=True)
    checked = await service.runner.checkpoint(tx.transaction_id)
    await service.runner.invalidate(tx.transaction_id)
    await service.invalid_list.truncate(pointers=[checked.transaction.write_pointer])

    await service.later(2_000)

    assert await listed(service) == []
    assert not service.durable.state.prunable
