"""Two workers run the same task at once, as Spark does when one is slow; its rows are there once.

    python -m tests.spark.speculation

Spark runs no second copy on the same host, so the workers are two hosts: 127.0.0.2 and 127.0.0.3.
"""

import os
import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import tuff
from tests.http.client import until
from tests.spark.replays import read
from tests.spark.session import make_session
from tuff.launch import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TOPIC = tuff.TopicId("speculation", "rows")
ROW_COUNT = 12_000  # in two partitions: more than one store each, so that the slow one has stored
SLOW_S = 60.0  # seconds; by then the other copy is long through
START_WITHIN_S = 120.0
CONF = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
}


def slowly(marks: Path) -> Callable[[str], str]:
    """Passes values on; the first copy of the second partition hangs at its last row. Each copy of
    it leaves a mark."""

    def pass_on(value: str) -> str:
        from pyspark import TaskContext

        if int(value) == ROW_COUNT - 1:
            attempt = TaskContext.get().attemptNumber()
            (marks / f"attempt-{attempt}").touch()
            if attempt == 0:
                threading.Event().wait(SLOW_S)
        return value

    return pass_on


@contextmanager
def deployment(home: Path) -> Iterator[str]:
    """The address of a master with two workers, on hosts of their own."""
    started: list[subprocess.Popen[bytes]] = []
    try:
        master = "org.apache.spark.deploy.master.Master"
        _start(started, home / "master.txt", master, "--host", "127.0.0.1", "--port", "0")
        address = _said(home / "master.txt", r"spark://127\.0\.0\.1:[0-9]+")
        for host in ("127.0.0.2", "127.0.0.3"):
            worker = (
                "org.apache.spark.deploy.worker.Worker",
                "--host",
                host,
                "-c",
                "1",
                "-m",
                "1g",
            )
            _start(started, home / f"{host}.txt", *worker, "-d", str(home / host), address)
            _said(home / f"{host}.txt", "Successfully registered with master")
        yield address
    finally:
        for process in reversed(started):
            process.terminate()
            process.wait()


def _start(started: list[subprocess.Popen[bytes]], log: Path, *command: str) -> None:
    import pyspark

    program = Path(pyspark.__file__).parent / "bin" / "spark-class"
    environment = {**os.environ, "SPARK_NO_DAEMONIZE": "1"}
    with log.open("wb") as said:
        started.append(
            subprocess.Popen([str(program), *command], env=environment, stdout=said, stderr=said)
        )


def _said(log: Path, pattern: str) -> str:
    found: list[str] = []

    def spoke() -> bool:
        found.extend(re.findall(pattern, log.read_text("utf-8", "replace")))
        return bool(found)

    until(spoke, within_s=START_WITHIN_S, what=f"{pattern} in {log.name}")
    return found[0]


def write(spark: "SparkSession", url: str, marks: Path) -> None:
    from pyspark.sql.functions import udf

    numbers = spark.range(0, ROW_COUNT, 1, 2).selectExpr("cast(id as string) as value")
    slow = numbers.select(udf(slowly(marks), useArrow=False)("value").alias("value"))
    slow.write.format("tuff").mode("append").options(url=url, topic=str(TOPIC)).save()


def main(_: Sequence[str]) -> int:
    """The program; returns its exit code."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        home = Path(name)
        (marks := home / "marks").mkdir()
        with (
            ServerProcess(home / "data", log=home / "log.txt") as server,
            tuff.connect(server.url) as client,
            deployment(home) as master,
        ):
            client.topics.create(TOPIC)
            session = make_session(home / "warehouse", master=master, **CONF)
            try:
                write(next(session), server.url, marks)
            finally:
                session.close()
            found = read(client, TOPIC)
        copies = sorted(mark.name for mark in marks.iterdir())
    assert found == [b"%d" % number for number in range(ROW_COUNT)], f"{len(found)} messages"
    print(f"{len(copies)} copies of one task, {len(found)} messages, each once and in order")
    return 0 if len(copies) > 1 else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
