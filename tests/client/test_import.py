"""What importing the library costs the program that does (design §3)."""

import subprocess
import sys

import pytest

import tuff

HEAVY = {"aiohttp", "asyncio", "click", "fastavro", "happybase", "msgpack", "plyvel", "pyspark",
         "rich"}  # fmt: skip

IMPORT_S_MAX = 0.15  # seconds of the processor; a command or a test run begins with it


def test_importing_and_connecting_loads_nothing_heavy() -> None:
    program = "import sys, tuff; tuff.Client(); print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.split()

    assert HEAVY & {name.partition(".")[0] for name in loaded} == set()


def loaded_by(program: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{program}\nprint(*sys.modules)"],
        check=True,
        capture_output=True,
        text=True,
    )
    return {name.partition(".")[0] for name in done.stdout.split()}


def test_a_transaction_and_a_subscriber_load_nothing_heavy_either() -> None:
    program = "import tuff; tuff.Client().transaction(); tuff.Subscriber, tuff.TablePositions"

    assert HEAVY & loaded_by(program) == set()


def test_connecting_for_asyncio_loads_what_that_needs_and_no_more() -> None:
    loaded = loaded_by("import tuff; tuff.AsyncClient()")

    assert HEAVY & loaded == {"aiohttp", "asyncio"}


def test_importing_costs_little_time() -> None:
    program = (
        "import time; began = time.process_time(); import tuff;print(time.process_time() - began)"
    )

    # Of the processor, and the best of a few: what a busy machine adds is none of ours.
    spent_s = min(float(subprocess.check_output([sys.executable, "-c", program])) for _ in range(5))
    assert spent_s < IMPORT_S_MAX


def test_every_public_name_can_be_had() -> None:
    assert [name for name in tuff.__all__ if not hasattr(tuff, name)] == []


def test_a_table_in_hbase_says_what_has_to_be_installed_for_it() -> None:
    program = (
        "import sys, tuff\n"
        "sys.modules['happybase'] = None\n"
        "try: tuff.HBaseTransactionalTable('127.0.0.1:9090', 'stock')\n"
        "except ModuleNotFoundError as error: print(error)"
    )

    said = subprocess.check_output([sys.executable, "-c", program], text=True)

    assert "needs happybase, which is not installed; pip install 'tuff-messaging[hbase]'" in said


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="nothing_of_that_name"):
        tuff.nothing_of_that_name  # noqa: B018 - the look-up itself is what raises
