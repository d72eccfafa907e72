"""10,000 random events of a consumer group, and a longer round with other seeds."""

import pytest

from tests.simulation.groups.simulation import World, failures

EVENT_COUNT = 400  # of a seed
ROUND_COUNT = 25  # seeds
LONG_ROUND_COUNT = 1_000


@pytest.mark.parametrize("first", range(0, ROUND_COUNT, 5))
def test_random_events_break_no_promise(first: int) -> None:
    assert list(failures(range(first, first + 5), EVENT_COUNT)) == []


@pytest.mark.slow
def test_many_random_events_break_no_promise() -> None:
    assert list(failures(range(ROUND_COUNT, LONG_ROUND_COUNT), EVENT_COUNT)) == []


def test_a_run_fences_members_moves_partitions_and_commits_in_transactions() -> None:
    """Otherwise the checks would have nothing to find."""
    world = next(each for each in map(World, range(100)) if each.in_transactions)

    world.run(EVENT_COUNT)

    assert world.counts_of_records["left"] > 5
    assert world.counts_of_records["assignment"] > 50
    assert world.counts_of_records["offset"] > 50
    assert sum(world.processed.values()) > 50


def test_a_seed_always_gives_the_same_run() -> None:
    worlds = [World(seed) for seed in (3, 3, 4)]
    for world in worlds:
        world.run(100)

    assert worlds[0].coordinator.log == worlds[1].coordinator.log
    assert worlds[0].coordinator.log != worlds[2].coordinator.log
