"""A consumer that is killed again and again processes every message exactly once."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

import tuff
from tests.http.process import ServerProcess

CONSUMER = Path(__file__).with_name("consumer.py")
ROOT = CONSUMER.parents[2]
LINES_PER_BATCH = 9  # what a consumer says of one; it may be killed after any of them


class Consumers:
    """Starts one consumer after the other over the same table."""

    def __init__(
        self, url: str, table: Path, topic: tuff.TopicId, *, message_count: int, batch: int
    ) -> None:
        self._command = [
            sys.executable, str(CONSUMER), url, str(table), str(topic), str(message_count),
            str(batch),
        ]  # fmt: skip

    def run(self, *, line_count: int | None) -> str:
        """The last line of one that is killed after so many lines, or that finishes."""
        with subprocess.Popen(
            self._command, stdout=subprocess.PIPE, text=True, env={"PYTHONPATH": str(ROOT)}
        ) as process:
            assert process.stdout is not None, "it is a pipe"
            last = ""
            for number, line in enumerate(process.stdout, 1):
                last = line.strip()
                if number == line_count:
                    process.kill()
                    break
            process.stdout.close()
        return last


@pytest.mark.parametrize(
    ("kill_count", "message_count", "batch"),
    [
        (4, 60, 3),
        pytest.param(20, 60, 3, marks=pytest.mark.slow),
        pytest.param(20, 10_000, 100, marks=pytest.mark.slow),
    ],
)
def test_every_message_is_processed_exactly_once(
    server: ServerProcess,
    client: tuff.Client,
    topic: tuff.TopicId,
    tmp_path: Path,
    kill_count: int,
    message_count: int,
    batch: int,
) -> None:
    echo = tuff.TopicId(topic.namespace, f"{topic.name}-echo")
    client.topics.create(echo)
    published = [b"%05d" % number for number in range(message_count)]
    client.publish(topic, *published)
    chance = random.Random(kill_count)
    consumers = Consumers(
        server.url, tmp_path / "table", topic, message_count=message_count, batch=batch
    )
    # Twice what each would say if all said as much, so that they are killed all along the way.
    line_count_max = 2 * LINES_PER_BATCH * message_count // batch // (kill_count + 1)

    for _ in range(kill_count):
        last = consumers.run(line_count=chance.randrange(1, line_count_max))
        assert last != "finished", "there was nothing left to be killed in"
    # The transactions of killed consumers hold readers back until they time out.
    for one in client.transactions.overview().in_progress:
        client.transactions.invalidate(one.transaction_id)
    assert consumers.run(line_count=None) == "finished"

    with tuff.TransactionalTable(tmp_path / "table") as table, client.transaction(table):
        counted = dict(table.scan())
    assert counted == dict.fromkeys(published, b"1")
    echoed = client.poll(echo, isolation="committed", limit=10_000)
    assert [message.payload for message in echoed] == published
    assert echoed.caught_up


def test_messages_of_partitions_that_are_added_between_kills_are_processed_exactly_once(
    server: ServerProcess, client: tuff.Client, topic: tuff.TopicId, tmp_path: Path
) -> None:
    kill_count, each_count, batch = 6, 12, 3
    echo = tuff.TopicId(topic.namespace, f"{topic.name}-echo")
    client.topics.create(echo)
    chance = random.Random(kill_count)
    line_count_max = LINES_PER_BATCH * each_count // batch  # of what is new for each of them
    consumers = Consumers(
        server.url, tmp_path / "table", topic, message_count=kill_count * each_count, batch=batch
    )
    published: list[bytes] = []

    for number in range(kill_count):
        client.topics.update(topic, partitions=number + 1)
        payloads = [b"%d-%02d" % (number, at) for at in range(each_count)]
        client.publish(topic.partition(number), *payloads)
        published += payloads
        consumers.run(line_count=chance.randrange(1, line_count_max))
    for one in client.transactions.overview().in_progress:
        client.transactions.invalidate(one.transaction_id)
    assert consumers.run(line_count=None) == "finished"

    echoed = client.poll(echo, isolation="committed")
    payloads = [message.payload for message in echoed]
    assert sorted(payloads) == published
    for number in range(kill_count):  # in the order of their partition
        prefix = b"%d-" % number
        of_one = [each for each in payloads if each.startswith(prefix)]
        assert of_one == sorted(of_one)
