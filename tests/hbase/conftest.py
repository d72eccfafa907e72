"""One real HBase for all tests of this folder; each test uses its own tables."""

import os
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from messaging.engines.hbase.settings import HBaseSettings
from tests.client.conftest import client as client
from tests.client.conftest import server as server
from tests.hbase.deployments import server_settings
from tests.hbase.local_hbase import LocalHBase, why_missing
from tests.http.process import ServerProcess, serve
from tests.table.conftest import OpenTable
from tests.table.conftest import service as service
from tests.table.conftest import table as table
from tuff.tables.hbase_cells import HBaseCells
from tuff.tables.hbase_table import HBaseVersionStore
from tuff.tables.open_transactions import BUFFER_BYTES_MAX
from tuff.tables.versioned_table import VersionedTable

NewServer = Callable[..., ServerProcess]


@pytest.fixture(scope="session")
def hbase(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalHBase]:
    if reason := why_missing():
        pytest.skip(reason)
    running = LocalHBase(tmp_path_factory.mktemp("hbase"))
    yield running
    running.stop()


@pytest.fixture
def open_table(hbase: LocalHBase) -> OpenTable:
    """Opens the table for a path. Its compactions have no grace period."""

    def open_it(path: str | os.PathLike[str], **options: object) -> VersionedTable:
        name = "table-" + sha256(os.fspath(path).encode()).hexdigest()[:16]
        return open_with(gateway(hbase), name, **options)

    return open_it


def open_with(
    address: str,
    name: str,
    *,
    buffer_bytes: int = BUFFER_BYTES_MAX,
    grace_s: float = 0.0,
    **of_store: Callable[[], object],
) -> VersionedTable:
    """An `HBaseTransactionalTable` whose ids or whose clock are known."""
    cells = HBaseCells(address, name, elapsed_s=of_store.get("elapsed_s", time.monotonic))
    store = HBaseVersionStore(cells, grace_s=grace_s, **of_store)
    return VersionedTable(name, store, buffer_bytes=buffer_bytes)


def gateway(hbase: LocalHBase) -> str:
    """The address of its Thrift gateway."""
    return f"127.0.0.1:{hbase.ports.thrift}"


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[NewServer]:
    """Starts servers on tables that exist."""
    started: list[ServerProcess] = []

    def start(place: HBaseSettings, *settings: str) -> ServerProcess:
        server = serve(
            tmp_path / f"server-{len(started)}",
            *server_settings(place),
            *settings,
        )
        # The server logs a failure once with its trace.
        server.may_log_traces = True
        started.append(server)
        return server

    yield start
    for each in started:
        each.end()
