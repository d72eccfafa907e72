"""`tuff dlq`, against a real server."""

import json
import signal
import subprocess
import sys
from concurrent.futures import Future
from pathlib import Path

import pytest

import tuff
from tests.cli.conftest import Tuff
from tests.client.proxy import losing
from tests.http.process import serve
from tuff.dead_letters import DeadLetter, dead_letter_topic_of, retry_topic_of
from tuff.protocol.requests import Message


def give_up(client: tuff.Client, topic: tuff.TopicId, *payloads: bytes, group: str | None) -> None:
    """Publish messages, and a dead letter of each."""
    dead = dead_letter_topic_of(topic)
    for each in (topic, dead, retry_topic_of(topic)):
        if each.name not in client.topics.list(topic.namespace):
            client.topics.create(each)
    for payload in payloads:
        sent = client.publish(topic, tuff.NewMessage(payload, key="k"))
        message = Message(sent.ids[0], payload, b"k")
        letter = DeadLetter(topic=topic, message=message, reason="no", attempts=3, group=group)
        client.publish(dead, letter.publishable())


def payloads(client: tuff.Client, topic: tuff.TopicId) -> list[bytes]:
    return [each.payload for each in client.poll(topic, isolation="committed")]


def test_dead_letters_are_listed_and_replayed_once(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "given-up")
    give_up(client, topic, b"a", b"b", group=None)
    client.publish(dead_letter_topic_of(topic), "none")

    first, second, none = json.loads(run("dlq", "ls", "cli:given-up", "--json").stdout)
    assert (first["reason"], first["attempts"], first["size"]) == ("no", 3, None)
    assert (first["message"]["payload"], first["message"]["key"]) == ("a", "k")
    assert "message" not in none
    assert second["id"] in run("dlq", "ls", "cli:given-up").stdout
    assert second["id"] not in run("dlq", "ls", "cli:given-up", "--limit", "1").stdout

    said = run("dlq", "replay", "cli:given-up", "--limit", "1")
    assert said.stdout == "replayed 1 dead letter of cli:given-up\n"
    assert payloads(client, topic) == [b"a", b"b", b"a"]
    left = json.loads(run("dlq", "ls", "cli:given-up", "--json").stdout)
    assert [each["id"] for each in left] == [second["id"], none["id"]]
    rest = json.loads(run("dlq", "replay", "cli:given-up", "--json").stdout)
    assert (rest["replayed"], rest["passedOver"]) == (1, [none["id"]])
    again = json.loads(run("dlq", "replay", "cli:given-up", "--json").stdout)
    assert (again["replayed"], again["passedOver"]) == (0, [])
    assert payloads(client, topic) == [b"a", b"b", b"a", b"b"]
    assert json.loads(run("dlq", "ls", "cli:given-up", "--json").stdout) == []
    assert len(json.loads(run("dlq", "ls", "cli:given-up", "--all", "--json").stdout)) == 3


def test_the_message_of_a_group_goes_to_that_group_alone(run: Tuff, client: tuff.Client) -> None:
    topic = tuff.TopicId("cli", "given-up-by-a-group")
    give_up(client, topic, b"bad", group="workers")
    create_group(client, topic, "workers")

    run("dlq", "replay", "cli:given-up-by-a-group")

    assert payloads(client, topic) == [b"bad"]
    with client.consumer(topic, group="workers", retry=tuff.RetryPolicy(delays=())) as consumer:
        retried = consumer.poll(60)
        if retried is not None and retried.letter is None:  # the message in the topic itself
            retried = consumer.poll(60)
    assert retried is not None
    assert retried.letter is not None
    assert (retried.attempt, retried[0].payload, retried[0].key) == (1, b"bad", b"k")


def create_group(client: tuff.Client, topic: tuff.TopicId, group: str) -> None:
    with client.consumer(topic, group=group, retry=tuff.RetryPolicy(delays=())) as consumer:
        while not consumer.assignment:
            consumer.poll(0.1)


def test_the_message_of_a_group_that_is_gone_stays_a_dead_letter(
    run: Tuff, client: tuff.Client
) -> None:
    topic = tuff.TopicId("cli", "given-up-by-a-gone-group")
    give_up(client, topic, b"bad", group="gone-workers")

    refused = run("dlq", "replay", str(topic))

    assert refused.returncode == 1
    assert "there is no group cli:gone-workers" in refused.stderr
    assert "--group" in refused.stderr
    assert payloads(client, retry_topic_of(topic)) == []
    assert len(json.loads(run("dlq", "ls", str(topic), "--json").stdout)) == 1
    assert run("dlq", "replay", str(topic), "--group", "missing").returncode == 1
    create_group(client, topic, "new-workers")
    assert run("dlq", "replay", str(topic), "--group", "new-workers").returncode == 0
    (letter,) = client.poll(retry_topic_of(topic), isolation="committed")
    assert tuff.read_dead_letter(letter).group == "new-workers"
    assert json.loads(run("dlq", "ls", str(topic), "--json").stdout) == []


def test_a_message_that_was_too_large_for_its_letter_is_read_from_its_topic(
    run: Tuff, client: tuff.Client
) -> None:
    topic, other = tuff.TopicId("cli", "large-given-up"), tuff.TopicId("cli", "elsewhere")
    client.topics.create(other)
    give_up(client, topic, b"whole", group="workers")
    (message,) = client.poll(dead_letter_topic_of(topic))
    letter = tuff.read_dead_letter(message)
    client.topics.delete(dead_letter_topic_of(topic))
    client.topics.create(dead_letter_topic_of(topic))
    client.publish(dead_letter_topic_of(topic), letter.without_payload().publishable())

    run("dlq", "replay", "cli:large-given-up", "--to", "cli:elsewhere")

    assert payloads(client, other) == [b"whole"]


def test_a_replay_that_is_killed_continues(tmp_path: Path) -> None:
    count = 20
    topic = tuff.TopicId("cli", "killed")
    short = ("groups.session_timeout=1", "groups.heartbeat_interval=0.2")
    with (
        serve(tmp_path, *short) as server,
        tuff.Client(server.url) as client,
        losing(server.url) as (url, losses),
    ):
        give_up(client, topic, *(b"%d" % number for number in range(count)), group=None)
        command = [sys.executable, "-m", "tuff_cli", "dlq", "replay", "cli:killed", "--url"]
        replay: Future[subprocess.Popen[bytes]] = Future()
        losses.lose_reply("commit", meanwhile=lambda: replay.result().kill())
        with subprocess.Popen([*command, url, "--limit", str(count)]) as process:
            replay.set_result(process)
        assert process.returncode == -signal.SIGKILL
        assert len(payloads(client, topic)) == count + 1

        subprocess.run([*command, server.url], check=True)

        assert sorted(payloads(client, topic)) == sorted(b"%d" % n for n in [*range(count)] * 2)


@pytest.mark.parametrize("arguments", [("ls",), ("replay",)])
def test_a_topic_without_dead_letters_has_none(
    run: Tuff, client: tuff.Client, arguments: tuple[str, ...]
) -> None:
    topic = tuff.TopicId("cli", f"nothing-{arguments[0]}")
    missing = run("dlq", *arguments, str(topic))
    client.topics.create(topic)
    said = run("dlq", *arguments, str(topic))

    assert (missing.returncode, said.returncode) == (1, 0)
    assert f"there is no topic {topic};" in missing.stderr
    assert "replayed 0 dead letters" in said.stdout or "none" in said.stdout
