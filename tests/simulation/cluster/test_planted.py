"""The simulation of a cluster finds each planted bug within one round of seeds."""

from pathlib import Path

import pytest

from tests.simulation.cluster.planted_bugs import BUGS
from tests.simulation.planted_bugs import PlantedBug, has_its_place, plant, search_output

SEED_COUNT_MAX = 1_000  # a round of a minute


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: PlantedBug, tmp_path: Path) -> None:
    plant(bug, tmp_path)

    assert " after " in search_output(tmp_path, "--cluster", seed_count=SEED_COUNT_MAX)


def test_every_planted_bug_still_matches_the_source() -> None:
    assert [bug.name for bug in BUGS if not has_its_place(bug)] == []
