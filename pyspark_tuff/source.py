"""The data source itself, and its batch read: every topic in one snapshot (decision 0024)."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
)
from pyspark.sql.types import StructType

from pyspark_tuff.columns import check_projection, source_schema
from pyspark_tuff.options import batch_read_options, includes_transaction
from pyspark_tuff.planning import Work, plan_batch, take_view
from pyspark_tuff.reading import read_work

if TYPE_CHECKING:
    from pyarrow import RecordBatch

PLANNER_NAME = "pyspark-plan"


class DefaultSource(DataSource):
    """`format("tuff")`. Spark makes one in each of several processes, so it holds options only."""

    @classmethod
    def name(cls) -> str:
        return "tuff"

    def schema(self) -> StructType:
        return source_schema(include_transaction=includes_transaction(self.options))

    def reader(self, schema: StructType) -> "BatchReader":
        return BatchReader(self.options, schema)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        from pyspark_tuff.sink import BatchWriter

        return BatchWriter(self.options, schema, overwrite=overwrite)

    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's
    ) -> DataSourceStreamWriter:
        from pyspark_tuff.stream_sink import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from pyspark_tuff.stream import StreamReader

        return StreamReader(self.options, schema)


class BatchReader(DataSourceReader):
    """One `load()`: planned once, in one view, and the same at every action on it.

    It has no `pushFilters`: with it Spark 4.3 gives wrong rows where a DataFrame is used twice.
    """

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = batch_read_options(options)
        self._schema = schema
        check_projection(schema, include_transaction=self._options.include_transaction)
        # Spark pickles this object for the tasks before it asks for the partitions.
        with self._options.connection.connect(PLANNER_NAME) as client:
            self._view = take_view(client, self._options.isolation)

    def partitions(self) -> list[InputPartition]:
        with self._options.connection.connect(PLANNER_NAME) as client:
            return [*plan_batch(client, self._options, self._view)]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        # Spark makes an empty partition of its own where there is none.
        if isinstance(partition, Work):
            yield from read_work(partition, self._view, self._options, self._schema)
