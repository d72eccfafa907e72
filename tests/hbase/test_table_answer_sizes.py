"""The sizes of the answers of a gateway, for a table whose rows may have any size."""

from collections.abc import Callable, Iterator
from contextvars import Context
from itertools import count
from os import urandom

import pytest

import tuff
from messaging.engines.hbase.table_admin import (
    BLOOM_BY_ROW,
    FAST_DIFF,
    TableAdmin,
    _name,
    _thrift,
)
from tests.hbase.conftest import gateway
from tests.hbase.local_hbase import LocalHBase
from tests.hbase.marks import NEEDS_HBASE
from tests.table.service_model import Service
from tests.table.transactions import left_invalid, read, transaction
from tuff.protocol.transaction import Transaction
from tuff.tables.hbase_cells import FOREVER_S, VERSIONS_MAX
from tuff_storage.hbase_gateway import Connection, Gateways

pytestmark = NEEDS_HBASE

MIB = 1 << 20
LARGE = [b"x" * MIB, urandom(MIB), "\N{MUSICAL SYMBOL G CLEF}".encode() * (MIB // 4)]
AT_ONCE_BYTES = 8 * (MIB + 5)  # of values of 8 MiB these would be 64 MiB
SMALL_COUNT = 1_400  # rows; enough for a scan to have grown as far as it does

_numbers = count()


@pytest.fixture
def table(hbase: LocalHBase) -> Iterator[tuff.HBaseTransactionalTable]:
    with tuff.HBaseTransactionalTable(gateway(hbase), f"answers-{next(_numbers)}") as made:
        yield made


@pytest.fixture
def answers_bytes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of all values in each answer with cells."""
    sizes: list[int] = []
    call_really = Gateways.call

    def call(self: Gateways, work: Callable[[Connection], object]) -> object:
        return call_really(self, lambda connection: work(_Recording(connection, sizes)))

    monkeypatch.setattr(Gateways, "call", call)
    return sizes


class _Recording:
    """A connection, and its client, that records the sizes of answers."""

    def __init__(self, connection: Connection, sizes: list[int]) -> None:
        self.client = self
        self._really = connection.client
        self._sizes = sizes

    def __getattr__(self, name: str) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            answer = getattr(self._really, name)(*arguments)
            if name in ("scannerGetList", "getRowsWithColumnsTs"):
                cells = [cell for row in answer for cell in row.columns.values()]
                self._sizes.append(sum(len(cell.value) for cell in cells))
            elif name == "getVerTs":
                self._sizes.append(sum(len(cell.value) for cell in answer))
            return answer

        return call


def rows() -> list[tuple[bytes, bytes]]:
    """Small rows, then large ones, and some of both in the middle and at the end."""
    made = [(b"%05d" % number, b"small") for number in range(SMALL_COUNT)]
    made += [(b"%05d" % (SMALL_COUNT + at), LARGE[at % 3]) for at in range(24)]
    made += [
        (b"00700-", LARGE[0]),
        (b"00700.", LARGE[1]),
        (b"00200-", LARGE[2]),
        (b"x", b"small"),
        (b"y", LARGE[2]),
    ]
    return sorted(made)


def put_all(service: Service, table: tuff.HBaseTransactionalTable) -> None:
    with transaction(service, table):
        for key, value in rows():
            table.put(key, value)


def hidden_by_deletes(
    service: Service, table: tuff.HBaseTransactionalTable
) -> tuple[Context, Transaction]:
    """A transaction in progress that deleted all rows, so that readers need the older versions."""
    context, deleting = Context(), service.start()

    def delete() -> None:
        table.start_tx(deleting)
        for key, _ in rows():
            table.delete(key)
        table.commit_tx(deleting)

    context.run(delete)
    return context, deleting


def test_large_rows_behind_small_ones_are_read_a_few_at_a_time(
    service: Service, table: tuff.HBaseTransactionalTable, answers_bytes: list[int]
) -> None:
    put_all(service, table)
    answers_bytes.clear()

    assert read(service, table) == rows()

    assert max(answers_bytes) <= AT_ONCE_BYTES
    assert len(answers_bytes) < 40


def test_large_rows_below_invisible_versions_are_read_a_few_at_a_time(
    service: Service, table: tuff.HBaseTransactionalTable, answers_bytes: list[int]
) -> None:
    put_all(service, table)
    hidden_by_deletes(service, table)
    answers_bytes.clear()

    assert read(service, table) == rows()

    assert max(answers_bytes) <= AT_ONCE_BYTES
    assert len(answers_bytes) < 100


def test_versions_of_a_large_row_are_read_a_few_at_a_time(
    service: Service, table: tuff.HBaseTransactionalTable, answers_bytes: list[int]
) -> None:
    with transaction(service, table):
        table.put(b"a", b"seen")
    for _ in range(20):
        left_invalid(service, table, b"a", MIB * b"x")
    answers_bytes.clear()

    assert read(service, table) == [(b"a", b"seen")]

    assert max(answers_bytes) <= AT_ONCE_BYTES


def test_large_rows_at_region_borders_hide_no_rows(hbase: LocalHBase, service: Service) -> None:
    """A filter that ends the scan of a region would not end that of the next."""
    name = f"answers-{next(_numbers)}"
    make_split(hbase, name, [b"r00300", b"r00700-", b"r00700/", b"r00800"])
    with tuff.HBaseTransactionalTable(gateway(hbase), name) as table:
        put_all(service, table)

        assert read(service, table) == rows()
        with transaction(service, table):
            assert list(table.scan(b"00690", b"00810")) == [
                row for row in rows() if b"00690" <= row[0] < b"00810"
            ]


def make_split(hbase: LocalHBase, name: str, splits: list[bytes]) -> None:
    families = [
        _thrift.Family(
            name=family,
            maxVersions=versions,
            timeToLive=FOREVER_S,
            bloomFilterType=BLOOM_BY_ROW,
            dataBlockEncoding=FAST_DIFF,
            blockCacheEnabled=True,
        )
        for family, versions in ((b"d", VERSIONS_MAX), (b"u", 1))
    ]
    admin = TableAdmin(("127.0.0.1", hbase.ports.thrift2))
    admin._client.createTable(_thrift.Table(_name(name), families, {}), splits)
    admin.close()
