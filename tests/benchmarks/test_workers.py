"""The calculation of what workers make possible."""

from benchmarks.workers import Cost, best_count, calls_per_s

ALONE, WITH_WORKERS = Cost(100, 0), Cost(50, 150)


def test_the_slowest_process_bounds_the_rate() -> None:
    assert calls_per_s(ALONE, workers=0, cores=8) == 10_000
    assert calls_per_s(WITH_WORKERS, workers=1, cores=8) == 1e6 / 150
    assert calls_per_s(WITH_WORKERS, workers=8, cores=8) == 20_000


def test_all_processes_share_the_cores() -> None:
    assert calls_per_s(WITH_WORKERS, workers=2, cores=2) == 10_000


def test_the_best_number_of_workers_is_the_smallest_with_the_highest_rate() -> None:
    assert best_count(ALONE, WITH_WORKERS, cores=2) == (0, 10_000)
    assert best_count(ALONE, WITH_WORKERS, cores=8) == (3, 20_000)
