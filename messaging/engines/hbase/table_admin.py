"""Creates, checks and changes the tables in HBase, for `tuff hbase` (decision 0023).

It uses a Thrift2 gateway: Thrift1 can neither split a table nor set its attributes.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import thriftpy2
from thriftpy2.rpc import make_client

from messaging.engines.engine_interface import StoreError
from messaging.engines.hbase import journal
from messaging.engines.hbase.layout import (
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
from messaging.engines.hbase.settings import FOREVER_S, HBaseSettings
from tuff_storage.hbase_gateway import Gateways, Mutation, TException, error_text

ADMIN_TIMEOUT_MS = 120_000  # creating a table of many regions takes long
BLOOM_BY_ROW, FAST_DIFF = 1, 4  # HBase's numbers
# A gateway may carry out a put very late, after the row was deleted. HBase keeps the tombstone for
# this time, and the tombstone hides the put.
KEEP_DELETIONS_MS = 86_400_000
ATTRIBUTES: Mapping[bytes, bytes] = {
    b"hbase.hstore.time.to.purge.deletes": str(KEEP_DELETIONS_MS).encode(),
}

OBSERVER = b"coprocessor$1"  # HBase's attribute for the first coprocessor of a table
OBSERVER_CLASS = "tuff.observer.RetentionObserver"
OBSERVER_PRIORITY = 1_001  # HBase's default for user classes

_thrift: Any = thriftpy2.load(str(Path(__file__).with_name("admin.thrift")), "hbase_admin_thrift")


@dataclass(frozen=True, slots=True)
class TablePlan:
    """The desired state of a table. `splits` are used only when the table is created; HBase changes
    regions later. `live_s`: the time to live of rows, in seconds."""

    name: str
    splits: Sequence[bytes] = ()
    live_s: int = FOREVER_S
    attributes: Mapping[bytes, bytes] = field(default_factory=lambda: ATTRIBUTES)


@dataclass(frozen=True, slots=True)
class TableState:
    """The actual state of a table. `differences`: attributes that are missing or have other values
    than planned."""

    name: str
    exists: bool
    is_enabled: bool = False
    differences: tuple[str, ...] = ()


def plans(settings: HBaseSettings, *, live_s: int = FOREVER_S) -> list[TablePlan]:
    """The tables of a deployment; message and payload rows live for `live_s` seconds."""
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
    """The attribute by which region servers load the observer, for message and payload tables."""
    if not settings.observer_jar or name not in SALTED.values():
        return {}
    what = f"tuff.table={name},tuff.directory={settings.observer_directory}"
    return {
        OBSERVER: f"{settings.observer_jar}|{OBSERVER_CLASS}|{OBSERVER_PRIORITY}|{what}".encode()
    }


class TableAdmin:
    """A connection to a Thrift2 gateway; for one thread."""

    def __init__(self, address: tuple[str, int]) -> None:
        """Raises: StoreError: no gateway answers at that address."""
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
        with _as_store_errors():
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
        """Create a table. Raises: StoreError."""
        family = _thrift.Family(
            name=FAMILY,
            maxVersions=1,
            timeToLive=plan.live_s,
            bloomFilterType=BLOOM_BY_ROW,
            dataBlockEncoding=FAST_DIFF,
            blockCacheEnabled=True,
        )
        table = _thrift.Table(_name(plan.name), [family], dict(plan.attributes))
        with _as_store_errors():
            self._client.createTable(table, list(plan.splits) or None)

    def change(self, plan: TablePlan) -> None:
        """Set the attributes and the time to live of the plan, and change nothing else.

        Raises: StoreError.
        """
        with _as_store_errors():
            found = self._client.getTableDescriptor(_name(plan.name))
            found.attributes = {**(found.attributes or {}), **plan.attributes}
            _family(found).timeToLive = plan.live_s
            self._client.modifyTable(found)

    def enable(self, name: str) -> None:
        """Raises: StoreError."""
        with _as_store_errors():
            self._client.enableTable(_name(name))

    def disable(self, name: str) -> None:
        """Raises: StoreError."""
        with _as_store_errors():
            self._client.disableTable(_name(name))

    def delete(self, name: str) -> None:
        """Remove a table with all its rows. Raises: StoreError."""
        with _as_store_errors():
            if self._client.isTableEnabled(_name(name)):
                self._client.disableTable(_name(name))
            self._client.deleteTable(_name(name))


def write_layout(gateways: Gateways, settings: HBaseSettings) -> int:
    """Store the layout of the rows, unless it is stored already. Returns the number of salts that
    is stored then. Raises: StoreError."""
    table = (settings.prefix + JOURNAL).encode()
    value = journal.StoredLayout(settings.salts).to_bytes()
    mutation = Mutation(isDelete=False, column=BODY, value=value, writeToWAL=True)

    def write(connection: Any) -> bytes:
        client = connection.client
        client.checkAndPut(table, journal.LAYOUT_ROW, BODY, None, mutation, {})
        return bytes(client.getRow(table, journal.LAYOUT_ROW, {})[0].columns[BODY].value)

    return journal.StoredLayout.from_bytes(gateways.call(write)).salt_count


def _family(table: Any) -> Any:
    """The family `d`. Raises: StoreError: the table has none."""
    for family in table.columns or ():
        if family.name == FAMILY:
            return family
    raise StoreError(f"an HBase table has no family {FAMILY.decode()}; it is not one of Tuff's")


def _name(name: str) -> Any:
    namespace, colon, rest = name.rpartition(":")
    return _thrift.TableName(namespace.encode() if colon else None, rest.encode())


@contextmanager
def _as_store_errors() -> Iterator[None]:
    try:
        yield
    except _thrift.RefusedError as error:
        raise StoreError(error_text(error)) from error
    except (TException, OSError) as error:
        raise StoreError(f"the HBase Thrift2 gateway did not answer: {error}") from error
