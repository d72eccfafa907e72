"""Copying topics from one server to another, as docs/cluster.md says it for a new cluster."""

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import tuff
from tests.http.process import ServerProcess, serve

ROOT = Path(__file__).resolve().parents[2]
ORDERS, EMPTY = tuff.TopicId("shop", "orders"), tuff.TopicId("shop", "empty")


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[tuple[ServerProcess, ServerProcess]]:
    both = serve(tmp_path / "source"), serve(tmp_path / "target")
    yield both
    for each in both:
        each.end()


def copied(source: ServerProcess, target: ServerProcess) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / "copy_topics.py"), source.url, target.url],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_topic_arrives_with_its_properties_and_committed_messages(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    source, target = servers
    numbers = [b"%d" % number for number in range(2_500)]  # several reads
    with tuff.Client(source.url) as client:
        client.topics.create(ORDERS, ttl=7_200, properties={"owner": "me"})
        client.topics.create(EMPTY)
        client.publish(ORDERS, *numbers)
        aborted = client.transactions.start()
        client.publish(ORDERS, b"aborted", transaction=aborted)
        client.transactions.abort(aborted)

    done, again = copied(source, target), copied(source, target)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "shop:empty: 0 messages\nshop:orders: 2500 messages\n"
    with tuff.Client(target.url) as client:
        assert client.topics.get(ORDERS).properties == {"ttl": "7200", "owner": "me"}
        assert [each.payload for each in client.poll(ORDERS)] == numbers
    assert again.returncode == 1
    assert again.stderr.startswith("not all topics were copied: the topic shop:empty exists")


def test_partitions_and_attributes_are_copied(servers: tuple[ServerProcess, ServerProcess]) -> None:
    source, target = servers
    with tuff.Client(source.url) as client:
        client.topics.create(ORDERS, partitions=2)
        for key in "abcd":
            client.publish(ORDERS, key, key=key, tags=["new"], headers={"from": "me"})
        sent = list(client.merged(ORDERS, follow=False))

    done = copied(source, target)

    assert (done.returncode, done.stderr) == (0, "")
    with tuff.Client(target.url) as client:
        found = list(client.merged(ORDERS, follow=False))
        assert client.topics.get(ORDERS).partitions == (0, 1)
    copies = [(number, replace(message, id=tuff.MessageId(0, 0))) for number, message in found]
    assert copies == [
        (number, replace(message, id=tuff.MessageId(0, 0))) for number, message in sent
    ]


def test_an_open_transaction_at_the_source_ends_the_copy(
    servers: tuple[ServerProcess, ServerProcess],
) -> None:
    source, target = servers
    with tuff.Client(source.url) as client:
        client.topics.create(ORDERS)
        client.publish(ORDERS, b"open", transaction=client.transactions.start())

    done = copied(source, target)

    assert done.returncode == 1
    assert "is in progress at SOURCE; end it, delete shop:orders at TARGET" in done.stderr
