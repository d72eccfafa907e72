"""Spark reads two topics while transactions publish to both: no read may see half a transaction.

    python -m tests.spark.torn --pairs 100000

Writers publish each number to both topics in one transaction; some wait in between, and some are
rolled back. A pair is torn if a read finds a number in one topic only. To show that the check can
fail, the topics are also read each up to its first undecided message, which does tear pairs.
"""

import argparse
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import tuff
from tests.spark.session import make_session
from tuff.launch import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LEFT, RIGHT = tuff.TopicId("torn", "left"), tuff.TopicId("torn", "right")
WRITER_COUNT = 3
BATCH_COUNT = 5  # numbers of one transaction
PAUSE_S = 0.05  # seconds between the two topics of a slow transaction
SLOW_SHARE, UNDONE_SHARE = 0.1, 0.1


@dataclass(slots=True)
class Sums:
    """The results of the reads of one isolation."""

    pairs: int = 0
    torn: int = 0
    reads: int = 0

    def add(self, frame: "DataFrame") -> None:
        # Each number stands in both topics, or in one: no more than one row of each topic.
        counted = frame.groupBy("value").count().groupBy("count").count().collect()
        by_count = {row[0]: row[1] for row in counted}
        assert by_count.keys() <= {1, 2}, by_count
        self.pairs += sum(by_count.values())
        self.torn += by_count.get(1, 0)
        self.reads += 1


class Writers:
    """Threads that publish pairs until the block ends."""

    def __init__(self, url: str, *, seed: int) -> None:
        self._url = url
        self._numbers = count()
        self._over = threading.Event()
        self._failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._work, args=(random.Random(seed + each),))
            for each in range(WRITER_COUNT)
        ]

    def __enter__(self) -> "Writers":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._failures:
            raise self._failures[0]

    def _work(self, chance: random.Random) -> None:
        try:
            with tuff.Client(self._url) as client:
                while not self._over.is_set():
                    self._publish(client, chance)
        except BaseException as error:  # noqa: BLE001 - raised by the thread that started this one
            self._failures.append(error)

    def _publish(self, client: tuff.Client, chance: random.Random) -> None:
        numbers = [str(next(self._numbers)) for _ in range(BATCH_COUNT)]
        first, second = chance.sample((LEFT, RIGHT), 2)
        transaction = client.transactions.start()
        client.publish(first, *numbers, transaction=transaction)
        self._over.wait(PAUSE_S if chance.random() < SLOW_SHARE else 0)
        client.publish(second, *numbers, transaction=transaction)
        if chance.random() < UNDONE_SHARE:
            client.transactions.abort(transaction)
        else:
            client.transactions.commit(transaction)


def read_until(spark: "SparkSession", url: str, enough: Callable[[Sums], bool]) -> dict[str, Sums]:
    """Reads of each isolation in turn, until those of snapshots are enough."""
    sums = {"snapshot": Sums(), "committed": Sums()}
    while not enough(sums["snapshot"]):
        for isolation, found in sums.items():
            options = {"url": url, "subscribe": f"{LEFT},{RIGHT}", "isolation": isolation}
            found.add(spark.read.format("tuff").options(**options).load())
    return sums


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.spark.torn", description=__doc__)
    parser.add_argument("--pairs", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        home = Path(name)
        with ServerProcess(home / "data", log=home / "log.txt") as server:
            with tuff.Client(server.url) as client:
                client.topics.create(LEFT)
                client.topics.create(RIGHT)
            session = make_session(home / "warehouse")
            spark = next(session)
            try:
                with Writers(server.url, seed=options.seed):
                    sums = read_until(spark, server.url, lambda s: s.pairs >= options.pairs)
            finally:
                session.close()
    snapshot, control = sums["snapshot"], sums["committed"]
    print(
        f"{snapshot.torn} of {snapshot.pairs} pairs torn in {snapshot.reads} snapshot reads; "
        f"{control.torn} of {control.pairs} where each topic ends on its own"
    )
    return 0 if snapshot.torn == 0 and control.torn > 0 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
