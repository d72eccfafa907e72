"""How the process ends when another server of its cluster has replaced it (decision 0042)."""

import os
from pathlib import Path

import pytest

from process.directory_locks import DataDirectories
from process.settings import load
from server import Server


@pytest.mark.parametrize(("is_stopping", "exit_code"), [(False, 1), (True, 0)])
async def test_only_a_server_that_was_not_stopped_has_failed_when_its_session_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_stopping: bool, exit_code: int
) -> None:
    """SIGTERM ended a server with the code 1 if its session ended during the stop."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    server = Server(load(None, ()), DataDirectories(tmp_path, tmp_path, ()))
    if is_stopping:
        server._stop.set()

    server._die("the session has ended")

    assert codes == [exit_code]
