"""Topics as a data source and sink of Spark: `format("tuff")`, found by this module name (decision
0024).

Every Python process of Spark imports this module when it looks for data sources. So it imports
little; readers, writers and clients are imported when Spark asks for them.

    options, columns, offsets      what a user gives, the schemas, the offset of a stream in JSON
    planning -> readers            which task reads which messages; batch and micro-batch reads
    write_transactions -> writers  which transaction a write uses; batch and micro-batch writes
    lease_renewal                  keeps the transaction of a write alive
    errors                         the errors, and how Spark shows them
"""

from typing import TYPE_CHECKING

from tuff.optional_packages import Extra

with Extra("pyspark_tuff", "spark"):
    from pyspark.sql.datasource import DataSource
    from pyspark.sql.types import StructType

    from pyspark_tuff.columns import source_schema
    from pyspark_tuff.errors import without_traceback
    from pyspark_tuff.options import load_options

if TYPE_CHECKING:
    from pyspark_tuff.readers import BatchReader, StreamReader
    from pyspark_tuff.writers import BatchWriter, StreamWriter

LOADER_NAME = "pyspark-load"


class DefaultSource(DataSource):
    """Spark makes one in each of several processes, so it holds only options.

    A first micro-batch starts seven processes, so each imports only the modules that it needs.
    """

    @classmethod
    def name(cls) -> str:
        return "tuff"

    @without_traceback
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
        return source_schema(options)

    @without_traceback
    def reader(self, schema: StructType) -> "BatchReader":
        from pyspark_tuff.readers import BatchReader

        return BatchReader(self.options, schema)

    @without_traceback
    def streamReader(self, schema: StructType) -> "StreamReader":  # noqa: N802 - Spark's name
        from pyspark_tuff.readers import StreamReader

        return StreamReader(self.options, schema)

    @without_traceback
    def writer(self, schema: StructType, overwrite: bool) -> "BatchWriter":  # noqa: FBT001 - Spark's
        from pyspark_tuff.writers import BatchWriter

        return BatchWriter(self.options, schema, overwrite=overwrite)

    @without_traceback
    def streamWriter(self, schema: StructType, overwrite: bool) -> "StreamWriter":  # noqa: N802, FBT001 - Spark's
        from pyspark_tuff.writers import StreamWriter

        return StreamWriter(self.options, schema, overwrite=overwrite)
