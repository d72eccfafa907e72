"""The overview, and the counters, which count each transaction once, by its outcome."""

import pytest

from tests.tx.service import Service
from tuff.protocol.errors import TransactionConflictError, TransactionTimedOutError
from tuff.protocol.transaction import TransactionType
from tx.outcomes import OpenTransaction

LONG, SHORT = TransactionType.LONG, TransactionType.SHORT


@pytest.mark.parametrize(
    ("kind", "counted"), [(SHORT, (1, 0)), (LONG, (0, 1))], ids=["short", "long"]
)
async def test_an_abort_is_one_and_a_long_transaction_becomes_invalid_by_it(
    service: Service, kind: TransactionType, counted: tuple[int, int]
) -> None:
    tx = await service.begin(kind)

    for _ in range(3):
        await service.runner.abort(tx.transaction_id)

    counters = service.manager.counters
    assert (counters.aborts, counters.invalidations) == counted


async def test_a_commit_is_one_however_often_it_is_repeated(service: Service) -> None:
    tx = await service.begin()

    for _ in range(3):
        await service.runner.commit(tx.transaction_id)

    assert service.manager.counters.commits == 1


async def test_a_snapshot_is_counted_whether_it_is_due_or_asked_for(service: Service) -> None:
    await service.manager.take_snapshot()
    asked_count = service.manager.counters.snapshots
    await service.begin()
    await service.later(round(service.settings.snapshot_interval_s * 1000))

    assert (asked_count, service.manager.counters.snapshots) == (1, 2)


async def test_a_conflict_is_one_of_its_transaction_however_often_it_is_refused(
    service: Service,
) -> None:
    first, second = await service.begin(), await service.begin()
    await service.runner.commit(first.transaction_id, changes=[b"k"])

    for _ in range(3):
        await refused(service, second)

    assert service.manager.counters.conflicts == 1


async def refused(service: Service, tx: OpenTransaction) -> None:
    with pytest.raises(TransactionConflictError):
        await service.runner.can_commit(tx.transaction_id, [b"k"])


@pytest.mark.parametrize("is_told_by", ["can_commit", "tick"])
async def test_a_time_out_is_counted_once_whichever_call_finds_it(
    service: Service, is_told_by: str
) -> None:
    tx = await service.begin()
    service.now_ms += 30_000

    if is_told_by == "tick":
        await service.later(0)
    with pytest.raises(TransactionTimedOutError):
        await service.runner.can_commit(tx.transaction_id, [b"k"])

    assert service.manager.counters.timeouts == 1


async def test_the_overview_shows_pointers_and_transactions_in_progress(service: Service) -> None:
    ended, opened = await service.begin(), await service.begin()
    await service.runner.can_commit(opened.transaction_id, [])
    await service.runner.invalidate(ended.transaction_id)

    shown = await service.monitoring.overview()

    assert [one.transaction_id for one in shown.open] == [opened.transaction_id]
    assert shown.oldest_in_progress == opened.transaction_id
    # The one that is open does not see the other, although that has ended since.
    assert shown.visibility_upper_bound == ended.transaction_id - 1
    assert (shown.invalid_count, shown.committing_count) == (1, 1)
    assert shown.read_pointer == ended.transaction_id
    assert service.monitoring.figures().open_count == 1
