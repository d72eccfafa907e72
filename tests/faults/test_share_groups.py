"""A short run of `tests.faults.share_groups` in each mode, and what its judge refuses."""

from pathlib import Path

import pytest

from tests.faults.share_groups import Run, judge, kill_workers
from tuff.consumer_options import DeliveryMode

EXACTLY, AT_LEAST = DeliveryMode.EXACTLY_ONCE, DeliveryMode.AT_LEAST_ONCE


@pytest.mark.parametrize("mode", [EXACTLY, pytest.param(AT_LEAST, marks=pytest.mark.slow)])
def test_killed_workers_and_servers_break_no_promise(mode: DeliveryMode, tmp_path: Path) -> None:
    run = kill_workers(mode, count=3, kills=1, restarts=1, pauses=1, seed=1, home=tmp_path)

    assert judge(run, mode) == []
    assert run.published > 50
    assert (27 in run.given_up) == (mode is EXACTLY)


@pytest.mark.parametrize(
    ("done", "given_up", "wrong"),
    [
        ([0, 1], [], []),
        ([0], [], [EXACTLY, AT_LEAST]),
        ([0, 1, 1], [], [EXACTLY]),
        ([0, 1, 2], [], [EXACTLY, AT_LEAST]),
        ([0], [1], [EXACTLY]),
        ([0, 1], [1], [EXACTLY]),
    ],
)
def test_the_judge_finds_what_a_mode_excludes(
    done: list[int], given_up: list[int], wrong: list[DeliveryMode]
) -> None:
    run = Run(published=2, done=done, given_up=given_up)
    assert [mode for mode in (EXACTLY, AT_LEAST) if judge(run, mode)] == wrong
