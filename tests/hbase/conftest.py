"""One real HBase for all tests of this folder: each uses tables of its own."""

import os
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

import tuff
from messaging.storage.hbase.settings import HBaseSettings
from tests.client.conftest import client as client
from tests.client.conftest import server as server
from tests.hbase.local_hbase import LocalHBase, why_missing
from tests.http.process import ServerProcess, serve
from tests.table.conftest import OpenTable
from tests.table.conftest import service as service
from tests.table.conftest import table as table
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
    """Opens the table that goes by a path; its compactions need not be announced in advance."""

    def open_it(path: str | os.PathLike[str], **options: object) -> VersionedTable:
        name = "table-" + sha256(os.fspath(path).encode()).hexdigest()[:16]
        return tuff.HBaseTransactionalTable(gateway(hbase), name, **{"grace_s": 0.0, **options})

    return open_it


def gateway(hbase: LocalHBase) -> str:
    """Where its Thrift gateway listens."""
    return f"127.0.0.1:{hbase.ports.thrift}"


@pytest.fixture
def new_server(tmp_path: Path) -> Iterator[NewServer]:
    """Starts servers on tables that are made for them."""
    started: list[ServerProcess] = []

    def start(place: HBaseSettings, *settings: str) -> ServerProcess:
        server = serve(
            tmp_path / f"server-{len(started)}",
            "messaging.store=hbase",
            "server.max_request_bytes=8388608",
            f"hbase.gateways={list(place.gateways)}",
            f"hbase.prefix={place.prefix}",
            *settings,
        )
        # What failed is logged with its trace, once, where the server tells it.
        server.may_log_traces = True
        started.append(server)
        return server

    yield start
    for each in started:
        each.end()
