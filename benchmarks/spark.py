"""`make bench-spark`: topics as source and sink of Spark, beside rows in memory and Kafka.

    python -m benchmarks.spark [--rounds N] [--rows N] [--out DIR] [--dir DIR]

One session, `local[2]`, reads and writes messages of 256 bytes, in rounds that visit every subject
in turn. A read goes to Spark's `noop`, which takes every column of every row. On two processors,
which this and the server share, the processor time of all processes for a row is more reliable than
a rate.
Writes spark.json and spark.md below benchmarks/results/, and prints every target; exits 0 even if
some are missed. Kafka is left out, with the reason, if its broker or Spark's connector is missing.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tuff as library
from benchmarks.generator import MissingError, Report
from benchmarks.machine import describe
from benchmarks.peers.jvm import connector_classpath, kafka_broker
from benchmarks.processes import ROOT, Running, StartError, processor_s, tuff
from benchmarks.results import Results, lean, parser_of, write_results
from benchmarks.tables import print_targets, spark_page
from benchmarks.targets import SPARK

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

VALUE_BYTES = 256  # as in every other benchmark
NUMBER_DIGITS = 16  # at the beginning of a value, so that all values differ
FILL_COUNT = 5_000  # messages of a publish that fills a topic
WRITE_TASKS = 4
CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
    "spark.sql.session.timeZone": "UTC",
    "spark.driver.memory": "2g",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}


@dataclass(frozen=True, slots=True)
class Place:
    """A Spark session, the server, and Kafka's broker if there is one."""

    spark: "SparkSession"
    server: Running
    kafka: Running | None
    directory: Path
    row_count: int

    @property
    def url(self) -> str:
        return f"http://{self.server.addr}"

    @property
    def memory_path(self) -> Path:
        return self.directory / "rows.arrow"


@contextmanager
def session(directory: Path, jars: str) -> "Iterator[SparkSession]":
    from pyspark.sql import SparkSession

    from benchmarks.spark_memory import MemorySource

    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)
    builder = SparkSession.builder.master("local[2]").appName("tuff-bench")
    conf = {**CONF, "spark.sql.warehouse.dir": str(directory / "warehouse")}
    if jars:
        conf["spark.driver.extraClassPath"] = jars
    for name, value in conf.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.dataSource.register(MemorySource)
    try:
        yield spark
    finally:
        spark.stop()  # its JVM ends with this program


def fill(place: Place) -> None:
    """Publish the rows to the topic `plain`, and write the result of a read to the Arrow file."""
    import pyarrow as pa

    topic = library.TopicId("default", "plain")
    with library.Client(place.url) as client:
        client.topics.create(topic)
        for first in range(0, place.row_count, FILL_COUNT):
            stop = min(first + FILL_COUNT, place.row_count)
            client.publish(topic, *[value_of(number) for number in range(first, stop)])
    frame = read_topic(place, "plain")
    from pyspark.sql.pandas.types import to_arrow_schema

    schema = to_arrow_schema(frame.schema, timezone="UTC")
    with pa.OSFile(str(place.memory_path), "wb") as file, pa.ipc.new_file(file, schema) as out:
        for batch in frame.toArrow().cast(schema).combine_chunks().to_batches(10_000):
            out.write_batch(batch)


def value_of(number: int) -> bytes:
    return f"{number:0{NUMBER_DIGITS}}".encode() + b"x" * (VALUE_BYTES - NUMBER_DIGITS)


def rows_to_write(place: Place) -> "DataFrame":
    text = f"concat(lpad(id, {NUMBER_DIGITS}, '0'), '{'x' * (VALUE_BYTES - NUMBER_DIGITS)}')"
    numbers = place.spark.range(0, place.row_count, 1, WRITE_TASKS)
    return numbers.selectExpr(f"cast({text} as binary) as value")


def read_topic(place: Place, topic: str) -> "DataFrame":
    reader = place.spark.read.format("tuff").option("url", place.url)
    return reader.option("subscribe", topic).load()


def take(frame: "DataFrame") -> None:
    frame.write.format("noop").mode("overwrite").save()


def memory_read(place: Place, _: int) -> None:
    take(place.spark.read.format("memory").option("path", str(place.memory_path)).load())


def plain_read(place: Place, _: int) -> None:
    take(read_topic(place, "plain"))


def stored_write(place: Place, number: int) -> None:
    with library.Client(place.url) as client:
        client.topics.create(library.TopicId("default", f"stored-{number}"))
    writer = rows_to_write(place).write.format("tuff").mode("append")
    writer.options(url=place.url, topic=f"stored-{number}").save()


def stored_read(place: Place, number: int) -> None:
    take(read_topic(place, f"stored-{number}"))


def kafka_write(place: Place, number: int) -> None:
    assert place.kafka is not None
    writer = rows_to_write(place).write.format("kafka").option("topic", f"stored-{number}")
    writer.option("kafka.bootstrap.servers", place.kafka.addr).option("kafka.acks", "all").save()


def kafka_read(place: Place, number: int) -> None:
    assert place.kafka is not None
    reader = place.spark.read.format("kafka").option("subscribe", f"stored-{number}")
    reader = reader.option("startingOffsets", "earliest").option("minPartitions", 8)
    take(reader.option("kafka.bootstrap.servers", place.kafka.addr).load())


OURS: dict[str, Callable[[Place, int], None]] = {
    "memory read": memory_read,
    "tuff read published": plain_read,
    "tuff write": stored_write,
    "tuff read written": stored_read,
}
KAFKAS: dict[str, Callable[[Place, int], None]] = {
    "kafka write": kafka_write,
    "kafka read": kafka_read,
}


def one_round(place: Place, number: int) -> dict[str, Report]:
    subjects = OURS | (KAFKAS if place.kafka else {})
    found: dict[str, Report] = {}
    for name, work in subjects.items():
        server = place.kafka if name in KAFKAS else place.server
        assert server is not None
        before = processor_s(server.pid), processor_s(os.getpid())
        began = time.perf_counter()
        work(place, number)
        seconds = time.perf_counter() - began
        server_s, spark_s = (
            processor_s(server.pid) - before[0],
            processor_s(os.getpid()) - before[1],
        )
        # The server is a child of this program, so its time is in this sum.
        found[name] = {
            "per_s": place.row_count / seconds,
            "cpu_us_per_row": spark_s * 1e6 / place.row_count,
            "server_cpu_us_per_row": server_s * 1e6 / place.row_count,
        }
        print(f"  {name}: {place.row_count / seconds:,.0f} rows/s", flush=True)
    return found


def all_rounds(options: argparse.Namespace) -> Results:
    machine, missing = describe(options.dir), {}
    with ExitStack() as stack:
        directory = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tuff-bench-", dir=options.dir))
        )
        jars, kafka = "", None
        try:
            jars = connector_classpath()
            kafka = stack.enter_context(
                kafka_broker(directory / "kafka", "auto.create.topics.enable=true\n")
            )
        except (MissingError, StartError, OSError, subprocess.SubprocessError) as error:
            missing["kafka"] = str(error)
        server = stack.enter_context(tuff(directory / "tuff", tree=options.tree))
        spark = stack.enter_context(session(directory, jars))
        place = Place(spark, server, kafka, directory, options.rows)
        fill(place)
        print("warming up", flush=True)
        one_round(place, 0)
        rounds = []
        for number in range(1, options.rounds + 1):
            print(f"round {number} of {options.rounds}", flush=True)
            rounds.append(one_round(place, number))
    return Results(machine=machine, missing=missing, rounds=lean(rounds))


def main(arguments: list[str]) -> int:
    parser = parser_of("spark", __doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--tree", type=Path, default=ROOT, help="work tree whose server is run")
    options = parser.parse_args(arguments)
    results = all_rounds(options)
    write_results(options.out / "spark.json", results)
    (options.out / "spark.md").write_text(spark_page(results))
    print_targets(SPARK, results)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
