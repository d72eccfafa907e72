"""A server that was started by a program ends with it (protocol §8)."""

import subprocess
from pathlib import Path

import pytest

from tuff.launch import READY, server_command


def started(home: Path, *, stdin: int) -> "subprocess.Popen[str]":
    command = server_command(["--data", str(home), "--port", "0", "--until-stdin-closes"])
    return subprocess.Popen(
        command, stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_it_stops_in_order_when_its_input_ends(tmp_path: Path) -> None:
    with started(tmp_path, stdin=subprocess.PIPE) as server:
        assert server.stdin is not None
        assert server.stdout is not None
        assert server.stdout.readline().startswith(READY)
        server.stdin.write("whatever is written to it means nothing\n")

        said = server.communicate()[1]

    assert server.returncode == 0
    assert said.splitlines()[-1].endswith('event="stopped"')


@pytest.mark.slow
def test_an_input_that_never_closes_is_refused(tmp_path: Path) -> None:
    with started(tmp_path, stdin=subprocess.DEVNULL) as server:
        _, said = server.communicate()

    assert server.returncode == 2
    assert said.splitlines()[-1].startswith("tuff: standard input is nothing that closes")
