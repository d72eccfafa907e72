"""Without Java 17 the tests with Spark are skipped with one line, or fail if Spark is required."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.spark.session import missing

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def java_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("version", "reason"),
    [
        (None, "is not installed: set JAVA_HOME, or apt-get install "),
        ("1.8.0_292", "is older"),
        ("11.0.20", "is older"),
        ("17.0.15", ""),
        ("21", ""),
    ],
)
def test_spark_needs_java_17_or_later(java_home: Path, version: str | None, reason: str) -> None:
    if version is not None:
        java = java_home / "bin" / "java"
        java.parent.mkdir()
        java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
        java.chmod(0o755)

    found = missing()

    assert (found is None) == (reason == "")
    assert reason in (found or "")


@pytest.mark.parametrize(("flags", "code"), [([], 0), (["--no-skips"], 1)])
def test_tests_without_java_are_skipped_in_one_line_or_fail_where_spark_is_needed(
    java_home: Path, flags: list[str], code: int
) -> None:
    files = [f"tests/spark/test_spark_{name}.py" for name in ("batch_read", "batch_write")]
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", *files, *flags]

    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)

    assert done.returncode == code, done.stdout
    assert done.stdout.count("\nSKIPPED") == (0 if flags else 1)
    assert "Spark needs Java 17" in done.stdout
