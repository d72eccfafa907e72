"""Retry: each dead letter goes back to its topic or to the dead letter topic, once."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import tuff
from pipeline.lag import written_up_to
from pipeline.retry_dead_letters import retry_topic, routed
from tests.pipeline.conftest import Place
from tests.spark.test_spark_streams import forget_commit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def dead_letter(payload: object, attempts: int) -> str:
    return json.dumps({"topic": "shop:orders", "payload": payload, "attempts": attempts})


def retry(spark: "SparkSession", place: Place, checkpoint: Path) -> int:
    return retry_topic(spark, place.client, place.topic, checkpoint, place.options, attempts=3)


def test_a_message_with_text_after_a_dead_letter_is_not_a_dead_letter(
    spark: "SparkSession",
) -> None:
    """The text after the dead letter was dropped. The letter of a group stays for its group."""
    topic = tuff.TopicId("shop", "orders")
    of_group = json.dumps(json.loads(dead_letter("y", 1)) | {"group": "billing"}).encode()
    whole, cut = dead_letter("x", 1).encode(), dead_letter("x", 1).encode() + b" trailing"
    row = (bytes(20), datetime(2026, 11, 22, tzinfo=UTC))
    attributes = (
        "key binary, tags array<string>, headers array<struct<name: string, value: binary>>"
    )
    frame = spark.createDataFrame(
        [(*row, each, None, None, None) for each in (whole, of_group, cut)],
        f"id binary, timestamp timestamp, value binary, {attributes}",
    )

    again, dead = routed(frame, topic, attempts=5).collect()

    assert (again.topic, bytes(again.value)) == ("shop:orders", b"x")
    told = json.loads(bytes(dead.value))
    assert (dead.topic, told["payload"]) == ("shop:orders.dlq", cut.decode())


@pytest.mark.slow
def test_each_dead_letter_goes_back_or_to_the_dead_letter_topic_once(
    spark: "SparkSession", place: Place
) -> None:
    source, checkpoint = place.other(".retry"), place.home / "checkpoint"
    exhausted = dead_letter("exhausted", 3)
    for sent in (
        dead_letter("again", 1),
        dead_letter({"base64": "AP8="}, 2),
        exhausted,
        "no letter",
    ):
        place.client.publish(source, sent)

    first = retry(spark, place, checkpoint)
    # As after a crash before Spark recorded that the batch was written.
    forget_commit(checkpoint, 0)
    retry(spark, place, checkpoint)
    written = written_up_to(checkpoint)

    dead = place.dead_letters
    assert (first, list(written)) == (4, [source.partition(0)])
    assert written[source.partition(0)].id >= place.client.poll(source)[-1].id.hex()
    assert place.read(place.topic) == [b"again", b"\x00\xff"]
    assert dead[0] == exhausted.encode()
    told = json.loads(dead[1])
    assert (told["topic"], told["payload"], len(dead)) == (str(source), "no letter", 2)
