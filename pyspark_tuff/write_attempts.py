"""Tells the attempts of a Spark task apart: each stores its rows under a write pointer of its own.

Spark may run a task again, or two attempts at once, and takes the result of one attempt. Requests
of the other attempts can't be undone. So every attempt takes its own checkpoint of the job's
transaction, and stores under it. Readers see these messages only after the driver has published
that pointer (decision 0024).
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING

from pyspark.taskcontext import TaskContext

from pyspark_tuff.columns import TOPIC, VALUE
from pyspark_tuff.lease_renewal import renewed
from pyspark_tuff.options import WriteOptions, topic_named
from pyspark_tuff.write_transactions import Job, Part, TaskResult
from tuff.blocking.client import Client
from tuff.protocol.errors import BadRequestError
from tuff.protocol.ids import TopicId

if TYPE_CHECKING:
    from pyarrow import Array, RecordBatch

FLUSH_COUNT = 5_000  # messages of one store; with more, the cost per message no longer falls
FLUSH_BYTES = 4 << 20  # bytes buffered, of all topics; the server takes 16 MiB in one request
# Messages under one pointer. One task reads all messages that were published by one reference, and
# the server counts them before it delivers the first.
PART_COUNT = 100_000


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
        with renewed(client, transaction, lease_s=job.lease_s):
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
        self._waiting: dict[TopicId, list[bytes]] = {}
        self._waiting_bytes = 0

    def store(self, batches: Iterator["RecordBatch"]) -> tuple[Part, ...]:
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
        return tuple(self._parts)

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
