"""The server process: flags, settings, exits, signals (protocol §8)."""

import os
import re
import signal
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

import tuff
from tests.http.calls import TRANSACTIONS, Topic, begin, created
from tests.http.client import ok, refused, until
from tests.http.conftest import Launch, NewServer, one_sentence
from tests.http.process import START_WITHIN_S, ServerProcess


def test_a_ready_server_prints_one_line_with_its_address(launch: Launch) -> None:
    running = launch("--data", "here", "--port", "0", is_forked=False).wait_ready()

    assert running.stdout() == f"tuff ready on http://127.0.0.1:{running.port}\n"
    assert running.port > 0
    assert (running.home / "here" / "messages").is_dir()
    assert (running.home / "here" / "snapshots").is_dir()


@pytest.fixture
def recovering(launch: Launch) -> Iterator[tuple[ServerProcess, socket.socket]]:
    """A server whose gateway to HBase took its connection and answers nothing, and that gateway."""
    pytest.importorskip("happybase")
    with socket.create_server(("127.0.0.1", 0)) as gateway:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        settings = (
            "messaging.store=hbase",
            "server.max_request_bytes=8388608",
            f'hbase.gateways=["127.0.0.1:{gateway.getsockname()[1]}"]',
            "hbase.timeout=3600",
        )
        flags = [word for setting in settings for word in ("--set", setting)]
        server = launch("--data", "d", "--port", str(port), *flags)
        server.port = port
        until(partial(_is_listening, port), within_s=START_WITHIN_S)
        yield server, gateway


def _is_listening(port: int) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def test_a_server_that_recovers_its_stores_says_so(
    recovering: tuple[ServerProcess, socket.socket],
) -> None:
    server, gateway = recovering
    client = server.client()

    ok(client.get("/health/live"))
    assert client.get("/health/startup").status == 503
    ready = client.get("/health/ready")
    assert ready.status == 503
    assert "starting" in ready.json["checks"]["storage"]["detail"]
    ok(client.get("/metrics"))
    for early in (Topic(client, "default", "t").show(), client.post(TRANSACTIONS)):
        refused(early, 503, "starting")
        assert early.headers["retry-after"] == "1"
    assert server.stdout() == ""

    gateway.close()  # its client gets an error, and the server goes on without messages
    until(lambda: "tuff ready" in server.stdout(), within_s=START_WITHIN_S)
    refused(Topic(client, "default", "t").show(), 503, "storage_unavailable")
    assert client.get("/health/startup").status == 503


def test_a_stop_waits_for_no_gateway_that_hangs_at_the_start(
    recovering: tuple[ServerProcess, socket.socket],
) -> None:
    server, _ = recovering

    assert server.terminate() == 0

    assert server.stdout() == ""


def test_data_that_is_no_directory_is_told_in_a_sentence(launch: Launch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")

    running = launch("--data", str(tmp_path / "file"))

    assert running.wait_exit() == 1
    said = one_sentence(running)
    assert (
        f"{tmp_path / 'file'} can't hold data: it is a file, and no directory; give another" in said
    )


def test_data_with_a_name_that_is_not_utf8_is_told_in_a_sentence(
    launch: Launch, tmp_path: Path
) -> None:
    running = launch("--data", "odd\udcff", "--port", "0", is_forked=False)

    assert running.wait_exit() == 2
    assert r"the name 'odd\udcff' is not UTF-8; give another directory" in one_sentence(running)
    assert list(tmp_path.rglob("odd*")) == []


def test_without_data_it_works_in_the_current_directory(launch: Launch) -> None:
    running = launch("--port", "0").wait_ready()
    client = running.client()
    topic = created(client, "default", "t")
    ok(topic.publish("a"))
    ok(client.post(f"{TRANSACTIONS}/snapshot"))

    assert (running.home / "data").is_dir()
    assert list((running.home / "snapshots").glob("snapshot.*"))


def test_settings_come_from_a_file_and_set_wins(launch: Launch, tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        "[server]\nport = 0\n[messaging]\ndefault_ttl = 77\npoll_limit_max = 3\n"
        "[tx]\ndefault_timeout = 2.5\n"
    )

    running = launch(
        "--config", str(path), "--data", "d", "--set", "messaging.default_ttl=88"
    ).wait_ready()

    client = running.client()
    topic = created(client, "default", "t")
    assert ok(topic.show()).json["properties"] == {"ttl": "88"}
    assert begin(client).object["timeout"] == 2.5
    ok(topic.publish(*"abcde"))
    assert topic.read() == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--set", "messaging.store=postgres"], "messaging.store"),
        (["--config", "nowhere.toml"], "nowhere.toml"),
    ],
)
def test_an_impossible_setting_ends_the_start_and_is_named(
    launch: Launch, arguments: list[str], named: str
) -> None:
    running = launch("--data", "d", "--port", "0", *arguments)

    assert running.wait_exit() == 2
    said = one_sentence(running)
    assert named in said
    assert len(said.splitlines()) == 1
    assert not (running.home / "d" / "messages").exists()


@pytest.mark.parametrize("arguments", [["--bogus"], ["--port", "x"], ["--set"], ["surprise"]])
def test_an_unknown_flag_ends_the_start(launch: Launch, arguments: list[str]) -> None:
    running = launch("--data", "d", *arguments)

    assert running.wait_exit() == 2
    assert arguments[0].lstrip("-") in one_sentence(running)


def test_sigterm_ends_it_cleanly_with_a_snapshot(new_server: NewServer) -> None:
    running = new_server()
    client = running.client()
    topic = created(client, "default", "t")
    ok(topic.publish("a"))
    tx = begin(client)
    before = {path.name for path in (running.data / "snapshots").glob("snapshot.*")}

    assert running.terminate() == 0

    after = {path.name for path in (running.data / "snapshots").glob("snapshot.*")}
    assert after - before
    client = new_server(home=running.home).client()
    assert Topic(client, "default", "t").read() == ["a"]
    assert ok(client.get(f"{TRANSACTIONS}/{tx.id}")).json["state"] == "in_progress"


def test_a_start_is_logged_with_its_version_places_and_settings(launch: Launch) -> None:
    running = launch("--data", "d", "--port", "0", "--set", "tx.default_timeout=9").wait_ready()

    [line] = [line for line in running.stderr().splitlines() if 'event="server starting"' in line]
    assert f"version={tuff.__version__} pid={running.pid} messages=d/messages" in line
    # A low limit of file descriptors lowers `server.max_connections`.
    set_here = re.sub(r" server\.max_connections=\d+", "", line)
    assert set_here.endswith("snapshots=d/snapshots server.port=0 tx.default_timeout=9.0")
    assert "level=warning" not in running.stderr()


def test_a_server_that_others_can_reach_is_warned_of(launch: Launch) -> None:
    remote = ("--set", "server.allow_remote=true")
    running = launch("--data", "d", "--port", "0", "--host", "0.0.0.0", *remote).wait_ready()

    tls, access = [line for line in running.stderr().splitlines() if "level=warning" in line]
    assert "server.host=0.0.0.0 is not a loopback address, and the server has no TLS" in tls
    assert "server.host=0.0.0.0 is not a loopback address, and the server has no access" in access


def test_sighup_is_ignored_and_logged_and_sigint_ends_it_like_sigterm(
    new_server: NewServer,
) -> None:
    server = new_server()

    os.kill(server.pid, signal.SIGHUP)

    until(lambda: "SIGHUP is ignored" in server.stderr(), what="the line about the signal")
    ok(server.client().get("/health/live"))
    os.kill(server.pid, signal.SIGINT)
    assert server.wait_exit() == 0


@pytest.mark.slow
def test_idle_connections_do_not_delay_a_stop(new_server: NewServer) -> None:
    running = new_server()
    idle = [running.client() for _ in range(5)]
    for one in idle:
        ok(one.get("/health/live"))
    half = socket.create_connection(("127.0.0.1", running.port))
    half.sendall(
        b"POST /v1/transactions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 50\r\n\r\n{"
    )

    assert running.terminate() == 0

    half.close()


@pytest.mark.slow
def test_system_topics_are_made_at_the_start(new_server: NewServer) -> None:
    setting = 'messaging.system_topics=["audit","metrics:3"]'
    running = new_server(setting)
    client = running.client()
    names = ["audit", "metrics0", "metrics1", "metrics2"]
    assert ok(client.get("/v1/namespaces/system/topics")).json == names
    ok(Topic(client, "system", "audit").publish("kept"))
    running.terminate()

    client = new_server(setting, home=running.home).client()

    assert ok(client.get("/v1/namespaces/system/topics")).json == names
    assert Topic(client, "system", "audit").read() == ["kept"]
    assert ok(client.get("/v1/namespaces")).json == ["system"]


def test_the_memory_store_keeps_messages_while_it_runs(new_server: NewServer) -> None:
    server = new_server("messaging.store=memory")
    client = server.client()
    topic = created(client, "default", "t")
    tx = begin(client)
    ok(topic.store("a", tx=tx.id))
    ok(topic.publish(tx=tx.id))
    ok(tx.commit())

    assert topic.committed() == ["a"]
    # It is not durable, and says so before something is lost.
    detail = ok(client.get("/health/ready")).json["checks"]["storage"]["detail"]
    assert "loses them when the process ends" in detail
    assert "every message is lost when the process ends" in server.stderr()


def test_the_memory_store_does_not_start_beside_messages(
    new_server: NewServer, launch: Launch
) -> None:
    """What committed in memory was missing at the next start, and transactions stayed down."""
    with_messages = new_server()
    with_messages.end()

    refused = launch("--data", str(with_messages.data), "--set", "messaging.store=memory")

    assert refused.wait_exit() == 2
    assert "messages holds messages: name another --data" in one_sentence(refused)


def test_a_users_own_modules_shadow_nothing_of_the_server(launch: Launch, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    for name in ("tx", "messaging", "process", "tuff", "tuff_storage"):
        (home / f"{name}.py").write_text("raise SystemExit('a user file was imported')\n")

    running = launch("--data", "d", "--port", "0", is_forked=False).wait_ready()

    client = running.client()
    ok(client.get("/health/live"))
