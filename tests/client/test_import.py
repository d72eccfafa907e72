"""What importing the library costs the program that does (design §3)."""

import subprocess
import sys

import pytest

import tuff

HEAVY = {"aiohttp", "asyncio", "click", "fastavro", "happybase", "msgpack", "plyvel", "pyspark",
         "rich"}  # fmt: skip


def test_importing_and_connecting_loads_nothing_heavy() -> None:
    program = "import sys, tuff; tuff.connect(); print(*sys.modules)"

    loaded = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout.split()

    assert HEAVY & {name.partition(".")[0] for name in loaded} == set()


def test_every_public_name_can_be_had() -> None:
    assert [name for name in tuff.__all__ if not hasattr(tuff, name)] == []


def test_a_name_that_is_not_there_is_named() -> None:
    with pytest.raises(AttributeError, match="publisher"):
        tuff.publisher  # noqa: B018 - the look-up itself is what raises
