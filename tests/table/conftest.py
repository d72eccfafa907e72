"""A table in a directory of its own, and the model of the service that its transactions are of."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.conftest import client as client
from tests.client.conftest import server as server
from tests.table.service import Service
from tuff.table import TransactionalTable


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
def table(tmp_path: Path) -> Iterator[TransactionalTable]:
    with TransactionalTable(tmp_path / "table") as made:
        yield made
