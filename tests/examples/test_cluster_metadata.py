"""Saving and restoring the metadata of a cluster in ZooKeeper (docs/cluster.md)."""

import os
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

import pytest

from metadata.store_interface import Expected, Key
from metadata.zookeeper_store import ZooKeeperStore
from tests.metadata.zookeeper_server import NEEDS_JAVA, ZooKeeperServer

pytestmark = NEEDS_JAVA

ROOT = Path(__file__).resolve().parents[2]
OWNER: Key = ("owners", "shop", "a/b")
LEADER: Key = ("leader",)


def run(command: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, ROOT / "examples" / "cluster_metadata.py", command, *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def store_of(server: ZooKeeperServer, root: str) -> closing[ZooKeeperStore]:
    return closing(ZooKeeperStore(server.address, root=root, elapsed_s=time.monotonic))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory):
    running = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    yield running
    running.stop()


def test_entries_come_back_with_their_values_and_versions(
    server: ZooKeeperServer, tmp_path: Path
) -> None:
    file = tmp_path / "metadata"
    with store_of(server, "/tuff") as store:
        session = store.open_session(timeout_s=10.0, lost=lambda: None)
        version = store.put(OWNER, b"s1", Expected.NEW)
        version = store.put(OWNER, b"s2", version)
        epoch = store.put(LEADER, b"s2", Expected.NEW, session=session)
        running = run("save", file, server.address)

    saved, again = run("save", file, server.address), run("save", file, server.address)
    restored = run("restore", file, server.address, "/restored/here")
    twice = run("restore", file, server.address, "/restored/here")

    assert running.stderr == "a server of the cluster is running; stop all of them first\n"
    assert (saved.returncode, saved.stdout) == (0, restored.stdout)
    assert again.stderr == f"{file}: File exists\n"
    assert "there are metadata below /restored/here" in twice.stderr
    with store_of(server, "/restored/here") as store:
        found = store.get(OWNER)
        assert found is not None
        assert (found.value, found.version) == (b"s2", version)
        assert store.get(LEADER) is None  # its session has ended
        assert store.put(LEADER, b"s1", Expected.NEW) == epoch + 1


def test_an_incomplete_file_restores_nothing(server: ZooKeeperServer, tmp_path: Path) -> None:
    file = tmp_path / "metadata"
    with store_of(server, "/cut") as store:
        store.put(OWNER, b"s1", Expected.NEW)
    assert run("save", file, server.address, "/cut").returncode == 0
    lines = file.read_text("utf-8").splitlines(keepends=True)
    file.write_text("".join(lines[:-1]), "utf-8")

    refused = run("restore", file, server.address, "/new")

    assert refused.stderr == f"{file} is not a complete copy of metadata; use another one\n"
    assert "there are no metadata" in run("save", tmp_path / "x", server.address, "/new").stderr
