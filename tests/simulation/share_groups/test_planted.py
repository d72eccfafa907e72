"""The simulation of share groups finds each planted bug within one round of seeds."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.planted_bugs import PlantedBug, has_its_place, plant
from tests.simulation.share_groups.planted_bugs import BUGS

# Only the copy is on the path, however the project itself was installed.
_START = (
    "import sys; sys.path.insert(0, '.'); "
    "from tests.simulation.share_groups.simulation import failures; "
    "print(next(failures(range(200), 150), 'nothing'))"
)


@pytest.mark.slow
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found(bug: PlantedBug, tmp_path: Path) -> None:
    plant(bug, tmp_path)

    program = [sys.executable, "-P", "-c", _START]
    done = subprocess.run(program, cwd=tmp_path, capture_output=True, check=True)

    assert done.stdout.startswith(b"seed ")


def test_every_planted_bug_still_matches_the_source() -> None:
    assert [bug.name for bug in BUGS if not has_its_place(bug)] == []
