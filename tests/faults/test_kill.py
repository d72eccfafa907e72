"""SIGKILL loses nothing that was acknowledged, and nothing else appears (promises 1-5, 9)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.faults.kill import KillProgram, Tally, version_here
from tests.http.client import until
from tests.http.process import ENDS_WITH_PARENT, REPOSITORY


def test_two_kills_under_load_lose_nothing_and_invent_nothing(tmp_path: Path) -> None:
    program = KillProgram(tmp_path, seed=1, clients=15, unit_count=(50, 100))

    assert program.run(rounds=2) > 100


@pytest.mark.slow
def test_twenty_kills_under_load_lose_nothing_and_invent_nothing(tmp_path: Path) -> None:
    assert KillProgram(tmp_path, seed=2, clients=64).run(rounds=20) > 2000


@pytest.mark.skipif(not ENDS_WITH_PARENT, reason="needs setpriv, of util-linux")
def test_a_program_that_is_killed_leaves_no_server_behind(tmp_path: Path) -> None:
    program = (
        "import sys, pathlib, tests.http.process as process\n"
        "print(process.serve(pathlib.Path(sys.argv[1])).pid, flush=True)\n"
        "sys.stdin.read()\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(
        command, cwd=REPOSITORY, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as running:
        assert running.stdout is not None
        pid = int(running.stdout.readline())
        assert runs(pid)

        running.kill()

    until(lambda: not runs(pid), what="the server to end")


def runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_kills_of_an_interrupted_run_count_in_the_next_one(tmp_path: Path) -> None:
    file = tmp_path / "new" / "tally.jsonl"
    before = Tally(file, version="a")
    before.add(seed=1, kills=20, units=900, seconds=61.23)
    before.add(seed=21, kills=5, units=100, seconds=10)

    after = Tally(file, version="a")

    assert (after.kills, after.units, after.seconds) == (25, 1000, 71.2)


def test_chunks_of_another_version_stay_in_the_file_and_do_not_count(tmp_path: Path) -> None:
    file = tmp_path / "tally.jsonl"
    Tally(file, version="a").add(seed=1, kills=20, units=900, seconds=60)
    Tally(file, version="b").add(seed=1, kills=3, units=90, seconds=6)

    assert Tally(file, version="a").kills == 20
    assert Tally(file, version="c").kills == 0


def test_without_a_file_nothing_is_kept() -> None:
    tally = Tally(None, version="a")
    tally.add(seed=1, kills=2, units=3, seconds=4)

    assert tally.kills == 2
    assert Tally(None, version="a").kills == 0


def test_the_same_sources_are_the_same_version() -> None:
    assert version_here() == version_here()
