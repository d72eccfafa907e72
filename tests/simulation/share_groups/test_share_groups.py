"""Random events of share groups, and a longer round with other seeds."""

import asyncio

import pytest

from tests.simulation.share_groups.simulation import failures, simulated

EVENT_COUNT = 150  # of a seed
ROUND_COUNT = 20  # seeds
LONG_ROUND_COUNT = 1_000


@pytest.mark.parametrize("first", range(0, ROUND_COUNT, 5))
def test_random_events_break_no_promise(first: int) -> None:
    assert list(failures(range(first, first + 5), EVENT_COUNT)) == []


@pytest.mark.slow
def test_many_random_events_break_no_promise() -> None:
    assert list(failures(range(ROUND_COUNT, LONG_ROUND_COUNT), EVENT_COUNT)) == []


@pytest.mark.parametrize("seed", [0, 1])
def test_a_run_has_all_kinds_of_events(seed: int) -> None:
    """Otherwise the checks would have nothing to find."""
    run = asyncio.run(simulated(seed, 400))

    assert all(run.counts[each] > 2 for each in ("accepted", "lease_lost", "released", "renewed"))
    assert run.counts["fail_over"] > 2
    assert len(run.judge.messages) > 50
