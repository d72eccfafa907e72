"""The data source itself (decision 0024)."""

from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
)
from pyspark.sql.types import StructType

from pyspark_tuff.columns import source_schema
from pyspark_tuff.errors import brief
from pyspark_tuff.options import load_options

if TYPE_CHECKING:
    from pyspark_tuff.batch_read import BatchReader

LOADER_NAME = "pyspark-load"


class DefaultSource(DataSource):
    """`format("tuff")`. Spark makes one in each of several processes, so it holds only options.

    A first micro-batch starts seven processes, so each imports only the modules that it needs.
    """

    @classmethod
    def name(cls) -> str:
        return "tuff"

    @brief
    def schema(self) -> StructType:
        """All columns. Spark calls this at `load()` unless the user gives a schema, so it also
        reports missing topics.

        With `failOnDataLoss=false` it does not: a stream continues without a deleted topic.
        """
        options = load_options(self.options)
        if options.topics and options.fail_on_data_loss:
            from pyspark_tuff.planning import require_topics

            with options.connection.connect(LOADER_NAME) as client:
                require_topics(client, options.topics, option="subscribe")
        return source_schema(include_transaction=options.include_transaction)

    @brief
    def reader(self, schema: StructType) -> "BatchReader":
        from pyspark_tuff.batch_read import BatchReader

        return BatchReader(self.options, schema)

    @brief
    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:  # noqa: FBT001 - Spark's
        from pyspark_tuff.batch_write import BatchWriter

        return BatchWriter(self.options, schema, overwrite=overwrite)

    @brief
    def streamWriter(  # noqa: N802 - Spark's name
        self,
        schema: StructType,
        overwrite: bool,  # noqa: FBT001 - Spark's
    ) -> DataSourceStreamWriter:
        from pyspark_tuff.stream_write import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)

    @brief
    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from pyspark_tuff.stream_read import StreamReader

        return StreamReader(self.options, schema)
