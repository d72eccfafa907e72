"""The time of the first micro-batch of a stream and of later ones, and the processes they start.

    python -m benchmarks.spark_start [--batches 5] [--pause 0] [--spark-home DIR]

A stream copies one topic into another, one message for each batch. The time of a batch is from its
publish (of the first, from `load()`) until its message can be read in the other topic. Each line
also has the number of new Python processes of Spark, and the processor seconds of all its
processes. `--pause`: seconds between two batches; above 60 Spark ends its idle workers.
`--spark-home`: a directory as in docs/spark.md, under "Startup costs".
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import tuff as library
from benchmarks.processes import ROOT, processor_s, tuff
from benchmarks.spark import CONF

POLL_INTERVAL_S = 0.01  # seconds between two polls of the topic that is written to
SOURCE, TARGET = (library.TopicId("default", name) for name in ("source", "target"))


def python_processes_of(pid: int) -> Iterator[int]:
    """The Python processes that descend from a process."""
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = [int(each) for each in path.read_text().split()]
        except OSError:
            continue  # the thread has ended meanwhile
        for child in children:
            if "python" in _name(child):
                yield child
            yield from python_processes_of(child)


def _name(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text()
    except OSError:
        return ""  # it has ended meanwhile


def measure(url: str, directory: Path, *, batches: int, pause_s: float) -> None:
    """Run the stream, and print a line for each batch."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").appName("tuff-start")
    for name, value in CONF.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    with library.Client(url) as client:
        for topic in (SOURCE, TARGET):
            client.topics.create(topic)
        client.publish(SOURCE, "0")
        seen, before_s, began_s = (
            set(python_processes_of(os.getpid())),
            processor_s(os.getpid()),
            time.perf_counter(),
        )
        stream = spark.readStream.format("tuff").options(url=url, subscribe=SOURCE.name)
        frame = stream.option("startingOffsets", "earliest").load().select("value")
        sink = frame.writeStream.format("tuff").options(url=url, topic=TARGET.name)
        query = sink.option("checkpointLocation", str(directory / "checkpoint")).start()
        for number in range(batches):
            if number:
                time.sleep(pause_s)
                before_s, began_s = processor_s(os.getpid()), time.perf_counter()
                client.publish(SOURCE, str(number))
            while len(client.poll(TARGET, isolation="committed")) <= number:
                if not query.isActive:
                    raise SystemExit(str(query.exception()))
                time.sleep(POLL_INTERVAL_S)
            took_s, used_s = time.perf_counter() - began_s, processor_s(os.getpid()) - before_s
            new = set(python_processes_of(os.getpid())) - seen
            seen |= new
            print(
                f"batch {number}: {took_s:5.2f} s, {len(new)} new Python processes, "
                f"{used_s:5.2f} s of processor time",
                flush=True,
            )
        query.stop()
    spark.stop()


def main(arguments: Sequence[str]) -> int:
    """The program; returns its exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_start", description=__doc__)
    parser.add_argument("--batches", type=int, default=5)
    parser.add_argument("--pause", type=float, default=0.0)
    parser.add_argument("--spark-home", type=Path)
    options = parser.parse_args(arguments)
    if options.spark_home is not None:
        os.environ["SPARK_HOME"] = str(options.spark_home.absolute())
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        directory = Path(name)
        with tuff(directory / "data") as server:
            url = f"http://{server.addr}"
            measure(url, directory, batches=options.batches, pause_s=options.pause)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
