"""A wall clock that is set does no harm, in one life and between lives (design §5, Time)."""

from pathlib import Path

import pytest

from tests.faults.clocks import HOUR_S, STARTS_S, STEPS_S, YEAR_S, Clocks, run


def test_a_clock_that_is_set_under_a_server_breaks_no_order(
    shim_library: Path, tmp_path: Path
) -> None:
    clocks = Clocks(shim_library, tmp_path)

    clocks.in_one_life((-HOUR_S, 10 * YEAR_S, 0))

    clocks.end()


def test_a_right_clock_after_a_wrong_one_reports_the_ids_that_stay_ahead(
    shim_library: Path, tmp_path: Path
) -> None:
    """It was ok, while each message of every topic had a time a year ahead."""
    clocks = Clocks(shim_library, tmp_path)
    clocks.in_one_life((0,))

    clocks.between_lives((YEAR_S, 0), kills=False)

    clocks.end()


@pytest.mark.slow
def test_a_clock_that_is_set_between_two_starts_is_reported_and_deletes_nothing(
    shim_library: Path, tmp_path: Path
) -> None:
    assert run(shim_library, tmp_path, steps_s=STEPS_S, starts_s=STARTS_S) == 32
