"""A short round of simulations, and every history that once found something."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.simulation.operations import History, Operation, history_of, shortest
from tests.simulation.simulation import run

ROOT = Path(__file__).resolve().parents[2]
HISTORIES = sorted((Path(__file__).parent / "histories").glob("*.json"))
ROUND_COUNT = 120  # seeds; some four seconds
LONG_ROUND_COUNT = 5_000


@pytest.mark.parametrize("path", HISTORIES, ids=lambda path: path.stem)
def test_a_kept_history_breaks_no_promise(path: Path) -> None:
    history = History.from_json(path.read_text("utf-8"))

    result = run(history)

    assert result.failure is None, result.trace


@pytest.mark.parametrize("first", range(0, ROUND_COUNT, 20))
def test_random_histories_break_no_promise(first: int) -> None:
    _play(range(first, first + 20))


@pytest.mark.slow
def test_many_random_histories_break_no_promise() -> None:
    _play(range(ROUND_COUNT, LONG_ROUND_COUNT))


def test_a_seed_always_gives_the_same_run() -> None:
    digests = [run(history_of(seed)).digest for seed in (3, 3, 4)]

    assert digests[0] == digests[1]
    assert digests[0] != digests[2]


def test_a_run_does_not_depend_on_hash_randomization() -> None:
    here = run(history_of(5)).digest

    program = [sys.executable, "-m", "tests.simulation", "--seed", "5"]
    environment = {**os.environ, "PYTHONHASHSEED": "4711"}
    done = subprocess.run(program, cwd=ROOT, env=environment, capture_output=True, check=True)

    assert f"digest {here}" in done.stdout.decode()


def test_a_history_survives_json() -> None:
    history = history_of(7)

    assert History.from_json(history.to_json()) == history


def test_a_failing_history_is_made_as_short_as_it_can_be() -> None:
    kinds = ("start", "publish", "poll", "kill", "publish", "ask", "power_cut")
    operations = tuple(Operation(kind, 0, 0, 0, 0) for kind in kinds)

    def fails(history: History) -> bool:
        left = [each.kind for each in history.operations]
        return "kill" in left and "power_cut" in left

    found = shortest(History((), False, operations), fails)

    assert [each.kind for each in found.operations] == ["kill", "power_cut"]


def _play(seeds: range) -> None:
    for seed in seeds:
        result = run(history_of(seed))
        assert result.failure is None, f"seed {seed}: {result.trace}"
