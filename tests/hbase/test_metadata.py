"""The metadata store of a cluster in HBase: the tests of every store, and those of its table."""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Thread

import pytest

from metadata.hbase_sessions import SessionState, end_of
from metadata.hbase_store import HBaseMetadataStore, create_table
from metadata.hbase_table import (
    CELL,
    HBaseMetadataSettings,
    MetadataTable,
    entry_row,
    session_row,
)
from metadata.store_interface import Expected, Key, MetadataUnavailableError, Session, Versioned
from tests.hbase.local_hbase import LocalHBase
from tests.hbase.marks import NEEDS_HBASE
from tests.http.client import until
from tests.metadata.conformance import *  # noqa: F403 - the tests that every store passes
from tests.metadata.links import Links
from tuff_storage.hbase_gateway import Addresses, BatchMutation, ColumnDescriptor, Mutation

pytestmark = NEEDS_HBASE

PREFIX = "metadata_"
EVERYTHING = b"", b"\xff"


def settings_at(*ports: int, prefix: str = PREFIX, **limits: float) -> HBaseMetadataSettings:
    addresses = [("127.0.0.1", port) for port in ports]
    return HBaseMetadataSettings(addresses=addresses, prefix=prefix, **limits)


def in_background(work: Callable[[], None]) -> None:
    Thread(target=work, daemon=True).start()


class HBaseStores:
    """Clients of one table, whose rows are deleted at the end. They reach the gateway by a link
    that can be cut."""

    timeout_s = 3.0
    example_count = 8

    def __init__(self, port: int, *, prefix: str = PREFIX) -> None:
        """`port`: that of the gateway."""
        self._links = Links()
        self._link = self._links.to(port)
        self.settings = settings = settings_at(self._link.port, prefix=prefix)
        create_table(settings, elapsed_s=time.monotonic)
        self._opened: list[HBaseMetadataStore] = []
        self._gateways = settings.gateways(
            call_s=settings.call_s,
            addresses=Addresses(settings.addresses),
            elapsed_s=time.monotonic,
        )
        self.table = MetadataTable(
            settings.table, self._gateways, answer_s=settings.answer_s, elapsed_s=time.monotonic
        )

    def open(self) -> HBaseMetadataStore:
        store = HBaseMetadataStore(
            self.settings, elapsed_s=time.monotonic, in_background=in_background
        )
        self._opened.append(store)
        return store

    def end_session(self, session: Session) -> None:
        """As another observer."""
        row = session_row(session.id)
        refused = True
        while refused:  # a heartbeat was faster
            cell = self.table.cell(row)
            assert cell is not None
            found = SessionState.from_cell(session.id, cell)
            assert found is not None
            refused = self.table.replace(row, cell, end_of(found)) is not None

    @contextmanager
    def outage(self) -> Iterator[None]:
        with self._links.cut(self._link, silently=False):
            yield

    def write_raw(self, key: Key, data: bytes) -> None:
        put = Mutation(isDelete=False, column=CELL, value=data, writeToWAL=True)
        self._mutate([BatchMutation(entry_row(key), [put])])

    def written_ms(self, key: Key) -> int:
        """When the cell of an entry was written, by the clock of the region server."""
        name = self.settings.table.encode()
        (found,) = self._gateways.call_once(lambda on: on.client.getRow(name, entry_row(key), {}))
        return found.columns[CELL].timestamp

    def close(self) -> None:
        for store in self._opened:
            store.close()
        delete = Mutation(isDelete=True, column=CELL, writeToWAL=True)
        rows = [row for piece in self.table.scan(*EVERYTHING, tombstones=True) for row, _ in piece]
        self._mutate([BatchMutation(row, [delete]) for row in rows])
        self._gateways.close()
        self._links.close()
        # The markers of these deletions hide all puts of the same millisecond.
        deleted_ms = time.time_ns() // 1_000_000
        until(lambda: time.time_ns() // 1_000_000 > deleted_ms)

    def _mutate(self, mutations: list[BatchMutation]) -> None:
        name = self.settings.table.encode()
        self._gateways.call_once(lambda on: on.client.mutateRows(name, mutations, {}))


@pytest.fixture
def stores(hbase: LocalHBase) -> Iterator[HBaseStores]:
    opened = HBaseStores(hbase.ports.thrift)
    yield opened
    opened.close()


def test_a_missing_table_is_named(hbase: LocalHBase) -> None:
    with pytest.raises(MetadataUnavailableError, match="HBase has no table missing_cluster"):
        HBaseMetadataStore(
            settings_at(hbase.ports.thrift, prefix="missing_"),
            elapsed_s=time.monotonic,
            in_background=in_background,
        )


def test_creating_a_table_again_keeps_its_entries(stores: HBaseStores) -> None:
    store = stores.open()
    version = store.put(("a",), b"1", Expected.NEW)

    create_table(stores.settings, elapsed_s=time.monotonic)

    assert store.get(("a",)) == Versioned(b"1", version)


def test_a_table_of_another_application_is_refused(hbase: LocalHBase) -> None:
    settings = settings_at(hbase.ports.thrift, prefix="other_")
    gateways = settings.gateways(
        call_s=5.0, addresses=Addresses(settings.addresses), elapsed_s=time.monotonic
    )
    family = ColumnDescriptor(name=b"x:", maxVersions=1)
    gateways.call_once(lambda on: on.client.createTable(b"other_cluster", [family]))
    try:
        with pytest.raises(MetadataUnavailableError, match="other_cluster has no family d"):
            create_table(settings, elapsed_s=time.monotonic)
    finally:
        gateways.call_once(lambda on: on.client.disableTable(b"other_cluster"))
        gateways.call_once(lambda on: on.client.deleteTable(b"other_cluster"))
        gateways.close()


def test_a_disabled_table_is_named(hbase: LocalHBase) -> None:
    settings = settings_at(hbase.ports.thrift, prefix="disabled_")
    create_table(settings, elapsed_s=time.monotonic)
    gateways = settings.gateways(
        call_s=5.0, addresses=Addresses(settings.addresses), elapsed_s=time.monotonic
    )
    gateways.call_once(lambda on: on.client.disableTable(b"disabled_cluster"))
    try:
        with pytest.raises(MetadataUnavailableError, match="disabled_cluster is disabled"):
            HBaseMetadataStore(settings, elapsed_s=time.monotonic, in_background=in_background)
    finally:
        gateways.call_once(lambda on: on.client.deleteTable(b"disabled_cluster"))
        gateways.close()


def test_servers_create_the_table_at_once(hbase: LocalHBase) -> None:
    settings = settings_at(hbase.ports.thrift, prefix="at_once_")

    with ThreadPoolExecutor(3) as threads:
        created = [
            threads.submit(create_table, settings, elapsed_s=time.monotonic) for _ in range(3)
        ]
        for each in created:
            each.result()

    store = HBaseMetadataStore(settings, elapsed_s=time.monotonic, in_background=in_background)
    store.put(("a",), b"", Expected.NEW)
    store.close()


def test_without_a_gateway_the_store_is_unavailable() -> None:
    settings = HBaseMetadataSettings(
        addresses=[("127.0.0.1", 1)], prefix=PREFIX, call_s=0.1, answer_s=0.1
    )

    with pytest.raises(MetadataUnavailableError, match="no HBase gateway answers"):
        HBaseMetadataStore(settings, elapsed_s=time.monotonic, in_background=in_background)


def test_a_requirement_is_proved_by_a_write(stores: HBaseStores) -> None:
    """A region server that has lost its regions answers reads for a moment, and writes never."""
    store = stores.open()
    version = store.put(("a",), b"", Expected.NEW)
    before_ms = stores.written_ms(("a",))
    until(lambda: time.time_ns() // 1_000_000 > before_ms, what="the next millisecond")

    store.require(("a",), version)

    assert stores.written_ms(("a",)) > before_ms
    assert store.get(("a",)) == Versioned(b"", version)


def test_large_entries_are_scanned_in_pieces(stores: HBaseStores) -> None:
    """Nine entries of 0.5 MiB are more than two pieces."""
    store = stores.open()
    value = b"v" * 524_288
    for number in range(9):
        store.put(("large", f"{number}"), value, Expected.NEW)

    pieces = [len(rows) for rows in stores.table.scan(*EVERYTHING, tombstones=True)]
    found = list(store.scan(("large",)))

    assert sum(pieces) == 9
    assert [key for key, _ in found] == [("large", f"{number}") for number in range(9)]
    assert {entry.value for _, entry in found} == {value}


def test_a_watch_reports_that_a_damaged_entry_was_repaired(stores: HBaseStores) -> None:
    store = stores.open()
    store.put(("a", "b"), b"", Expected.NEW)
    stores.write_raw(("a", "b"), b"\xff")
    calls: list[str] = []
    store.watch(("a",), lambda: calls.append("changed"))

    stores.write_raw(("a", "b"), b"\x01\x00" + b"\x00" * 7 + b"\x09" + b"n" * 16 + b"\x00")

    until(lambda: calls)
    assert store.get(("a", "b")) == Versioned(b"", 9)
