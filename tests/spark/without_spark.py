"""What Spark does with a data source, in this process and without a JVM: it makes it from options,
pickles readers and writers, and runs tasks.
"""

import pickle
from collections.abc import Iterator
from typing import Protocol, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import CaseInsensitiveDict
from pyspark.taskcontext import TaskContext

from pyspark_tuff import DefaultSource
from pyspark_tuff.write_transactions import TaskResult
from pyspark_tuff.writers import BATCH_ID, QUERY_ID, RUN_ID

T = TypeVar("T")


def source_of(**options: object) -> DefaultSource:
    """The data source for these options, which Spark passes as texts."""
    return DefaultSource(CaseInsensitiveDict({name: str(each) for name, each in options.items()}))


def pickled(value: T) -> T:
    """The value as it arrives in another process."""
    copy: T = pickle.loads(pickle.dumps(value))
    return copy


class Writer(Protocol):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult: ...


def run_task(
    writer: Writer,
    batches: Iterator[pa.RecordBatch],
    *,
    partition: int = 0,
    properties: dict[str, str] | None = None,
) -> TaskResult:
    """The result of one attempt, with the task context that Spark would set."""
    before = TaskContext._taskContext
    context = TaskContext()
    context._partitionId, context._attemptNumber = partition, 0
    context._localProperties = properties or {}
    TaskContext._setTaskContext(context)
    try:
        return pickled(pickled(writer).write(batches))
    finally:
        TaskContext._setTaskContext(before)


def task_properties(*, query: str, epoch: int, run: str) -> dict[str, str]:
    """The local properties that Spark sets for a task of a stream."""
    return {QUERY_ID: query, BATCH_ID: str(epoch), RUN_ID: run}


def rows(*values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
