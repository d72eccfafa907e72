"""Topics as a data source and sink of Spark: `format("tuff")`, found by this module name.

Every Python process of Spark imports this module when it looks for data sources. So it imports
little, and `source.py` imports readers, writers and clients only when Spark asks for them.

    options, columns, offsets   what a user gives, the schemas, the offset of a stream in JSON
    planning -> readers         which task reads which messages; batch and micro-batch reads
    writers -> write_attempts -> write_transactions
                                writes: the driver's host, the tasks, the transaction they share
    lease_renewal               keeps the transaction of a write alive
"""

from pyspark_tuff.source import DefaultSource

__all__ = ["DefaultSource"]
