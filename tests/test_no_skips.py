"""CI: with `--no-skips` a skipped test is a failure, and a second run takes only the tests that did
not pass in the first."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import refuse_skip
from tests.programs import needs, require


@pytest.fixture
def nothing_may_be(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> pytest.Config:
    monkeypatch.setattr(pytestconfig.option, "no_skips", True)
    return pytestconfig


def report(outcome: str) -> pytest.TestReport:
    where = ("test_a.py", 1, "needs a tool")
    return pytest.TestReport("test_a", ("test_a.py", 1, "test_a"), {}, outcome, where, "setup")


def test_a_skip_is_a_failure_that_says_what_was_missing(nothing_may_be: pytest.Config) -> None:
    refused = refuse_skip(report("skipped"), nothing_may_be)

    assert refused.failed
    assert "needs a tool" in str(refused.longrepr)


@pytest.mark.parametrize("outcome", ["passed", "failed"])
def test_other_outcomes_stay(nothing_may_be: pytest.Config, outcome: str) -> None:
    assert refuse_skip(report(outcome), nothing_may_be).outcome == outcome


def test_what_is_expected_to_fail_is_no_skip(nothing_may_be: pytest.Config) -> None:
    expected = report("skipped")
    expected.wasxfail = "reason: known"

    assert refuse_skip(expected, nothing_may_be).skipped


def test_elsewhere_a_skip_is_a_skip(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pytestconfig.option, "no_skips", False)

    assert refuse_skip(report("skipped"), pytestconfig).skipped


@needs("git")
def test_a_second_run_takes_only_what_did_not_pass_in_the_first(tmp_path: Path) -> None:
    root = Path(__file__).resolve().parents[1]
    (tmp_path / "bin").mkdir()
    passed = tmp_path / "passed"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "1", "-p", "no:cacheprovider"]
    tests = ["tests/test_tidy.py", "-k", "users_own or no_rule"]

    def run(option: str, path: str) -> str:
        done = subprocess.run(
            [*command, *tests, f"{option}={passed}"], cwd=root, env={"PATH": path},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    first = run("--list-passed", str(tmp_path / "bin"))
    (tmp_path / "bin" / "git").symlink_to(require("git"))
    second = run("--without-passed", str(tmp_path / "bin"))

    assert " passed, 1 skipped" in first
    assert "1 passed" in second
    assert "skipped" not in second
