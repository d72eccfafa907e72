"""Bars and tables: best of the rounds, ratios the right way round, nothing lost in silence."""

from pathlib import Path

import pytest

from benchmarks.bars import FULL, SCALE, Bar, judged
from benchmarks.results import Results, lean, read_results
from benchmarks.tables import bars_table, full_page, rows_table, to_limit, to_ours

RESULTS = Path(__file__).resolve().parents[2] / "benchmarks" / "results"
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


@pytest.mark.parametrize(
    ("bar", "best", "median", "verdict"),
    [
        (
            Bar(what="", row="tuff publish c64", other="bare c64", figure="per_s", at_least=0.6),
            0.6,
            5_000 / 9_000,
            "met",
        ),
        (
            Bar(
                what="", row="tuff publish c64", other="redis xadd c64", figure="per_s", at_least=2
            ),
            1.2,
            1.0,
            "not met",
        ),
        (
            Bar(what="", row="tuff publish c64", figure="p99_us", scale=1e-3, at_most=9),
            9.0,
            10.5,
            "met",
        ),
        (
            Bar(what="", row="tuff publish c64", figure="p99_us", scale=1e-3, at_most=8.9),
            9.0,
            10.5,
            "not met",
        ),
        (
            Bar(what="", row="tuff publish c64", other="cdap", figure="per_s", at_least=1),
            None,
            None,
            "not measured",
        ),
    ],
)
def test_a_bar_is_judged_by_the_best_rounds(
    bar: Bar, best: float | None, median: float | None, verdict: str
) -> None:
    (found,) = judged([bar], results())

    assert (found.best, found.median, found.verdict) == (best, median, verdict)


def test_a_row_stands_beside_its_limit_and_beside_our_own() -> None:
    assert to_limit(results(), "tuff publish c64") == 0.6
    assert to_ours(results(), "redis xadd c64") == 1.2
    assert to_ours(results(), "tuff publish c64") is None
    assert list(rows_table(results()))[3] == (
        "| tuff publish c64 | 6,000 | 5,000 | 6,000 |  | 9 |  | 0.6 |  |"
    )


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


@pytest.mark.parametrize(("file", "bars"), [("full.json", FULL), ("scale.json", SCALE)])
def test_every_bar_finds_its_rows_in_the_recorded_run(file: str, bars: list[Bar]) -> None:
    """A row that is renamed in one place only would never be judged again."""
    recorded = read_results(RESULTS / file)
    silent = [one.bar.what for one in judged(bars, recorded) if one.best is None]

    assert silent == [] or recorded.missing
    assert len(list(bars_table(judged(bars, recorded)))) == len(bars) + 2
