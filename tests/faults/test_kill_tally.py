"""A long program goes on where it was interrupted, and mixes no two versions of the server."""

from pathlib import Path

from tests.faults.kill_tally import Tally, version_here


def test_what_was_done_before_counts_when_the_program_goes_on(tmp_path: Path) -> None:
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
