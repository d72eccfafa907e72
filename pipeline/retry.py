"""`retry`: moves dead letters of `<topic>.retry` back into their topic, or to `<topic>.dlq`.

A letter goes to `<topic>.dlq` after a number of attempts, which its writer counts in the member
`attempts`. Messages that are not dead letters go there too, inside a new letter. The messages of
one micro-batch appear in both topics at once, each once (docs/spark.md).

A dead letter has the format of a subscriber's (docs/howto/poison-messages.md): JSON with the
members `topic`, `id`, `timestamp`, `payload` (text, or `{"base64":"…"}`), `reason` and `attempts`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.frames import IS_TEXT, whole_json
from pipeline.job import Job, counted, create, json_option, print_result, sink_of, topic_argument
from tuff.blocking.client import Client
from tuff.protocol.ids import TopicId

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

RETRY_SUFFIX = ".retry"
ATTEMPT_COUNT_MAX = 5  # the default of a subscriber too
NOT_A_LETTER = "it is not a dead letter with a payload and a number of attempts"


def retry_topic_of(topic: TopicId) -> TopicId:
    """The retry topic of a topic. Raises: InvalidNameError: its name would be too long."""
    return TopicId(topic.namespace, f"{topic.name}{RETRY_SUFFIX}")


def routed(frame: "DataFrame", topic: TopicId, *, attempts: int) -> "DataFrame":
    """The target of each message of the retry topic, as columns `topic` and `value`.

    The payload of a letter with fewer than `attempts` attempts goes to `topic`, all other messages
    go to the dead letters.
    """
    from pyspark.sql.functions import col, expr, get_json_object, lit, when

    text = whole_json()
    encoded = get_json_object(text, "$.payload.base64")
    plain = get_json_object(text, "$.payload").cast("binary")
    read = frame.withColumns(
        {
            "encoded": encoded,
            "plain": plain,
            "attempts": get_json_object(text, "$.attempts").try_cast("int"),
        }
    ).withColumn("payload", expr("if(encoded is null, plain, try_to_binary(encoded, 'base64'))"))
    is_letter = col("payload").isNotNull() & col("attempts").isNotNull()
    goes_back = is_letter & (col("attempts") < attempts)
    return read.select(
        when(goes_back, lit(str(topic))).otherwise(lit(str(dead_letters_of(topic)))).alias("topic"),
        when(goes_back, col("payload"))
        .when(is_letter, col("value"))
        .otherwise(letter(retry_topic_of(topic), reason=NOT_A_LETTER))
        .alias("value"),
    )


def retry_topic(
    spark: "SparkSession",
    client: Client,
    topic: TopicId,
    checkpoint: Path,
    options: Mapping[str, str],
    *,
    attempts: int,
) -> int:
    """Move the current messages of `<topic>.retry`, each once; returns their number.

    Raises: TopicNotFoundError: the topic or its retry topic does not exist.
    """
    source = retry_topic_of(topic)
    client.topics.get(topic)
    client.topics.get(source)
    create(client, dead_letters_of(topic))
    reader = spark.readStream.format("tuff").option("startingOffsets", "earliest")
    frame = reader.options(**options, subscribe=str(source)).load()
    moved = routed(frame, topic, attempts=attempts)
    # The sink outlives the checkpoint: after a deletion of the checkpoint no letter moves twice.
    sink = sink_of("retry", topic)
    writer = moved.writeStream.format("tuff").options(**options, sinkId=sink)
    writer = writer.option("checkpointLocation", str(checkpoint.absolute()))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return sum(progress.numInputRows for progress in query.recentProgress)


@click.command("retry")
@topic_argument
@click.option(
    "--checkpoint",
    required=True,
    type=click.Path(file_okay=False, path_type=Path),
    help="Directory of the query's checkpoint.",
)
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    default=ATTEMPT_COUNT_MAX,
    show_default=True,
    help="Number of attempts after which a letter goes to TOPIC.dlq.",
)
@json_option
@click.pass_obj
def main(job: Job, *, topic: TopicId, checkpoint: Path, attempts: int, as_json: bool) -> None:
    """Move the letters of TOPIC.retry back to TOPIC, or to TOPIC.dlq, each once."""
    source = retry_topic_of(topic)
    with job.client() as client:
        client.topics.get(source)  # before Spark, which starts slowly
        with job.spark() as spark:
            count = retry_topic(spark, client, topic, checkpoint, job.options, attempts=attempts)
    sentence = f"{counted(count, 'letter')} of {source} moved"
    print_result({"letters": count}, sentence, as_json=as_json)


DEAD_SUFFIX = ".dlq"


def dead_letters_of(topic: TopicId) -> TopicId:
    """The dead letter topic of a topic. Raises: InvalidNameError: its name would be too long."""
    return TopicId(topic.namespace, f"{topic.name}{DEAD_SUFFIX}")


def letters(frame: "DataFrame", topic: TopicId, *, reason: str) -> "DataFrame":
    """These messages as dead letters in a column `value`, with their ids."""
    return frame.select("id", letter(topic, reason=reason).alias("value"))


def letter(topic: TopicId, *, reason: str) -> "Column":
    """The dead letter of a message of `topic`, as binary."""
    from pyspark.sql.functions import expr, lit, struct, to_json, when

    def form(payload: str) -> "Column":
        return to_json(
            struct(
                lit(str(topic)).alias("topic"),
                expr("lower(hex(id))").alias("id"),
                expr("unix_millis(timestamp)").alias("timestamp"),
                expr(payload).alias("payload"),
                lit(reason).alias("reason"),
                lit(1).alias("attempts"),
            )
        )

    encoded = form("named_struct('base64', base64(value))")
    return when(expr(IS_TEXT), form("string(value)")).otherwise(encoded).cast("binary")
