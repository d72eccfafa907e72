"""A Spark driver for tests/spark/kill.py: a stream copies the messages of a topic to two others.

python -m tests.spark.stream_driver URL HOME
"""

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from tests.spark.session import make_session

SOURCE = "kill:source"
SINKS = ("even", "odd")
BATCH_COUNT = 50  # messages of a micro-batch
PARTITION_COUNT = 2


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    url, home = arguments[0], Path(arguments[1])
    session = make_session(home / "warehouse")
    spark = next(session)
    try:
        reader = spark.readStream.format("tuff").options(
            url=url,
            subscribe=SOURCE,
            startingOffsets="earliest",
            maxMessagesPerTrigger=BATCH_COUNT,
            minPartitions=PARTITION_COUNT,
            includeAttributes=True,
        )
        named = reader.load().selectExpr(
            "string(value) as value",
            "key",
            "elt(1 + cast(string(value) as int) % 2, 'even', 'odd') as topic",
        )
        writer = named.writeStream.format("tuff").options(url=url, namespace="kill")
        writer = writer.option("checkpointLocation", str(home / "checkpoint"))
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
    except Exception:
        # Before the JVM ends: what it has thrown is there.
        traceback.print_exc()
        raise
    finally:
        session.close()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
