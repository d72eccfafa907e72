"""`tuff groups` against a real server."""

import json
from itertools import count

import pytest

import tuff
from tests.cli.conftest import Tuff

_numbers = count(1)


@pytest.fixture
def topic(client: tuff.Client) -> tuff.TopicId:
    """A topic with two partitions, and two messages in the second one."""
    made = tuff.TopicId("cli", f"consumed-{next(_numbers)}")
    client.topics.create(made, partitions=2)
    for payload in "ab":
        client.publish(made.partition(1), payload)
    return made


def test_a_group_is_shown_with_the_lag_of_its_members(
    run: Tuff, client: tuff.Client, topic: tuff.TopicId
) -> None:
    with client.consumer(topic, group="billing") as consumer:
        while (batch := consumer.poll()) is None:
            pass
        consumer.commit()

        shown = json.loads(run("groups", "show", "cli:billing", "--json").stdout)
        (member,) = shown["members"]
        assert (shown["state"], member["client"]) == ("stable", "tests")
        assert (member["partitionCount"], member["behindMs"]) == (2, 0)
        assert shown["partitions"][1]["after"] == batch.next_id.hex()
        table = run("groups", "show", "cli:billing").stdout
        assert f"tests ({member['memberId']}) has 2 partitions, 0 unread\n" in table
        refused = run("groups", "reset", "cli:billing", str(topic), "--to=earliest", "--yes")
        assert refused.returncode == 1
        assert refused.stderr.endswith("; next: tuff groups show cli:billing\n")


def test_a_group_is_listed_and_deleted(run: Tuff, client: tuff.Client, topic: tuff.TopicId) -> None:
    with client.consumer(topic, group="gone") as consumer:
        while consumer.poll() is None:
            pass

    listed = json.loads(run("groups", "ls", "cli", "--json").stdout)
    of_all = json.loads(run("groups", "ls", "--json").stdout)
    assert {"namespace": "cli", "name": "gone"} in listed
    assert {"namespace": "cli", "name": "gone"} in of_all
    assert run("groups", "delete", "cli:gone", "--yes").stdout == "deleted cli:gone\n"
    gone = run("groups", "show", "cli:gone")
    assert (gone.returncode, gone.stdout) == (1, "")
    assert gone.stderr.endswith("; next: tuff groups ls cli\n")


@pytest.mark.parametrize(
    ("start", "payloads"),
    [("earliest", [b"a", b"b"]), ("1h", [b"a", b"b"]), ("ID", [b"b"]), ("latest", [])],
)
def test_a_group_continues_where_it_was_reset_to(
    run: Tuff, client: tuff.Client, topic: tuff.TopicId, start: str, payloads: list[bytes]
) -> None:
    last = client.poll(topic.partition(1))[-1].id.hex()
    with client.consumer(topic, group="moved") as consumer:
        while consumer.poll() is None:
            pass
    reset = ("groups", "reset", "cli:moved", f"{topic}:1", "--yes", "--json", "--to")

    said = json.loads(run(*reset, last if start == "ID" else start).stdout)

    assert list(said["offsets"]) == [f"{topic.name}:1"]
    with client.consumer(topic, group="moved") as consumer:
        batch = consumer.poll(60 if payloads else 0.3)
        assert [message.payload for message in batch or ()] == payloads


def test_nothing_is_reset_or_deleted_without_a_yes(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "kept")
    client.topics.create(topic)
    with client.consumer(topic, group="kept") as consumer:
        while not consumer.assignment:
            consumer.poll(0.1)

    for command in (
        ("groups", "delete", "cli:kept"),
        ("groups", "reset", "cli:kept", "cli:kept", "--to=latest"),
    ):
        assert run(*command, given="n\n").returncode == 130

    assert client.groups.get("cli", "kept").state == "empty"


def test_preferences_are_shown_set_and_removed(run: Tuff, client: tuff.Client) -> None:
    options = ("--start=latest", "--tags=a,b|c", "--retry=10s,1m", "--in-order")
    shown = run("groups", "set", "cli:settled", *options)
    assert "after 10 s, 60 s, in order" in shown.stdout, shown.stderr

    more = ("--unset=tags", "--isolation=all", "--dead-letters=failed", "--json")
    form = json.loads(run("groups", "set", "cli:settled", *more).stdout)
    assert form == {
        "namespace": "cli",
        "name": "settled",
        "start": "latest",
        "isolation": "all",
        "tags": None,
        "retry": {"delays": [10, 60], "inOrder": True},
        "deadLetters": "failed",
    }
    assert json.loads(run("groups", "preferences", "cli:settled", "--json").stdout) == form


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--in-order",),
        ("--tags=a", "--unset=tags"),
        ("--retry=soon",),
        ("--tags=",),
        ("--start=first",),
    ],
)
def test_preferences_that_are_none_are_refused(
    run: Tuff, client: tuff.Client, options: tuple[str, ...]
) -> None:
    refused = run("groups", "set", "cli:never", *options)

    assert refused.returncode == 2, refused.stderr
    assert "never" not in client.groups.list("cli")
