"""A secret in the log of any test, or in the output of any server, fails the test."""

from pathlib import Path

import pytest

from tests.conftest import refuse_secrets
from tests.http.process import ServerProcess
from tests.secret_values import CLUSTER_SECRET, hash_of_token, require_no_secret, token_of

SHOWN = [
    f"a token {token_of('a')}",
    f"a hash {hash_of_token('a').partition(':')[2]}",
    f"a secret {CLUSTER_SECRET}",
    "-----BEGIN PRIVATE KEY-----",
]


@pytest.mark.parametrize("text", SHOWN)
def test_a_secret_in_a_text_is_found(text: str) -> None:
    with pytest.raises(AssertionError, match="the log shows a secret"):
        require_no_secret(f"before\n{text} after", source="the log")


def test_the_report_of_a_test_that_logs_a_secret_is_that_of_a_failure() -> None:
    def outcome(text: str) -> str:
        report = pytest.TestReport(
            "test_x", ("x.py", 1, "test_x"), {}, "passed", None, "call",
            [("Captured log call", text)],
        )  # fmt: skip
        refuse_secrets(report)
        return report.outcome

    assert outcome("principal a read t") == "passed"
    assert outcome(f"principal a sent {token_of('a')}") == "failed"


def test_a_server_that_prints_a_secret_fails_its_test(tmp_path: Path) -> None:
    program = tmp_path / "server.py"
    program.write_text(f"print({token_of('a')!r})")
    server = ServerProcess(tmp_path / "home", program=program)
    server.wait_exit()

    with pytest.raises(AssertionError, match="shows a secret"):
        server.end()
