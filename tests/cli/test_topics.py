"""`tuff topics`: topics and their properties."""

import json

import tuff
from tests.cli.conftest import Tuff


def test_a_topic_is_created_shown_listed_and_removed(run: Tuff) -> None:
    created = run("topics", "create", "cli:life", "--ttl", "60", "--property", "owner=me")
    assert (created.returncode, created.stdout) == (0, "created cli:life, generation 1\n")

    twice = run("topics", "create", "cli:life")
    assert twice.returncode == 1
    assert twice.stderr.endswith("; next: tuff topics show cli:life\n")

    shown = json.loads(run("topics", "show", "cli:life", "--json").stdout)
    assert shown == {
        "namespace": "cli",
        "name": "life",
        "generation": 1,
        "properties": {"ttl": "60", "owner": "me"},
        "partitions": [0],
        "retired": [],
        "earliest": None,
        "end": None,
    }
    assert json.loads(run("topics", "ls", "cli", "--json").stdout) == [
        {"namespace": "cli", "name": "life"}
    ]
    for answer in ("n\n", ""):
        refused = run("topics", "rm", "cli:life", given=answer)
        assert refused.returncode == 130
        assert refused.stderr.endswith("tuff: nothing was done; --yes does it without a question\n")
    assert run("topics", "rm", "cli:life", "--yes").returncode == 0
    again = run("topics", "show", "cli:life")
    assert again.returncode == 1
    assert again.stderr.startswith("tuff: ")
    assert "tuff topics" in again.stderr
    assert again.stderr.count("\n") == 1


def test_properties_are_changed_one_by_one(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "set")
    client.topics.create(topic, ttl=60, properties={"owner": "me", "team": "red"})

    done = run("topics", "set", "cli:set", "--ttl", "30", "--property", "owner=you", "--json")
    run("topics", "set", "cli:set", "--unset", "team")

    assert json.loads(done.stdout)["properties"] == {"ttl": "30", "owner": "you", "team": "red"}
    assert client.topics.get(topic).properties == {"ttl": "30", "owner": "you"}


def test_setting_a_property_keeps_the_default_ttl(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "default-ttl")
    client.topics.create(topic)
    before = client.topics.get(topic).properties["ttl"]

    run("topics", "set", "cli:default-ttl", "--property", "owner=you")

    assert client.topics.get(topic).properties == {"ttl": before, "owner": "you"}


def test_partitions_are_created_changed_and_shown(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "parts")
    assert run("topics", "create", "cli:parts", "--partitions", "3", "--ttl", "60").returncode == 0
    assert client.topics.get(topic).partitions == (0, 1, 2)

    done = run("topics", "set", "cli:parts", "--partitions", "2")

    assert done.returncode == 0
    info = client.topics.get(topic)
    assert (info.partitions, info.retired, info.properties) == ((0, 1), (2,), {"ttl": "60"})
    shown = json.loads(run("topics", "show", "cli:parts", "--json").stdout)
    assert (shown["partitions"], shown["retired"], "end" in shown) == ([0, 1], [2], False)
    lines = run("topics", "show", "cli:parts").stdout.splitlines()
    assert [line.split() for line in lines if "partitions" in line] == [["partitions", "0,1"]]
    one = json.loads(run("topics", "show", "cli:parts:1", "--json").stdout)
    assert (one["name"], one["end"]) == ("parts:1", None)
    assert run("topics", "ls", "cli").stdout.count("parts") == 1
    refused = run("topics", "rm", "cli:parts:1", "--yes")
    assert refused.returncode == 2
    assert "is a partition of cli:parts" in refused.stderr
