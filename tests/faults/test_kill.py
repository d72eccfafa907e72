"""Nothing that was acknowledged is lost to SIGKILL, and nothing else appears (promises 1-5, 9)."""

from pathlib import Path

import pytest

from tests.faults.kill import KillProgram


def test_two_kills_under_load_lose_nothing_and_invent_nothing(tmp_path: Path) -> None:
    program = KillProgram(tmp_path, seed=1, clients=15, unit_count=(50, 100))

    assert program.run(rounds=2) > 100


@pytest.mark.slow
def test_twenty_kills_under_load_lose_nothing_and_invent_nothing(tmp_path: Path) -> None:
    assert KillProgram(tmp_path, seed=2, clients=64).run(rounds=20) > 2000
