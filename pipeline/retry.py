"""`retry`: letters of `<topic>.retry` back into their topic, or, once tried often enough, to
`<topic>.dlq`. What one micro-batch moves appears in both topics at once, and once (docs/spark.md).

Who writes the letters counts their `attempts`. What is no letter goes to the dead ones as one.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from pipeline.epochs import sink_of
from pipeline.frames import whole_json
from pipeline.letters import dead_letters_of, letter
from pipeline.running import Job, counted, create, json_option, topic_argument
from tuff.cli.output import print_json
from tuff.protocol.names import TopicId

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from tuff.client import Client

RETRY_SUFFIX = ".retry"
ATTEMPT_COUNT_MAX = 5  # as a subscriber's own default
NO_LETTER = "it is no letter with a payload and a number of attempts"


def retried(topic: TopicId) -> TopicId:
    """The topic for letters to be tried again. Raises: InvalidNameError: its name is too long."""
    return TopicId(topic.namespace, f"{topic.name}{RETRY_SUFFIX}")


def sorted_out(frame: "DataFrame", topic: TopicId, *, attempts: int) -> "DataFrame":
    """Where each message of the retry topic goes, as columns `topic` and `value`: the payload of a
    letter that was tried less than `attempts` times to `topic`, all else to the dead letters."""
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
        .otherwise(letter(retried(topic), reason=NO_LETTER))
        .alias("value"),
    )


def retry_topic(
    spark: "SparkSession",
    client: "Client",
    topic: TopicId,
    checkpoint: Path,
    options: Mapping[str, str],
    *,
    attempts: int,
) -> int:
    """Move what `<topic>.retry` has now, each letter once; returns how many there were.

    Raises: TopicNotFoundError: the topic, or its retry topic, is not there.
    """
    source = retried(topic)
    client.topics.get(topic)
    client.topics.get(source)
    create(client, dead_letters_of(topic))
    reader = spark.readStream.format("tuff").option("startingOffsets", "earliest")
    frame = reader.options(**options, subscribe=str(source)).load()
    moved = sorted_out(frame, topic, attempts=attempts)
    # A sink of this name outlives the checkpoint: who deletes that moves none twice.
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
    help="Where Spark keeps how far it has read.",
)
@click.option(
    "--attempts",
    type=click.IntRange(min=1),
    default=ATTEMPT_COUNT_MAX,
    show_default=True,
    help="Letters that were tried so often are dead.",
)
@json_option
@click.pass_obj
def main(job: Job, *, topic: TopicId, checkpoint: Path, attempts: int, as_json: bool) -> None:
    """Move the letters of TOPIC.retry back to TOPIC, or to TOPIC.dlq, each once."""
    source = retried(topic)
    with job.client() as client:
        client.topics.get(source)  # before Spark, which takes its time to start
        with job.spark() as spark:
            count = retry_topic(spark, client, topic, checkpoint, job.options, attempts=attempts)
    if as_json:
        print_json({"letters": count})
        return
    click.echo(f"{counted(count, 'letter')} of {source} moved")
