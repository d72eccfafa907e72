"""More seeds of the simulation than `make test` runs; only `random_mutants` collects this file."""

import pytest

from tests.simulation.operations import history_of
from tests.simulation.simulation import run

FIRST = 1_000  # seeds that a normal run does not play
ROUND_COUNT = 300
STEP_COUNT = 20


@pytest.mark.parametrize("first", range(FIRST, FIRST + ROUND_COUNT, STEP_COUNT))
def test_more_histories_break_no_promise(first: int) -> None:
    for seed in range(first, first + STEP_COUNT):
        result = run(history_of(seed))
        assert result.failure is None, f"seed {seed}: {result.trace}"
