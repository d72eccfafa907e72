"""Processes of Spark beside the session: masters, workers, servers; started here, and ended."""

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.http.client import until
from tests.spark.session import set_up, spark_home

START_WITHIN_S = 120.0


@contextmanager
def spark_class(log: Path, *command: str, says: str) -> Iterator[str]:
    """What the process said that matches, as soon as it has; the process lives as long as the
    block."""
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
