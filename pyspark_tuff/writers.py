"""The writers of a batch and of a stream, which Spark calls on the driver's host and in tasks.

A batch write is one transaction: all its topics appear at once, each row exactly once. A streaming
write is exactly once: a micro-batch that is run again is not written again (decision 0024).

Spark may run a task again, or two attempts at once, and takes the result of one attempt. Requests
of the other attempts can't be undone. So every attempt takes its own checkpoint of the job's
transaction, and stores its rows under that write pointer. Readers see these messages only after the
driver has published the pointer.
"""

import hashlib
import os
import secrets
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING

from pyspark import SparkFiles
from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceStreamArrowWriter,
    WriterCommitMessage,
)
from pyspark.sql.types import StructType
from pyspark.taskcontext import TaskContext

from pyspark_tuff import lease_renewal
from pyspark_tuff.columns import TOPIC, check_written, messages_of, refuse_nulls
from pyspark_tuff.errors import OptionError, UnknownEpochError, without_traceback
from pyspark_tuff.options import (
    DEFAULT_EPOCH_LEASE_S,
    DEFAULT_LEASE_S,
    WriteOptions,
    batch_write_options,
    stream_write_options,
    topic_named,
)
from pyspark_tuff.planning import require_topics
from pyspark_tuff.write_transactions import EpochJob, Job, JoinedJob, OwnJob, Part, TaskResult
from tuff.blocking.client import Client
from tuff.protocol.ids import TopicId
from tuff.publish_calls import Publishable, checked, size_bytes

if TYPE_CHECKING:
    from pyarrow import RecordBatch

CLIENT_NAME = "pyspark-write"
RUN_ID_BYTES = 16  # random bytes; two runs of a job never draw the same

FLUSH_COUNT = 5_000  # messages of one store; with more, the cost per message no longer falls
FLUSH_BYTES = 4 << 20  # bytes buffered, of all topics; the server takes 16 MiB in one request
# Messages under one pointer. One task reads all messages that were published by one reference, and
# the server counts them before it delivers the first.
PART_COUNT = 100_000

# Local properties that Spark 4.2 and 4.3 set for the tasks of a stream. They are not part of its
# public interface. With a Spark version that does not set them the write must fail at once:
# otherwise a batch that is run again would be written twice.
BATCH_ID = "streaming.sql.batchId"
QUERY_ID = "sql.streaming.queryId"  # the same in all runs from one checkpoint
RUN_ID = "spark.jobGroup.id"  # different in each run
CHECKPOINT = "checkpointlocation"  # a query's option, which Spark passes on to its sink
ORIGIN_BYTES = 8


class BatchWriter(DataSourceArrowWriter):
    """One write of a DataFrame. Spark makes it once, and pickles it for tasks and commit."""

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = batch_write_options(options)
        if overwrite:
            raise OptionError(
                "a write only adds messages to a topic, so mode('overwrite') is refused; use "
                ".mode('append'), and a new topic if it must hold no older messages"
            )
        check_written(schema, self._options)
        with _connect(self._options) as client:
            _require_topic(client, self._options)
            self._job = _begin(client, self._options)
        # This process ends soon. Its parent, Spark's daemon or Spark itself, lives on.
        self._renewal = lease_renewal.start(
            self._job, self._options.connection, parent=os.getppid()
        )

    @without_traceback
    def write(self, iterator: Iterator["RecordBatch"]) -> TaskResult:
        return write_task(self._job, self._options, iterator)

    @without_traceback
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        with _connect(self._options) as client:
            self._job.commit(client, _results(messages))
        lease_renewal.stop(self._renewal)

    @without_traceback
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        lease_renewal.stop(self._renewal)
        with _connect(self._options) as client:
            self._job.abort(client)


class StreamWriter(DataSourceStreamArrowWriter):
    """The sink of a query. Spark makes one in each of several processes, and several for each
    batch, so they share no state.

    The epoch of the sink is the number of the micro-batch. Spark passes neither this number nor the
    query's id to a writer, so the tasks read both from their local properties, and send them to the
    commit with their results. If an abort gets no task result, it finds the run by its *origin*,
    which is the end of the run id: it identifies the query of this driver, in all processes of the
    driver.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType, *, overwrite: bool) -> None:
        self._options = stream_write_options(options)
        if overwrite:
            raise OptionError(
                "a write only adds messages to a topic, so outputMode('complete') is refused; "
                "use .outputMode('append'), or foreachBatch for the rows of an aggregation"
            )
        check_written(schema, self._options)
        with _connect(self._options) as client:
            _require_topic(client, self._options)
        self._origin = _origin(options)

    @without_traceback
    def write(self, iterator: Iterator["RecordBatch"]) -> TaskResult:
        job = EpochJob(
            sink=self._options.sink or _local_property(QUERY_ID),
            epoch=int(_local_property(BATCH_ID)),
            run_id=_local_property(RUN_ID) + self._origin,
            lease_s=self._options.lease_s or DEFAULT_EPOCH_LEASE_S,
        )
        return write_task(job, self._options, iterator)

    @without_traceback
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Publish the batch. After this has returned, running the batch again writes nothing."""
        winners = _results(messages)
        jobs = {each.job for each in winners}
        epochs = [job.epoch for job in jobs if isinstance(job, EpochJob)]
        if epochs != [batchId]:
            raise UnknownEpochError(f"batch {batchId} has results of tasks of {jobs or 'no job'}")
        with _connect(self._options) as client:
            jobs.pop().commit(client, winners)

    @without_traceback
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:  # noqa: N803 - Spark's name
        """Abort the transaction that this run has started."""
        with _connect(self._options) as client:
            for job in {each.job for each in _results(messages)} or self._begun(client, batchId):
                job.abort(client)

    def _begun(self, client: Client, epoch: int) -> list[EpochJob]:
        """The epoch's jobs that tasks of this driver's query have begun.

        Empty if they can't be told from jobs of other drivers; then the lease ends them.
        """
        return [
            EpochJob(sink=each.sink, epoch=epoch, run_id=each.run_id, lease_s=0)
            for each in client.sinks.list()
            if self._origin and each.epoch == epoch and each.run_id.endswith(self._origin)
        ]


def write_task(job: Job, options: WriteOptions, batches: Iterator["RecordBatch"]) -> TaskResult:
    """Store the rows of one attempt of a task."""
    context = TaskContext.get()
    assert context is not None, "only tasks write"
    partition = context.partitionId()
    name = f"pyspark-task-{partition}-{context.attemptNumber()}"
    with options.connection.connect(name) as client:
        transaction = job.enter(client)
        if transaction is None:
            # Committed before. Spark still expects the rows to be consumed.
            for _ in batches:
                pass
            return TaskResult(job=job, partition=partition, parts=())
        with lease_renewal.renewed(client, transaction, lease_s=job.lease_s):
            parts = Attempt(client, transaction, options).store(batches)
            return TaskResult(job=job, partition=partition, parts=parts)


class Attempt:
    """One attempt of a task. It takes a write pointer with its first rows, and another one after
    every PART_COUNT messages."""

    def __init__(self, client: Client, transaction: int, options: WriteOptions) -> None:
        self._client = client
        self._transaction = transaction
        self._options = options
        self._parts: list[Part] = []
        self._pointer: int | None = None
        self._counts: Counter[TopicId] = Counter()
        self._waiting: dict[TopicId, list[Publishable]] = {}
        self._waiting_bytes: Counter[TopicId] = Counter()

    def store(self, batches: Iterator["RecordBatch"]) -> tuple[Part, ...]:
        """Store all rows, durably.

        Raises:
            TransactionNotInProgressError: the job has ended, or was fenced.
            ConnectionLostError: rows may be stored twice under this pointer, so the attempt fails.
        """
        for batch in batches:
            for topic, messages in self._by_topic(batch):
                self._add(topic, messages)
        self._flush_all()
        self._end_part()
        return tuple(self._parts)

    def _by_topic(self, batch: "RecordBatch") -> Iterator[tuple[TopicId, list[Publishable]]]:
        messages = messages_of(batch, attributes=self._options.include_attributes)
        if self._options.topic is not None:
            yield self._options.topic, messages
            return
        names = batch.column(TOPIC)
        refuse_nulls(names, TOPIC)
        found: dict[str, list[Publishable]] = {}
        for name, message in zip(names.to_pylist(), messages, strict=True):
            found.setdefault(name, []).append(message)
        for name, some in found.items():
            yield topic_named(name, self._options.namespace), some

    def _add(self, topic: TopicId, messages: list[Publishable]) -> None:
        waiting = self._waiting.setdefault(topic, [])
        sizes = (size_bytes(checked(message)) for message in messages)
        sums = [*accumulate(sizes, initial=0)]
        at = 0
        while at < len(messages):
            # Up to and including the message that reaches FLUSH_BYTES: a request may exceed the
            # limit by that message.
            enough_bytes = sums[at] + FLUSH_BYTES - self._waiting_bytes.total()
            stop = min(at + FLUSH_COUNT - len(waiting), bisect_left(sums, enough_bytes, lo=at + 1))
            waiting += messages[at:stop]
            stop = min(stop, len(messages))
            self._waiting_bytes[topic] += sums[stop] - sums[at]
            at = stop
            if len(waiting) >= FLUSH_COUNT:
                self._flush(topic)
            elif self._waiting_bytes.total() >= FLUSH_BYTES:
                self._flush_all()

    def _flush_all(self) -> None:
        for topic in self._waiting:
            self._flush(topic)

    def _flush(self, topic: TopicId) -> None:
        messages = self._waiting[topic]
        if not messages:
            return
        self._client.store(topic, *messages, transaction=self._own_pointer())
        self._counts[topic] += len(messages)
        del self._waiting_bytes[topic]
        messages.clear()
        if self._counts.total() >= PART_COUNT:
            self._end_part()

    def _end_part(self) -> None:
        if self._pointer is not None:
            self._parts.append(Part(pointer=self._pointer, counts=dict(self._counts)))
        self._pointer = None
        self._counts.clear()

    def _own_pointer(self) -> int:
        if self._pointer is None:
            checkpoint = self._client.transactions.checkpoint(self._transaction)
            self._pointer = checkpoint.write_pointer
        return self._pointer


def _connect(options: WriteOptions) -> Client:
    return options.connection.connect(CLIENT_NAME)


def _require_topic(client: Client, options: WriteOptions) -> None:
    """Raises: TopicNotFoundError: the topic of the option does not exist. Topics that a column
    names are checked by the tasks."""
    if options.topic is not None:
        require_topics(client, [options.topic], option="topic")


def _results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """The results of the tasks; Spark passes None for a task that failed."""
    return [each for each in messages if isinstance(each, TaskResult)]


def _begin(client: Client, options: WriteOptions) -> Job:
    """The job of a batch write."""
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


def _require_in_progress(client: Client, transaction: int) -> None:
    """Raises: OptionError: it has ended; TransactionUnknownError: the server does not know it."""
    state = client.transactions.get(transaction).state
    if state != "in_progress":
        raise OptionError(
            f"transaction {transaction}, which the option transaction names, is {state}, and a "
            "write can only join a transaction that is in progress; start another one"
        )


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
