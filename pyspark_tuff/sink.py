"""The batch write: every topic of a job appears at once, each row exactly once (decision 0024)."""

import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType
from pyspark.taskcontext import TaskContext

from pyspark_tuff import renewing
from pyspark_tuff.errors import brief
from pyspark_tuff.heartbeat import Heartbeat
from pyspark_tuff.jobs import EpochJob, Job, JoinedJob, OwnJob
from pyspark_tuff.options import (
    DEFAULT_EPOCH_LEASE_S,
    DEFAULT_LEASE_S,
    OptionError,
    WriteOptions,
    batch_write_options,
)
from pyspark_tuff.planning import require_topics
from pyspark_tuff.storing import Attempt, Stored, check_columns

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from tuff.client import Client

DRIVER_NAME = "pyspark-write"
RUN_ID_BYTES = 16  # bytes by chance; two runs of a job never draw the same


@dataclass(frozen=True)
class Written(WriterCommitMessage):
    """What the attempt that won tells the driver's host."""

    job: Job
    stored: Stored


class BatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame. Spark makes it once, and pickles it for tasks and commit."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = batch_write_options(options)
        if overwrite:
            raise OptionError(
                "a write only adds messages to a topic, so mode('overwrite') is refused; say "
                ".mode('append'), and take a new topic to have no older messages in it"
            )
        check_columns(schema, self._options)
        with self._options.connection.connect(DRIVER_NAME) as client:
            require_topic(client, self._options)
            self._job = self._begin(client)
        # The parent of this process, which ends soon: Spark's daemon, or Spark.
        self._renewing = renewing.start(self._job, self._options.connection, parent=os.getppid())

    @brief
    def write(self, iterator: Iterator["RecordBatch"]) -> Written:
        return write_task(self._job, self._options, iterator)

    @brief
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with self._options.connection.connect(DRIVER_NAME) as client:
            self._job.commit(client, [each.stored for each in written(messages)])
        renewing.end(self._renewing)

    @brief
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        renewing.end(self._renewing)
        with self._options.connection.connect(DRIVER_NAME) as client:
            self._job.abort(client)

    def _begin(self, client: "Client") -> Job:
        options = self._options
        if options.transaction is not None:
            _require_in_progress(client, options.transaction)
            return JoinedJob(transaction=options.transaction)
        if options.sink is not None and options.version is not None:
            return EpochJob(
                sink=options.sink,
                epoch=options.version,
                run_id=secrets.token_hex(RUN_ID_BYTES),
                lease_s=options.lease_s or DEFAULT_EPOCH_LEASE_S,
            )
        lease_s = options.lease_s or DEFAULT_LEASE_S
        transaction = client.transactions.start("long", lease=lease_s)
        return OwnJob(transaction=transaction.transaction_id, lease_s=lease_s)


def require_topic(client: "Client", options: WriteOptions) -> None:
    """Raises: TopicNotFoundError: there is no topic of that option. Those of a column are seen by
    the tasks alone."""
    if options.topic is not None:
        require_topics(client, [options.topic], option="topic")


def write_task(job: Job, options: WriteOptions, batches: Iterator["RecordBatch"]) -> Written:
    """What one attempt of a task does with its rows."""
    context = TaskContext.get()
    assert context is not None, "only tasks write"
    partition = context.partitionId()
    name = f"pyspark-task-{partition}-{context.attemptNumber()}"
    with options.connection.connect(name) as client:
        transaction = job.enter(client)
        if transaction is None:
            # Spark waits for its rows to be taken, and they are where they belong already.
            for _ in batches:
                pass
            return Written(job, Stored(partition=partition, parts=()))
        with Heartbeat(client, transaction, lease_s=job.lease_s) as heart:
            attempt = Attempt(client, transaction, options, check=heart.check)
            return Written(job, attempt.store(batches, partition=partition))


def _require_in_progress(client: "Client", transaction: int) -> None:
    """Raises: OptionError: it has ended; TransactionUnknownError: it never was, or long ago."""
    state = client.transactions.outcome(transaction).state
    if state != "in_progress":
        raise OptionError(
            f"transaction {transaction}, which the option transaction names, is {state}, and a "
            "write joins one that is in progress; start another one"
        )


def written(messages: Sequence[WriterCommitMessage | None]) -> list[Written]:
    """The messages of attempts; a task that failed has left None."""
    return [each for each in messages if isinstance(each, Written)]
