"""Speculative execution and killed executors: a job writes each row once, or none if it fails.

    python -m tests.spark.speculation

Spark runs no second attempt of a task on the same host, so the two workers have hosts of their own:
127.0.0.2 and 127.0.0.3. There are three jobs. In the first a task hangs at its last row until a
second attempt has won. In the second its executor is killed there. In the third this happens to
every attempt, so the job fails. A proxy counts the store requests of all attempts.
"""

import os
import signal
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import tuff
from pyspark_tuff.writers import FLUSH_COUNT
from tests.client.proxy import Losses, losing
from tests.spark.messages import read
from tests.spark.session import make_session, spark_class
from tuff.launch import ServerProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROW_COUNT = 60_000  # in two partitions; an attempt has stored before it reaches its last row
SLOW_S = 60.0  # seconds; the other attempt ends long before
STORED_WITHIN_S = 5.0  # seconds, for rows that Spark has passed on
CONF = {
    "spark.speculation": "true",
    "spark.speculation.interval": "200ms",
    "spark.speculation.multiplier": "1.1",
    "spark.speculation.quantile": "0.5",
    "spark.speculation.minTaskRuntime": "1s",
    "spark.task.maxFailures": "2",
    "spark.executor.memory": "512m",
    "spark.cores.max": "2",
}

Trouble = Callable[[int], None]


def hang_first(attempt: int) -> None:
    if attempt == 0:
        threading.Event().wait(SLOW_S)


def die_first(attempt: int) -> None:
    if attempt == 0:
        die_always(attempt)


def die_always(_: int) -> None:
    # The rows before this one are on their way to the process that stores them.
    threading.Event().wait(STORED_WITHIN_S)
    # This process is a child of a daemon, which is a child of the executor's JVM.
    state = Path(f"/proc/{os.getppid()}/stat").read_text("utf-8")
    executor = int(state.rpartition(")")[2].split()[1])
    os.kill(executor, signal.SIGKILL)
    threading.Event().wait()


def through(trouble: Trouble, marks: Path) -> Callable[[str], str]:
    """A function that returns its argument. At the last row of the second partition each attempt
    creates a file, and calls `trouble`."""

    def pass_on(value: str) -> str:
        from pyspark import TaskContext

        if int(value) == ROW_COUNT - 1:
            attempt = TaskContext.get().attemptNumber()
            (marks / f"attempt-{attempt}").touch()
            trouble(attempt)
        return value

    return pass_on


@contextmanager
def deployment(home: Path) -> Iterator[str]:
    """The address of a master with two workers, on hosts of their own."""
    master = ("org.apache.spark.deploy.master.Master", "--host", "127.0.0.1", "--port", "0")
    worker = ("org.apache.spark.deploy.worker.Worker", "-c", "1", "-m", "1g")
    with ExitStack() as stack:
        address = stack.enter_context(
            spark_class(home / "master.txt", *master, says=r"spark://127\.0\.0\.1:[0-9]+")
        )
        for host in ("127.0.0.2", "127.0.0.3"):
            command = (*worker, "--host", host, "-d", str(home / host), address)
            registered = "Successfully registered with master"
            stack.enter_context(spark_class(home / f"{host}.txt", *command, says=registered))
        yield address


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The result of one job. `store_count`: requests of all attempts, the losing ones included."""

    attempt_count: int
    store_count: int
    messages: list[bytes]


class Jobs:
    """Jobs of one session, each with its own topic and directory of marks."""

    def __init__(self, spark: "SparkSession", url: str, losses: Losses, home: Path) -> None:
        self._spark = spark
        self._url = url
        self._losses = losses
        self._home = home

    def run(self, client: tuff.Client, trouble: Trouble, *, fails: bool = False) -> Outcome:
        """Raises: AssertionError: `fails` is wrong, or a transaction of the job is in progress."""
        from py4j.protocol import Py4JJavaError

        topic = tuff.TopicId("speculation", trouble.__name__)
        client.topics.create(topic)
        (marks := self._home / trouble.__name__).mkdir()
        before_count = self._losses.seen.count("store")
        try:
            self._write(topic, through(trouble, marks))
            failed = False
        except Py4JJavaError:  # raised if a job has lost too many executors
            failed = True
        assert failed == fails, f"{trouble.__name__}: failed is {failed}"
        assert client.transactions.overview().in_progress == ()
        return Outcome(
            attempt_count=len([*marks.iterdir()]),
            store_count=self._losses.seen.count("store") - before_count,
            messages=read(client, topic, isolation="all"),
        )

    def _write(self, topic: tuff.TopicId, function: Callable[[str], str]) -> None:
        from pyspark.sql.functions import udf

        numbers = self._spark.range(0, ROW_COUNT, 1, 2).selectExpr("cast(id as string) as value")
        rows = numbers.select(udf(function, useArrow=False)("value").alias("value"))
        rows.write.format("tuff").mode("append").options(url=self._url, topic=str(topic)).save()


def check(jobs: Jobs, client: tuff.Client) -> list[Outcome]:
    """Raises: AssertionError: a message is missing, duplicated, or of a job that failed."""
    expected = [b"%d" % number for number in range(ROW_COUNT)]
    done = [jobs.run(client, hang_first), jobs.run(client, die_first)]
    for each in done:
        assert each.messages == expected, f"{len(each.messages)} messages"
    assert client.transactions.invalids().invalids == (), "of jobs that committed"
    done.append(jobs.run(client, die_always, fails=True))
    assert done[-1].messages == [], f"{len(done[-1].messages)} messages of a job that failed"
    # Of one complete attempt. In the job that fails no attempt of the second partition is complete.
    complete_count = -(-ROW_COUNT // 2 // FLUSH_COUNT)
    for each, whole_count in zip(done, (2, 2, 1), strict=True):
        assert each.attempt_count > 1, "no second attempt"
        assert each.store_count > whole_count * complete_count, (
            f"{each.store_count} stores: the losing attempts had none"
        )
    return done


def main(_: Sequence[str]) -> int:
    """The program; returns its exit code."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        home = Path(name)
        with (
            ServerProcess(home / "data", log=home / "log.txt") as server,
            tuff.Client(server.url) as client,
            losing(server.url) as (url, losses),
            deployment(home) as master,
        ):
            session = make_session(home / "warehouse", master=master, **CONF)
            try:
                done = check(Jobs(next(session), url, losses, home), client)
            finally:
                session.close()
    said = ", ".join(
        f"{each.attempt_count} attempts: {len(each.messages)} messages" for each in done
    )
    print(f"a task that hung, one killed, one killed each time; {said}, each once and in order")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
