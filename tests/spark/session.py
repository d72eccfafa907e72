"""One Spark session for all tests, small and quick to start, and what it needs to be there."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN = 17
HOW_TO = (
    f"install one, for example openjdk-{JAVA_MIN}-jre-headless, put it on PATH or set JAVA_HOME"
)
# Three attempts of each task: with plain local[2] a task is never tried again.
MASTER = "local[2,3]"
CONF = {
    "spark.ui.enabled": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    # Small, so that a task has stored a part of its rows when it is made to fail.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    "spark.sql.streaming.stopTimeout": "60s",
    "spark.log.level": "ERROR",
    "spark.ui.showConsoleProgress": "false",
}


def missing() -> str | None:
    """What keeps Spark from running here, in one sentence; None where nothing does."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which(str(Path(home) / "bin" / "java") if home else "java")
    if java is None:
        return f"Spark needs Java {JAVA_MIN} or later, and there is none; {HOW_TO}"
    said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    version = re.search(r'version "([0-9]+)', said)
    if version is None or int(version[1]) < JAVA_MIN:
        return f"Spark needs Java {JAVA_MIN} or later, and {java} is older; {HOW_TO}"
    return None


def spark_home() -> Path:
    """Spark as it is installed, but for the archive of its Python: no bytecode is kept of that, so
    that each of its many processes would compile the whole of it, for a second and a half."""
    import pyspark

    home = Path(sys.prefix) / "spark-home"
    home.mkdir(exist_ok=True)
    for each in Path(pyspark.__file__).parent.iterdir():
        if each.name != "python":
            with suppress(FileExistsError):
                (home / each.name).symlink_to(each)
    return home


def set_up() -> None:
    """What every process of Spark finds in its environment: this interpreter, and this tree."""
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
    builder = SparkSession.builder.master(master).appName("tuff-tests")
    for name, value in {**CONF, "spark.sql.warehouse.dir": str(warehouse), **conf}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    gateway = session.sparkContext._gateway
    try:
        yield session
    finally:
        session.stop()
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)


def spark_fixture(warehouse: Path) -> "Iterator[SparkSession]":
    """The session; without Java the test is skipped."""
    reason = missing()
    if reason is not None:
        pytest.skip(reason)
    yield from make_session(warehouse)
