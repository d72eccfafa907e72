"""What a task of a write does: it stores its rows under a write pointer of its own.

Spark may run a task again, or two attempts at once, and takes the result of one attempt. Requests
of the other attempts can't be undone. So every attempt takes its own checkpoint of the job's
transaction, and stores under it. Readers see these messages only after the driver has published
that pointer (decision 0024).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING

from pyspark.sql.datasource import WriterCommitMessage
from pyspark.sql.types import BinaryType, DataType, StringType, StructType
from pyspark.taskcontext import TaskContext

from pyspark_tuff.columns import TOPIC
from pyspark_tuff.lease_renewal import LeaseRenewer
from pyspark_tuff.options import OptionError, WriteOptions, topic_named
from pyspark_tuff.planning import require_topics
from pyspark_tuff.write_transactions import Job, Part, Stored
from tuff.blocking.client import Client
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import TopicId

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

DRIVER_NAME = "pyspark-write"
VALUE = "value"
FLUSH_COUNT = 5_000  # messages of one store; with more, the cost per message no longer falls
# Messages under one pointer. One task reads all messages that were published by one reference, and
# the server counts them before it delivers the first.
PART_COUNT = 100_000
FLUSH_BYTES = 4 << 20  # bytes buffered, of all topics; the server takes 16 MiB in one request


@dataclass(frozen=True)
class TaskResult(WriterCommitMessage):
    """What the winning attempt of a task sends to the driver's host."""

    job: Job
    stored: Stored


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
            return TaskResult(job, Stored(partition=partition, parts=()))
        with LeaseRenewer(client, transaction, lease_s=job.lease_s) as lease:
            attempt = Attempt(client, transaction, options, check=lease.check)
            return TaskResult(job, attempt.store(batches, partition=partition))


def results(messages: Sequence[WriterCommitMessage | None]) -> list[TaskResult]:
    """The results of the tasks; Spark passes None for a task that failed."""
    return [each for each in messages if isinstance(each, TaskResult)]


def require_topic(client: Client, options: WriteOptions) -> None:
    """Raises: TopicNotFoundError: the topic of the option does not exist. Topics that a column
    names are checked by the tasks."""
    if options.topic is not None:
        require_topics(client, [options.topic], option="topic")


def check_columns(schema: StructType, options: WriteOptions) -> None:
    """Raises: OptionError: rows of this schema can't be written as messages."""
    kinds = {field.name: field.dataType for field in schema}
    if VALUE not in kinds:
        raise OptionError(
            f"a write needs a column value, binary or string; these rows have {', '.join(kinds)}"
        )
    _check_type(VALUE, kinds[VALUE], (BinaryType, StringType))
    if options.topic is None:
        if TOPIC not in kinds:
            raise OptionError("set the option topic, or add a string column topic to the rows")
        _check_type(TOPIC, kinds[TOPIC], (StringType,))
    extra = kinds.keys() - {VALUE, TOPIC}
    if extra and not options.ignores_extra_columns:
        raise OptionError(
            f"messages have no {', '.join(sorted(extra))}; drop these columns, or set "
            "ignoreExtraColumns=true"
        )


def _check_type(name: str, kind: DataType, allowed: tuple[type[DataType], ...]) -> None:
    if not isinstance(kind, allowed):
        known = " or ".join(each().simpleString() for each in allowed)
        raise OptionError(
            f"column {name} has the type {kind.simpleString()}, and a write takes {known}; cast "
            f"it, as in `cast({name} as string) as {name}`"
        )


class Attempt:
    """One attempt of a task. It takes a write pointer with its first rows, and another one after
    every PART_COUNT messages."""

    def __init__(
        self, client: Client, transaction: int, options: WriteOptions, *, check: Callable[[], None]
    ) -> None:
        self._client = client
        self._transaction = transaction
        self._options = options
        self._check = check
        self._parts: list[Part] = []
        self._pointer: int | None = None
        self._counts: Counter[TopicId] = Counter()
        self._waiting: dict[TopicId, list[bytes]] = {}
        self._waiting_bytes = 0

    def store(self, batches: Iterator["RecordBatch"], *, partition: int) -> Stored:
        """Store all rows, durably.

        Raises:
            TransactionNotInProgressError: the job has ended, or was fenced.
            ConnectionLostError: rows may be stored twice under this pointer, so the attempt fails.
        """
        for batch in batches:
            for topic, values in self._by_topic(batch):
                self._add(topic, values)
        self._flush_all()
        self._end_part()
        return Stored(partition=partition, parts=tuple(self._parts))

    def _by_topic(self, batch: "RecordBatch") -> Iterator[tuple[TopicId, list[bytes]]]:
        import pyarrow as pa

        values = batch.column(VALUE)
        _refuse_nulls(values, VALUE)
        payloads: list[bytes] = values.cast(pa.binary()).to_pylist()
        if self._options.topic is not None:
            yield self._options.topic, payloads
            return
        names = batch.column(TOPIC)
        _refuse_nulls(names, TOPIC)
        found: dict[str, list[bytes]] = {}
        for name, payload in zip(names.to_pylist(), payloads, strict=True):
            found.setdefault(name, []).append(payload)
        for name, some in found.items():
            yield topic_named(name, self._options.namespace), some

    def _add(self, topic: TopicId, payloads: list[bytes]) -> None:
        waiting = self._waiting.setdefault(topic, [])
        sums = [*accumulate(map(len, payloads), initial=0)]
        at = 0
        while at < len(payloads):
            # Up to and including the message that reaches FLUSH_BYTES: a request may exceed the
            # limit by that message.
            enough_bytes = sums[at] + FLUSH_BYTES - self._waiting_bytes
            stop = min(at + FLUSH_COUNT - len(waiting), bisect_left(sums, enough_bytes, lo=at + 1))
            waiting += payloads[at:stop]
            stop = min(stop, len(payloads))
            self._waiting_bytes += sums[stop] - sums[at]
            at = stop
            if len(waiting) >= FLUSH_COUNT:
                self._flush(topic)
            elif self._waiting_bytes >= FLUSH_BYTES:
                self._flush_all()

    def _flush_all(self) -> None:
        for topic in self._waiting:
            self._flush(topic)

    def _flush(self, topic: TopicId) -> None:
        payloads = self._waiting[topic]
        if not payloads:
            return
        self._check()
        self._client.store(topic, *payloads, transaction=self._own_pointer())
        self._counts[topic] += len(payloads)
        self._waiting_bytes -= sum(map(len, payloads))
        payloads.clear()
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


def _refuse_nulls(column: "Array", name: str) -> None:
    if column.null_count:
        raise BadRequestError(f"column {name} has a null, and a message has none; filter it out")
