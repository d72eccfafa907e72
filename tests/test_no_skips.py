"""With `--no-skips`, as in CI, a skipped test is a failure."""

import pytest

from tests.conftest import refuse_skip


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
