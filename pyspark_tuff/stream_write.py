"""The streaming write: each micro-batch is written exactly once, however often it is run.

The epoch of the sink is the number of the micro-batch. Spark passes neither this number nor the
query's id to a writer, so the tasks read both from their local properties, and send them to the
commit with their results. If an abort gets no task result, it finds the run by its *origin*, which
is the end of the run id: it identifies the query of this driver, in all processes of the driver.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark import SparkFiles
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from pyspark.taskcontext import TaskContext

from pyspark_tuff.errors import brief
from pyspark_tuff.options import DEFAULT_EPOCH_LEASE_S, OptionError, stream_write_options
from pyspark_tuff.task_write import (
    DRIVER_NAME,
    TaskResult,
    check_columns,
    require_topic,
    results,
    write_task,
)
from pyspark_tuff.write_transactions import EpochJob
from tuff.protocol.errors import TuffError

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from tuff.blocking.client import Client

# Local properties that Spark 4.2 and 4.3 set for the tasks of a stream. They are not part of its
# public interface. With a Spark version that does not set them the write must fail at once:
# otherwise a batch that is run again would be written twice.
BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"  # the same in all runs from one checkpoint
RUN_ID = "spark.jobGroup.id"  # different in each run
CHECKPOINT = "checkpointlocation"  # a query's option, which Spark passes on to its sink
ORIGIN_BYTES = 8


class UnknownEpochError(TuffError):
    """Spark has not set the properties that name the query and the micro-batch of a task."""

    code = "unknown_epoch"


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a query. Spark makes one in each of several processes, and several for each
    batch, so they share no state."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = stream_write_options(options)
        if overwrite:
            raise OptionError(
                "a write only adds messages to a topic, so outputMode('complete') is refused; "
                "use .outputMode('append')"
            )
        check_columns(schema, self._options)
        with self._options.connection.connect(DRIVER_NAME) as client:
            require_topic(client, self._options)
        self._origin = _origin(options)

    @brief
    def write(self, iterator: Iterator["RecordBatch"]) -> TaskResult:
        job = EpochJob(
            sink=self._options.sink or _local_property(QUERY_ID),
            epoch=int(_local_property(BATCH_ID)),
            run_id=_local_property(RUN_ID) + self._origin,
            lease_s=self._options.lease_s or DEFAULT_EPOCH_LEASE_S,
        )
        return write_task(job, self._options, iterator)

    @brief
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the batch. After this has returned, running the batch again writes nothing."""
        winners = results(messages)
        jobs = {each.job for each in winners}
        epochs = [job.epoch for job in jobs if isinstance(job, EpochJob)]
        if epochs != [batchId]:
            raise UnknownEpochError(f"batch {batchId} has results of tasks of {jobs or 'no job'}")
        with self._options.connection.connect(DRIVER_NAME) as client:
            jobs.pop().commit(client, [each.stored for each in winners])

    @brief
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Abort the transaction that this run has started."""
        with self._options.connection.connect(DRIVER_NAME) as client:
            for job in {each.job for each in results(messages)} or self._begun(client, batchId):
                job.abort(client)

    def _begun(self, client: "Client", epoch: int) -> list[EpochJob]:
        """The epoch's jobs that tasks of this driver's query have begun.

        Empty if they can't be told from jobs of other drivers; then the lease ends them.
        """
        return [
            EpochJob(sink=each.sink, epoch=epoch, run_id=each.run_id, lease_s=0)
            for each in client.sinks.list()
            if self._origin and each.epoch == epoch and each.run_id.endswith(self._origin)
        ]


def _origin(options: Mapping[str, str]) -> str:
    """The origin: unique to this driver and this query; empty if Spark passes no checkpoint.

    A driver that replaces another one has a different origin, so a zombie driver aborts only its
    own run. Within one driver no two queries run from one checkpoint at once.
    """
    checkpoint = options.get(CHECKPOINT)
    if not checkpoint:
        return ""
    driver = SparkFiles.getRootDirectory()  # on the driver: a random directory of the session
    origin = hashlib.sha256(f"{driver}\n{checkpoint}".encode())
    return f"/{origin.hexdigest()[: 2 * ORIGIN_BYTES]}"


def _local_property(name: str) -> str:
    context = TaskContext.get()
    value = None if context is None else context.getLocalProperty(name)
    if not value:
        raise UnknownEpochError(
            f"Spark has not set the property {name} for this task; use Spark 4.2 or 4.3, and "
            "write streams with writeStream only"
        )
    return value
