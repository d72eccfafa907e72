"""`tuff holds` and `tuff positions` against a real server."""

import json

import tuff
from tests.cli.conftest import Tuff


def test_a_hold_is_set_listed_and_ended(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "held")
    client.topics.create(topic)
    published = client.publish(topic, "a", "b")
    last = published.last_id.hex()

    made = json.loads(
        run("holds", "set", "cli:held", "job", "--from", last, "--max-age", "9", "--json").stdout
    )

    assert (made["name"], made["from"]) == ("job", last)
    assert made["expiresAt"] - made["setAt"] == 9_000
    assert json.loads(run("holds", "ls", "cli:held", "--json").stdout) == [made]
    assert last in run("holds", "ls", "cli:held").stdout
    moved = run("holds", "set", "cli:held", "job", "--from", "latest").stdout
    assert moved.startswith(f"cli:held is held from {last} until ")
    assert run("holds", "rm", "cli:held", "job").stdout == "removed job of cli:held\n"
    again = run("holds", "rm", "cli:held", "job")
    assert (again.returncode, again.stdout) == (1, "")
    assert again.stderr.endswith("; next: tuff holds ls cli:held\n")


def test_a_position_is_set_listed_and_forgotten(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "read")
    client.topics.create(topic)
    last = client.publish(topic, "a").last_id.hex()

    made = json.loads(run("positions", "set", "cli:read", "job", last, "--json").stdout)

    assert (made["name"], made["position"], made["generation"]) == ("job", last, 1)
    assert json.loads(run("positions", "ls", "cli:read", "--json").stdout) == [made]
    assert run("positions", "ls", "cli:read").stdout.startswith(f"cli:read ends with {last}\n")
    assert run("positions", "rm", "cli:read", "job").stdout == "removed job of cli:read\n"
    again = run("positions", "rm", "cli:read", "job")
    assert again.stderr.endswith("; next: tuff positions ls cli:read\n")
