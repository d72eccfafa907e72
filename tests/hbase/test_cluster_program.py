"""The program that attacks a cluster (`tests/faults/cluster.py`), for a short time."""

from pathlib import Path

import pytest

from tests.faults import cluster
from tests.hbase.marks import NEEDS_HBASE

pytestmark = NEEDS_HBASE


@pytest.mark.parametrize("metadata", ["zookeeper", "hbase"])
def test_a_killed_and_a_paused_server_break_no_promise(
    metadata: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["--minutes", "0.2", "--topics", "20", "--consumers", "10", "--home", f"{tmp_path}"]
    only = ["--loopback", "--only", "kill", "--only", "pause"]

    code = cluster.main([*arguments, "--metadata", metadata, *only])

    assert code == 0, capsys.readouterr().out
