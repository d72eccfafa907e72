"""A consumer that is killed again and again processes every message exactly once."""

import random
import subprocess
import sys
from pathlib import Path

import pytest

import tuff
from tuff.launch import ServerProcess

CONSUMER = Path(__file__).with_name("consumer.py")
ROOT = CONSUMER.parents[2]
MESSAGE_COUNT = 60
LINE_COUNT_MAX = 40  # lines that a consumer may say before it is killed: a few batches


class Consumers:
    """Starts one consumer after the other over the same table."""

    def __init__(self, url: str, table: Path, topic: tuff.TopicId) -> None:
        self._command = [
            sys.executable, str(CONSUMER), url, str(table), str(topic), str(MESSAGE_COUNT),
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
    "round_count", [4, pytest.param(20, marks=pytest.mark.slow)], ids=lambda n: f"{n}-kills"
)
def test_every_message_is_processed_exactly_once(
    server: ServerProcess,
    client: tuff.Client,
    topic: tuff.TopicId,
    tmp_path: Path,
    round_count: int,
) -> None:
    echo = tuff.TopicId(topic.namespace, f"{topic.name}-echo")
    client.topics.create(echo)
    published = [b"%03d" % number for number in range(MESSAGE_COUNT)]
    client.publish(topic, published)
    chance = random.Random(round_count)
    consumers = Consumers(server.url, tmp_path / "table", topic)

    for _ in range(round_count):
        consumers.run(line_count=chance.randrange(1, LINE_COUNT_MAX))
    # What those who were killed left in progress holds readers back until its time is over.
    for one in client.transactions.overview().in_progress:
        client.transactions.invalidate(one.transaction_id)
    assert consumers.run(line_count=None) == "finished"

    with tuff.TransactionalTable(tmp_path / "table") as table, client.transaction(table):
        counted = {key: value for key, value in table.scan() if not key.startswith(b"\x00")}
    assert counted == dict.fromkeys(published, b"1")
    echoed = client.poll(echo, isolation="committed", limit=10_000)
    assert [message.payload for message in echoed] == published
