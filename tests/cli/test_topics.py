"""`tuff topics`: topics and their properties."""

import json

import pytest

import tuff
from tests.cli.conftest import Tuff
from tests.http.client import until


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
        "count": 0,
        "isLowerBound": False,
        "oldest": None,
        "oldestAgeMs": None,
        "liveBytes": 0,
        "diskBytes": 0,
        "earliest": None,
        "end": None,
    }
    assert json.loads(run("topics", "ls", "cli", "--json").stdout) == [
        {"namespace": "cli", "name": "life"}
    ]
    run("pub", "cli:life", given="a\nb\n")
    assert "messages    2" in run("topics", "show", "cli:life").stdout
    (listed,) = json.loads(run("topics", "ls", "cli", "--count", "--json").stdout)
    assert (listed["name"], listed["count"], listed["isLowerBound"]) == ("life", 2, False)
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


def test_a_ttl_that_lets_messages_expire_is_asked_about(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "expiring")
    client.topics.create(topic, ttl=60)
    client.publish(topic, "old")
    until(lambda: client.topics.update(topic, ttl=1, dry_run=True).expiring)

    shorter = ("topics", "set", "cli:expiring", "--ttl", "1")
    refused = run(*shorter, given="n\n")
    assert refused.returncode == 130
    assert "1 message, published from 20" in refused.stderr
    assert "expires at once. Change cli:expiring?" in refused.stderr
    dry = run(*shorter, "--dry-run", "--json")
    assert json.loads(dry.stdout)["expires"]["messages"] == 1
    assert client.topics.get(topic).properties == {"ttl": "60"}
    assert [message.payload for message in client.poll(topic)] == [b"old"]

    done = run(*shorter, "--yes", "--json")

    assert (done.returncode, json.loads(done.stdout)["expires"]["messages"]) == (0, 1)
    assert list(client.poll(topic)) == []
    assert run(*shorter).stderr == ""


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


def test_an_existing_topic_is_no_error_if_that_is_asked_for(run: Tuff) -> None:
    run("topics", "create", "cli:twice", "--ttl", "60")

    done = run("topics", "create", "cli:twice", "--ttl", "1h", "--if-not-exists")

    assert done.returncode == 0
    assert done.stdout == "cli:twice is there already, and was not changed, generation 1\n"
    shown = json.loads(run("topics", "show", "cli:twice", "--json").stdout)
    assert shown["properties"] == {"ttl": "60"}
    new = run("topics", "create", "cli:once", "--if-not-exists")
    assert new.stdout == "created cli:once, generation 1\n"


@pytest.mark.parametrize(
    ("text", "ttl"),
    [("90", "90"), ("90s", "90"), ("10m", "600"), ("1.5h", "5400"), ("7d", "604800")],
)
def test_a_time_to_live_has_a_unit(run: Tuff, text: str, ttl: str) -> None:
    name = f"cli:unit-{text}"
    assert run("topics", "create", name, "--ttl", text).returncode == 0
    assert run("pub", name, "m", "--ttl", "1m").returncode == 0

    shown = json.loads(run("topics", "show", name, "--json").stdout)

    assert shown["properties"]["ttl"] == ttl


def test_a_topic_is_truncated_at_a_message_or_whole(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "cut")
    client.topics.create(topic, partitions=2)
    client.publish(topic.partition(0), "one")
    second = client.publish(topic.partition(1), "two").ids[0]

    refused = run("topics", "truncate", "cli:cut", "--before", "latest", given="n\n")
    cut = run("topics", "truncate", "cli:cut", "--before", second.hex(), "--yes")
    left = run("tail", "cli:cut").stdout
    everything = run("topics", "truncate", "cli:cut", "--before", "latest", "--yes", "--json")

    assert refused.returncode == 130
    assert "Remove the messages of cli:cut before its end?" in refused.stderr
    assert cut.stdout == f"truncated cli:cut; its oldest message is {second.hex()}\n"
    assert [line[-3:] for line in left.splitlines()] == ["two"]
    assert json.loads(everything.stdout) == {"namespace": "cli", "name": "cut", "earliest": None}
    assert run("tail", "cli:cut", "--all").stdout == ""
    nothing = run("topics", "truncate", "cli:cut", "--before", "earliest", "--yes")
    assert (nothing.returncode, "nothing before the earliest" in nothing.stderr) == (2, True)
