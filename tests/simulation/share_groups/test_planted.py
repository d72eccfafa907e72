"""The simulation of share groups finds each planted bug within one round of seeds."""

from pathlib import Path

import pytest

from tests.simulation.planted_bugs import PlantedBug, first_failure, has_its_place, plant
from tests.simulation.share_groups.planted_bugs import BUGS


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: PlantedBug, tmp_path: Path) -> None:
    plant(bug, tmp_path)

    module = "tests.simulation.share_groups.simulation"
    found = first_failure(tmp_path, module, seed_count=200, event_count=150)

    assert found.startswith("seed ")


def test_every_planted_bug_still_matches_the_source() -> None:
    assert [bug.name for bug in BUGS if not has_its_place(bug)] == []
