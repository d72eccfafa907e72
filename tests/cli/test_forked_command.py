"""The program `tuff` of the shell lines behaves like the command."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import tuff
from tests.cli.forking import forked_commands
from tests.http.process import ServerProcess


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory with the program `tuff`."""
    directory = tmp_path_factory.mktemp("bin")
    with forked_commands(directory):
        yield directory


@pytest.mark.parametrize(
    ("line", "code", "out", "errors"),
    [
        ("printf 'a\\nb\\n' | tuff pub forked", 0, "published 2 messages to default:forked\n", ""),
        ("cd /; tuff topics ls x; echo $?", 0, "0\n", None),
        ("tuff topics sho", 2, "", "tuff: No such command 'sho'. Did you mean 'show'?"),
        ("tuff fsck nowhere; echo $?", 0, "2\n", "tuff: "),
        ("tuff topics ls --url http://127.0.0.1:1", 3, "", "tuff: no server answers at"),
    ],
)
def test_it_has_the_input_the_output_and_the_exit_code_of_the_command(
    server: ServerProcess,
    client: tuff.Client,
    commands: Path,
    line: str,
    code: int,
    out: str,
    errors: str | None,
) -> None:
    if "forked" not in client.topics.list("default"):
        client.topics.create("default:forked")
    done = subprocess.run(
        ["sh", "-c", line],
        env={**os.environ, "TUFF_URL": server.url, "PATH": f"{commands}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == code
    assert done.stdout.endswith(out)
    assert errors is None or done.stderr.startswith(errors)
