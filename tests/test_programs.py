"""A test that needs a program which the README does not ask for is skipped, and says which package
of Debian contains it."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.programs import PACKAGES, find, require, summary, why_missing

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only directory on the search path."""
    monkeypatch.setenv("PATH", str(tmp_path))
    return tmp_path


def put(program: str, directory: Path) -> None:
    (directory / program).write_text("#!/bin/sh\n")
    (directory / program).chmod(0o755)


def test_a_program_that_is_missing_is_named_with_its_package(directory: Path) -> None:
    put("curl", directory)

    assert why_missing("curl") is None
    assert why_missing("curl", "initdb") == (
        "needs initdb, which is not installed: apt-get install postgresql"
    )
    assert why_missing("tc", "ip") == (
        "needs tc and ip, which is not installed: apt-get install iproute2"
    )


def test_a_test_that_requires_a_missing_program_is_skipped(directory: Path) -> None:
    put("curl", directory)

    assert require("curl") == str(directory / "curl")
    with pytest.raises(pytest.skip.Exception, match="apt-get install pgbouncer"):
        require("pgbouncer")


@pytest.mark.parametrize("program", sorted(PACKAGES))
def test_a_run_with_a_path_of_its_own_sees_no_optional_program(
    directory: Path, program: str
) -> None:
    assert find(program) is None


def test_programs_for_administrators_are_found_where_the_system_is_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bin", "sbin", "postgresql/15/bin"):
        (tmp_path / name).mkdir(parents=True)
    put("pgbouncer", tmp_path / "sbin")
    put("initdb", tmp_path / "postgresql/15/bin")
    beside = (str(tmp_path / "sbin"), str(tmp_path / "postgresql/*/bin"))
    monkeypatch.setattr("tests.programs.SYSTEM", str(tmp_path / "bin"))
    monkeypatch.setattr("tests.programs.BESIDE_THE_SYSTEM", beside)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))

    assert find("pgbouncer") == str(tmp_path / "sbin/pgbouncer")
    assert find("initdb") == str(tmp_path / "postgresql/15/bin/initdb")


def test_the_end_of_a_run_says_what_was_skipped_and_how_to_get_it() -> None:
    reasons = [
        "Skipped: needs initdb, which is not installed: apt-get install postgresql",
        "Skipped: needs cc, which is not installed: apt-get install gcc libc6-dev",
        "Skipped: needs cc, which is not installed: apt-get install gcc libc6-dev",
        "Skipped: needs the right to mount a file system",
    ]

    assert summary(reasons) == (
        "3 of the skipped tests or groups of tests need a program that is not installed here. "
        "To run them, too: apt-get install gcc libc6-dev postgresql"
    )
    assert summary(reasons[3:]) is None


def test_a_run_of_pytest_ends_with_the_packages(directory: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider"]
    tests = ["tests/test_tidy.py", "-k", "users_own or no_rule"]

    done = subprocess.run([*command, *tests], cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
    assert " passed, 1 skipped" in done.stdout
    assert "To run them, too: apt-get install git\n" in done.stdout


def test_ci_is_told_the_packages_that_are_missing(directory: Path) -> None:
    for program in PACKAGES:
        if program not in {"initdb", "cc"}:
            put(program, directory)

    printed = subprocess.check_output([sys.executable, "-m", "tests.programs"], cwd=ROOT, text=True)

    assert printed == "gcc libc6-dev postgresql\n"
