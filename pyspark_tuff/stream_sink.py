"""The streaming write: each micro-batch is written exactly once, whoever runs it how often.

An epoch of the sink is the number of a batch. Spark names neither that nor the query to a writer,
so tasks take them from what they are told about themselves, and carry them to the commit. Where no
task of a batch has left a message, its abort knows the run by the *origin* that the run's id ends
with: the writer's own name for one driver's query, the same in all of its processes.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pyspark import SparkFiles
from pyspark.sql.datasource import DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from pyspark.taskcontext import TaskContext

from pyspark_tuff.errors import brief
from pyspark_tuff.jobs import EpochJob
from pyspark_tuff.options import DEFAULT_EPOCH_LEASE_S, OptionError, stream_write_options
from pyspark_tuff.sink import DRIVER_NAME, Written, require_topic, write_task, written
from pyspark_tuff.storing import check_columns
from tuff.protocol.errors import TuffError

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from tuff.client import Client

# What Spark 4.2 and 4.3 tell a task of a stream. They are no part of its interface, so a version
# that does not must fail at once: without them a batch that is run again would be written again.
BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"  # the same in every run that goes on from one checkpoint
RUN_ID = "spark.jobGroup.id"  # another in each run
CHECKPOINT = "checkpointlocation"  # the option of a query that Spark hands on to its sink
ORIGIN_BYTES = 8


class UnknownEpochError(TuffError):
    """A task was not told which batch of which query it works for."""

    code = "unknown_epoch"


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a query. Spark makes one in each of several processes, and several in each batch,
    so none of them knows anything of another."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = stream_write_options(options)
        if overwrite:
            raise OptionError(
                "a write only adds messages to a topic, so outputMode('complete') is refused; "
                "write with .outputMode('append')"
            )
        check_columns(schema, self._options)
        with self._options.connection.connect(DRIVER_NAME) as client:
            require_topic(client, self._options)
        self._origin = _origin(options)

    @brief
    def write(self, iterator: Iterator["RecordBatch"]) -> Written:
        job = EpochJob(
            sink=self._options.sink or _told(QUERY_ID),
            epoch=int(_told(BATCH_ID)),
            run_id=_told(RUN_ID) + self._origin,
            lease_s=self._options.lease_s or DEFAULT_EPOCH_LEASE_S,
        )
        return write_task(job, self._options, iterator)

    @brief
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the batch. Once it has returned, running the batch again writes nothing."""
        winners = written(messages)
        jobs = {each.job for each in winners}
        epochs = [job.epoch for job in jobs if isinstance(job, EpochJob)]
        if epochs != [batchId]:
            raise UnknownEpochError(f"batch {batchId} was written by tasks of {jobs or 'none'}")
        with self._options.connection.connect(DRIVER_NAME) as client:
            jobs.pop().commit(client, [each.stored for each in winners])

    @brief
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """End what this run has begun."""
        with self._options.connection.connect(DRIVER_NAME) as client:
            for job in {each.job for each in written(messages)} or self._begun(client, batchId):
                job.abort(client)

    def _begun(self, client: "Client", epoch: int) -> list[EpochJob]:
        """What tasks of this driver's query have begun of an epoch; nothing where it can't be told
        from what others have, so that a lease ends it."""
        return [
            EpochJob(sink=each.sink, epoch=epoch, run_id=each.run_id, lease_s=0)
            for each in client.sinks.list()
            if self._origin and each.epoch == epoch and each.run_id.endswith(self._origin)
        ]


def _origin(options: Mapping[str, str]) -> str:
    """Of this driver and this query, and of no other; empty where Spark does not say enough.

    A driver that has taken another one's place has another one, so that what a zombie aborts is its
    own. Within one driver no two queries run from one checkpoint at once.
    """
    checkpoint = options.get(CHECKPOINT)
    if not checkpoint:
        return ""
    driver = SparkFiles.getRootDirectory()  # here: a directory that each session draws by chance
    origin = hashlib.sha256(f"{driver}\n{checkpoint}".encode())
    return f"/{origin.hexdigest()[: 2 * ORIGIN_BYTES]}"


def _told(name: str) -> str:
    context = TaskContext.get()
    value = None if context is None else context.getLocalProperty(name)
    if not value:
        raise UnknownEpochError(
            f"this task was not told {name}; use a version of Spark that does, 4.2 or 4.3, and "
            "write streams with writeStream only"
        )
    return value
