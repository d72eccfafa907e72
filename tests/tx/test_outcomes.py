"""Outcomes are bounded, found again, and kept as bytes (protocol §5.2)."""

import asyncio
from dataclasses import replace

import pytest

from kernel.requests_and_replies import Caller
from tests.tx.service import NOW_MS, NewService, Service, turns
from tuff.protocol.errors import TransactionNotInProgressError
from tuff.protocol.ids import Offset
from tuff.protocol.requests import RollbackDetail
from tuff.protocol.transaction import TransactionType
from tx.calls import StartRequest
from tx.log_records import (
    POINTER,
    ROLLBACK_DETAIL,
    InvalidReason,
    MalformedError,
    check_rows,
    from_bytes,
    items,
    tuple_of,
)
from tx.outcomes import NEWEST_COUNT_MAX, EndedState, Outcome, Outcomes, packed_outcomes
from tx.settings import TransactionSettings


def ended(number: int, *, state: EndedState = EndedState.COMMITTED, lsn: int = 0) -> Outcome:
    return Outcome(
        transaction_id=10 * number,
        state=state,
        reason=InvalidReason.TIMED_OUT if state is EndedState.INVALID else None,
        type=TransactionType.SHORT,
        client="c",
        started_at_ms=NOW_MS + number,
        expires_at_ms=NOW_MS + number + 30_000,
        ended_at_ms=NOW_MS + number + 5,
        checkpoints=(10 * number + 1,) if number % 2 else (),
        published=(RollbackDetail(10 * number, Offset(NOW_MS, 0), Offset(NOW_MS, 1)),),
        topics=("default:t",),
        request_id=f"r{number}" if number % 3 == 0 else None,
        lsn=lsn or number + 1,
    )


def test_an_outcome_is_the_same_whether_it_is_new_or_packed() -> None:
    all_of_them = [ended(number) for number in range(2 * NEWEST_COUNT_MAX)]

    outcomes = Outcomes(all_of_them)

    assert list(outcomes) == list(outcomes.image()) == all_of_them
    assert outcomes.find(10) == outcomes.find(11) == all_of_them[1]
    assert outcomes.of_request("r3") == all_of_them[3]
    assert outcomes.started_at_ms(31) == NOW_MS + 3


def test_what_an_image_holds_is_taken_over_as_it_is() -> None:
    all_of_them = [ended(number) for number in range(2_500)]
    image = Outcomes(all_of_them).image()

    outcomes = Outcomes.of(image)

    assert list(outcomes) == all_of_them
    assert outcomes.image() == image
    assert outcomes.find(10) == outcomes.find(11) == all_of_them[1]
    assert outcomes.of_request("r2499") == all_of_them[2_499]
    assert outcomes.of_request("r2496") == all_of_them[2_496]
    assert outcomes.started_at_ms(24_991) == NOW_MS + 2_499
    assert outcomes.size_bytes == sum(map(len, image.packed()))
    outcomes.forget(ended_before_ms=NOW_MS + 1_505, is_needed=lambda lsn, pointers: False)
    assert next(iter(outcomes)) == all_of_them[1_500]


@pytest.mark.parametrize(
    ("place", "wrong"),
    [
        (0, -1), (0, True), (0, 1 << 63), (0, "1"), (1, "open"), (1, None), (2, "late"), (3, 1),
        (4, None), (4, b"c"), (5, None), (7, False), (8, [-1]), (8, ["1"]), (8, None), (9, [[]]),
        (10, [7]), (11, 3), (12, 1.0),
    ],
)  # fmt: skip
def test_one_wrong_field_among_many_outcomes_is_refused(place: int, wrong: object) -> None:
    rows = [from_bytes(packed) for packed in Outcomes(map(ended, range(9))).image().packed()]
    assert len(packed_outcomes(rows)) == 9

    items(rows[5])[place] = wrong

    with pytest.raises(MalformedError):
        packed_outcomes(rows)


@pytest.mark.parametrize("wrong", [None, [], "outcome", [1] * 12, [1] * 14])
def test_what_has_not_the_fields_of_an_outcome_is_refused(wrong: object) -> None:
    rows = [from_bytes(packed) for packed in Outcomes(map(ended, range(9))).image().packed()]

    with pytest.raises(MalformedError):
        packed_outcomes([*rows, wrong])
    assert packed_outcomes([]) == []
    check_rows([[[]], [[7]]], [tuple_of(POINTER)])
    with pytest.raises(MalformedError):
        check_rows([[[]], [[7, [1, 0], [1, 1]]]], [ROLLBACK_DETAIL])


def test_the_garbage_collector_has_no_more_to_look_at_however_many_ended() -> None:
    outcomes = Outcomes(ended(number) for number in range(4 * NEWEST_COUNT_MAX))

    kept = outcomes._by_id.values()
    assert sum(not isinstance(each, bytes) for each in kept) == NEWEST_COUNT_MAX


def test_an_image_does_not_change_with_what_ends_later() -> None:
    outcomes = Outcomes([ended(1)])
    image = outcomes.image()

    outcomes.put(ended(2))
    outcomes.put(ended(1, state=EndedState.ABORTED, lsn=9))

    assert list(image) == [ended(1)]
    assert image == Outcomes([ended(1)]).image()


def test_what_ended_once_more_stands_behind_and_is_counted_once() -> None:
    outcomes = Outcomes(ended(number) for number in range(2 * NEWEST_COUNT_MAX))
    size_bytes = outcomes.size_bytes

    again = replace(ended(1), state=EndedState.ABORTED, lsn=10_000)
    outcomes.put(again)

    assert list(outcomes)[-1] == again
    assert len(outcomes) == 2 * NEWEST_COUNT_MAX
    outcomes.put(ended(2 * NEWEST_COUNT_MAX))  # another one is packed for it
    assert abs(outcomes.size_bytes - size_bytes) < 200


def test_forgetting_leaves_nothing_of_it() -> None:
    outcomes = Outcomes(ended(number) for number in range(2 * NEWEST_COUNT_MAX))

    outcomes.forget(ended_before_ms=NOW_MS * 2, is_needed=lambda lsn, pointers: 10 in pointers)

    assert [each.transaction_id for each in outcomes] == [10]
    assert outcomes.find(31) is None
    assert outcomes.of_request("r3") is None
    outcomes.forget(ended_before_ms=NOW_MS * 2, is_needed=lambda lsn, pointers: False)
    assert (len(outcomes), outcomes.size_bytes) == (0, 0)


async def test_an_outcome_is_kept_until_it_is_durable(service: Service) -> None:
    tx = await service.begin()
    service.disk.hold()
    committing = asyncio.create_task(service.runner.commit(tx.transaction_id))
    await turns()

    await service.later(900_001)

    service.disk.release()
    await committing
    assert await service.state_of(tx.transaction_id) == ("committed", None)


async def test_outcomes_are_forgotten_in_time_unless_they_are_needed(service: Service) -> None:
    gone, invalid, carried = [await service.begin() for _ in range(3)]
    await service.runner.commit(gone.transaction_id)
    await service.runner.invalidate(invalid.transaction_id)
    await service.runner.commit(carried.transaction_id)
    service.rows.carried[carried.transaction_id] = "ns:t"

    await service.later(900_001)

    with pytest.raises(Exception, match="remembered"):
        await service.runner.outcome(gone.transaction_id)
    assert await service.state_of(invalid.transaction_id) == ("invalid", "invalidated")
    assert await service.state_of(carried.transaction_id) == ("committed", None)
    service.rows.carried.clear()
    await service.runner.abort(invalid.transaction_id)
    await service.later(900_001)
    for tx in (invalid, carried):
        with pytest.raises(Exception, match="remembered"):
            await service.runner.outcome(tx.transaction_id)


async def test_no_outcome_is_forgotten_by_a_doubtful_clock(service: Service) -> None:
    """After a restart with a clock far ahead, clients could not ask for any outcome."""
    opened = await service.begin()
    await service.runner.commit(opened.transaction_id, changes=frozenset((b"k",)), publish=[])

    service.may_forget = False
    await service.later(365 * 86_400_000)
    found = await service.runner.outcome(opened.transaction_id)
    assert isinstance(found, Outcome)
    assert found.state is EndedState.COMMITTED

    service.may_forget = True
    await service.later(0)
    with pytest.raises(TransactionNotInProgressError):
        await service.runner.outcome(opened.transaction_id)


async def test_the_principal_of_a_tenant_s_transaction_is_forgotten_with_its_outcome(
    new_service: NewService,
) -> None:
    service = await new_service(TransactionSettings(outcome_retention_s=1)).open()
    for caller in (Caller("alice", tenant="acme"), Caller("bob")):
        for end in (service.runner.commit, service.runner.abort, service.runner.invalidate):
            tx = await service.runner.start(StartRequest(client="c", caller=caller))
            await end(tx.transaction_id)
    principals = service.durable.state.principals
    kept = [name for _, name in principals.image()]
    assert sorted(kept) == ["alice@acme"] * 3 + ["bob"]  # that of bob is invalid

    await service.later(0)
    await service.later(2_000)

    assert sorted(name for _, name in principals.image()) == ["alice@acme", "bob"]
    assert (principals.open_count("alice@acme"), principals.open_count("bob")) == (0, 0)
