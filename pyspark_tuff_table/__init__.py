"""`format("tuff-table")`: Spark finds it by this module name, and expects one source per module.

The source is implemented in `pyspark_tuff.table_source`.
"""

from pyspark_tuff.table_source import TableSource as DefaultSource

__all__ = ["DefaultSource"]
