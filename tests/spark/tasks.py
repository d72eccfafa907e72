"""Runs a task of a write in this process, with the task context that Spark would set."""

import pickle
from collections.abc import Iterator
from typing import Protocol

import pyarrow as pa
from pyspark.taskcontext import TaskContext

from pyspark_tuff.write_transactions import TaskResult
from pyspark_tuff.writers import BATCH_ID, QUERY_ID, RUN_ID


class Writer(Protocol):
    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskResult: ...


def run_task(
    writer: Writer,
    batches: Iterator[pa.RecordBatch],
    *,
    partition: int = 0,
    properties: dict[str, str] | None = None,
) -> TaskResult:
    """The result of one attempt; it and the writer are pickled as Spark does."""
    before = TaskContext._taskContext
    context = TaskContext()
    context._partitionId, context._attemptNumber = partition, 0
    context._localProperties = properties or {}
    TaskContext._setTaskContext(context)
    try:
        there: Writer = pickle.loads(pickle.dumps(writer))
        back: TaskResult = pickle.loads(pickle.dumps(there.write(batches)))
    finally:
        TaskContext._setTaskContext(before)
    return back


def task_properties(*, query: str, epoch: int, run: str) -> dict[str, str]:
    """The local properties that Spark sets for a task of a stream."""
    return {QUERY_ID: query, BATCH_ID: str(epoch), RUN_ID: run}


def rows(*values: bytes) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"value": pa.array(values, pa.binary())})
