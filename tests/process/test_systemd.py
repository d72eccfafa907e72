"""The unit of a single server: its settings, its command, and what the server tells systemd."""

import os
import re
import shlex
import socket
import subprocess
from pathlib import Path

import pytest

from process.settings import load
from server import EXIT_USAGE
from tests.http.process import ServerProcess
from tests.programs import needs

CONF = Path(__file__).parents[2] / "conf"
UNIT = CONF / "systemd/tuff.service"


def _command() -> list[str]:
    """The arguments of the unit's program."""
    found = re.search(r"^ExecStart=/opt/tuff/bin/tuff serve (.+)$", UNIT.read_text("utf-8"), re.M)
    assert found is not None
    return shlex.split(found[1])


def test_the_unit_runs_and_tells_systemd_when_it_is_ready_alive_and_stopping(
    tmp_path: Path,
) -> None:
    address = tmp_path / "notify"
    here = {"/etc/tuff/tuff.toml": str(CONF / "standalone.toml"), "/var/lib/tuff": "data"}
    command = [here.get(word, word) for word in _command()]
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind(str(address))
        systemd.settimeout(60)
        told = {"NOTIFY_SOCKET": str(address), "WATCHDOG_USEC": "300000"}
        running = ServerProcess(
            tmp_path, *command, "--port", "0", environment={**os.environ, **told}
        ).wait_ready()
        try:
            states = [systemd.recv(100).decode() for _ in range(3)]
            assert running.terminate() == 0
            while states[-1] != "STOPPING=1":
                states.append(systemd.recv(100).decode())
        finally:
            running.end()

    assert states[:3] == ["READY=1", "WATCHDOG=1", "WATCHDOG=1"]


def test_a_server_whose_systemd_does_not_listen_runs(tmp_path: Path) -> None:
    told = {"NOTIFY_SOCKET": f"@{tmp_path}", "WATCHDOG_USEC": "soon"}
    with ServerProcess(tmp_path, "--port", "0", environment={**os.environ, **told}) as running:
        running.wait_ready()
        assert running.terminate() == 0


def test_the_unit_and_the_other_files_agree() -> None:
    unit = UNIT.read_text("utf-8")

    load(CONF / "standalone.toml", [])
    assert "\nType=notify\n" in unit
    assert f"\nRestartPreventExitStatus={EXIT_USAGE}\n" in unit
    assert "\nUser=tuff\nStateDirectory=tuff\n" in unit
    assert "u tuff " in (CONF / "systemd/tuff.sysusers").read_text("utf-8")
    directories = (CONF / "systemd/tuff.tmpfiles").read_text("utf-8")
    for argument in ("/etc/tuff/tuff.toml", "/var/lib/tuff"):
        assert argument in _command()
        assert f"\nd {argument.removesuffix('/tuff.toml')} " in directories


@needs("systemd-analyze")
@pytest.mark.parametrize("name", ["tuff.service", "tuff@.service"])
def test_systemd_accepts_the_unit(name: str, tmp_path: Path) -> None:
    # Its programs are not installed here.
    text = (CONF / "systemd" / name).read_text("utf-8")
    (tmp_path / name).write_text(text.replace("/opt/tuff/bin/tuff", "/bin/true"))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--recursive-errors=no", str(tmp_path / name)],
        capture_output=True, text=True,
    )  # fmt: skip

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


@needs("systemd-analyze")
@pytest.mark.parametrize("name", ["tuff.service", "tuff@.service"])
def test_the_unit_restricts_the_server(name: str) -> None:
    """The unit of a cluster had no restriction at all: 9.2, unsafe."""
    done = subprocess.run(
        ["systemd-analyze", "security", "--offline=true", "--threshold=20",
            str(CONF / "systemd" / name)],
        capture_output=True, text=True,
    )  # fmt: skip

    assert done.returncode == 0, done.stdout + done.stderr
    text = (CONF / "systemd" / name).read_text("utf-8")
    assert "\nType=notify\n" in text
    assert "\nUMask=0077\n" in text


def test_the_image_starts_a_server_with_settings_that_exist() -> None:
    text = (CONF.parent / "Containerfile").read_text("utf-8")
    found = re.search(r'^CMD \["tuff", "serve", (.+)\]$', text, re.M)
    assert found is not None
    words = re.findall(r'"([^"]+)"', found[1])

    assert words[:2] == ["--data", "/var/lib/tuff"]
    assert "VOLUME /var/lib/tuff" in text
    settings = load(None, [f"server.host={words[3]}", words[5]])
    assert settings.server.allow_remote
