"""`tuff delayed`, and `tuff pub` with a delay, against a real server."""

import json
from datetime import UTC, datetime, timedelta

import pytest

import tuff
from tests.cli.conftest import Tuff


def test_a_message_is_delayed_listed_and_cancelled(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "later")
    client.topics.create(topic)

    made = json.loads(run("pub", "cli:later", "a", "--key", "k", "--delay", "600", "--json").stdout)
    moment = datetime.now(UTC) + timedelta(days=30)
    said = run("pub", "cli:later", "b", "--at", moment.isoformat()).stdout

    assert said == "delayed 1 message for cli:later\n"
    assert made["delayed"] == 1
    first, second = json.loads(run("delayed", "ls", "cli:later", "--json").stdout)
    assert (first["id"], first["payload"], second["payload"]) == (made["firstId"], "a", "b")
    assert (first["key"], first["tags"], second["key"]) == ("k", [], None)
    assert first["id"] in run("delayed", "ls", "cli:later", "--limit", "1").stdout
    cut = run("delayed", "ls", "cli:later", "--limit", "1").stdout
    assert second["id"] not in cut
    assert cut.endswith(f"there are more: tuff delayed ls cli:later --after {first['id']}\n")
    assert "there are more" not in run("delayed", "ls", "cli:later", "--limit", "2").stdout
    behind = run("delayed", "ls", "cli:later", "--after", first["id"], "--json").stdout
    assert json.loads(behind) == [second]
    cancelled = run("delayed", "cancel", "cli:later", first["id"])
    assert cancelled.stdout == f"cancelled {first['id']} of cli:later\n"
    again = run("delayed", "cancel", "cli:later", first["id"])
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.endswith("; next: tuff delayed ls cli:later\n")
    assert list(client.poll(topic)) == []


def test_a_list_has_all_messages_though_a_page_of_the_server_is_full(
    run: Tuff, client: tuff.Client
) -> None:
    topic = tuff.TopicId("cli", "large")
    client.topics.create(topic)
    ids = [client.publish(topic, b"x" * (5 << 20), delay=600).delayed_ids[0] for _ in range(3)]
    assert len(client.delayed.list(topic)) == 1

    def listed(*options: str) -> list[str]:
        lines = run("delayed", "ls", "cli:large", *options).stdout.splitlines()
        rows = [line for line in lines if not line.startswith("there are more")]
        return [each for line in rows for each in ids if each in line]

    assert listed() == ids
    assert listed("--limit", "2") == ids[:2]


@pytest.mark.parametrize(
    "options",
    [
        ("--delay", "0"),
        ("--at", "soon"),
        ("--at", "2020"),
        ("--delay", "1", "--at", "1795000000000"),
    ],
)
def test_an_impossible_delay_is_refused(run: Tuff, options: tuple[str, ...]) -> None:
    assert run("pub", "cli:later", "a", *options).returncode == 2
