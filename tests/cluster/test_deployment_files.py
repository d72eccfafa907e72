"""The settings, the unit and the compose file of a cluster (docs/cluster.md)."""

import re
import shlex
from itertools import pairwise
from pathlib import Path

from process.settings import Settings, load
from server import EXIT_USAGE

CONF = Path(__file__).parents[2] / "conf"


def assignments(text: str, server_id: str, variable: str) -> list[str]:
    """What a command line in this text sets."""
    words = shlex.split(text.replace("\\\n", " ").replace("$$", "$"))
    after = [word for option, word in pairwise(words) if option == "--set"]
    return [word.replace(variable, server_id) for word in after]


def check(settings: Settings, server_id: str) -> None:
    assert settings.cluster.server_id == server_id
    assert settings.cluster.address == f"http://{server_id}:7411"
    assert settings.cluster.hosts() == (server_id,)
    assert settings.cluster.zookeeper() is not None


def test_the_unit_starts_a_server_of_the_cluster_that_the_settings_describe() -> None:
    unit = (CONF / "systemd/tuff@.service").read_text("utf-8")

    command = unit[unit.index("ExecStart=") : unit.index("# A server that another one")]
    check(load(CONF / "cluster.toml", assignments(command, "s2", "%i")), "s2")

    assert "\nRestart=always\n" in unit
    assert "\nStartLimitIntervalSec=0\n" in unit
    assert f"\nRestartPreventExitStatus={EXIT_USAGE}\n" in unit
    directory = load(CONF / "cluster.toml", []).cluster.transactions_directory
    assert f"\nExecStartPre=/usr/bin/mountpoint --quiet {directory}\n" in unit


def test_the_containers_are_servers_of_one_cluster() -> None:
    compose = (CONF / "compose.yaml").read_text("utf-8")
    command = compose[compose.index("exec tuff serve") : compose.index("environment:")]

    check(load(None, ["server.host=0.0.0.0", *assignments(command, "s3", "$TUFF_SERVER_ID")]), "s3")

    assert re.findall(r"TUFF_SERVER_ID: (\w+)", compose) == ["s1", "s2", "s3"]
    assert compose.count("<<: *server") == 3
    assert "restart: always" in compose
