"""What a measurement has to know of its machine."""

import pytest

from benchmarks.machine import busy_share

BEFORE = [100, 0, 50, 1_000, 10, 0, 5, 0]


@pytest.mark.parametrize(
    ("spent", "share"),
    [
        ([0, 0, 0, 100, 0, 0, 0, 0], 0.0),
        ([20, 0, 5, 75, 0, 0, 0, 0], 0.25),
        ([0, 0, 0, 50, 50, 0, 0, 0], 0.5),  # nothing runs, and the disk still writes
        ([0, 0, 0, 60, 0, 0, 0, 40], 0.4),  # another machine on the same processors
        ([0, 0, 0, 0, 0, 0, 0, 0], 0.0),
    ],
)
def test_a_machine_rests_when_neither_its_processors_nor_its_disk_work(
    spent: list[int], share: float
) -> None:
    after = [early + more for early, more in zip(BEFORE, spent, strict=True)]

    assert busy_share(BEFORE, after) == pytest.approx(share)
