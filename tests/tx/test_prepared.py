"""Prepare and resolve: what a prepared transaction claims, what ends it, and what it survives
(decision 0045)."""

import asyncio
from collections.abc import Collection

import pytest

from tests.tx.service import TOPIC, Disk, NewService, Service, entry, turns
from tests.tx.sinks import begin as begin_epoch
from tuff.protocol.errors import (
    StorageUnavailableError,
    TooManyPreparedError,
    TransactionCommittedError,
    TransactionConflictError,
    TransactionInvalidatedError,
    TransactionNotPreparedError,
    TransactionPreparedError,
    TransactionsUnavailableError,
)
from tuff.protocol.transaction import TransactionType
from tx.outcomes import OpenTransaction
from tx.settings import TransactionSettings

LATER_MS = 200_000_000  # beyond every time-out and lease


async def prepared(
    service: Service, changes: Collection[bytes] = (b"k",), *, tx: OpenTransaction | None = None
) -> int:
    """The id of a transaction that is prepared with a message."""
    tx = tx or await service.begin()
    await service.runner.prepare(
        tx.transaction_id, database="orders", changes=changes, publish=[entry(b"m")]
    )
    return tx.transaction_id


async def test_a_prepared_transaction_is_hidden_until_it_is_resolved(service: Service) -> None:
    one = await prepared(service)

    assert await service.state_of(one) == ("prepared", None)
    assert not (await service.write_permits.snapshot()).is_visible(one)
    assert service.rows.settled == []

    outcome = await service.runner.commit_prepared(one)

    assert [detail.pointer for detail in outcome.published] == [one]
    assert service.rows.settled == [one]
    assert (await service.write_permits.snapshot()).is_visible(one)
    assert await service.runner.commit_prepared(one) == outcome


async def test_a_repeated_prepare_gets_the_first_answer_and_writes_nothing(
    service: Service,
) -> None:
    one = await prepared(service)
    first = await service.runner.outcome(one)

    again = await service.runner.prepare(one, database="orders", publish=[entry(b"other")])

    assert again == first
    assert [each.payloads for each in service.rows.published] == [(b"m",)]
    with pytest.raises(TransactionPreparedError, match="'orders' decides"):
        await service.runner.prepare(one, database="billing")


async def test_an_abort_marks_the_messages_and_a_commit_after_it_is_refused(
    service: Service,
) -> None:
    one = await prepared(service)
    outcome = await service.runner.abort_prepared(one)

    assert outcome.state.value == "aborted"
    assert service.rows.marked == [one]
    assert await service.runner.abort_prepared(one) == outcome
    with pytest.raises(Exception, match="was aborted"):
        await service.runner.commit_prepared(one)


async def test_what_committed_can_not_be_resolved_as_aborted(service: Service) -> None:
    one = await prepared(service)
    await service.runner.commit_prepared(one)

    with pytest.raises(TransactionCommittedError):
        await service.runner.abort_prepared(one)


async def test_an_abort_keeps_a_late_prepare_from_taking_effect(service: Service) -> None:
    tx = await service.begin()
    one = tx.transaction_id
    with pytest.raises(TransactionNotPreparedError):
        await service.runner.commit_prepared(one)
    await service.runner.abort_prepared(one)

    with pytest.raises(Exception, match="was aborted"):
        await prepared(service, tx=tx)


async def test_only_a_resolve_ends_it_and_it_takes_no_writes(service: Service) -> None:
    one = await prepared(service)
    runner = service.runner
    refused = [
        runner.commit(one, changes=[]),
        runner.abort(one),
        runner.invalidate(one),
        runner.can_commit(one, [b"x"]),
        runner.renew(one),
        service.runner.checkpoint(one),
        service.write_permits.enter(one, TOPIC),
        service.write_permits.enter_rollback(one, TOPIC),
    ]
    for call in refused:
        with pytest.raises(TransactionPreparedError) as error:
            await call
        assert error.value.members["database"] == "orders"

    assert await service.state_of(one) == ("prepared", None)


async def test_no_time_out_lease_or_max_block_ends_it(service: Service) -> None:
    short = await prepared(service)
    leased = await service.begin(TransactionType.LONG, lease_s=10)
    await prepared(service, tx=leased)
    service.rows.published_at_ms = dict.fromkeys([short, leased.transaction_id], service.now_ms)
    await service.later(LATER_MS)
    revived = await service.crash()
    await revived.later(LATER_MS)

    for one in (short, leased.transaction_id):
        assert await revived.state_of(one) == ("prepared", None)
        await revived.runner.commit_prepared(one)


async def test_its_messages_are_set_aside_after_max_block(service: Service) -> None:
    one = await prepared(service)
    service.rows.published_at_ms[one] = service.now_ms
    await service.later(29_000)
    assert service.rows.aside == []

    await service.later(2_000)
    assert service.rows.aside == [one]

    await service.runner.commit_prepared(one)
    assert service.rows.settled == [one]


async def test_a_resolve_waits_until_its_messages_are_aside(service: Service) -> None:
    """Else readers could receive them at both places."""
    one = await prepared(service)
    service.rows.published_at_ms[one] = service.now_ms
    service.rows.marking.clear()
    await service.later(31_000)
    resolving = asyncio.create_task(service.runner.commit_prepared(one))
    await turns()
    assert service.rows.settled == []

    service.rows.marking.set()
    await resolving
    assert (service.rows.aside, service.rows.settled) == ([one], [one])


async def test_what_could_not_be_set_aside_is_tried_again(service: Service) -> None:
    one = await prepared(service)
    service.rows.published_at_ms[one] = service.now_ms
    service.rows.marking_fails = True
    await service.later(31_000)
    service.rows.marking_fails = False
    await service.later(1_000)

    assert service.rows.aside == [one]


@pytest.mark.parametrize("is_clean", [True, False])
async def test_the_claim_survives_a_restart(service: Service, *, is_clean: bool) -> None:
    one = await prepared(service)
    revived = await (service.restart() if is_clean else service.crash())
    other = await revived.begin()
    waiting = asyncio.create_task(revived.runner.commit(other.transaction_id, changes=[b"k"]))
    await turns()

    assert not waiting.done()

    await revived.runner.commit_prepared(one)
    with pytest.raises(TransactionConflictError) as refusal:
        await waiting
    assert refusal.value.transaction == one


async def test_a_commit_that_waited_for_an_abort_succeeds(service: Service) -> None:
    one = await prepared(service)
    other = await service.begin()
    waiting = asyncio.create_task(service.runner.commit(other.transaction_id, changes=[b"k"]))
    await turns()
    await service.runner.abort_prepared(one)

    assert (await waiting).state.value == "committed"


async def test_a_commit_that_waits_too_long_is_refused_for_good(new_service: NewService) -> None:
    service = await new_service(TransactionSettings(ending_timeout_s=0.5)).open()
    one = await prepared(service)
    other = (await service.begin()).transaction_id

    for _ in range(2):
        with pytest.raises(TransactionConflictError) as refusal:
            await service.runner.commit(other, changes=[b"a", b"k"])
        assert (refusal.value.transaction, refusal.value.key) == (one, b"k")
    await service.runner.abort_prepared(one)
    with pytest.raises(TransactionConflictError):
        await service.runner.commit(other, changes=[])


async def test_a_refusal_for_a_prepared_one_stands_after_a_crash(new_service: NewService) -> None:
    service = await new_service(TransactionSettings(ending_timeout_s=0.5)).open()
    other = (await service.begin()).transaction_id
    one = await prepared(service)
    with pytest.raises(TransactionConflictError):
        await service.runner.commit(other, changes=[b"k"])

    again = await service.crash()

    await again.runner.abort_prepared(one)
    with pytest.raises(TransactionConflictError):
        await again.runner.commit(other, changes=[b"k"])


async def test_a_prepare_is_refused_for_a_conflict_with_nothing_written(service: Service) -> None:
    first, second = await service.begin(), await service.begin()
    await service.runner.commit(first.transaction_id, changes=[b"k"])

    with pytest.raises(TransactionConflictError):
        await prepared(service, tx=second)
    assert service.rows.published == []


async def test_there_are_no_more_than_the_setting_allows(new_service: NewService) -> None:
    service = await new_service(TransactionSettings(prepared_max=1)).open()
    one = await prepared(service, [b"a"])
    other = await service.begin()

    with pytest.raises(TooManyPreparedError, match="1 transactions are prepared"):
        await prepared(service, [b"b"], tx=other)
    assert len(service.rows.published) == 1
    assert await service.state_of(other.transaction_id) == ("in_progress", None)

    await service.runner.commit_prepared(one)
    assert await prepared(service, [b"b"], tx=other) == other.transaction_id


async def test_an_interrupted_prepare_is_undone_by_recovery(service: Service) -> None:
    tx = await service.begin()
    await service.runner.can_commit(tx.transaction_id, [b"k"])
    service.disk.fails = True
    with pytest.raises(TransactionsUnavailableError):
        await prepared(service, tx=tx)
    service.disk.fails = False
    revived = await service.crash()

    assert await revived.state_of(tx.transaction_id) == ("invalid", "lost_in_crash")
    assert len(revived.durable.state.prepared) == 0
    with pytest.raises(TransactionInvalidatedError):
        await revived.runner.commit_prepared(tx.transaction_id)


async def test_a_prepare_whose_rows_fail_is_invalid_and_claims_nothing(service: Service) -> None:
    tx, other = await service.begin(), await service.begin()
    service.rows.failure = StorageUnavailableError("the disk is full")
    with pytest.raises(StorageUnavailableError):
        await prepared(service, tx=tx)

    assert await service.state_of(tx.transaction_id) == ("invalid", "invalidated")
    outcome = await service.runner.commit(other.transaction_id, changes=[b"k"])
    assert outcome.state.value == "committed"


async def test_no_view_shows_it_as_prepared_before_that_is_durable(service: Service) -> None:
    tx = await begin_epoch(service, 1, "run")
    await service.sinks.show("s")
    assert isinstance(service.disk, Disk)
    service.disk.hold()
    preparing = asyncio.create_task(prepared(service, tx=tx))
    await turns()
    shown: list[asyncio.Task[object]] = [
        asyncio.create_task(service.runner.outcome(tx.transaction_id)),
        asyncio.create_task(service.monitoring.overview()),
        asyncio.create_task(service.monitoring.prepared(None)),
        asyncio.create_task(service.sinks.show("s")),
        asyncio.create_task(service.sinks.show_all()),
    ]
    await turns()

    assert [each.done() for each in shown] == [False] * 5

    service.disk.release()
    await asyncio.gather(preparing, *shown)


@pytest.mark.parametrize("call", ["prepare", "resolve", "outcome"])
async def test_an_answer_waits_until_its_edit_is_durable(service: Service, call: str) -> None:
    tx = await service.begin()
    if call == "resolve":
        await prepared(service, tx=tx)
    assert isinstance(service.disk, Disk)
    service.disk.hold()
    ending: asyncio.Task[object] = asyncio.create_task(
        service.runner.commit_prepared(tx.transaction_id)
        if call == "resolve"
        else prepared(service, tx=tx)
    )
    await turns()
    asked = asyncio.create_task(service.runner.outcome(tx.transaction_id))
    await turns()

    answer = asked if call == "outcome" else ending
    assert not answer.done()

    service.disk.release()
    await ending
    await asked


async def test_a_failed_log_leaves_it_prepared(service: Service) -> None:
    one = await prepared(service)
    service.disk.fails = True
    with pytest.raises(TransactionsUnavailableError):
        await service.runner.commit_prepared(one)
    service.disk.fails = False
    await service.manager.start_service()

    assert await service.state_of(one) == ("prepared", None)
    assert (await service.runner.commit_prepared(one)).state.value == "committed"


async def test_the_list_has_the_oldest_first_and_can_name_a_database(service: Service) -> None:
    first, second = await service.begin(), await service.begin()
    await service.runner.prepare(second.transaction_id, database="a")
    await service.runner.prepare(first.transaction_id, database="b")
    revived = await service.restart()
    found = await revived.monitoring.prepared(None)
    only = await revived.monitoring.prepared("b")

    assert [each.transaction_id for each in found] == [
        second.transaction_id, first.transaction_id,
    ]  # fmt: skip
    assert [each.transaction_id for each in only] == [first.transaction_id]


async def test_figures_and_alarms_name_those_that_wait(service: Service) -> None:
    one = await prepared(service)
    service.now_ms += 31_000

    figures = service.monitoring.figures()
    assert (figures.prepared_count, figures.oldest_prepared_ms) == (1, 31_000)
    found = service.monitoring.long_prepared(alarm_s=30)
    assert [each.transaction_id for each in found] == [one]
    assert service.monitoring.long_prepared(alarm_s=31) == []


async def test_commits_are_forgotten_while_it_waits(service: Service) -> None:
    await prepared(service)
    for _ in range(3):
        tx = await service.begin()
        await service.runner.commit(tx.transaction_id, changes=[b"%d" % tx.transaction_id])

    assert len(service.durable.state.committers) == 0


async def test_the_run_of_a_sink_is_not_fenced_while_its_epoch_is_prepared(
    service: Service,
) -> None:
    tx = await begin_epoch(service, 1, "run-1")
    await service.runner.prepare(tx.transaction_id, database="orders")

    with pytest.raises(TransactionPreparedError):
        await begin_epoch(service, 1, "run-2")
