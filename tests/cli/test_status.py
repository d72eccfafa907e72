"""`tuff status` and `tuff --version`: versions, health and counts."""

import json
from importlib.metadata import version
from pathlib import Path

import tuff
from tests.cli.command import transactions_stopped, tuff_command
from tests.cli.conftest import Tuff
from tests.http.process import serve
from tests.http.test_access import access_file
from tests.secret_values import token_of


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
        "version": tuff.__version__,
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


def test_a_token_without_rights_sees_the_health_and_no_counts(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text(access_file({"nobody": ""}))
    server = serve(tmp_path, f"server.access_file={file}")

    done = tuff_command("--token", token_of("nobody"), "status", "--json", url=server.url)
    server.end()

    shown = json.loads(done.stdout)
    assert shown["checks"]["storage"]["status"] == "ok"
    assert (shown["topicCount"], shown["openCount"]) == (None, None)
