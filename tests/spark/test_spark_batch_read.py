"""Batch reads through Spark: the columns of rows, and one snapshot over all topics."""

from typing import TYPE_CHECKING

import pytest

import tuff
from tuff.connectors import PublishEntry
from tuff.launch import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NAMESPACE = "tests"
LINES_MAX = 8  # of an error: what Spark says, one frame, the sentence


class Reads:
    """Reads of topics of the tests' server."""

    def __init__(self, spark: "SparkSession", server: ServerProcess) -> None:
        self._spark = spark
        self._options = {"url": server.url, "namespace": NAMESPACE}

    def of(self, *topics: tuff.TopicId, **options: object) -> "DataFrame":
        names = ",".join(topic.name for topic in topics)
        reader = self._spark.read.format("tuff")
        return reader.options(**self._options, subscribe=names, **options).load()


@pytest.fixture
def read(spark: "SparkSession", tuff_server: ServerProcess) -> Reads:
    return Reads(spark, tuff_server)


def test_a_row_has_all_fields_of_a_message(
    read: Reads, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    published = tuff_client.publish(tuff_topic, b"\x00\xff")

    row = read.of(tuff_topic).selectExpr("*", "unix_millis(timestamp) as ms").collect()[0]

    assert (row.topic, bytes(row.value), row.generation) == (tuff_topic.name, b"\x00\xff", 1)
    assert bytes(row.id) == published.ids[0].to_bytes()
    assert row.ms == published.ids[0].publish_timestamp_ms


def test_a_data_frame_is_planned_at_its_first_action_in_one_snapshot_of_all_topics(
    read: Reads, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    other = tuff.TopicId(NAMESPACE, f"{tuff_topic.name}-other")
    tuff_client.topics.create(other)
    both = [PublishEntry(topic=each, payloads=[b"1"]) for each in (tuff_topic, other)]
    tuff_client.transactions.run(both)

    frame = read.of(tuff_topic, other, isolation="snapshot")
    tuff_client.transactions.run(both)
    first = frame.count()
    tuff_client.transactions.run(both)

    assert (first, frame.count()) == (4, 4)
    assert read.of(tuff_topic, other).count() == 6


def test_a_missing_topic_is_one_short_error_at_the_load(
    read: Reads, tuff_topic: tuff.TopicId
) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException) as told:
        read.of(tuff.TopicId(NAMESPACE, f"{tuff_topic.name}x"))

    assert f"did you mean {tuff_topic.name}?" in str(told.value)
    assert len(str(told.value).splitlines()) < LINES_MAX


def test_filters_on_a_data_frame_that_is_used_twice_return_the_right_rows(
    read: Reads, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    tuff_client.publish(tuff_topic, *[b"%d" % number for number in range(10)])

    frame = read.of(tuff_topic)
    small = frame.where("cast(string(value) as int) < 5")

    assert (small.count(), frame.count(), small.union(frame).count()) == (5, 10, 15)


def test_a_schema_of_the_user_is_a_projection(
    spark: "SparkSession",
    tuff_server: ServerProcess,
    tuff_client: tuff.Client,
    tuff_topic: tuff.TopicId,
) -> None:
    tuff_client.publish(tuff_topic, "one")

    reader = spark.read.format("tuff").schema("generation int, value binary")
    options = {"url": tuff_server.url, "subscribe": f"{NAMESPACE}:{tuff_topic.name}"}

    assert [tuple(row) for row in reader.options(**options).load().collect()] == [(1, b"one")]


def test_a_topic_without_messages_has_no_rows(read: Reads, tuff_topic: tuff.TopicId) -> None:
    assert read.of(tuff_topic).count() == 0
