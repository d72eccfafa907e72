"""The program of docs/spark.md runs, block after block, with Spark and a server of the tests."""

from pathlib import Path
from typing import TYPE_CHECKING

from tests.test_docs import WITH_SPARK, blocks_of
from tuff.launch import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_commands_of_the_walk_through_run(spark: "SparkSession", tmp_path: Path) -> None:
    blocks = blocks_of(WITH_SPARK, WITH_SPARK.read_text("utf-8"))
    program = "\n".join(block.text for block in blocks if block.language == "python")

    with ServerProcess(tmp_path / "data", log=tmp_path / "log.txt") as server:
        program = program.replace("http://127.0.0.1:7411", server.url)
        program = program.replace('"checkpoints/', f'"{tmp_path}/checkpoints/')
        exec(compile(program, str(WITH_SPARK), "exec"), {"__name__": "walk"})
