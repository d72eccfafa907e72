"""Streams through Spark: limits, restarts, aborted batches."""

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
        """Pass all batches that are available now to `take`."""
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


def test_a_stream_reads_in_batches_of_the_limit_and_continues_after_a_restart(
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


def copy(
    stream: Streams,
    source: tuff.TopicId,
    sink: tuff.TopicId,
    *,
    through: Callable[[bytes], bytes] | None = None,
) -> None:
    """Copy all messages that are available now to another topic, by a stream."""
    from pyspark.sql.functions import udf

    frame = stream.source(source, maxMessagesPerTrigger=2)
    if through is not None:
        frame = frame.select(udf(through, "binary", useArrow=False)("value").alias("value"))
    writer = frame.select("value").writeStream.format("tuff").options(url=stream.url, topic=sink)
    writer = writer.option("checkpointLocation", str(stream.checkpoint))
    query = writer.trigger(availableNow=True).start()
    try:
        assert query.awaitTermination(WITHIN_S)
    finally:
        query.stop()


def fail_once(value: bytes) -> bytes:
    from pyspark import TaskContext

    if TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")
    return value


def fail_always(_: bytes) -> bytes:
    raise RuntimeError("every attempt fails")


def forget_commit(checkpoint: Path, batch: int) -> None:
    """Restore the state after a crash between the sink's commit and Spark's record of it."""
    for name in (f"{batch}", f".{batch}.crc"):
        (checkpoint / "commits" / name).unlink()


def test_a_batch_that_is_run_again_is_written_once(
    stream: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    sink = tuff.TopicId("tests", f"{tuff_topic.name}-sink")
    tuff_client.topics.create(sink)
    for number in range(3):
        tuff_client.publish(tuff_topic, f"{number}")
    copy(stream, tuff_topic, sink)
    forget_commit(stream.checkpoint, 1)
    tuff_client.publish(tuff_topic, "3")

    copy(stream, tuff_topic, sink, through=fail_once)

    found = tuff_client.poll(sink, isolation="committed")
    assert [message.payload for message in found] == [b"0", b"1", b"2", b"3"]
    assert tuff_client.transactions.overview().in_progress == ()


def test_a_batch_whose_tasks_all_failed_is_aborted(
    stream: Streams, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    from pyspark.errors import StreamingQueryException

    tuff_client.publish(tuff_topic, "0")
    others = {each.sink for each in tuff_client.sinks.list()}

    with pytest.raises(StreamingQueryException, match="every attempt fails"):
        copy(stream, tuff_topic, tuff_topic, through=fail_always)

    (sink,) = [each for each in tuff_client.sinks.list() if each.sink not in others]
    assert sink.state == "invalid"
    outcome = tuff_client.transactions.get(sink.transaction_id)
    assert outcome.reason == "abort_of_long"
