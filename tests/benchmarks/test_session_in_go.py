"""A client of sessions in another language, which was written from docs/session.md."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from benchmarks.generator import SOURCES, build
from tests.http.process import serve

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("go") is None, reason="needs the go command"),
]


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
