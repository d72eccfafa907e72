"""One Spark session for all tests, and other processes of Spark, small and quick to start.

The first session of a machine stores the classes that its JVM has loaded, in the virtual
environment (190 MB). Later JVMs map that file, and need half the processor time until they have
run their first jobs.
"""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.http.client import until
from tests.programs import PACKAGES, find

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
HOW_TO = f"set JAVA_HOME, or apt-get install {PACKAGES['java']}"
# Three attempts of each task: with plain local[2] a task is never tried again.
MASTER = "local[2,3]"
JVM_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xlog:disable"
CONF = {
    "spark.driver.extraJavaOptions": JVM_OPTIONS,
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.codegen.wholeStage": "false",
    # Small, so that a task has stored a part of its rows when it is made to fail.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.streaming.stopTimeout": "60s",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}
START_WITHIN_S = 120.0
END_WITHIN_S = 120.0  # for a JVM that stores its classes on a busy machine


def missing() -> str | None:
    """Why Spark can't run here, in one sentence; None if it can."""
    program = java()
    if program is None:
        return f"Spark needs Java {JAVA_MIN} or later, which is not installed: {HOW_TO}"
    said = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "([0-9]+)', said)
    if version is None or int(version[1]) < JAVA_MIN:
        return f"Spark needs Java {JAVA_MIN} or later, and {program} is older: {HOW_TO}"
    return None


def java() -> Path | None:
    """The program that Spark will start."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which(str(Path(home) / "bin" / "java")) if home else find("java")
    return None if found is None else Path(found)


def spark_home() -> Path:
    """Spark as it is installed, without the archive of its Python modules: Python keeps no bytecode
    for an archive, so each of Spark's many processes would compile all of it, for 1.5 seconds."""
    import pyspark

    home = Path(sys.prefix) / "spark-home"
    home.mkdir(exist_ok=True)
    for each in Path(pyspark.__file__).parent.iterdir():
        if each.name != "python":
            with suppress(FileExistsError):
                (home / each.name).symlink_to(each)
    return home


def set_up() -> None:
    """Set the environment of Spark's processes: this interpreter, and this tree."""
    os.environ["SPARK_HOME"] = str(spark_home())
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    root = str(Path(__file__).resolve().parents[2])
    paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))


def make_session(
    warehouse: Path, *, master: str = MASTER, **conf: str
) -> "Generator[SparkSession]":
    """A session, which is stopped afterwards together with its JVM."""
    from pyspark.sql import SparkSession

    set_up()
    classes = spark_home() / "classes.jsa"
    new = classes.with_name(f"classes-{os.getpid()}.jsa")
    storage = (
        f"SharedArchiveFile={classes}" if is_current(classes) else f"ArchiveClassesAtExit={new}"
    )
    own = {
        "spark.driver.extraJavaOptions": f"{JVM_OPTIONS} -XX:{storage}",
        "spark.sql.warehouse.dir": str(warehouse),
    }
    builder = SparkSession.builder.master(master).appName("tuff-tests")
    for name, value in {**CONF, **own, **conf}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    gateway = session.sparkContext._gateway
    try:
        yield session
    finally:
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(END_WITHIN_S)
        if new.exists():
            new.replace(classes)


def is_current(archive: Path) -> bool:
    """Whether an archive of classes is newer than Java and Spark's jars; a JVM ignores an older
    one."""
    sources = (java(), archive.parent / "jars")
    return archive.exists() and all(
        each is not None and each.stat().st_mtime < archive.stat().st_mtime for each in sources
    )


def spark_fixture(warehouse: Path) -> "Iterator[SparkSession]":
    """The session; without Java the test is skipped."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    yield from make_session(warehouse)


@contextmanager
def spark_class(log: Path, *command: str, says: str) -> Iterator[str]:
    """The first part of the process's output that matches; the process ends with the block."""
    set_up()
    program = spark_home() / "bin" / "spark-class"
    with log.open("wb") as said:
        process = subprocess.Popen(
            [str(program), *command],
            env={**os.environ, "SPARK_NO_DAEMONIZE": "1"},
            stdout=said,
            stderr=said,
        )
    try:
        yield _said(log, says)
    finally:
        process.terminate()
        process.wait()


def _said(log: Path, pattern: str) -> str:
    found: list[str] = []

    def spoke() -> bool:
        found.extend(re.findall(pattern, log.read_text("utf-8", "replace")))
        return bool(found)

    until(spoke, within_s=START_WITHIN_S, what=f"{pattern} in {log.name}")
    return found[0]
