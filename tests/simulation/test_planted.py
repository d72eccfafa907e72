"""Simulation finds what is planted: each bug within a few seeds of a round."""

from pathlib import Path

import pytest

from tests.mutants.__main__ import MUTANTS, misplaced
from tests.simulation.planted_bugs import (
    BUGS,
    RARE_BUGS,
    PlantedBug,
    found_by,
    has_its_place,
    plant,
    said_of,
)

HISTORIES = Path(__file__).parent / "histories"
SEED_COUNT_MAX = 2_000  # a round of a minute or two


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: PlantedBug, tmp_path: Path) -> None:
    plant(bug, tmp_path)

    assert " after " in found_by(tmp_path, seed_count=SEED_COUNT_MAX)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [bug for bug in (*BUGS, *RARE_BUGS) if bug.history is not None],
    ids=lambda bug: bug.name,
)
def test_the_history_that_met_a_bug_still_meets_it(bug: PlantedBug, tmp_path: Path) -> None:
    """Who changes how histories are played makes others of them: these are then made anew."""
    plant(bug, tmp_path)

    assert "nothing is wrong" not in said_of(HISTORIES / f"{bug.history}.json", tmp_path)


def test_every_bug_still_has_its_place() -> None:
    """A bug that can't be planted any more would be missed by nobody."""
    assert [bug.name for bug in (*BUGS, *RARE_BUGS) if not has_its_place(bug)] == []
    assert [mutant.bug for mutant in MUTANTS if misplaced(mutant)] == []
