"""A program on Spark Connect: it copies a topic to another in a batch, and that to a third as a
stream.

python -m tests.spark.connect_client REMOTE URL CHECKPOINT
"""

import sys
from collections.abc import Sequence

FIRST, SECOND, THIRD = "connect:first", "connect:second", "connect:third"


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    from pyspark.sql import SparkSession
    from pyspark.sql.connect.session import SparkSession as RemoteSession

    remote, url, checkpoint = arguments
    spark = SparkSession.builder.remote(remote).getOrCreate()
    assert isinstance(spark, RemoteSession)
    read = spark.read.format("tuff").options(url=url, subscribe=FIRST).load().orderBy("id")
    write = read.select("value").coalesce(1).write.format("tuff").mode("append")
    write.options(url=url, topic=SECOND).save()
    source = spark.readStream.format("tuff").options(url=url, subscribe=SECOND)
    stream = source.option("startingOffsets", "earliest").load().select("value")
    sink = stream.writeStream.format("tuff").options(url=url, topic=THIRD)
    query = sink.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
    query.awaitTermination()
    print(f"{read.count()} messages")
    spark.stop()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
