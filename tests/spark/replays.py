"""Runs every epoch of a stream at least twice, as after crashes; each message is written once.

    python -m tests.spark.replays --epochs 1000

It drives the writers as Spark does, without a JVM: a run stores and dies, or commits and dies
before Spark has recorded it, or continues as a zombie after the next run has taken over.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from pathlib import Path

from pyspark.sql.types import StructType

import tuff
from pyspark_tuff.write_transactions import TaskResult
from pyspark_tuff.writers import StreamWriter
from tests.spark.messages import read
from tests.spark.without_spark import rows, run_task, source_of, task_properties
from tuff.launch import ServerProcess

TOPICS = (tuff.TopicId("replays", "left"), tuff.TopicId("replays", "right"))
PARTITION_COUNT = 2
MESSAGE_COUNT = 5  # of each partition, on each topic
QUERY = "c0ffee00-0000-4000-8000-000000000000"


class Runs:
    """Runs of one query, of which each has an id of its own."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._numbers = count(1)

    def start(self) -> "Run":
        return Run(self._url, f"run-{next(self._numbers)}")


class Run:
    """One run of a driver, with the calls that reach the sink."""

    def __init__(self, url: str, name: str) -> None:
        self._url = url
        self._name = name

    def writer(self, topic: tuff.TopicId) -> StreamWriter:
        source = source_of(url=self._url, topic=topic)
        writer = source.streamWriter(StructType().add("value", "binary"), overwrite=False)
        assert isinstance(writer, StreamWriter)
        return writer

    def store(
        self, epoch: int, partitions: Iterable[int] = range(PARTITION_COUNT)
    ) -> list[TaskResult]:
        """Run the tasks of these partitions, one for each of the two topics."""
        return [
            run_task(
                self.writer(topic),
                iter([rows(*values(epoch, partition))]),
                partition=2 * partition + at,
                properties=task_properties(query=QUERY, epoch=epoch, run=self._name),
            )
            for partition in partitions
            for at, topic in enumerate(TOPICS)
        ]

    def commit(self, epoch: int, messages: Sequence[TaskResult]) -> None:
        self.writer(TOPICS[0]).commit(messages, epoch)

    def abort(self, epoch: int, messages: Sequence[TaskResult]) -> None:
        self.writer(TOPICS[0]).abort(messages, epoch)


def values(epoch: int, partition: int) -> list[bytes]:
    return [b"%d-%d-%d" % (epoch, partition, number) for number in range(MESSAGE_COUNT)]


def died_before_it_stored(runs: Runs, epoch: int) -> None:
    runs.start().store(epoch, partitions=[])
    finish(runs.start(), epoch)


def died_between_store_and_commit(runs: Runs, epoch: int) -> None:
    runs.start().store(epoch)
    finish(runs.start(), epoch)


def died_in_the_middle_of_its_tasks(runs: Runs, epoch: int) -> None:
    runs.start().store(epoch, partitions=[0])
    finish(runs.start(), epoch)


def died_before_spark_recorded_the_commit(runs: Runs, epoch: int) -> None:
    finish(runs.start(), epoch)
    again = runs.start()
    messages = again.store(epoch)
    assert not any(message.parts for message in messages), "it is committed"
    again.commit(epoch, messages)


def was_aborted(runs: Runs, epoch: int) -> None:
    first = runs.start()
    first.abort(epoch, first.store(epoch))
    finish(runs.start(), epoch)


def committed_twice_and_was_then_aborted(runs: Runs, epoch: int) -> None:
    run = runs.start()
    messages = run.store(epoch)
    for _ in range(2):
        run.commit(epoch, messages)
    run.abort(epoch, messages)


def came_back_while_the_next_run_worked(runs: Runs, epoch: int) -> None:
    zombie, run = runs.start(), runs.start()
    late = zombie.store(epoch)
    messages = run.store(epoch)
    require_refused(lambda: zombie.commit(epoch, late))
    require_refused(lambda: zombie.store(epoch))
    run.commit(epoch, messages)


def tried_a_task_again(runs: Runs, epoch: int) -> None:
    run = runs.start()
    run.store(epoch, partitions=[1])
    finish(run, epoch)
    died_before_spark_recorded_the_commit(runs, epoch)


FAILURES = (
    died_before_it_stored,
    died_between_store_and_commit,
    died_in_the_middle_of_its_tasks,
    died_before_spark_recorded_the_commit,
    was_aborted,
    committed_twice_and_was_then_aborted,
    came_back_while_the_next_run_worked,
    tried_a_task_again,
)


def finish(run: Run, epoch: int) -> None:
    run.commit(epoch, run.store(epoch))


def require_refused(action: Callable[[], object]) -> None:
    try:
        action()
    except tuff.TuffError:
        return
    raise AssertionError("a fenced run was not refused")


def replay(url: str, failures: Sequence[Callable[[Runs, int], None]]) -> int:
    """Write one epoch with each failure; returns the number of messages.

    Raises: AssertionError: a message is missing, duplicated or out of order.
    """
    runs = Runs(url)
    with tuff.Client(url) as client:
        for topic in TOPICS:
            client.topics.create(topic)
        for epoch, failure in enumerate(failures):
            failure(runs, epoch)
        expected = [
            value
            for epoch in range(len(failures))
            for partition in range(PARTITION_COUNT)
            for value in values(epoch, partition)
        ]
        for topic in TOPICS:
            assert read(client, topic) == expected, f"{topic} has not each message once, in order"
    return len(TOPICS) * len(expected)


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.replays", description=__doc__)
    parser.add_argument("--epochs", type=int, default=1_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        with ServerProcess(home / "data", log=home / "log.txt") as server:
            failures = random.Random(options.seed).choices(FAILURES, k=options.epochs)
            message_count = replay(server.url, failures)
    print(f"{options.epochs} epochs, each run again: {message_count} messages, each once, in order")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
