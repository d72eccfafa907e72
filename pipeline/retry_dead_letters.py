"""`retry`: moves dead letters of `<topic>.retry` back into their topic, or to `<topic>.dlq`.

A dead letter goes to `<topic>.dlq` after a number of attempts, which subscribers count in its
member `attempts`. A message that is not a dead letter goes there too, as the payload of a new one.
The messages of one micro-batch appear in both topics at once, each once (docs/spark.md).

A dead letter has the format of a subscriber's (docs/howto/poison-messages.md): JSON with the
members `topic`, `id`, `timestamp`, `payload` (text, or `{"base64":"…"}`), `reason` and `attempts`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.frames import ATTRIBUTES, IS_TEXT, whole_json
from pipeline.job import Settings, create, json_option, print_result, sink_of, topic_argument
from tuff.blocking.client import Client
from tuff.dead_letters import dead_letter_topic_of, retry_topic_of
from tuff.protocol.ids import TopicId
from tuff.protocol.sentences import counted

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

ATTEMPT_COUNT_MAX = 5  # the default of a subscriber too
NOT_A_DEAD_LETTER = "it is not a dead letter with a payload and a number of attempts"


def routed(frame: "DataFrame", topic: TopicId, *, attempts: int) -> "DataFrame":
    """The target of each message of the retry topic, as columns `topic` and `value`, with the
    attributes that it has there, which are those of the message that failed.

    The payload of a dead letter with fewer than `attempts` attempts goes to `topic`. All other
    messages go to the dead letter topic, except those of consumer groups, which stay: their group
    tries them again.
    """
    from pyspark.sql.functions import col, expr, get_json_object, lit, when

    text = whole_json()
    frame = frame.where(get_json_object(text, "$.group").isNull())
    encoded = get_json_object(text, "$.payload.base64")
    plain = get_json_object(text, "$.payload").cast("binary")
    read = frame.withColumns(
        {
            "encoded": encoded,
            "plain": plain,
            "attempts": get_json_object(text, "$.attempts").try_cast("int"),
        }
    ).withColumn("payload", expr("if(encoded is null, plain, try_to_binary(encoded, 'base64'))"))
    is_dead_letter = col("payload").isNotNull() & col("attempts").isNotNull()
    goes_back = is_dead_letter & (col("attempts") < attempts)
    return read.select(
        when(goes_back, lit(str(topic)))
        .otherwise(lit(str(dead_letter_topic_of(topic))))
        .alias("topic"),
        when(goes_back, col("payload"))
        .when(is_dead_letter, col("value"))
        .otherwise(dead_letter(retry_topic_of(topic), reason=NOT_A_DEAD_LETTER))
        .alias("value"),
        *ATTRIBUTES,
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
    """Move the current messages of `<topic>.retry`, each once; returns their number."""
    source = retry_topic_of(topic)
    create(client, dead_letter_topic_of(topic))
    reader = spark.readStream.format("tuff").option("startingOffsets", "earliest")
    reader = reader.option("includeAttributes", "true")
    frame = reader.options(**options, subscribe=str(source)).load()
    moved = routed(frame, topic, attempts=attempts)
    # The sink outlives the checkpoint: after a deletion of the checkpoint no message moves twice.
    sink = sink_of("retry", topic)
    writer = moved.writeStream.format("tuff").options(**options, sinkId=sink)
    writer = writer.option("checkpointLocation", str(checkpoint.absolute()))
    query = writer.trigger(availableNow=True).start()
    try:
        query.awaitTermination()
    finally:
        query.stop()
    return sum(progress.numInputRows for progress in query.recentProgress)


def dead_letter(topic: TopicId, *, reason: str) -> "Column":
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
    help="Number of attempts after which a dead letter goes to TOPIC.dlq.",
)
@json_option
@click.pass_obj
def main(
    settings: Settings, *, topic: TopicId, checkpoint: Path, attempts: int, as_json: bool
) -> None:
    """Move the dead letters of TOPIC.retry back to TOPIC, or to TOPIC.dlq, each once."""
    source = retry_topic_of(topic)
    with settings.client() as client:
        for each in (topic, source):
            client.topics.get(each)  # before Spark, which starts slowly
        with settings.spark() as spark:
            count = retry_topic(
                spark, client, topic, checkpoint, settings.options, attempts=attempts
            )
    sentence = f"{counted(count, 'dead letter')} of {source} moved"
    print_result({"letters": count}, sentence, as_json=as_json)
