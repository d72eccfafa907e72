"""The sdist and the wheel, installed into environments that have nothing else (no checkout).

A wheel that lacks a file works in every test that runs in the checkout; only these tests see it.
"""

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600  # seconds for one program; the installation of Spark takes most of it

Install = Callable[[str], Path]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the sdist, not from the checkout."""
    target = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--outdir", str(target), str(ROOT)], target)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def install(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Install:
    """Installs the wheel with some extras into a new environment; the directory of its programs."""

    def install(requirement: str) -> Path:
        home = tmp_path_factory.mktemp("environment")
        venv.create(home, with_pip=True)
        packages = requirement.format(wheel=wheel).split()
        run([str(home / "bin/python"), "-m", "pip", "install", "--quiet", *packages], home)
        return home / "bin"

    return install


def run(command: list[str], directory: Path, *, code: int = 0) -> str:
    """What a program prints that ends with this exit code, run away from the checkout."""
    ended = subprocess.run(
        command,
        cwd=directory,
        env=activated(Path(command[0]).parent),
        input="",
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ended.returncode == code, f"{command} ended with {ended.returncode}: {ended.stderr}"
    return ended.stdout + ended.stderr


def activated(programs: Path) -> dict[str, str]:
    """The variables of a shell in which the environment of these programs is activated: Spark
    starts its Python by the name `python3`."""
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    return {**outside, "PATH": f"{programs}{os.pathsep}{outside['PATH']}"}


def test_the_client_without_a_server_names_the_package_to_install(
    install: Install, tmp_path: Path
) -> None:
    programs = install("{wheel}")

    version = run([str(programs / "tuff"), "--version"], tmp_path)
    refusal = run([str(programs / "tuff"), "serve"], tmp_path, code=1)

    assert version == "tuff 0.1.0\n"
    assert "pip install 'tuff-messaging[server]'" in refusal


TEST_OF_A_USER = """
import tuff

def test_a_message_is_read_back(tuff_client, tuff_topic):
    with tuff_client.transaction() as tx:
        tx.publish(tuff_topic, "hello")
    assert [m.payload for m in tuff_client.poll(tuff_topic, isolation="committed")] == [b"hello"]
"""


def test_the_server_and_the_pytest_plugin_work_without_the_checkout(
    install: Install, tmp_path: Path
) -> None:
    programs = install("{wheel}[server] pytest")
    (tmp_path / "test_mine.py").write_text(TEST_OF_A_USER)

    tested = run([str(programs / "python"), "-m", "pytest", "-q", "test_mine.py"], tmp_path)
    served = serve_once(programs, tmp_path)
    checked = run([str(programs / "tuff"), "fsck", "d", "--json"], tmp_path)

    assert "1 passed" in tested
    assert served.startswith("tuff ready on http://127.0.0.1:")
    assert '"damages": 0' in checked


def serve_once(programs: Path, directory: Path) -> str:
    """The line that `tuff serve` prints, on data in `d`; it has ended when this returns."""
    command = [programs / "tuff", "serve", "--port", "0", "--data", "d", "--until-stdin-closes"]
    with (
        (directory / "log").open("w") as log,
        subprocess.Popen(
            command,
            cwd=directory,
            env=activated(programs),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        ) as server,
    ):
        assert server.stdin is not None
        assert server.stdout is not None
        first_line = server.stdout.readline()
        server.stdin.close()
        assert server.wait(TIMEOUT_S) == 0
    return first_line


PROGRAM_OF_SPARK = """
import pathlib, tempfile
import tuff
from pyspark.sql import SparkSession
from tuff.launch import ServerProcess

home = pathlib.Path(tempfile.mkdtemp(dir="."))
with ServerProcess(home / "data", log=home / "log") as server, tuff.Client(server.url) as client:
    topic = tuff.TopicId("default", "greetings")
    client.topics.create(topic)
    client.publish(topic, "hello")
    spark = SparkSession.builder.master("local[1]").getOrCreate()
    rows = spark.read.format("tuff").option("url", server.url).option("subscribe", "greetings")
    print([bytes(row.value) for row in rows.load().collect()])
    spark.stop()
"""


def test_the_format_of_spark_works_without_the_checkout(install: Install, tmp_path: Path) -> None:
    programs = install("{wheel}[server,spark]")
    (tmp_path / "mine.py").write_text(PROGRAM_OF_SPARK)

    printed = run([str(programs / "python"), "mine.py"], tmp_path)

    assert "[b'hello']" in printed
