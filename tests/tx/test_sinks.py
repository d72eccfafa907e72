"""Epochs of sinks: each rule, with the history of loss that it prevents (protocol §5.3)."""

import asyncio

import pytest

from tests.tx.service import TOPIC, NewService, Service, turns
from tests.tx.sinks import ask, begin, commit, state
from tuff.protocol.errors import (
    BadRequestError,
    InvalidNameError,
    InvalidTimeoutError,
    SinkEpochOpenError,
    SinkEpochSupersededError,
    SinkFencedError,
    SinkInUseError,
    SinkNotFoundError,
    TooManySinksError,
    TransactionInvalidatedError,
    TransactionNotInProgressError,
    TransactionsUnavailableError,
    TransactionTimedOutError,
)
from tuff.protocol.transaction import TransactionType
from tx.outcomes import OpenTransaction
from tx.settings import TransactionSettings
from tx.state import FENCED_COUNT_MAX

# A replayed epoch is a no-op.


async def test_an_epoch_begins_a_long_transaction_with_its_lease(service: Service) -> None:
    opened = await ask(service, 7, "a", lease_s=60, client="etl")

    assert opened is not None
    assert (opened.transaction.type, opened.client) == (TransactionType.LONG, "etl")
    assert opened.lease_ms == 60_000
    assert service.manager.timeouts.lease_ends_at_ms(opened) == service.now_ms + 60_000
    assert await state(service) == (7, "a", "in_progress")


async def test_every_task_of_a_run_gets_the_same_transaction(service: Service) -> None:
    """Each of its own, and only one of them would be committed: the others' messages were lost."""
    found = await asyncio.gather(*(begin(service, 1, "a") for _ in range(20)))

    assert len({opened.transaction_id for opened in found}) == 1
    assert len((await service.write_permits.snapshot()).in_progress) == 1


async def test_every_run_that_asks_for_a_committed_epoch_learns_that_it_committed(
    service: Service,
) -> None:
    """The driver died between the commit and its own record of it: the epoch is replayed."""
    await commit(service, await begin(service, 1, "a"))

    assert [await ask(service, 1, run) for run in ("a", "b", "c")] == [None, None, None]
    assert await state(service) == (1, "a", "committed")
    assert len((await service.write_permits.snapshot()).in_progress) == 0


async def test_a_committed_epoch_stays_so_when_its_outcome_is_forgotten(
    new_service: NewService,
) -> None:
    """Asked of the outcomes instead, a replay an hour later would write everything once more."""
    service = await new_service(TransactionSettings(outcome_retention_s=1)).open()
    tx = await begin(service, 1, "a")
    await commit(service, tx)
    await service.later(60_000)
    with pytest.raises(TransactionNotInProgressError, match="is remembered"):
        await service.runner.outcome(tx.transaction_id)

    again = await service.crash()

    assert await ask(again, 1, "b") is None
    third = await again.restart()
    assert await ask(third, 1, "b") is None


async def test_an_uncommitted_epoch_never_looks_committed_however_much_is_forgotten(
    new_service: NewService,
) -> None:
    """A server that takes "not in progress, and not invalid" for committed loses the epoch when the
    outcome is forgotten and the invalid list truncated."""
    settings = TransactionSettings(outcome_retention_s=1)
    service = await new_service(settings).open()
    tx = await begin(service, 1, "a")
    await service.runner.invalidate(tx.transaction_id)
    removed, _ = await service.invalid_list.truncate(pointers=[tx.transaction_id])
    await service.later(60_000)
    assert removed == 1
    assert len((await service.write_permits.snapshot()).invalids) == 0

    again = await service.crash()

    assert await state(again) == (1, "a", "invalid")
    with pytest.raises(SinkEpochOpenError):
        await ask(again, 2, "b")
    assert (await begin(again, 1, "b")).transaction_id > tx.transaction_id


async def test_sinks_know_nothing_of_each_other(service: Service) -> None:
    await commit(service, await begin(service, 5, "a"))

    assert await ask(service, 1, "a", sink="other") is not None
    shown = await service.sinks.show_all()
    assert [(sink.name, told) for sink, told in shown] == [
        ("other", "in_progress"), ("s", "committed"),
    ]  # fmt: skip


# The fence.


async def test_another_run_ends_the_transaction_before_it_begins_its_own(service: Service) -> None:
    """A driver that was thought dead commits beside its successor: everything is there twice."""
    first = await begin(service, 1, "a")

    second = await begin(service, 1, "b")

    assert second.transaction_id > first.transaction_id
    assert await service.state_of(first.transaction_id) == ("invalid", "invalidated")
    with pytest.raises(TransactionInvalidatedError):
        await commit(service, first)
    with pytest.raises(TransactionInvalidatedError):
        await service.write_permits.enter(first.transaction_id, TOPIC)
    await commit(service, second)
    assert service.manager.counters.fences == 1


@pytest.mark.parametrize("epoch", [1, 2])
async def test_a_run_that_was_fenced_never_takes_the_sink_back(
    service: Service, epoch: int
) -> None:
    """A zombie that retries would fence its successor, and the two fence each other for ever."""
    await begin(service, 1, "a")
    second = await begin(service, 1, "b")
    if epoch == 2:
        await commit(service, second)
        await begin(service, 2, "b")

    with pytest.raises(SinkFencedError, match="'a' has lost the sink s to run 'b'"):
        await ask(service, epoch, "a")

    assert (await state(service))[1:] == ("b", "in_progress")


async def test_a_run_that_lost_the_sink_between_two_epochs_does_not_get_it_back(
    service: Service,
) -> None:
    await commit(service, await begin(service, 1, "a"))
    await begin(service, 2, "b")

    with pytest.raises(SinkFencedError):
        await ask(service, 2, "a")


async def test_as_many_fenced_runs_are_remembered_as_it_says(service: Service) -> None:
    for number in range(FENCED_COUNT_MAX + 2):
        await begin(service, 1, f"run-{number}")

    with pytest.raises(SinkFencedError):
        await ask(service, 1, "run-1")
    again = await service.crash()
    with pytest.raises(SinkFencedError):
        await ask(again, 1, "run-1")
    assert await ask(again, 1, "run-0") is not None


async def test_a_fence_waits_for_a_commit_whose_rows_are_being_written(service: Service) -> None:
    """Called dead in the middle of its commit, the first one commits all the same; so the second
    one must not begin before that is known."""
    first = await begin(service, 1, "a")
    committing = await service.commit_at_its_rows(first)
    fencing = asyncio.create_task(ask(service, 1, "b"))
    waiting = asyncio.create_task(ask(service, 1, "a"))
    await turns()
    assert not fencing.done()
    assert not waiting.done()

    service.rows.writing.set()

    assert (await committing).state.value == "committed"
    assert await fencing is None
    assert await waiting is None


async def test_a_fence_that_waits_too_long_is_unavailable(service: Service) -> None:
    first = await begin(service, 1, "a")
    service.settings = TransactionSettings(ending_timeout_s=0.001)
    hasty = await service.restart()
    committing = await hasty.commit_at_its_rows(first)

    for run in ("a", "b"):
        with pytest.raises(TransactionsUnavailableError, match="still under way"):
            await ask(hasty, 1, run)

    hasty.rows.writing.set()
    await asyncio.gather(committing, return_exceptions=True)
    hasty.settings = TransactionSettings()
    patient = await hasty.restart()
    assert await ask(patient, 1, "b") is None


async def test_a_fence_does_not_wait_for_writes_that_hang(service: Service) -> None:
    first = await begin(service, 1, "a")
    permit = await service.write_permits.enter(first.transaction_id, TOPIC)
    committing = asyncio.create_task(service.runner.commit(first.transaction_id))
    await turns()

    assert await ask(service, 1, "b") is not None

    permit.leave()
    with pytest.raises(TransactionInvalidatedError):
        await committing


async def test_runs_that_ask_at_once_fence_one_another_and_one_is_left(service: Service) -> None:
    found = await asyncio.gather(
        *(ask(service, 1, f"run-{number}") for number in range(8)), return_exceptions=True
    )

    left = [each for each in found if isinstance(each, OpenTransaction)]
    _, run_id, told = await state(service)
    winner = await begin(service, 1, run_id)
    assert told == "in_progress"
    assert list((await service.write_permits.snapshot()).in_progress) == [winner.transaction_id]
    assert winner.transaction_id in {opened.transaction_id for opened in left}


# What a run may not do.


async def test_an_older_epoch_than_the_sink_has_is_refused(service: Service) -> None:
    """A reset checkpoint begins at 0 again: taken for replays, its messages were all dropped."""
    await commit(service, await begin(service, 5, "a"))

    with pytest.raises(SinkEpochSupersededError, match="is at 5") as refusal:
        await ask(service, 4, "b")
    assert refusal.value.members == {"epoch": 5}


async def test_a_later_epoch_does_not_begin_before_the_recorded_one_committed(
    service: Service,
) -> None:
    """Going on would lose the messages of the epoch between, in silence."""
    first = await begin(service, 5, "a")
    for run in ("a", "b"):
        with pytest.raises(SinkEpochOpenError, match="epoch 5") as refusal:
            await ask(service, 6, run)
        assert refusal.value.members == {"epoch": 5}
    await service.runner.abort(first.transaction_id)
    with pytest.raises(SinkEpochOpenError):
        await ask(service, 6, "b")

    await commit(service, await begin(service, 5, "b"))

    assert await ask(service, 6, "b") is not None


@pytest.mark.parametrize("reason", ["invalidated", "abort_of_long", "lease_expired", "timed_out"])
async def test_a_run_that_lost_its_transaction_begins_no_second_one(
    new_service: NewService, reason: str
) -> None:
    """Its tasks hold pointers of the first: what they stored would be missing, and the epoch would
    commit with the rest."""
    service = await new_service(TransactionSettings(long_timeout_s=100)).open()
    tx = await ask(service, 1, "a", lease_s=10 if reason == "lease_expired" else None)
    assert tx is not None
    match reason:
        case "invalidated":
            await service.runner.invalidate(tx.transaction_id)
        case "abort_of_long":
            await service.runner.abort(tx.transaction_id)
        case _:
            service.now_ms += 10_000 if reason == "lease_expired" else 100_000

    kind = TransactionTimedOutError if reason == "timed_out" else TransactionInvalidatedError
    for _ in range(2):
        with pytest.raises(kind) as refusal:
            await ask(service, 1, "a")
        assert refusal.value.members == {"reason": reason}
    assert await state(service) == (1, "a", "invalid")
    assert await ask(service, 1, "b") is not None


async def test_no_more_sinks_are_remembered_than_may_be(new_service: NewService) -> None:
    service = await new_service(TransactionSettings(sinks_max=2)).open()
    await commit(service, await begin(service, 1, "a", sink="one"))
    await begin(service, 1, "a", sink="two")

    with pytest.raises(TooManySinksError, match=r"tx\.sinks_max=2"):
        await ask(service, 1, "a", sink="three")
    assert await ask(service, 2, "a", sink="one") is not None
    with pytest.raises(SinkInUseError):
        await service.sinks.forget("one")
    await commit(service, await begin(service, 1, "a", sink="two"))
    await service.sinks.forget("two")
    assert await ask(service, 1, "a", sink="three") is not None


async def test_a_sink_is_forgotten_when_nothing_of_it_is_in_progress(service: Service) -> None:
    tx = await begin(service, 1, "a")
    with pytest.raises(SinkInUseError, match=str(tx.transaction_id)):
        await service.sinks.forget("s")
    await service.runner.can_commit(tx.transaction_id, [])
    assert await state(service) == (1, "a", "committing")
    with pytest.raises(SinkInUseError):
        await service.sinks.forget("s")
    await commit(service, tx)

    await service.sinks.forget("s")

    for call in (service.sinks.show, service.sinks.forget):
        with pytest.raises(SinkNotFoundError):
            await call("s")
    again = await service.crash()
    with pytest.raises(SinkNotFoundError):
        await again.sinks.show("s")
    assert await ask(again, 0, "a") is not None


@pytest.mark.parametrize("name", ["", ".", "..", "a b", "a\n", "ä", "x" * 129, "a%2Fb", "a?b"])
async def test_what_is_no_name_of_a_sink_is_refused(service: Service, name: str) -> None:
    with pytest.raises(InvalidNameError):
        await ask(service, 0, "a", sink=name)


@pytest.mark.parametrize("name", ["a/b", "5d1c8a0e-7f3b-4c0e-9d8e-0123456789ab", "ns:t", "x" * 128])
async def test_what_is_a_name_of_a_sink_is_taken(service: Service, name: str) -> None:
    assert await ask(service, (1 << 63) - 1, "r" * 128, sink=name) is not None


@pytest.mark.parametrize(
    ("epoch", "run_id"), [(-1, "a"), (1 << 63, "a"), (0, ""), (0, "r" * 129), (0, "\ud800")]
)
async def test_an_epoch_or_a_run_out_of_range_is_refused(
    service: Service, epoch: int, run_id: str
) -> None:
    with pytest.raises(BadRequestError):
        await ask(service, epoch, run_id)


async def test_a_lease_out_of_range_is_refused(service: Service) -> None:
    with pytest.raises(InvalidTimeoutError):
        await ask(service, 0, "a", lease_s=0)
    with pytest.raises(SinkNotFoundError):
        await service.sinks.show("s")
