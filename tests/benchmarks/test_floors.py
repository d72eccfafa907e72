"""Floors: ratios of the best rounds, and a sentence for each one that is not reached."""

from pathlib import Path

from benchmarks.floors import Floor, broken, read_floors
from benchmarks.quick import FLOORS, RUNS

ROUNDS = [
    {
        "bare": {"per_s": 1000.0, "server_cpu_us_per_call": 100},
        "publish": {"per_s": 300.0, "server_cpu_us_per_call": 250},
    },
    {
        "bare": {"per_s": 2000.0, "server_cpu_us_per_call": 50},
        "publish": {"per_s": 500.0, "server_cpu_us_per_call": 200},
    },
]


def test_a_floor_compares_the_best_of_all_rounds() -> None:
    rate = Floor(name="publish", figure="per_s", floor=0.2)
    cost = Floor(name="publish", figure="server_cpu_us_per_call", floor=0.2)

    assert rate.ratio(ROUNDS) == 500 / 2000
    assert cost.ratio(ROUNDS) == 50 / 200


def test_a_ratio_below_its_floor_is_one_sentence() -> None:
    floors = [
        Floor(name="publish", figure="per_s", floor=0.25),
        Floor(name="publish", figure="server_cpu_us_per_call", floor=0.26),
        Floor(name="left-out", figure="per_s", floor=9),
    ]

    assert list(broken(floors, ROUNDS)) == [
        "publish: server_cpu_us_per_call is 0.250 of the bare handler's "
        "(the best of 2 rounds each), and the floor is 0.26"
    ]


def test_a_table_of_floors_becomes_one_floor_for_each_figure(tmp_path: Path) -> None:
    table = tmp_path / "floors.toml"
    table.write_text("[publish]\nper_s = 0.5\n[commit]\np99_us = 1\n")

    assert read_floors(table) == [
        Floor(name="publish", figure="per_s", floor=0.5),
        Floor(name="commit", figure="p99_us", floor=1.0),
    ]


def test_every_floor_belongs_to_a_run() -> None:
    assert {floor.name for floor in read_floors(FLOORS)} <= set(RUNS)
