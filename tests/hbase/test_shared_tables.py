"""Tables in HBase that the servers of a cluster share: the conformance tests of all such tables
(decision 0042)."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Event

import pytest

from kernel.owner_floor import Floor, Identity
from messaging.engines.hbase.engine import HBaseOpener, HBaseStore
from messaging.engines.hbase.settings import FOREVER_S, HBaseSettings
from tests.cluster.shared_store_conformance import *  # noqa: F403 - all of its tests
from tests.cluster.shared_store_conformance import CLUSTER_ID, NOON_MS
from tests.hbase.deployments import deploy, settings_of
from tests.hbase.local_hbase import LocalHBase
from tests.hbase.marks import NEEDS_HBASE

pytestmark = NEEDS_HBASE


class HeldStore:
    """A store whose background work waits until the gate opens: for a wait of its server, for
    `HBaseTables.flush`, and for its end."""

    def __init__(self, inner: HBaseStore, gate: Event) -> None:
        self.inner, self.gate = inner, gate
        self.get, self.scan, self.write = inner.get, inner.scan, inner.write
        self.raise_time, self.require_owned = inner.raise_time, inner.require_owned

    @property
    def cell_ms(self) -> int:
        return self.inner.cell_ms

    def wait_until_shared(self) -> None:
        self.gate.set()
        self.inner.wait_until_shared()
        self.gate.clear()

    def close(self) -> None:
        self.gate.set()
        self.inner.close()


class HBaseTables:
    """The tables of one test."""

    def __init__(self, place: HBaseSettings) -> None:
        self._place = place

    def opener(
        self, server_id: str, incarnation: int = 1, *, now_ms: int = NOON_MS
    ) -> Callable[[], HeldStore]:
        gate = Event()
        opener = self._opener(Identity(CLUSTER_ID, server_id, incarnation), gate, now_ms)
        return lambda: HeldStore(opener(), gate)

    def single(self) -> HBaseOpener:
        return self._opener(None, Event(), NOON_MS)

    def fence(self, server_id: str, incarnation: int = 1, *, now_ms: int = NOON_MS) -> Floor:
        return self._opener(None, Event(), now_ms).fence(server_id, incarnation)

    def adopt(self, cluster_id: str) -> None:
        self.single().adopt(cluster_id)

    def flush(self, store: HeldStore) -> None:
        store.gate.set()
        store.inner.wait_until_shared()
        store.gate.clear()

    def _opener(self, member: Identity | None, gate: Event, now_ms: int) -> HBaseOpener:
        pool = ThreadPoolExecutor(1)
        opener = HBaseOpener(
            self._place,
            rows_live_s=FOREVER_S,
            now_ms=lambda: now_ms,
            elapsed_s=time.monotonic,
            in_background=lambda work: pool.submit(_after, gate, work),
        )
        opener.member = member
        return opener


def _after(gate: Event, work: Callable[[], None]) -> None:
    gate.wait()
    work()


@pytest.fixture
def tables(hbase: LocalHBase) -> HBaseTables:
    return HBaseTables(deploy(settings_of(hbase.ports)))
