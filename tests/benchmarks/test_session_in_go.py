"""A client of sessions in another language, which was written from docs/session.md."""

import json
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest

from benchmarks.access import subjects
from benchmarks.generator import SOURCES, build
from tests.http.process import serve
from tests.programs import needs

pytestmark = [pytest.mark.slow, needs("go")]


def test_the_go_client_reads_and_writes_the_documented_bytes() -> None:
    done = subprocess.run(["go", "test", "."], cwd=SOURCES, capture_output=True, text=True)

    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("scenario", ["session-publish", "session-transaction", "session-run"])
@pytest.mark.parametrize("local", [False, True], ids=["tcp", "unix"])
def test_the_go_client_makes_many_calls_at_a_time(
    tmp_path: Path, scenario: str, *, local: bool
) -> None:
    path = tmp_path / "s"
    with serve(tmp_path, f"server.unix_socket={path}") as server:
        server.client().put("/v1/namespaces/default/topics/bench")
        address = str(path) if local else f"127.0.0.1:{server.port}"
        command = [str(build()), "closed", "-scenario", scenario, "-addr", address,
                   "-conns", "100", "-pipes", "3", "-seconds", "0.5", "-warm", "0.1"]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["errors"] == 0, report["first_error"]
    assert report["calls"] > 0


@pytest.mark.parametrize("scenario", ["transaction", "session-transaction"])
def test_the_go_client_uses_tls_and_a_token(tmp_path: Path, scenario: str) -> None:
    with ExitStack() as ends:
        *_, protected = subjects(tmp_path, ends)
        command = [str(build()), "closed", "-scenario", scenario, "-addr", protected.server.addr,
                   "-seconds", "0.5", "-warm", "0.1", *protected.flags]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        refused = subprocess.run(
            [*command[:-4], *protected.flags[2:]], capture_output=True, text=True
        )  # without the token

    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["errors"] == 0, report["first_error"]
    assert report["calls"] > 0
    assert "401" in refused.stderr
