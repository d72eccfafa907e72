"""The tables in HBase, made and looked at through a Thrift2 gateway: `tuff hbase` (decision 0023).

Thrift1, which carries the data, can neither split a table nor set its attributes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import thriftpy2
from thriftpy2.rpc import make_client

from messaging.storage import hbase_journal as journal
from messaging.storage.hbase_layout import (
    BODY,
    FAMILY,
    JOURNAL,
    MESSAGE,
    METADATA,
    PAYLOAD,
    SALTED,
    TABLES,
    Layout,
)
from messaging.storage.hbase_settings import FOREVER_S, HBaseSettings
from messaging.storage.seam import StoreError
from tuff.hbase_gateway import Gateways, sentence
from tuff.hbase_wire import Mutation, TException

ADMIN_TIMEOUT_MS = 120_000  # a table of many regions takes its time to be made
BLOOM_BY_ROW, FAST_DIFF = 1, 4  # HBase's numbers
# A put that a gateway carried out very late, after its row was deleted, stays hidden behind the
# mark of the deletion for as long.
KEEP_DELETIONS_MS = 86_400_000
ATTRIBUTES: Mapping[bytes, bytes] = {
    b"hbase.hstore.time.to.purge.deletes": str(KEEP_DELETIONS_MS).encode(),
}

OBSERVER = b"coprocessor$1"  # HBase's name for the first class that a table brings along
OBSERVER_CLASS = "tuff.observer.RetentionObserver"
OBSERVER_PRIORITY = 1_001  # HBase's own for classes of users

_thrift: Any = thriftpy2.load(
    str(Path(__file__).with_name("hbase_admin.thrift")), "hbase_admin_thrift"
)


@dataclass(frozen=True, slots=True)
class TablePlan:
    """How a table should be; `splits` count when it is made, and are HBase's own affair later.
    `live_s`: how long HBase lets rows live, in seconds."""

    name: str
    splits: Sequence[bytes] = ()
    live_s: int = FOREVER_S
    attributes: Mapping[bytes, bytes] = field(default_factory=lambda: ATTRIBUTES)


@dataclass(frozen=True, slots=True)
class TableState:
    """How a table is. `differences`: attributes that it should have and has not, or not so."""

    name: str
    exists: bool
    is_enabled: bool = False
    differences: tuple[str, ...] = ()


def plans(settings: HBaseSettings, *, live_s: int = FOREVER_S) -> list[TablePlan]:
    """The tables of a deployment; message and payload rows have to live for `live_s` seconds."""
    splits = Layout(settings.salts).splits(settings.salts)
    salted = {MESSAGE: splits, PAYLOAD: splits, METADATA: (), JOURNAL: ()}
    return [
        TablePlan(
            settings.prefix + name,
            salted[name],
            live_s if name in SALTED.values() else FOREVER_S,
            {**ATTRIBUTES, **_observed(settings, name)},
        )
        for name in TABLES
    ]


def _observed(settings: HBaseSettings, name: str) -> Mapping[bytes, bytes]:
    """The attribute that lets region servers load the observer; metadata and journal have none."""
    if not settings.observer_jar or name not in SALTED.values():
        return {}
    what = f"tuff.table={name},tuff.directory={settings.observer_directory}"
    return {
        OBSERVER: f"{settings.observer_jar}|{OBSERVER_CLASS}|{OBSERVER_PRIORITY}|{what}".encode()
    }


class TableAdmin:
    """A connection to a Thrift2 gateway; for one thread."""

    def __init__(self, address: tuple[str, int]) -> None:
        """Raises: StoreError: nobody answers there."""
        host, port = address
        try:
            self._client = make_client(_thrift.Admin, host, port, timeout=ADMIN_TIMEOUT_MS)
        except (TException, OSError) as error:
            raise StoreError(f"no HBase Thrift2 gateway answers at {host}:{port}") from error

    def close(self) -> None:
        self._client.close()

    def state(self, plan: TablePlan) -> TableState:
        """How a table differs from its plan. Raises: StoreError."""
        name = _name(plan.name)
        with _refusals():
            if not self._client.tableExists(name):
                return TableState(plan.name, exists=False)
            found = self._client.getTableDescriptor(name)
            attributes = found.attributes or {}
            differences = [
                f"{key.decode()} = {value.decode()}"
                for key, value in sorted(plan.attributes.items())
                if attributes.get(key) != value
            ]
            if _family(found).timeToLive != plan.live_s:
                differences.append(f"TTL = {plan.live_s}")
            is_enabled = bool(self._client.isTableEnabled(name))
        return TableState(
            plan.name, exists=True, is_enabled=is_enabled, differences=tuple(differences)
        )

    def create(self, plan: TablePlan) -> None:
        """Make a table that is not there. Raises: StoreError."""
        family = _thrift.Family(
            name=FAMILY,
            maxVersions=1,
            timeToLive=plan.live_s,
            bloomFilterType=BLOOM_BY_ROW,
            dataBlockEncoding=FAST_DIFF,
            blockCacheEnabled=True,
        )
        table = _thrift.Table(_name(plan.name), [family], dict(plan.attributes))
        with _refusals():
            self._client.createTable(table, list(plan.splits) or None)

    def change(self, plan: TablePlan) -> None:
        """Give a table the attributes of its plan, and its time to live; all else of it stays.

        Raises: StoreError.
        """
        with _refusals():
            found = self._client.getTableDescriptor(_name(plan.name))
            found.attributes = {**(found.attributes or {}), **plan.attributes}
            _family(found).timeToLive = plan.live_s
            self._client.modifyTable(found)

    def enable(self, name: str) -> None:
        """Raises: StoreError."""
        with _refusals():
            self._client.enableTable(_name(name))

    def disable(self, name: str) -> None:
        """Raises: StoreError."""
        with _refusals():
            self._client.disableTable(_name(name))

    def delete(self, name: str) -> None:
        """Remove a table with all its rows. Raises: StoreError."""
        with _refusals():
            if self._client.isTableEnabled(_name(name)):
                self._client.disableTable(_name(name))
            self._client.deleteTable(_name(name))


def write_layout(gateways: Gateways, settings: HBaseSettings) -> int:
    """Write down how rows are laid out, unless it was; the number of salts that counts from then
    on. Raises: StoreError."""
    table = (settings.prefix + JOURNAL).encode()
    value = journal.pack_layout(settings.salts)
    mutation = Mutation(isDelete=False, column=BODY, value=value, writeToWAL=True)

    def write(connection: Any) -> bytes:
        client = connection.client
        client.checkAndPut(table, journal.LAYOUT_ROW, BODY, None, mutation, {})
        return bytes(client.getRow(table, journal.LAYOUT_ROW, {})[0].columns[BODY].value)

    return journal.unpack_layout(gateways.call(write))


def _family(table: Any) -> Any:
    """The one that has our cells. Raises: StoreError."""
    for family in table.columns or ():
        if family.name == FAMILY:
            return family
    raise StoreError(f"an HBase table has no family {FAMILY.decode()}; it is none of ours")


def _name(name: str) -> Any:
    namespace, colon, rest = name.rpartition(":")
    return _thrift.TableName(namespace.encode() if colon else None, rest.encode())


@contextmanager
def _refusals() -> Iterator[None]:
    try:
        yield
    except _thrift.RefusedError as error:
        raise StoreError(sentence(error)) from error
    except (TException, OSError) as error:
        raise StoreError(f"the HBase Thrift2 gateway did not answer: {error}") from error
