"""`tuff status` and `tuff --version`: versions, health and counts."""

import json
from importlib.metadata import version
from pathlib import Path

import pytest

import tuff
from tests.cli.command import transactions_stopped, tuff_command
from tests.cli.conftest import Tuff
from tests.http.process import ServerProcess, serve
from tuff import calls
from tuff.address import Address
from tuff.calls import Response


def test_the_version_is_that_of_the_package() -> None:
    done = tuff_command("--version")

    assert (done.returncode, done.stdout) == (0, f"tuff {version('tuff-messaging')}\n")
    assert tuff.__version__ == version("tuff-messaging")


def test_topics_and_transactions_are_counted(tmp_path: Path) -> None:
    with serve(tmp_path) as server, tuff.Client(server.url) as client:
        for name in ("a:one", "a:two", "b:one"):
            client.topics.create(tuff.TopicId(*name.split(":")))
        before = client.transactions.overview()
        client.transactions.start()
        client.transactions.invalidate(client.transactions.start())
        health = client.health()

        told = json.loads(tuff_command("status", "--json", url=server.url).stdout)
        shown = tuff_command("status", url=server.url)

    assert told == {
        "url": server.url,
        "status": health.status,
        "serverVersion": tuff.__version__,
        "clientVersion": tuff.__version__,
        "checks": told["checks"],
        "topicCount": 3,
        "namespaceCount": 2,
        "openCount": 1,
        "committingCount": 0,
        "invalidCount": before.invalid_count + 1,
    }
    assert set(told["checks"]) == {"storage", "transactions", "disk", "clock"}
    assert shown.stdout.startswith(f"{server.url} is {health.status}\n")
    assert "3 in 2 namespaces\n" in shown.stdout.replace("  ", "")
    assert shown.returncode == (0 if health.status == "ok" else 1)


def test_a_failing_component_is_exit_1_with_the_reason(run: Tuff, client: tuff.Client) -> None:
    with transactions_stopped(client.url):
        shown = run("status")
        told = run("status", "--json")

    reason = json.loads(told.stdout)["checks"]["transactions"]
    assert (shown.returncode, told.returncode) == (1, 1)
    assert reason["status"] != "ok"
    assert reason["detail"] in shown.stdout
    assert json.loads(told.stdout)["openCount"] is None
    assert json.loads(told.stdout)["topicCount"] is not None


def test_a_server_that_is_down_differs_from_a_proxy_without_a_server() -> None:
    address = Address(url="http://x", timeout_s=1, connect_timeout_s=1, token=None)
    body = b'{"status":"down","version":"9","checks":{"disk":{"status":"down","detail":"full"}}}'

    told = address.answer(calls.health(), Response(503, {}, body))

    assert told == tuff.Health(
        status="down", checks={"disk": tuff.HealthCheck("down", "full")}, version="9"
    )
    with pytest.raises(tuff.ConnectionLostError, match="a proxy says 503"):
        address.answer(calls.health(), Response(503, {}, b"<html>away</html>"))
    stopping = b'{"status":503,"code":"shutting_down","detail":"the server stops"}'
    with pytest.raises(tuff.TuffError, match="the server stops"):
        address.answer(calls.health(), Response(503, {}, stopping))


def test_an_older_server_has_no_version() -> None:
    body = b'{"status":"ok","checks":{"clock":{"status":"ok"}}}'

    told = calls.health().answer(Response(200, {}, body))

    assert (told.version, told.checks["clock"].detail) == (None, "")


async def test_both_clients_have_the_same_health_checks(
    server: ServerProcess, client: tuff.Client
) -> None:
    async with tuff.AsyncClient(server.url) as on_loop:
        assert (await on_loop.health()).checks.keys() == client.health().checks.keys()
