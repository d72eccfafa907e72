"""`format("tuff-table")`, which Spark finds by this module's name: it looks for one source in each.

The source itself is `pyspark_tuff.table_source`.
"""

from pyspark_tuff.table_source import TableSource as DefaultSource

__all__ = ["DefaultSource"]
