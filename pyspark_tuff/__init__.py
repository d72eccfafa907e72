"""Topics as a data source and sink of Spark: `format("tuff")`, found by this module's name.

Every Python process of Spark imports this module when it looks for data sources, so it is tiny, and
clients are imported where they are used. In reading order: errors, options, offsets, planning,
columns, source, reading, stream, sink.
"""

from pyspark_tuff.source import DefaultSource

__all__ = ["DefaultSource"]
