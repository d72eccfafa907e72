"""A server ends with the program that started it (protocol §8), and the rows of an offline command
are read whatever else it writes."""

import subprocess
import sys
from pathlib import Path

import pytest

import tuff.launch
from tuff.launch import READY, inspect, server_command
from tuff.protocol.errors import DamagedRecordError


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
    assert 'event="stopped"' in said.splitlines()[-1]


@pytest.mark.slow
def test_an_input_that_never_closes_is_refused(tmp_path: Path) -> None:
    with started(tmp_path, stdin=subprocess.DEVNULL) as server:
        _, said = server.communicate()

    assert server.returncode == 2
    assert said.splitlines()[-1].startswith("tuff: the end of standard input can't be seen")


TALKATIVE = """
import sys
for _ in range(20_000):
    print("a line of a log", file=sys.stderr)
print('{"kind": "row"}')
sys.exit(int(sys.argv[1]))
"""


def test_a_full_standard_error_does_not_block_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    # With a pipe for standard error each process waited for the other.
    command = [sys.executable, "-c", TALKATIVE]
    monkeypatch.setattr(tuff.launch, "server_command", lambda _: [*command, "0"])
    assert list(inspect("tables", "x")) == [{"kind": "row"}]

    monkeypatch.setattr(tuff.launch, "server_command", lambda _: [*command, "1"])
    with pytest.raises(DamagedRecordError, match=r"^x can't be shown: a line of a log$"):
        list(inspect("tables", "x"))
