"""Without the extra `server` only a client is installed, and the server says what is missing."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# As if only the dependencies of a client were installed.
WITHOUT_SERVER = """
SERVER = "cramjam", "httptools", "prometheus_client", "uvloop"
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in SERVER:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
"""


def _run(program: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-c", WITHOUT_SERVER + program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(("arguments", "missing"), [([], "uvloop"), (["fsck", "."], "cramjam")])
def test_the_server_says_what_to_install(arguments: list[str], missing: str) -> None:
    done = _run(
        "import runpy\n"
        f"sys.argv = ['server.py', *{arguments}]\n"
        "runpy.run_path('server.py', run_name='__main__')"
    )

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"tuff: the server needs {missing}, which is not installed; "
        "pip install 'tuff-messaging[server]'\n"
    )


def test_a_client_its_tables_and_its_command_load_without_the_server() -> None:
    done = _run(
        "import tuff\n"
        "from tuff import AsyncClient, Client, TransactionalTable\n"
        "import tuff.cli\n"
        "sys.argv = ['tuff', '--version']\n"
        "tuff.cli.main()"
    )

    assert (done.returncode, done.stderr) == (0, "")
