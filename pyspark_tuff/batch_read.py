"""The batch read, which sees all topics in one snapshot (decision 0024), and the work of a read
task: it polls its slices to their ends, and yields one Arrow batch for each reply."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_tuff.columns import batch_of, check_projection, shown_name
from pyspark_tuff.errors import brief, brief_batches
from pyspark_tuff.options import ReadOptions, batch_read_options
from pyspark_tuff.planning import (
    ReadTask,
    Slice,
    View,
    first_id,
    plan_batch,
    report_loss,
    take_view,
)

if TYPE_CHECKING:
    from pyarrow import RecordBatch

    from tuff.blocking.client import Client

PLANNER_NAME = "pyspark-plan"
CLIENT_NAME = "pyspark-read"


class BatchReader(DataSourceReader):
    """One DataFrame. Spark makes it at the first action, plans it once, in one view, and uses the
    plan for all later actions.

    It has no `pushFilters`: with it Spark 4.3 returns wrong rows if a DataFrame is used twice.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = batch_read_options(options)
        self._schema = schema
        check_projection(schema, include_transaction=self._options.include_transaction)
        # Spark pickles this object for the tasks before it asks for the partitions.
        with self._options.connection.connect(PLANNER_NAME) as client:
            self._view = take_view(client, self._options.isolation)

    @brief
    def partitions(self) -> list[InputPartition]:
        with self._options.connection.connect(PLANNER_NAME) as client:
            return [*plan_batch(client, self._options, self._view)]

    @brief_batches
    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        # If there is no partition, Spark makes an empty one of its own class.
        if isinstance(partition, ReadTask):
            yield from read_task(partition, self._view, self._options, self._schema)


def read_task(
    task: ReadTask, view: View, options: ReadOptions, schema: StructType
) -> Iterator["RecordBatch"]:
    """The messages of a task, in the order of its slices.

    Raises:
        DataLossError: messages have expired since the read was planned.
        TuffError: the server can't be reached, or refuses; Spark tries the task again.
    """
    with options.connection.connect(CLIENT_NAME) as client:
        for piece in task.slices:
            name = shown_name(piece.topic, options.namespace)
            for batch in _batches(client, piece, view, options):
                yield batch_of(batch, schema, topic=name)


def _batches(
    client: "Client", piece: Slice, view: View, options: ReadOptions
) -> Iterator["RecordBatch"]:
    after, expected, is_done = piece.start, piece.first, False
    while not is_done:
        question = view.question(after=after, through=piece.end, limit=options.fetch_size)
        reply = client.poll_batch(piece.topic, question)
        if expected is not None and first_id(reply) != expected:
            report_loss(
                f"messages of {piece.topic} from {expected} on expired after the read was planned",
                fails=options.fail_on_data_loss,
            )
        expected, is_done = None, reply.caught_up
        if len(reply):
            _check_generation(reply.batch, piece, options)
            yield reply.batch
        assert is_done or reply.next_id.hex() > after, "a read of decided rows always advances"
        after = reply.next_id.hex()


def _check_generation(batch: "RecordBatch", piece: Slice, options: ReadOptions) -> None:
    found = batch.column("generation")[0].as_py()
    if found != piece.generation:
        report_loss(
            f"topic {piece.topic} was created again while it was read: generation {found} after "
            f"{piece.generation}",
            fails=options.fail_on_data_loss,
        )
