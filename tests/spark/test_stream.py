"""Streams through Spark: reading, limits, restarts."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tuff
from tuff.launch import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

WITHIN_S = 120  # seconds; what is waited for ends by itself

Batches = list[list[bytes]]


class Streams:
    """Streams over topics of the tests' server, with one checkpoint for the test."""

    def __init__(self, spark: "SparkSession", server: ServerProcess, home: Path) -> None:
        self.spark = spark
        self.url = server.url
        self.checkpoint = home / "checkpoint"

    def source(self, topic: tuff.TopicId, **options: object) -> "DataFrame":
        reader = self.spark.readStream.format("tuff").option("startingOffsets", "earliest")
        return reader.options(url=self.url, subscribe=str(topic), **options).load()

    def run(self, frame: "DataFrame", take: "Callable[[DataFrame, int], None]") -> None:
        """Everything that is available now, batch by batch."""
        writer = frame.writeStream.option("checkpointLocation", str(self.checkpoint))
        query = writer.foreachBatch(take).trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(WITHIN_S)
        finally:
            query.stop()

    def read(self, topic: tuff.TopicId, **options: object) -> Batches:
        found: Batches = []

        def take(frame: "DataFrame", _: int) -> None:
            rows = frame.orderBy("id").select("value").collect()
            found.append([bytes(row.value) for row in rows])

        self.run(self.source(topic, **options), take)
        return found


@pytest.fixture
def stream(spark: "SparkSession", tuff_server: ServerProcess, tmp_path: Path) -> Streams:
    return Streams(spark, tuff_server, tmp_path)


def test_a_stream_reads_in_batches_of_the_limit_and_goes_on_where_it_ended(
    stream: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    for number in range(5):
        tuff_client.publish(tuff_topic, f"{number}")

    first = stream.read(tuff_topic, maxMessagesPerTrigger=2)
    tuff_client.publish(tuff_topic, "5")
    second = stream.read(tuff_topic, maxMessagesPerTrigger=2)

    assert first == [[b"0", b"1"], [b"2", b"3"], [b"4"]]
    assert second == [[b"5"]]
    assert stream.read(tuff_topic) == []


def test_a_stream_waits_before_what_is_undecided(
    stream: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    tuff_client.publish(tuff_topic, "0")
    tx = tuff_client.transactions.start()
    tuff_client.publish(tuff_topic, "1", transaction=tx)
    tuff_client.publish(tuff_topic, "2")

    first = stream.read(tuff_topic)
    tuff_client.transactions.commit(tx)

    assert (first, stream.read(tuff_topic)) == ([[b"0"]], [[b"1", b"2"]])


def test_a_topic_that_was_created_again_ends_the_stream_with_a_sentence(
    stream: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    from pyspark.errors import StreamingQueryException

    tuff_client.publish(tuff_topic, "0")
    stream.read(tuff_topic)
    tuff_client.topics.delete(tuff_topic)
    tuff_client.topics.create(tuff_topic)

    with pytest.raises(StreamingQueryException, match="deleted and created again"):
        stream.read(tuff_topic)
