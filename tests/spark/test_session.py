"""Without Java the tests with Spark are skipped with one line, or fail if Spark is required."""

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


def install(home: Path, version: str) -> None:
    (home / "bin").mkdir()
    java = home / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2020-01-01' >&2\n")
    java.chmod(0o755)


def test_without_java_the_message_says_how_to_install_it(java_home: Path) -> None:
    assert "there is none; install one" in (missing() or "")


@pytest.mark.parametrize("version", ["1.8.0_292", "11.0.20"])
def test_an_old_java_is_not_enough(java_home: Path, version: str) -> None:
    install(java_home, version)

    assert "is older" in (missing() or "")


@pytest.mark.parametrize("version", ["17.0.15", "21"])
def test_java_17_and_later_are_enough(java_home: Path, version: str) -> None:
    install(java_home, version)

    assert missing() is None


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
