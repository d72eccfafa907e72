"""Can-commit, commit, abort, invalidate: writes, claims, and which call waits for which."""

import asyncio
from collections.abc import Callable, Sequence

import pytest

from tests.tx.service import TOPIC, NewService, Service, entry, turns
from tuff.protocol.errors import (
    BadRequestError,
    ChangeSetTooLargeError,
    OverloadedError,
    StorageUnavailableError,
    TopicNotFoundError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionConflictError,
    TransactionInvalidatedError,
    TransactionsUnavailableError,
    TransactionTimedOutError,
)
from tuff.protocol.requests import PublishEntry
from tuff.protocol.transaction import TransactionType
from tx.calls import Answer, Commit
from tx.log_records import InvalidReason
from tx.outcomes import EndedState, OpenTransaction
from tx.settings import TransactionSettings


async def test_a_commit_waits_for_its_sync_and_a_start_for_nothing(service: Service) -> None:
    service.disk.hold()
    tx = await service.begin()
    await service.runner.can_commit(tx.transaction_id, [b"k"])
    committing = asyncio.create_task(service.runner.commit(tx.transaction_id))
    await turns()

    assert not committing.done()
    assert tx.transaction_id in (await service.write_permits.snapshot()).in_progress

    service.disk.release()
    assert (await committing).state is EndedState.COMMITTED
    assert (await service.write_permits.snapshot()).is_visible(tx.transaction_id)


async def test_an_abort_that_is_repeated_writes_nothing(service: Service) -> None:
    tx = await service.begin()
    service.rows.carried[tx.transaction_id] = "ns:t"
    first = await service.runner.abort(tx.transaction_id)

    assert (await service.runner.abort(tx.transaction_id)).lsn == first.lsn


async def test_a_refusal_waits_until_the_commit_that_it_names_is_durable(service: Service) -> None:
    first, second = await service.begin(), await service.begin()
    service.disk.hold()
    winning = asyncio.create_task(service.runner.commit(first.transaction_id, changes=[b"k"]))
    await turns()
    losing, repeated = [
        asyncio.create_task(service.runner.can_commit(second.transaction_id, [b"k"]))
        for _ in range(2)
    ]
    await turns()

    assert (losing.done(), repeated.done()) == (False, False)
    with pytest.raises(TransactionsUnavailableError):
        await service.write_permits.enter(second.transaction_id, TOPIC)

    service.disk.release()
    await winning
    for each in (losing, repeated):
        with pytest.raises(TransactionConflictError) as refusal:
            await each
        assert refusal.value.members == {
            "key": "k", "conflictingTransaction": str(first.transaction_id),
            "conflictingClient": "c",
        }  # fmt: skip


async def test_a_conflict_is_final_for_every_call(service: Service) -> None:
    first, second = await service.begin(), await service.begin()
    one = second.transaction_id
    await service.runner.commit(first.transaction_id, changes=[b"k"])

    for call in (
        lambda: service.runner.commit(one, changes=[b"k"]),
        lambda: service.runner.commit(one),
        lambda: service.runner.can_commit(one, [b"other"]),
        lambda: service.runner.checkpoint(one),
    ):
        with pytest.raises(TransactionConflictError, match=str(first.transaction_id)):
            await call()
    with pytest.raises(TransactionConflictError):
        await service.write_permits.enter(one, TOPIC)
    assert (await service.runner.abort(one)).state is EndedState.ABORTED


async def test_the_union_of_all_named_changes_is_checked_and_remembered(service: Service) -> None:
    late, union = await service.begin(), await service.begin()
    await service.runner.can_commit(union.transaction_id, [b"a"])
    await service.runner.can_commit(union.transaction_id, [b"b"])
    await service.runner.commit(union.transaction_id, changes=[b"c"])

    for change in (b"a", b"b", b"c"):
        with pytest.raises(TransactionConflictError):
            await service.runner.can_commit(late.transaction_id, [change])


async def test_too_many_or_too_large_changes_are_refused(new_service: NewService) -> None:
    settings = TransactionSettings(change_set_count_max=2, change_set_bytes_max=10)
    service = await new_service(settings).open()
    tx = await service.begin()
    await service.runner.can_commit(tx.transaction_id, [b"a", b"b"])

    with pytest.raises(ChangeSetTooLargeError):
        await service.runner.can_commit(tx.transaction_id, [b"c"])
    with pytest.raises(ChangeSetTooLargeError):
        await service.runner.commit((await service.begin()).transaction_id, changes=[b"x" * 11])

    await service.runner.commit(tx.transaction_id)


async def test_a_commit_waits_for_writes_that_passed_the_gate(service: Service) -> None:
    tx = await service.begin()
    permit = await service.write_permits.enter(tx.transaction_id, TOPIC)
    committing = asyncio.create_task(service.runner.commit(tx.transaction_id))
    await turns()

    assert not committing.done()
    permit.require_open()
    with pytest.raises(TransactionsUnavailableError):
        await service.write_permits.enter(tx.transaction_id, TOPIC)

    permit.leave()
    permit.leave()
    assert (await committing).state is EndedState.COMMITTED
    with pytest.raises(TransactionCommittedError):
        await service.write_permits.enter(tx.transaction_id, TOPIC)


async def test_an_invalidation_does_not_wait_but_its_marking_does(service: Service) -> None:
    tx = await service.begin()
    permit = await service.write_permits.enter(tx.transaction_id, TOPIC)

    await service.runner.invalidate(tx.transaction_id)

    assert await service.state_of(tx.transaction_id) == ("invalid", "invalidated")
    with pytest.raises(TransactionInvalidatedError):
        permit.require_open()
    service.rows.carried[tx.transaction_id] = "ns:t"
    await turns()
    assert service.rows.marked == []
    permit.leave()
    await turns()
    assert service.rows.marked == [tx.transaction_id]


async def test_a_can_commit_is_refused_while_too_much_waits_for_the_disk(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    tx = await service.begin()
    monkeypatch.setattr("tx.durable_state.PENDING_EDITS_MAX", 0)

    with pytest.raises(OverloadedError):
        await service.runner.can_commit(tx.transaction_id, [b"k"])


async def test_a_commit_with_publish_writes_rows_and_its_record(service: Service) -> None:
    tx = await service.begin()
    checkpointed = await service.runner.checkpoint(tx.transaction_id)
    pointer = checkpointed.transaction.write_pointer

    outcome = await service.runner.commit(
        tx.transaction_id, publish=[entry(b"a"), entry(b"b", pointer=tx.transaction_id)]
    )

    assert [detail.pointer for detail in outcome.published] == [pointer, tx.transaction_id]
    assert outcome.topics == ("ns:t",)
    await service.later(1)
    assert service.rows.settled == [tx.transaction_id, pointer]
    assert await service.runner.commit(tx.transaction_id, publish=[entry(b"x")]) == outcome
    assert len(service.rows.published) == 2


async def test_a_foreign_pointer_in_a_publish_is_refused(service: Service) -> None:
    tx, other = await service.begin(), await service.begin()
    with pytest.raises(BadRequestError):
        await service.runner.commit(
            tx.transaction_id, publish=[entry(b"a", pointer=other.transaction_id)]
        )
    assert await service.state_of(tx.transaction_id) == ("in_progress", None)


async def test_what_can_be_refused_is_refused_before_a_row_is_written(service: Service) -> None:
    tx = await service.begin()
    service.rows.refusal = TopicNotFoundError("no topic")

    with pytest.raises(TopicNotFoundError):
        await service.runner.commit(tx.transaction_id, publish=[entry(b"a")])

    assert service.rows.published == []
    assert await service.state_of(tx.transaction_id) == ("in_progress", None)


async def test_rows_that_fail_half_way_are_taken_back(service: Service) -> None:
    tx = await service.begin()
    service.rows.failure = StorageUnavailableError("disk full")

    with pytest.raises(StorageUnavailableError):
        await service.runner.commit(tx.transaction_id, changes=[b"k"], publish=[entry(b"a")])

    assert await service.state_of(tx.transaction_id) == ("invalid", "invalidated")
    assert service.rows.marked == [tx.transaction_id]
    other = await service.begin()
    await service.runner.commit(other.transaction_id, changes=[b"k"])


async def test_a_claim_holds_equal_changes_and_every_other_ending(service: Service) -> None:
    first, second = await service.begin(timeout_s=1), await service.begin()
    publishing = await service.commit_at_its_rows(first, [b"k"])
    others = [
        asyncio.create_task(work)
        for work in (
            service.runner.commit(second.transaction_id, changes=[b"k"]),
            service.runner.commit(first.transaction_id),
            service.runner.invalidate(first.transaction_id),
            service.runner.abort(first.transaction_id),
        )
    ]
    await service.later(2000)
    assert not any(task.done() for task in others)

    service.rows.writing.set()
    results = await asyncio.gather(*others, return_exceptions=True)

    assert [type(one) for one in results[:1]] == [TransactionConflictError]
    assert results[1] == await publishing
    assert [type(one) for one in results[2:]] == [TransactionCommittedError] * 2


async def test_a_commit_that_waits_for_a_claim_sees_that_its_own_transaction_ended(
    service: Service,
) -> None:
    first, second = await service.begin(), await service.begin()
    publishing = await service.commit_at_its_rows(first, [b"k"])
    waiting = asyncio.create_task(service.runner.commit(second.transaction_id, changes=[b"k"]))
    await turns()
    await service.runner.invalidate(second.transaction_id)

    service.rows.writing.set()

    with pytest.raises(TransactionInvalidatedError):
        await waiting
    await publishing


async def test_a_claim_that_comes_to_nothing_lets_equal_changes_pass(service: Service) -> None:
    first, second = await service.begin(), await service.begin()
    service.rows.failure = StorageUnavailableError("disk full")
    publishing = await service.commit_at_its_rows(first, [b"k"])
    waiting = asyncio.create_task(service.runner.commit(second.transaction_id, changes=[b"k"]))
    await turns()

    service.rows.writing.set()

    assert (await waiting).state is EndedState.COMMITTED
    with pytest.raises(StorageUnavailableError):
        await publishing


def commit(
    tx: OpenTransaction, *changes: bytes, publish: bool = True
) -> Callable[[Answer], Commit]:
    entries = [entry(b"a")] if publish else []
    return lambda answer: Commit(answer, tx.transaction_id, frozenset(changes), entries)


def commits(opened: Sequence[OpenTransaction]) -> list[Callable[[Answer], Commit]]:
    return [commit(tx, b"%d" % number) for number, tx in enumerate(opened)]


@pytest.mark.parametrize("publish", [True, False])
async def test_commits_that_come_together_share_a_write_and_a_sync(
    service: Service, *, publish: bool
) -> None:
    opened = [await service.begin() for _ in range(5)]
    syncs_before = service.disk.sync_count

    answers = await service.commit_all(
        commit(tx, b"%d" % tx.transaction_id, publish=publish) for tx in opened
    )

    assert [type(each) for each in answers] == [tuple] * 5
    assert service.rows.batches == ([5] if publish else [])
    assert service.disk.sync_count == syncs_before + 1
    assert [each.pointer for each in service.rows.published] == [
        tx.transaction_id for tx in opened if publish
    ]


async def test_a_commit_whose_rows_fail_does_not_fail_its_neighbours(service: Service) -> None:
    opened = [await service.begin() for _ in range(3)]
    failed = opened[1]
    service.rows.failures[failed.transaction_id] = TopicNotFoundError("it was deleted")

    answers = await service.commit_all(map(commit, opened))

    assert [type(each) for each in answers] == [tuple, TopicNotFoundError, tuple]
    states = [await service.state_of(tx.transaction_id) for tx in opened]
    assert states == [("committed", None), ("invalid", "invalidated"), ("committed", None)]
    assert service.rows.marked == [failed.transaction_id]


async def test_rows_that_fail_fail_all_commits_of_their_write(service: Service) -> None:
    opened = [await service.begin() for _ in range(2)]
    service.rows.failure = StorageUnavailableError("disk full")

    answers = await service.commit_all(commits(opened))

    assert answers == [service.rows.failure] * 2
    assert service.rows.marked == [tx.transaction_id for tx in opened]
    service.rows.failure = None
    following = [await service.begin() for _ in range(2)]  # nothing claims their changes any more
    answers = await service.commit_all(commits(following))
    assert [type(each) for each in answers] == [tuple, tuple]


async def test_a_commit_that_waits_or_is_refused_delays_none_that_came_with_it(
    service: Service,
) -> None:
    first, second, third, fourth = [await service.begin() for _ in range(4)]
    permit = await service.write_permits.enter(third.transaction_id, TOPIC)
    service.rows.writing.clear()
    foreign = CommitOf(fourth, [entry(b"a", pointer=7)])

    waiting = asyncio.create_task(
        service.commit_all([commit(first, b"k"), commit(second, b"k"), commit(third), foreign])
    )
    await turns()
    assert service.rows.batches == [1]
    service.rows.writing.set()
    await turns()
    assert await service.state_of(first.transaction_id) == ("committed", None)
    assert not waiting.done()
    permit.leave()

    published, conflict, late, refused = await waiting
    assert (type(published), type(late)) == (tuple, tuple)
    assert isinstance(conflict, TransactionConflictError)
    assert isinstance(refused, BadRequestError)


class CommitOf:
    def __init__(self, tx: OpenTransaction, entries: Sequence[PublishEntry]) -> None:
        self._tx, self._entries = tx, entries

    def __call__(self, answer: Answer) -> Commit:
        return Commit(answer, self._tx.transaction_id, frozenset(), self._entries)


async def test_a_commit_that_asks_other_servers_delays_none_that_came_with_it(
    service: Service,
) -> None:
    service.rows.asks_others = True
    opened = [await service.begin() for _ in range(2)]

    answers = await service.commit_all(
        [commit(opened[0], b"k"), commit(opened[1], b"k2", publish=False)]
    )

    assert [type(each) for each in answers] == [tuple, tuple]


async def test_commits_that_a_failing_log_cuts_off_say_so(service: Service) -> None:
    opened, other = [await service.begin() for _ in range(2)], await service.begin()
    service.rows.writing.clear()
    ending = asyncio.create_task(service.commit_all(map(commit, opened)))
    await turns()
    await service.break_log(other)
    await service.durable.reopen()

    service.rows.writing.set()

    answers = await ending
    for tx, answer in zip(opened, answers, strict=True):
        assert isinstance(answer, TransactionsUnavailableError)
        assert str(tx.transaction_id) in answer.detail
        assert await service.state_of(tx.transaction_id) == ("invalid", "lost_in_crash")


async def test_commits_that_take_too_long_go_on_by_themselves(new_service: NewService) -> None:
    service = await new_service(TransactionSettings(ending_timeout_s=0.01)).open()
    opened = [await service.begin() for _ in range(2)]
    service.rows.writing.clear()

    answers = await service.commit_all(map(commit, opened))

    assert [type(each) for each in answers] == [TransactionsUnavailableError] * 2
    assert all("under way" in str(each) for each in answers)
    service.rows.writing.set()
    await turns()
    states = [await service.state_of(tx.transaction_id) for tx in opened]
    assert states == [("committed", None)] * 2


async def test_an_ending_that_takes_too_long_goes_on_by_itself(new_service: NewService) -> None:
    service = await new_service(TransactionSettings(ending_timeout_s=0.01)).open()
    tx = await service.begin()
    service.disk.hold()

    with pytest.raises(TransactionsUnavailableError, match="under way"):
        await service.runner.commit(tx.transaction_id)

    service.disk.release()
    await turns()
    assert await service.state_of(tx.transaction_id) == ("committed", None)


async def test_an_abort_marks_rows_before_it_answers(service: Service) -> None:
    tx = await service.begin()
    service.rows.carried[tx.transaction_id] = "ns:t"
    service.rows.marking.clear()
    aborting = asyncio.create_task(service.runner.abort(tx.transaction_id))
    await turns()

    assert await service.state_of(tx.transaction_id) == ("invalid", "invalidated")
    assert tx.transaction_id in (await service.write_permits.snapshot()).invalids
    assert not aborting.done()

    service.rows.marking.set()
    assert (await aborting).state is EndedState.ABORTED
    assert (await aborting).topics == ("ns:t",)
    assert list((await service.write_permits.snapshot()).invalids) == []


async def test_an_abort_whose_marking_fails_ends_as_invalid(service: Service) -> None:
    tx = await service.begin()
    service.rows.carried[tx.transaction_id] = "ns:t"
    service.rows.marking_fails = True

    outcome = await service.runner.abort(tx.transaction_id)

    assert outcome.state is EndedState.INVALID
    assert tx.transaction_id in (await service.write_permits.snapshot()).invalids
    service.rows.marking_fails = False
    assert (await service.runner.abort(tx.transaction_id)).state is EndedState.ABORTED


async def test_an_abort_of_a_long_one_ends_it_as_invalid_with_its_rows_marked(
    service: Service,
) -> None:
    tx = await service.begin(TransactionType.LONG)
    service.rows.carried[tx.transaction_id] = "ns:t"

    outcome = await service.runner.abort(tx.transaction_id)

    assert (outcome.state, outcome.reason) == (EndedState.INVALID, InvalidReason.ABORT_OF_LONG)
    assert service.rows.marked == [tx.transaction_id]
    assert await service.runner.abort(tx.transaction_id) == outcome


async def test_endings_of_what_ended_otherwise_are_refused(service: Service) -> None:
    committed, aborted = await service.begin(), await service.begin()
    await service.runner.commit(committed.transaction_id)
    await service.runner.abort(aborted.transaction_id)

    with pytest.raises(TransactionCommittedError):
        await service.runner.abort(committed.transaction_id)
    with pytest.raises(TransactionCommittedError):
        await service.runner.invalidate(committed.transaction_id)
    with pytest.raises(TransactionAbortedError):
        await service.runner.invalidate(aborted.transaction_id)
    with pytest.raises(TransactionAbortedError):
        await service.runner.commit(aborted.transaction_id)


async def test_a_decision_looks_at_the_deadline_itself(service: Service) -> None:
    tx = await service.begin(timeout_s=1)
    service.now_ms += 1000

    with pytest.raises(TransactionTimedOutError) as refusal:
        await service.runner.commit(tx.transaction_id, changes=[])

    assert refusal.value.members == {"reason": "timed_out"}
    assert await service.state_of(tx.transaction_id) == ("invalid", "timed_out")


async def test_a_time_out_marks_rows_and_wakes_readers_without_a_call(service: Service) -> None:
    tx = await service.begin(timeout_s=1)
    service.rows.carried[tx.transaction_id] = "ns:t"

    await service.later(999)
    assert service.rows.woken == []
    await service.later(1)

    assert service.rows.woken == [tx.transaction_id]
    assert service.rows.marked == [tx.transaction_id]
    assert tx.transaction_id in (await service.write_permits.snapshot()).invalids


async def test_read_only_is_refused_for_a_transaction_that_wrote(service: Service) -> None:
    carried, checkpointed, named = [await service.begin() for _ in range(3)]
    service.rows.carried[carried.transaction_id] = "ns:t"
    await service.runner.checkpoint(checkpointed.transaction_id)
    await service.runner.can_commit(named.transaction_id, [b"k"])

    for tx in (carried, checkpointed, named):
        with pytest.raises(BadRequestError):
            await service.runner.commit(tx.transaction_id, read_only=True)
        await service.runner.commit(tx.transaction_id)
    publishes = await service.begin()
    with pytest.raises(BadRequestError, match="it names writes"):
        await service.runner.commit(publishes.transaction_id, read_only=True, publish=[entry(b"a")])
