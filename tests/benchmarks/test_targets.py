"""Targets and tables: the best of all rounds, ratios, and rows that are missing."""

from pathlib import Path

import pytest

from benchmarks.quick import ON_THE_FLOOR, RUNS, missed
from benchmarks.results import Results, lean, read_results
from benchmarks.tables import full_page, rows_table, to_floor, to_limit, to_ours
from benchmarks.targets import FULL, QUICK, QUICK_FLOOR, SCALE, SPARK, Target, judged

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
# Rows that were added since the recorded full run.
NEW_ROWS = {
    "tuff session-transaction c1",
    "tuff session-transaction c32",
    "tuff session-transaction c128",
    "floor session-transaction c64",
    "bare start",
}
MACHINE = {"processors": "2 x something", "versions": {"redis": "7"}}
ROUNDS = [
    {
        "bare c64": {"per_s": 10_000.0},
        "tuff publish c64": {"per_s": 4_000.0, "p99_us": 12_000, "messages_per_s": 4_000.0},
        "redis xadd c64": {"per_s": 5_000.0, "messages_per_s": 5_000.0},
    },
    {
        "bare c64": {"per_s": 8_000.0},
        "tuff publish c64": {"per_s": 6_000.0, "p99_us": 9_000, "messages_per_s": 6_000.0},
    },
]


def results(missing: dict[str, str] | None = None) -> Results:
    return Results(machine=MACHINE, missing=missing or {}, rounds=ROUNDS)


def test_best_is_the_most_of_a_rate_and_the_least_of_a_time() -> None:
    assert results().best("tuff publish c64", "per_s") == 6_000
    assert results().best("tuff publish c64", "p99_us") == 9_000
    assert results().median("tuff publish c64", "per_s") == 5_000
    assert results().best("nats always c64", "per_s") is None


def target(other: str | None, **limit: float) -> Target:
    figure = "p99_us" if other is None else "per_s"
    return Target(what="publish", row="tuff publish c64", other=other, figure=figure, **limit)


@pytest.mark.parametrize(
    ("target", "best", "median", "verdict"),
    [
        (target("bare c64", at_least=0.6), 0.6, 5_000 / 9_000, "met"),
        (target("redis xadd c64", at_least=2), 1.2, 1.0, "not met"),
        (target("bare c64", at_most=0.59), 0.6, 5_000 / 9_000, "not met"),
        (target(None, scale=1e-3, at_most=9), 9.0, 10.5, "met"),
        (target(None, scale=1e-3, at_most=8.9), 9.0, 10.5, "not met"),
        (target("cdap", at_least=1), None, None, "not measured"),
    ],
)
def test_a_target_is_judged_by_the_best_rounds(
    target: Target, best: float | None, median: float | None, verdict: str
) -> None:
    (found,) = judged([target], results())

    assert (found.best, found.median, found.verdict) == (best, median, verdict)


def test_a_row_is_compared_with_its_limit_and_with_our_own_row() -> None:
    assert to_limit(results(), "tuff publish c64") == 0.6
    assert to_ours(results(), "redis xadd c64") == 1.2
    assert to_ours(results(), "tuff publish c64") is None
    assert list(rows_table(results()))[3] == (
        "| tuff publish c64 | 6,000 | 5,000 | 6,000 |  | 9 |  |  | 0.6 |  |"
    )


def test_a_row_shows_its_processor_time_as_a_multiple_of_the_floors() -> None:
    figure = "server_cpu_us_per_call"
    rounds = [
        {"tuff session-run c64": {figure: 70}, "floor session-start-tx c64": {figure: 5}},
        {"tuff session-start-tx c64": {figure: 30}, "floor session-start-tx c64": {figure: 10}},
    ]
    found = Results(machine={}, missing={}, rounds=rounds)

    assert to_floor(found, "tuff session-start-tx c64") == 6
    assert to_floor(found, "tuff session-run c64") is None
    assert to_floor(found, "floor session-start-tx c64") is None


def test_a_peer_that_was_left_out_is_named_in_the_page() -> None:
    page = full_page(results({"nats": "it was not built"}))

    assert "- **left out: nats**: it was not built\n" in page
    assert "- redis: 7\n" in page


def test_only_some_rows_keep_their_distribution() -> None:
    report = {"per_s": 1.23456789, "histogram_us": [[1.0, 2]]}

    assert lean([{"bare c64": report, "tuff open 1000": report}]) == [
        {
            "bare c64": {"per_s": 1.23457},
            "tuff open 1000": {"per_s": 1.23457, "histogram_us": [[1.0, 2]]},
        }
    ]


@pytest.mark.parametrize(
    ("file", "targets"), [("full.json", FULL), ("scale.json", SCALE), ("spark.json", SPARK)]
)
def test_every_target_finds_its_rows_in_the_recorded_run(file: str, targets: list[Target]) -> None:
    """A row that is renamed in one place only would never be judged again."""
    recorded = read_results(RESULTS / file)
    unmeasured = [
        one.target.what
        for one in judged(targets, recorded)
        if one.best is None and not NEW_ROWS & {one.target.row, one.target.other}
    ]

    assert unmeasured == [] or recorded.missing


def test_every_target_of_the_quick_run_belongs_to_one_of_its_runs() -> None:
    assert {target.row for target in QUICK} <= set(RUNS)
    assert {target.row for target in QUICK_FLOOR} <= set(ON_THE_FLOOR)


def test_a_quick_run_names_each_ratio_that_misses_its_target() -> None:
    bare = {"per_s": 2_000.0, "server_cpu_us_per_call": 50}
    slow = {"per_s": 850.0, "server_cpu_us_per_call": 50}
    rounds = [{"bare": bare, "publish": slow}, {"bare": bare, "publish": {**slow, "per_s": 800.0}}]

    assert list(missed(Results(machine={}, missing={}, rounds=rounds))) == [
        "publish: calls per second, to the bare handler's is 0.425 (the best of 2 rounds each), "
        "and should be >= 0.45 x"
    ]
