"""Batch writes through Spark: retries, failures and leases."""

from collections.abc import Callable
from threading import Event
from typing import TYPE_CHECKING

import pytest

import tuff
from tests.spark.messages import read
from tuff.launch import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

LINES_MAX = 8  # of an error: what Spark says, one frame, the sentence
ROW_COUNT = 12_000  # in two partitions: each more than one store, so that some come before it fails


class Writes:
    """Writes to topics of the tests' server."""

    def __init__(self, spark: "SparkSession", server: ServerProcess) -> None:
        self.spark = spark
        self._url = server.url

    def numbers(self) -> "DataFrame":
        return self.spark.range(0, ROW_COUNT, 1, 2).selectExpr("cast(id as string) as value")

    def save(self, frame: "DataFrame", topic: tuff.TopicId, **options: object) -> None:
        writer = frame.write.format("tuff").mode("append")
        writer.options(url=self._url, topic=str(topic), **options).save()


@pytest.fixture
def write(spark: "SparkSession", tuff_server: ServerProcess) -> Writes:
    return Writes(spark, tuff_server)


def fail_once(value: str) -> str:
    """The value; the first attempt of the second partition fails at its last row."""
    from pyspark import TaskContext

    if int(value) == ROW_COUNT - 1 and TaskContext.get().attemptNumber() == 0:
        raise RuntimeError("the first attempt fails")
    return value


def fail_always(value: str) -> str:
    if int(value) == ROW_COUNT - 1:
        raise RuntimeError("every attempt fails")
    return value


def through(function: Callable[[str], str], frame: "DataFrame") -> "DataFrame":
    from pyspark.sql.functions import udf

    return frame.select(udf(function, useArrow=False)("value").alias("value"))


def test_rows_are_written_in_order_and_once_although_a_task_is_tried_again(
    write: Writes, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    write.save(through(fail_once, write.numbers()), tuff_topic)

    assert read(tuff_client, tuff_topic) == [b"%d" % number for number in range(ROW_COUNT)]
    assert tuff_client.transactions.overview().in_progress == ()


def test_a_job_that_fails_leaves_no_trace(
    write: Writes, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    from pyspark.errors import PySparkException

    with pytest.raises(PySparkException, match="every attempt fails"):
        write.save(through(fail_always, write.numbers()), tuff_topic)

    assert len(tuff_client.poll(tuff_topic)) == 0
    assert tuff_client.transactions.overview().in_progress == ()


@pytest.mark.slow
def test_a_job_survives_an_earlier_stage_that_runs_for_longer_than_its_lease(
    write: Writes, tuff_client: tuff.Client, tuff_topic: tuff.TopicId
) -> None:
    from pyspark.sql.functions import udf

    url = write._url

    def wait_until_it_is_renewed(value: str) -> str:
        """The value, when the lease of the one job there is has been renewed."""
        with tuff.Client(url) as client:
            (job,) = client.transactions.overview().in_progress
            now = job
            while now.lease_expires_at_ms == job.lease_expires_at_ms:
                Event().wait(0.1)
                (now,) = client.transactions.overview().in_progress
        return value

    # Without it Spark knows of the write, and begins it, before that stage.
    write.spark.conf.set("spark.sql.adaptive.enabled", "false")
    try:
        slow = write.numbers().limit(1).select(
            udf(wait_until_it_is_renewed, useArrow=False)("value").alias("value")
        )  # fmt: skip
        write.save(slow.repartition(2), tuff_topic, lease="20")
    finally:
        write.spark.conf.unset("spark.sql.adaptive.enabled")

    assert read(tuff_client, tuff_topic) == [b"0"]


def test_a_write_to_a_missing_topic_is_one_short_error_before_any_task(
    write: Writes, tuff_topic: tuff.TopicId
) -> None:
    from pyspark.errors import AnalysisException

    with pytest.raises(AnalysisException) as told:  # a task's error is another one
        write.save(write.numbers(), tuff.TopicId(tuff_topic.namespace, f"{tuff_topic.name}x"))

    assert f"did you mean {tuff_topic.name}?" in str(told.value)
    assert len(str(told.value).splitlines()) < LINES_MAX
