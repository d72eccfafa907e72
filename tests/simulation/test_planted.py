"""The simulation finds each planted bug within one round of seeds."""

from pathlib import Path

import pytest

from tests.simulation.planted_bugs import (
    BUGS,
    RARE_BUGS,
    PlantedBug,
    has_its_place,
    plant,
    replay_output,
    search_output,
)

HISTORIES = Path(__file__).parent / "histories"
SEED_COUNT_MAX = 2_000  # a round of a minute or two


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: PlantedBug, tmp_path: Path) -> None:
    plant(bug, tmp_path)

    assert " after " in search_output(tmp_path, seed_count=SEED_COUNT_MAX)


@pytest.mark.slow
@pytest.mark.parametrize(
    "bug",
    [bug for bug in (*BUGS, *RARE_BUGS) if bug.history is not None],
    ids=lambda bug: bug.name,
)
def test_the_kept_history_of_a_bug_still_finds_it(bug: PlantedBug, tmp_path: Path) -> None:
    """A change of the simulation may change what a kept history does. One that no longer finds its
    bug has to be replaced by one that does."""
    plant(bug, tmp_path)

    assert "no promise is broken" not in replay_output(HISTORIES / f"{bug.history}.json", tmp_path)


def test_every_planted_bug_still_matches_the_source() -> None:
    """Otherwise only the slow tests would notice that a bug can't be planted any more."""
    assert [bug.name for bug in (*BUGS, *RARE_BUGS) if not has_its_place(bug)] == []
