"""The shared tables as one simulated server has them: with cuts, and commits in doubt."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from kernel.owner_floor import Floor, Identity
from messaging.engines.engine_interface import Chunks, StoreError, TakenOverError
from tests.cluster.shared_store import SharedOpener, SharedTables, SharedTablesStore
from tests.simulation.cluster.metadata import CutOffError


class Caller(Protocol):
    """The server that calls, as far as the tables need it."""

    def before_call(self, system: str) -> None:
        """The other servers may run meanwhile. Raises: CutOffError."""

    def loses_request(self) -> bool:
        """Whether a commit never arrives."""

    def loses_reply(self) -> bool:
        """Whether the reply of a commit that took effect is lost."""


class SimOpener:
    """Opens the tables for one process, like `messaging.engines.hbase.engine.HBaseOpener`."""

    def __init__(self, tables: SharedTables, caller: Caller, *, now_ms: Callable[[], int]) -> None:
        self.member: Identity | None = None
        self.was_replaced = False
        self._tables = tables
        self._caller = caller
        self._now_ms = now_ms
        self._opener: SharedOpener | None = None
        self.store: SimSharedStore | None = None

    def __call__(self) -> "SimSharedStore":
        assert self.member is not None, "the server joins its cluster first"
        _reach(self._caller)
        if self._opener is None:
            member = self.member
            self._opener = self._tables.opener(
                member.server_id, member.incarnation, now_ms=self._now_ms
            )
        try:
            self.store = SimSharedStore(self._opener(), self._caller)
        except TakenOverError:
            self.was_replaced = True
            raise
        return self.store

    def adopt(self, cluster_id: str) -> None:
        _reach(self._caller)
        self._tables.adopt(cluster_id)

    def fence(self, server_id: str, incarnation: int) -> Floor:
        _reach(self._caller)
        floor = self._tables.fence(server_id, incarnation, now_ms=self._now_ms)
        _reach(self._caller)  # the journal is taken, and the caller does not know it yet
        return floor


class SimSharedStore:
    """One opening of the tables."""

    has_views = False
    packs_rows = False

    def __init__(self, store: SharedTablesStore, caller: Caller) -> None:
        self._store = store
        self._caller = caller

    @property
    def cell_ms(self) -> int:
        return self._store.cell_ms

    def get(self, key: bytes) -> bytes | None:
        _reach(self._caller)
        return self._store.get(key)

    def scan(self, start: bytes, stop: bytes, **how: Any) -> Chunks:
        _reach(self._caller)
        return self._store.scan(start, stop, **how)

    def approximate_size(self, start: bytes, stop: bytes) -> int:
        return self._store.approximate_size(start, stop)

    def write(self, batch: Sequence[tuple[bytes, bytes | None]]) -> None:
        _reach(self._caller)
        failures = self._store.failures
        if self._caller.loses_request():
            failures.write = "the request was lost"
        elif self._caller.loses_reply():
            failures.write, failures.takes_effect = "the reply was lost", True
        try:
            self._store.write(batch)
        finally:
            failures.write, failures.takes_effect = None, False
        _reach(self._caller)  # it is committed, and the caller does not know it yet

    def require_owned(self) -> None:
        _reach(self._caller)
        self._store.require_owned()
        _reach(self._caller)

    def raise_time(self, floor_ms: int) -> None:
        self._store.raise_time(floor_ms)

    def wait_until_shared(self) -> None:
        _reach(self._caller)
        self._store.wait_until_shared()

    def flush(self) -> None:
        """Put the rows that wait, as the background thread does."""
        self._store.flush()

    def close(self) -> None:
        self._store.close()


def _reach(caller: Caller) -> None:
    try:
        caller.before_call("tables")
    except CutOffError as error:
        raise StoreError(str(error)) from None
