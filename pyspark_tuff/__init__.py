"""Topics as a data source and sink of Spark: `format("tuff")`, found by this module name.

Every Python process of Spark imports this module when it looks for data sources. So it imports
little, and `source.py` imports readers, writers and clients only when Spark asks for them.
"""

from pyspark_tuff.source import DefaultSource

__all__ = ["DefaultSource"]
