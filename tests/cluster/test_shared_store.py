"""The model of the shared tables does what the real ones do (tests/hbase/test_shared_tables.py)."""

from collections.abc import Callable

import pytest

from kernel.owner_floor import Floor
from tests.cluster.shared_store import SharedTables, SharedTablesStore
from tests.cluster.shared_store_conformance import *  # noqa: F403 - all of its tests
from tests.cluster.shared_store_conformance import NOON_MS


class ModelTables:
    """The model, as the conformance tests need it."""

    def __init__(self) -> None:
        self._tables = SharedTables()
        self.adopt = self._tables.adopt

    def opener(
        self, server_id: str, incarnation: int = 1, *, now_ms: int = NOON_MS
    ) -> Callable[[], SharedTablesStore]:
        return self._tables.opener(server_id, incarnation, now_ms=lambda: now_ms)

    def single(self) -> Callable[[], SharedTablesStore]:
        return self._tables.single(now_ms=lambda: NOON_MS)

    def fence(self, server_id: str, incarnation: int = 1, *, now_ms: int = NOON_MS) -> Floor:
        return self._tables.fence(server_id, incarnation, now_ms=lambda: now_ms)

    def flush(self, store: SharedTablesStore) -> None:
        store.flush()


@pytest.fixture
def tables() -> ModelTables:
    return ModelTables()
