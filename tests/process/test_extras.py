"""Each extra that is not installed is named in one sentence, from every entry point."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.http.process import serve

ROOT = Path(__file__).resolve().parents[2]
SERVER = "aiohttp google_crc32c httptools plyvel plyvel_next prometheus_client uvloop zlib_ng"
# As if these packages were not installed.
WITHOUT = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {packages}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Missing())
"""


def run_without(packages: str, program: str) -> "subprocess.CompletedProcess[str]":
    """A program that runs where these packages are not installed."""
    command = [sys.executable, "-c", WITHOUT.format(packages=packages.split()) + program]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def run_file(path: str, *arguments: str) -> str:
    """The lines of a program that runs a file of this project as a program."""
    return (
        "import runpy\n"
        f"sys.argv = {[path, *arguments]}\n"
        f"runpy.run_path({path!r}, run_name='__main__')"
    )


@pytest.mark.parametrize(
    ("arguments", "missing"), [([], "uvloop"), (["fsck", "."], "google_crc32c")]
)
def test_the_server_says_what_to_install(arguments: list[str], missing: str) -> None:
    done = run_without(SERVER, run_file("server.py", *arguments))

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == (
        f"tuff: the server needs {missing}, which is not installed; "
        "pip install 'tuff-messaging[server]'\n"
    )


@pytest.mark.parametrize(
    ("path", "packages", "sentence"),
    [
        ("tuff_cli/__main__.py", "click", "tuff: the command tuff needs click, {} [cli]"),
        ("pipeline/__main__.py", "click", "tuff-pipeline: tuff-pipeline needs click, {} [spark]"),
        (
            "pipeline/__main__.py", "pyspark pyarrow",
            "tuff-pipeline: pyspark_tuff needs pyspark, {} [spark]",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("arguments", [["--help"], []])
def test_a_command_says_what_to_install(
    path: str, packages: str, sentence: str, arguments: list[str]
) -> None:
    done = run_without(packages, run_file(path, *arguments))

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == sentence_of(sentence) + "\n"


def test_the_command_says_what_its_tables_need(tmp_path: Path) -> None:
    with serve(tmp_path) as server:
        program = run_file("tuff_cli/__main__.py", "--url", server.url, "topics", "ls", "default")
        done = run_without("rich", program)

    assert done.returncode == 1
    assert done.stderr == sentence_of("tuff: the command tuff needs rich, {} [cli]") + "\n"


def sentence_of(short: str) -> str:
    what, _, extra = short.rpartition(" ")
    return what.format(f"which is not installed; pip install 'tuff-messaging{extra}'")


@pytest.mark.parametrize(
    ("program", "packages", "sentence"),
    [
        ("import tuff.otel", "opentelemetry", "tuff.otel needs opentelemetry, {} [otel]"),
        ("import tuff.sql.django", "django", "tuff.sql.django needs django, {} [django]"),
        ("import tuff.sql.asyncpg", "asyncpg", "tuff.sql.asyncpg needs asyncpg, {} [asyncpg]"),
        ("import tuff.sql.psycopg", "psycopg", "tuff.sql.psycopg needs psycopg, {} [psycopg]"),
        (
            "import tuff.sql.sqlalchemy", "sqlalchemy",
            "tuff.sql.sqlalchemy needs sqlalchemy, {} [sqlalchemy]",
        ),
        ("from tuff import AsyncClient", "aiohttp", "an asyncio client needs aiohttp, {} [aio]"),
        (
            "import tuff; tuff.avro_serializer('long')", "fastavro",
            "avro_serializer needs fastavro, {} [avro]",
        ),
        (
            "import tuff; tuff.TransactionalTable('shop')", "plyvel plyvel_next",
            "a LevelDB database needs plyvel, {} [tables]",
        ),
        (
            "import tuff; tuff.HBaseTransactionalTable('127.0.0.1:1', 'a')", "thriftpy2",
            "HBaseTransactionalTable needs thriftpy2, {} [hbase]",
        ),
        ("import pyspark_tuff", "pyspark", "pyspark_tuff needs pyspark, {} [spark]"),
        ("import pyspark_tuff_table", "pyspark", "pyspark_tuff needs pyspark, {} [spark]"),
    ],
)  # fmt: skip
def test_a_name_says_what_to_install(program: str, packages: str, sentence: str) -> None:
    done = run_without(packages, program)

    assert done.returncode == 1
    assert (
        done.stderr.splitlines()[-1]
        == f"tuff.optional_packages.MissingExtraError: {sentence_of(sentence)}"
    )


def test_a_missing_module_of_our_own_is_a_bug_and_not_an_extra() -> None:
    done = run_without(
        "",
        "from tuff.optional_packages import Extra\nwith Extra('a', 'b'): import tuff.no",
    )

    assert done.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'tuff.no'"


ALL = f"{SERVER} cramjam click rich thriftpy2 happybase pyspark pyarrow sqlalchemy opentelemetry"


def test_a_client_needs_only_msgpack_and_orjson() -> None:
    done = run_without(ALL, CLIENT)

    assert (done.returncode, done.stderr) == (0, "")


CLIENT = """
from tuff import Client, Subscriber, Consumer, ShareConsumer, Publisher, SqlTransaction, TypedTopic
import tuff.blocking.client, tuff.sql.sqlite, tuff.testing
client = Client("http://127.0.0.1:1")
client.transaction()
"""


def test_the_command_needs_nothing_of_the_server() -> None:
    packages = f"{SERVER.replace('zlib_ng', '')} cramjam thriftpy2 happybase"
    done = run_without(packages, run_file("tuff_cli/__main__.py", "--version"))

    assert (done.returncode, done.stderr) == (0, "")
