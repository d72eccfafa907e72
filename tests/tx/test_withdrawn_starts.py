"""Starts with a request id: they can be repeated, and withdrawn (protocol §5.2)."""

import pytest

from tests.tx.service import Service, turns
from tuff.protocol.errors import StartWithdrawnError
from tx.outcomes import EndedState
from tx.settings import BLOCK_COUNT_MIN, WITHDRAWN_COUNT_MAX


async def test_a_repeated_start_returns_the_transaction_that_it_has_started(
    service: Service,
) -> None:
    first = await service.begin(request_id="a")
    other = await service.begin(request_id="b")

    assert await service.begin(request_id="a") == first
    assert other != first
    await service.runner.commit(first.transaction_id, changes=[])
    assert (await service.begin(request_id="a")).transaction_id > other.transaction_id


async def test_a_withdrawn_start_is_aborted_and_its_later_copies_begin_nothing(
    service: Service,
) -> None:
    tx = await service.begin(request_id="a")

    outcome = await service.runner.withdraw("a")

    assert outcome is not None
    assert (outcome.transaction_id, outcome.state) == (tx.transaction_id, EndedState.ABORTED)
    with pytest.raises(StartWithdrawnError):
        await service.begin(request_id="a")
    assert not service.durable.state.open
    assert list((await service.write_permits.snapshot()).invalids) == []


async def test_a_start_that_comes_after_its_withdrawal_begins_nothing(service: Service) -> None:
    assert await service.runner.withdraw("a") is None

    with pytest.raises(StartWithdrawnError):
        await service.begin(request_id="a")

    assert not service.durable.state.open


async def test_a_start_that_waits_for_a_pointer_can_be_withdrawn(service: Service) -> None:
    service.disk.hold()
    for _ in range(BLOCK_COUNT_MIN):
        await service.begin()
    starting = service.start_in_background(request_id="a")
    await turns()

    assert await service.runner.withdraw("a") is None
    service.disk.release()

    with pytest.raises(StartWithdrawnError):
        await starting
    assert len(service.durable.state.open) == BLOCK_COUNT_MIN


@pytest.mark.parametrize("ends", [Service.crash, Service.restart])
async def test_a_start_is_known_by_its_request_after_the_server_was_started_again(
    service: Service, ends: object
) -> None:
    tx = await service.begin(request_id="a")
    await service.runner.can_commit(tx.transaction_id, [])
    await service.durable.synced_in_time(service.durable.state.lsn)

    again = await ends(service)  # type: ignore[operator]  # one of the two methods

    assert (await again.begin(request_id="a")).transaction_id == tx.transaction_id
    outcome = await again.runner.withdraw("a")
    assert outcome is not None
    assert outcome.transaction_id == tx.transaction_id


async def test_the_oldest_withdrawals_are_forgotten_first(service: Service) -> None:
    for number in range(WITHDRAWN_COUNT_MAX + 1):
        await service.runner.withdraw(str(number))

    await service.begin(request_id="0")
    with pytest.raises(StartWithdrawnError):
        await service.begin(request_id="1")
