"""The Spark session, shared by all, and directories for checkpoints."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from tests.spark.session import spark_fixture

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> "Iterator[SparkSession]":
    yield from spark_fixture(tmp_path_factory.mktemp("warehouse"))
