"""Nothing that was acknowledged is lost to SIGKILL, and nothing else appears (promises 1-5, 9)."""

from pathlib import Path

import pytest

from tests.faults.kill import KillProgram


def test_three_kills_under_load_lose_nothing_and_invent_nothing(tmp_path: Path) -> None:
    assert KillProgram(tmp_path, seed=1).run(rounds=3) > 450


@pytest.mark.slow
def test_twenty_kills_under_load_lose_nothing_and_invent_nothing(tmp_path: Path) -> None:
    assert KillProgram(tmp_path, seed=2).run(rounds=20) > 3000
