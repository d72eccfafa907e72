"""Exit codes of both command lines after closed pipes, closed streams and full disks."""

import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from tuff_cli.output import run_to_end

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("program", ["tuff_cli/__main__.py", "pipeline/__main__.py"])
def test_a_closed_output_ends_the_command_without_an_error(program: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)  # as `head` does, once it has its lines
    with os.fdopen(writing, "wb") as output:
        done = subprocess.run(
            [sys.executable, str(ROOT / program), "--help"],
            stdout=output,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            timeout=60,
            check=False,
        )

    assert (done.returncode, done.stderr) == (0, b"")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux only")
@pytest.mark.parametrize("arguments", ["--version", "completion bash"])
def test_an_output_that_can_not_be_written_is_one_sentence(arguments: str) -> None:
    with Path("/dev/full").open("wb") as output:
        done = subprocess.run(
            [sys.executable, "-m", "tuff_cli", *arguments.split()],
            stdout=output,
            stderr=subprocess.PIPE,
            cwd=ROOT,
            timeout=60,
            check=False,
        )

    expected = b"tuff: the input or output failed: No space left on device\n"
    assert (done.returncode, done.stderr) == (1, expected)


def test_a_tool_of_the_server_runs_in_its_process(tmp_path: Path) -> None:
    """In the other tests it is a fork (forking.py)."""
    done = subprocess.run(
        [sys.executable, "-m", "tuff_cli", "fsck", str(tmp_path)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=60,
        check=False,
    )

    assert (done.returncode, done.stdout) == (2, "")
    assert str(tmp_path) in done.stderr


def test_a_command_runs_with_closed_standard_streams() -> None:
    command = f"{sys.executable} -m tuff_cli completion bash <&- >&-"
    done = subprocess.run(
        ["sh", "-c", command], stderr=subprocess.PIPE, cwd=ROOT, timeout=60, check=False
    )

    assert (done.returncode, done.stderr) == (0, b"")


def test_another_broken_pipe_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @click.group
    def program() -> None:
        pass

    @program.command
    def work() -> None:
        raise BrokenPipeError("to a program of ours")

    told: list[Exception] = []

    def tell(error: Exception) -> int:
        told.append(error)
        return 7

    with (tmp_path / "output").open("w") as output, monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", output)
        code = run_to_end(program, "program", ["work"], report=tell)

    assert (code, [str(error) for error in told]) == (7, ["to a program of ours"])


def test_serve_runs_the_server_in_its_process(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "tuff_cli", "serve", "--port", "0", "--data", str(tmp_path / "d")],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("tuff ready on http://127.0.0.1:")
        process.terminate()
        assert process.wait(60) == 0
