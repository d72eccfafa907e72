"""An empty value, as of a variable that is not set, is refused wherever it is given.

Python takes an empty path for the working directory: `tuff serve --data "$DATA"` began an empty
server there.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from process.settings import SettingsError, load
from tests.cli.command import tuff_command
from tests.http.forking import REPOSITORY
from tuff import Client


def server(home: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(REPOSITORY / "server.py"), *arguments]
    return subprocess.run(command, cwd=home, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--data", ""),
        ("--data=",),
        ("--config", ""),
        ("--host", ""),
        ("--port", " "),
        ("--set", ""),
        ("--set", "server.access_file="),
        ("--set=server.access_file=",),
        ("fsck", ""),
        ("salvage", ".", ""),
        ("restore", ".", ""),
        ("backup", ".", ""),
        ("doctor", "--data", ""),
        ("access", "check", ""),
        ("hbase", "list", "--config", ""),
    ],
    ids=" ".join,
)
def test_the_server_and_its_tools_refuse_an_empty_argument(
    tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    refused = server(tmp_path, *arguments)

    assert refused.returncode == 2, refused.stderr
    assert "variable not set" in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "arguments",
    [
        ("fsck", ""),
        ("backup", ""),
        ("backup", ".", ""),
        ("restore", ".", ""),
        ("salvage", ".", ""),
        ("doctor", "--data", ""),
        ("doctor", "--config", ""),
        ("snapshot", "ls", ""),
        ("access", "check", ""),
        ("--token-file", "", "status"),
        ("--tls-ca-file", "", "status"),
    ],
    ids=" ".join,
)
def test_the_command_refuses_an_empty_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)

    refused = tuff_command(*arguments)

    assert refused.returncode == 2, refused.stderr
    assert "variable not set" in refused.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("variable", ["TUFF_URL", "TUFF_TOKEN", "TUFF_TLS_CA_FILE"])
def test_the_command_refuses_an_empty_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "")

    refused = tuff_command("status")

    assert refused.returncode == 2
    assert f"the environment variable {variable} is empty" in refused.stderr


def test_an_empty_token_or_address_is_refused() -> None:
    assert tuff_command("--token", "", "status").returncode == 2
    assert tuff_command("--url", "", "status").returncode == 2
    with pytest.raises(ValueError, match="the token is empty"):
        Client("http://127.0.0.1:1", token="")


def test_a_setting_is_empty_only_where_that_means_none(tmp_path: Path) -> None:
    file = tmp_path / "tuff.toml"
    file.write_text('[server]\nhost = ""\nallow_remote = true\n')

    with pytest.raises(SettingsError, match=r"server\.host is empty"):
        load(file, ())
    with pytest.raises(SettingsError, match=r"server\.access_file has no value"):
        load(None, ["server.access_file="])
    assert load(None, ['server.access_file=""']).server.access_file == ""
