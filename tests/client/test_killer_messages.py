"""A message of which consumers die becomes a dead letter; their other messages are processed."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tuff
from tests.http.process import ServerProcess, serve

ROOT = Path(__file__).parents[2]
CONSUMER = """
import os, signal, sys, tuff
url, topic, kind, mode = sys.argv[1:]
policy = tuff.RetryPolicy(delays=(0.01, 0.01))  # three attempts

def process(message, tx=None):
    if message.payload == b"killer":
        os.kill(os.getpid(), signal.SIGKILL)
    print(message.payload.decode(), flush=True)
    if message.payload == b"last":
        consumer.stop()

def process_batch(batch, tx=None):
    for message in batch:
        process(message)

with tuff.Client(url) as client:
    if kind == "share group":
        options = {"group": "g", "mode": mode, "retry": policy, "lease": 1}
        with client.share_consumer(topic, **options) as consumer:
            consumer.run(process)
    else:
        with client.consumer(topic, group="g", mode=mode, retry=policy) as consumer:
            consumer.run(process_batch)
"""
DEATHS_MAX = 8


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that soon notices that a member is dead."""
    settings = "groups.session_timeout=2", "groups.heartbeat_interval=0.1"
    with serve(tmp_path_factory.mktemp("server"), *settings) as running:
        yield running


def consumed(
    client: tuff.Client, topic: tuff.TopicId, kind: str, mode: str
) -> tuple[int, list[str]]:
    """How many consumers died, one after the other, until there was a dead letter, and what they
    processed."""
    command = [sys.executable, "-c", CONSUMER, client.url, str(topic), kind, mode]
    seen: list[str] = []
    deaths = 0
    while deaths < DEATHS_MAX:
        one = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, cwd=ROOT, timeout=60, check=False
        )
        seen += one.stdout.split()
        if one.returncode == 0:
            if f"{topic.name}.dlq" in client.topics.list(topic.namespace):
                return deaths, seen
            client.publish(topic, "last")  # it ended before the lease of the dead one
            continue
        assert one.returncode == -signal.SIGKILL
        deaths += 1
    raise AssertionError(f"{DEATHS_MAX} consumers died of it")


FIRST, LATER = ["killer", "good", "last"], ["good", "killer", "last"]
OTHER_PAIR = pytest.mark.slow  # each kind has each mode and each order in the others


@pytest.mark.parametrize(
    ("kind", "mode", "payloads", "deaths_expected"),
    [
        ("share group", "at_least_once", LATER, 3),
        ("share group", "exactly_once", FIRST, 3),
        pytest.param("share group", "at_least_once", FIRST, 3, marks=OTHER_PAIR),
        pytest.param("share group", "exactly_once", LATER, 3, marks=OTHER_PAIR),
        ("group", "at_least_once", FIRST, 3),
        # Of the first death of a member in a batch, it is not known which message was its cause.
        ("group", "exactly_once", LATER, 4),
        pytest.param("group", "at_least_once", LATER, 4, marks=OTHER_PAIR),
        pytest.param("group", "exactly_once", FIRST, 3, marks=OTHER_PAIR),
    ],
)
def test_a_message_that_consumers_die_of_becomes_a_dead_letter(
    client: tuff.Client,
    topic: tuff.TopicId,
    kind: str,
    mode: str,
    payloads: list[str],
    deaths_expected: int,
) -> None:
    client.publish(topic, *payloads)

    deaths, seen = consumed(client, topic, kind, mode)

    assert deaths == deaths_expected
    assert set(seen) == {"good", "last"}
    dead = tuff.TopicId(topic.namespace, f"{topic.name}.dlq")
    (letter,) = map(tuff.read_dead_letter, client.poll(dead))
    assert (letter.message.payload, letter.attempts) == (b"killer", 3)
    assert letter.reason == (
        "ConsumerLostError: 3 of 3 attempts did not end: the consumers vanished while they "
        "processed the message"
    )
    if kind == "share group":
        assert client.share_groups.get(topic, "g").oldest is None
    else:
        assert all(not each.unread for each in client.groups.get(topic.namespace, "g").partitions)
