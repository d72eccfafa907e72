"""Simulation finds what is planted: each bug within a few seeds of a round."""

from pathlib import Path

import pytest

from tests.simulation.planted import BUGS, PlantedBug, found_by, has_its_place, plant

SEED_COUNT_MAX = 2_000  # a round of a minute or two


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: PlantedBug, tmp_path: Path) -> None:
    plant(bug, tmp_path)

    assert " after " in found_by(tmp_path, seed_count=SEED_COUNT_MAX)


@pytest.mark.slow
def test_every_bug_still_has_its_place() -> None:
    """A bug that can't be planted any more would be missed by nobody."""
    assert [bug.name for bug in BUGS if not has_its_place(bug)] == []
