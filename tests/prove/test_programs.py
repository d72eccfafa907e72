"""`make prove` runs existing programs, attacks every promise, and documents every program."""

from importlib.util import find_spec
from threading import Barrier

import pytest

from tests.prove.__main__ import ROOT, Program, Result, run_all
from tests.prove.programs import PROGRAMS


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_each_program_and_test_file_exists(program: Program) -> None:
    for module, *arguments in (program.scaled.split(), program.full.split()):
        assert find_spec(module) is not None, module
        paths = [each for each in arguments if each.startswith("tests/")]
        assert [each for each in paths if not (ROOT / each).exists()] == []


def test_a_skipped_test_fails_its_program() -> None:
    commands = [command for each in PROGRAMS for command in (each.scaled, each.full)]
    pytest_commands = [command for command in commands if command.startswith("pytest ")]

    assert pytest_commands
    assert [command for command in pytest_commands if "--no-skips" not in command] == []


def test_every_promise_is_attacked_by_more_than_one_program() -> None:
    for promise in range(1, 10):
        assert sum(promise in program.promises for program in PROGRAMS) > 1, promise


def test_programs_that_share_the_cores_run_in_pairs_and_the_others_alone() -> None:
    running: list[str] = []
    beside: dict[str, set[str]] = {}
    pair = Barrier(2)

    def run_one(program: Program) -> Result:
        running.append(program.name)
        if program.shares_cores:
            pair.wait(timeout=60)
        beside[program.name] = set(running)
        if program.shares_cores:
            pair.wait(timeout=60)
        running.remove(program.name)
        return Result(name=program.name, promises=(), figure="", seconds=0.0, passed=True)

    programs = [
        Program(name=name, promises=(), attack="", scaled="", full="", shares_cores=name.isupper())
        for name in ("a", "B", "c", "D")
    ]

    results = run_all(programs, run_one)

    assert [each.name for each in results] == ["a", "B", "c", "D"]
    assert beside == {"a": {"a"}, "B": {"B", "D"}, "c": {"c"}, "D": {"B", "D"}}


def test_the_page_has_a_line_for_every_program() -> None:
    page = (ROOT / "docs" / "reliability.md").read_text("utf-8")

    assert [each.name for each in PROGRAMS if f"\n| {each.name} |" not in page] == []
