"""The `tuff` command, called as its console script calls it, in the process of the tests.

A process for each would take longer than most commands. The tests of the documents, those of
test_terminal.py, and those that follow a topic, interrupt a command or close its output start one.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from tempfile import TemporaryFile
from unittest.mock import patch
from urllib.request import Request, urlopen

from tuff_cli import main

ENDS_WITHIN_S = 60.0  # seconds


def tuff_command(
    *arguments: str | Path, given: str = "", url: str | None = None
) -> subprocess.CompletedProcess[str]:
    """Run `tuff ARGUMENTS`. `given` is its standard input, `url` the server's address in its
    environment."""
    words = [*map(str, arguments)]
    surroundings = {"NO_COLOR": "1"} if url is None else {"NO_COLOR": "1", "TUFF_URL": url}
    out, errors = _text(), _text()
    with (
        patch.dict(os.environ, surroundings),
        _standard_input(given),
        redirect_stdout(out),
        redirect_stderr(errors),
    ):
        try:
            main(words)
        except SystemExit as left:
            code = left.code
    assert isinstance(code, int)
    return subprocess.CompletedProcess(words, code, _written(out), _written(errors))


class Started:
    """A command in a process of its own, with pipes for its output."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        assert process.stderr is not None
        self.process, self.out, self.errors = process, process.stdout, process.stderr

    def interrupt(self) -> int:
        """Ctrl-C; the exit code."""
        self.process.send_signal(signal.SIGINT)
        return self.process.wait(ENDS_WITHIN_S)


@contextmanager
def started(*arguments: str, url: str, given: int | None = None) -> Iterator[Started]:
    """`tuff ARGUMENTS` for the server at `url`; it is killed where a test fails before it ends."""
    with subprocess.Popen(
        [sys.executable, "-m", "tuff_cli", *arguments, "--url", url],
        stdin=given,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield Started(process)
        finally:
            process.kill()


@contextmanager
def transactions_stopped(url: str) -> Iterator[None]:
    """An operator stops the transaction service of the server at `url`, and starts it again."""
    address = f"{url}/v1/transactions/service"
    urlopen(Request(f"{address}/stop", method="POST")).close()
    try:
        yield
    finally:
        urlopen(Request(f"{address}/start", method="POST")).close()


@contextmanager
def _standard_input(given: str) -> Iterator[None]:
    before = sys.stdin
    with TemporaryFile("w+", encoding="utf-8") as file:  # with a descriptor, as commands read that
        file.write(given)
        file.seek(0)
        sys.stdin = file
        try:
            yield
        finally:
            sys.stdin = before


def _text() -> TextIOWrapper:
    return TextIOWrapper(BytesIO(), encoding="utf-8", write_through=True)


def _written(stream: TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()
