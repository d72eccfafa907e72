"""The sdist and the wheel, installed into environments that have nothing else (no checkout).

A wheel that lacks a file works in every test that runs in the checkout; only these tests see it.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.http.process import serve
from tests.release.pythons import pythons

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
TIMEOUT_S = 600  # seconds for one program; the installation of Spark takes most of it

PYTHONS = pythons()
OLDEST, *_, NEWEST = [*PYTHONS.values(), *PYTHONS.values()]
CLIENT_PACKAGES_MAX = 4
CLIENT_BYTES_MAX = 12 << 20

CLIENT, COMMAND, SPARK = "{wheel}", "{wheel}[cli]", "{wheel}[server,spark]"
SERVER = "{wheel}[server] pytest"
# What the tests need, in their order: what is installed, and for which Python.
ENVIRONMENTS = [
    *((CLIENT, python) for python in PYTHONS.values()),
    (COMMAND, OLDEST),
    *((SERVER, python) for python in PYTHONS.values()),
    (SPARK, OLDEST),
]
INSTALLED_AT_ONCE = 2  # each waits for the network half of its time

Programs = Callable[..., Path]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel that is built from the sdist, not from the checkout."""
    target = tmp_path_factory.mktemp("dist")
    run([sys.executable, "-m", "build", "--outdir", str(target), str(ROOT)], target)
    (built,) = target.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def pip(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """The command pip of the newest Python. It installs for older ones, too; a pip that is older
    than a Python may not work there. Installing it into each environment would take longer than
    installing Tuff."""
    home = tmp_path_factory.mktemp("pip")
    run([NEWEST, "-m", "venv", str(home)], home)
    return [str(home / "bin/python"), "-m", "pip"]


@pytest.fixture(scope="module")
def programs_of(
    wheel: Path, pip: list[str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Programs]:
    """The directory of the programs of an environment that has only what is installed into it. No
    test changes what is installed. Only wheels are taken, since a user has no compiler, and
    PySpark, which has none and needs none."""
    homes = {each: tmp_path_factory.mktemp("environment") for each in ENVIRONMENTS}

    def make(requirement: str, python: str) -> Path:
        home = homes[requirement, python]
        run([python, "-m", "venv", "--without-pip", str(home)], home)
        wheels = ("--only-binary", ":all:", "--no-binary", "pyspark")
        packages = [*requirement.format(wheel=wheel).split(), *wheels]
        run([*pip, "--python", str(home / "bin/python"), "install", "--quiet", *packages], home)
        return home / "bin"

    threads = ThreadPoolExecutor(INSTALLED_AT_ONCE)
    made = {each: threads.submit(make, *each) for each in ENVIRONMENTS}
    yield lambda requirement, python=OLDEST: made[requirement, python].result()
    threads.shutdown(cancel_futures=True)


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


PROGRAM_OF_A_CLIENT = """
import sys
import tuff

with tuff.Client(sys.argv[1]) as client:
    topic = tuff.TopicId("default", "greetings")
    client.topics.create(topic)
    client.publish(topic, "hello")
    with client.transaction() as tx:
        tx.publish(topic, "world")
    print([message.payload for message in client.poll(topic, isolation="committed")])
"""


@pytest.mark.parametrize("version", PYTHONS)
def test_a_client_alone_is_small_and_does_all_that_a_client_does(
    programs_of: Programs, pip: list[str], tmp_path: Path, version: str
) -> None:
    programs = programs_of(CLIENT, PYTHONS[version])
    (tmp_path / "mine.py").write_text(PROGRAM_OF_A_CLIENT)

    with serve(tmp_path / "server") as server:
        printed = run([str(programs / "python"), "mine.py", server.url], tmp_path)

    assert printed == "[b'hello', b'world']\n"
    of_it = ["--python", str(programs / "python")]
    listed = run([*pip, *of_it, "list", "--format=json"], tmp_path)
    packages = {each["name"] for each in json.loads(listed.splitlines()[0])}
    assert packages == {"msgpack", "orjson", "tuff-messaging"}
    assert len(packages) <= CLIENT_PACKAGES_MAX
    assert size_of(programs.parent) <= CLIENT_BYTES_MAX


def size_of(environment: Path) -> int:
    """The bytes of the packages that are installed, their byte code included."""
    (packages,) = environment.glob("lib/python*/site-packages")
    return sum(file.stat().st_size for file in packages.rglob("*") if file.is_file())


def test_the_commands_of_a_client_alone_name_the_extra_to_install(
    programs_of: Programs, tmp_path: Path
) -> None:
    programs = programs_of(CLIENT)

    command = run([str(programs / "tuff"), "--help"], tmp_path, code=1)
    pipeline = run([str(programs / "tuff-pipeline"), "--help"], tmp_path, code=1)

    how = "which is not installed; pip install 'tuff-messaging"
    assert command == f"tuff: the command tuff needs click, {how}[cli]'\n"
    assert pipeline == f"tuff-pipeline: tuff-pipeline needs click, {how}[spark]'\n"


def test_what_needs_an_extra_names_it_in_a_client_alone(
    programs_of: Programs, tmp_path: Path
) -> None:
    python = programs_of(CLIENT) / "python"
    needs = {
        "import tuff.otel": "otel",
        "import tuff.sql.psycopg": "psycopg",
        "import tuff.sql.asyncpg": "asyncpg",
        "import tuff.sql.sqlalchemy": "sqlalchemy",
        "import tuff.sql.django": "django",
        "import tuff; tuff.AsyncClient()": "aio",
        "import tuff; tuff.TransactionalTable": "tables",
        "import tuff; tuff.avro_serializer({})": "avro",
        "import pyspark_tuff": "spark",
        "import pyspark_tuff.table": "spark",
    }

    said = {each: run([str(python), "-c", each], tmp_path, code=1) for each in needs}

    for program, extra in needs.items():
        last = said[program].splitlines()[-1]
        assert last.endswith(f"which is not installed; pip install 'tuff-messaging[{extra}]'")


def test_the_command_without_a_server_names_the_extra_to_install(
    programs_of: Programs, tmp_path: Path
) -> None:
    programs = programs_of(COMMAND)

    version = run([str(programs / "tuff"), "--version"], tmp_path)
    refusal = run([str(programs / "tuff"), "serve"], tmp_path, code=1)
    refused_tables = run([str(programs / "tuff"), "hbase", "status"], tmp_path, code=1)
    resolve = ["sql", "resolve", "mysql://m/db", "--database", "db"]
    refused_driver = run([str(programs / "tuff"), *resolve], tmp_path, code=2)

    assert version == "tuff 0.1.0\n"
    assert "pip install 'tuff-messaging[server]'" in refusal
    assert "pip install 'tuff-messaging[hbase]'" in refused_tables
    assert "pip install 'tuff-messaging[sqlalchemy]'" in refused_driver


TEST_OF_A_USER = """
import tuff

def test_a_message_is_read_back(tuff_client, tuff_topic):
    with tuff_client.transaction() as tx:
        tx.publish(tuff_topic, "hello")
    assert [m.payload for m in tuff_client.poll(tuff_topic, isolation="committed")] == [b"hello"]
"""


@pytest.mark.parametrize("version", PYTHONS)
def test_the_server_and_the_pytest_plugin_work_without_the_checkout(
    programs_of: Programs, tmp_path: Path, version: str
) -> None:
    programs = programs_of(SERVER, PYTHONS[version])
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


def test_the_format_of_spark_works_without_the_checkout(
    programs_of: Programs, tmp_path: Path
) -> None:
    programs = programs_of(SPARK)
    (tmp_path / "mine.py").write_text(PROGRAM_OF_SPARK)

    printed = run([str(programs / "python"), "mine.py"], tmp_path)

    assert "[b'hello']" in printed
