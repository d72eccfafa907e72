"""A table in a temporary directory, and the model of the service for its transactions."""

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest

import tuff
from tests.client.conftest import client as client
from tests.client.conftest import server as server
from tests.http.process import ServerProcess
from tests.table.service_model import Service
from tuff.tables.leveldb_table import LevelDbVersionStore
from tuff.tables.open_transactions import BUFFER_BYTES_MAX
from tuff.tables.row_format import new_table_id
from tuff.tables.versioned_table import VersionedTable

# Opens the table for a path, in the engine that is tested.
OpenTable = Callable[..., VersionedTable]


def open_with_id(
    path: Path | str,
    *,
    buffer_bytes: int = BUFFER_BYTES_MAX,
    new_id: Callable[[], bytes] = new_table_id,
) -> VersionedTable:
    """A `TransactionalTable` whose id is known."""
    store = LevelDbVersionStore(Path(path), new_id=new_id)
    return VersionedTable(str(path), store, buffer_bytes=buffer_bytes)


@pytest.fixture
def service() -> Service:
    return Service()


@pytest.fixture
async def loop_client(server: ServerProcess) -> AsyncIterator[tuff.AsyncClient]:
    async with tuff.AsyncClient(server.url) as made:
        yield made


@pytest.fixture
def open_table() -> OpenTable:
    return open_with_id


@pytest.fixture
def table(open_table: OpenTable, tmp_path: Path) -> Iterator[VersionedTable]:
    with open_table(tmp_path / "table") as made:
        yield made
