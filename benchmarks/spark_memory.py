"""`format("memory")`: Arrow batches in memory, the upper limit for a Python source of Spark.

The batches are in a mapped file, so nothing is built, decoded or copied before Spark takes them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from pyspark_tuff.columns import source_schema
from pyspark_tuff.options import load_options

if TYPE_CHECKING:
    from pyarrow import RecordBatch

PARTITION_COUNT = 8  # the default of a read of a topic


@dataclass
class Batches(InputPartition):
    """The batches `start` up to before `stop` of the file."""

    start: int
    stop: int


class MemorySource(DataSource):
    """Its option `path` names an Arrow file with the columns of a topic."""

    @classmethod
    def name(cls) -> str:
        return "memory"

    def schema(self) -> StructType:
        return source_schema(load_options({"subscribe": "memory"}))

    def reader(self, schema: StructType) -> "MemoryReader":
        return MemoryReader(Path(self.options["path"]))


class MemoryReader(DataSourceReader):
    def __init__(self, path: Path) -> None:
        self._path = path

    def partitions(self) -> list[InputPartition]:
        from pyarrow import ipc, memory_map

        with memory_map(str(self._path)) as mapped:
            count = ipc.open_file(mapped).num_record_batches
        cuts = [count * index // PARTITION_COUNT for index in range(PARTITION_COUNT + 1)]
        return [Batches(*each) for each in pairwise(cuts)]

    def read(self, partition: InputPartition) -> Iterator["RecordBatch"]:
        from pyarrow import ipc, memory_map

        assert isinstance(partition, Batches)
        with memory_map(str(self._path)) as mapped:
            file = ipc.open_file(mapped)
            for index in range(partition.start, partition.stop):
                yield file.get_batch(index)
