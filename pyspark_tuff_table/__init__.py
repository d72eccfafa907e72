"""`format("tuff-table")`: Spark finds a source by the name of its module, and expects one in each
(`pyspark_tuff.table`)."""

from pyspark_tuff.table import DefaultSource as DefaultSource
