"""Time-outs, whose deadlines are compared with a plain list of them (design §4), and `max_block`
(protocol §6)."""

from collections.abc import Collection, Iterator
from typing import Never

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.tx.service import Service
from tuff.protocol.transaction import TransactionType
from tx.outcomes import OpenTransaction
from tx.state import SPAN_MS, Deadlines

times = st.integers(0, 6 * SPAN_MS)


@given(changes=st.lists(st.tuples(st.integers(1, 5), st.none() | times, times), max_size=60))
def test_passed_deadlines_are_listed_until_they_are_discarded(
    changes: list[tuple[int, int | None, int]],
) -> None:
    deadlines = Deadlines()
    model: dict[int, int] = {}
    for one, at_ms, now_ms in changes:
        if one in model:
            deadlines.discard(one, model.pop(one))
        deadlines.discard(one, now_ms)  # it never was
        if at_ms is not None:
            deadlines.set(one, at_ms)
            model[one] = at_ms

        told = deadlines.passed(now_ms)

        assert sorted(told) == sorted(one for one, at in model.items() if at <= now_ms)


def test_nothing_is_kept_of_discarded_deadlines() -> None:
    deadlines = Deadlines()
    for one in range(10_000):
        deadlines.set(one, one)
        deadlines.discard(one, one)

    assert deadlines.passed(10_000) == []

    assert (deadlines._spans, deadlines._order) == ({}, [])


class Unseen(dict[int, OpenTransaction]):
    """Transactions that may be looked up, but not iterated."""

    def refuse(self) -> Never:
        raise AssertionError("it looks at every open transaction")

    def __iter__(self) -> Iterator[int]:
        self.refuse()

    def keys(self) -> Never:
        self.refuse()

    def values(self) -> Never:
        self.refuse()

    def items(self) -> Never:
        self.refuse()


async def test_a_tick_does_not_look_at_transactions_that_are_in_time(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a hundred thousand in progress, that was a tenth of all time."""
    late, in_time = await service.begin(timeout_s=10), await service.begin(timeout_s=20)
    lapsed = await service.begin(TransactionType.LONG, lease_s=10)
    renewed = await service.begin(TransactionType.LONG, lease_s=15)
    ended = await service.begin(TransactionType.LONG, lease_s=10)
    await service.runner.commit(ended.transaction_id, changes=[])
    service.now_ms += 9_000
    await service.runner.renew(renewed.transaction_id)
    state = service.durable.state
    with monkeypatch.context() as patched:
        patched.setattr(state, "open", looked_up := Unseen(state.open))
        await service.later(7_000)
    state.open = dict(dict.items(looked_up))

    states = [await service.state_of(one.transaction_id) for one in (late, lapsed)]
    assert states == [("invalid", "timed_out"), ("invalid", "lease_expired")]
    assert await states_of(service, [in_time, renewed]) == ["in_progress"] * 2
    assert service.manager.timeouts.lease_ends_at_ms(ended) is None
    assert service.monitoring.figures().leased_count == 1


async def states_of(service: Service, opened: Collection[OpenTransaction]) -> list[str]:
    return [(await service.state_of(one.transaction_id))[0] for one in opened]


async def test_a_transaction_that_holds_readers_back_beyond_max_block_is_invalidated(
    service: Service,
) -> None:
    blocking = await service.runner.checkpoint(
        (await service.begin(TransactionType.LONG)).transaction_id
    )
    other = await service.begin(TransactionType.LONG)
    service.rows.published_at_ms = {
        blocking.transaction.write_pointer: service.now_ms,
        other.transaction_id: service.now_ms + 1,
        7: 0,  # of a transaction that has ended, and whose rows are not marked yet
    }

    await service.later(29_999)
    assert await states_of(service, [blocking, other]) == ["in_progress"] * 2
    await service.later(1)

    assert await service.state_of(blocking.transaction_id) == ("invalid", "blocked_readers")
    assert await states_of(service, [other]) == ["in_progress"]
    assert service.manager.counters.invalidations == 1
    assert service.manager.counters.timeouts == 0


@pytest.mark.parametrize("late_by", ["timeout", "lease", "max_block"])
async def test_a_commit_whose_rows_are_being_written_has_passed_its_check(
    service: Service, late_by: str
) -> None:
    if late_by == "lease":
        tx = await service.begin(TransactionType.LONG, lease_s=10)
    else:
        tx = await service.begin(timeout_s=10 if late_by == "timeout" else 60)
    if late_by == "max_block":
        service.rows.published_at_ms = {tx.transaction_id: service.now_ms}
    committing = await service.commit_at_its_rows(tx)

    await service.later(30_000)
    if late_by == "lease":
        await service.runner.renew(tx.transaction_id)
    service.rows.writing.set()

    assert (await committing).state.value == "committed"
