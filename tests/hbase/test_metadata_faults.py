"""The metadata store in HBase with gateways that hang or lose replies, and with paused holders."""

import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial

import pytest

from metadata.hbase_sessions import SessionState, end_of, first_entry, next_beat
from metadata.hbase_store import HBaseMetadataStore
from metadata.hbase_table import MetadataTable, Refused, session_row
from metadata.store_interface import (
    Expected,
    MetadataUnavailableError,
    SessionLostError,
    Versioned,
)
from metadata.stored_entry import Entry
from tests.hbase.local_hbase import LocalHBase
from tests.hbase.losing_gateway import LosingGateway, losing_gateway
from tests.hbase.marks import NEEDS_HBASE
from tests.hbase.test_metadata import HBaseStores, in_background, settings_at
from tests.http.client import until
from tuff_storage.hbase_gateway import Addresses, Gateways

pytestmark = NEEDS_HBASE

NEW, ANY = Expected.NEW, Expected.ANY
KEY = ("topics", "sales")
TIMEOUT_S = 3.0  # of a session; a busy machine takes a second for a call
ENDED = "%s had no heartbeat"
PLENTY_S = 60.0  # on a busy machine


@pytest.fixture
def stores(hbase: LocalHBase) -> Iterator[HBaseStores]:
    opened = HBaseStores(hbase.ports.thrift, prefix="faults_")
    yield opened
    opened.close()


@pytest.fixture
def losing(hbase: LocalHBase) -> Iterator[LosingGateway]:
    with losing_gateway(hbase.ports.thrift) as proxy:
        yield proxy


@pytest.fixture
def hanging_port() -> Iterator[int]:
    """Of a gateway that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


class PausedThreads:
    """Background threads that begin to work when `resume` is called."""

    def __init__(self) -> None:
        self._waiting: list[Callable[[], None]] | None = []

    def __call__(self, work: Callable[[], None]) -> None:
        if self._waiting is None:
            in_background(work)
        else:
            self._waiting.append(work)

    def resume(self, *, then: Callable[[], object] = lambda: None) -> None:
        """`then` is called when one of the threads has ended."""

        def work_and_tell(work: Callable[[], None]) -> None:
            work()
            then()

        waiting, self._waiting = self._waiting or [], None
        for work in waiting:
            in_background(partial(work_and_tell, work))


def opened(
    *ports: int, threads: Callable[[Callable[[], None]], None] = in_background, **limits: float
) -> HBaseMetadataStore:
    """A client of the table through these gateways."""
    settings = settings_at(*ports, prefix="faults_", **limits)
    return HBaseMetadataStore(settings, elapsed_s=time.monotonic, in_background=threads)


def gateways_at(port: int) -> Gateways:
    addresses = Addresses([("127.0.0.1", port)])
    return settings_at(port).gateways(call_s=5.0, addresses=addresses, elapsed_s=time.monotonic)


# --- writes --------------------------------------------------------------------------------------


def test_a_write_whose_reply_is_lost_succeeds_once(
    stores: HBaseStores, losing: LosingGateway
) -> None:
    with closing(opened(losing.port)) as store:
        losing.lose_replies("checkAndPut", times=2)
        version = store.put(KEY, b"one", NEW)

        assert losing.lost_count == 2
        assert version == 1
        assert stores.open().get(KEY) == Versioned(b"one", 1)


def test_a_deletion_whose_reply_is_lost_succeeds_once(
    stores: HBaseStores, losing: LosingGateway
) -> None:
    with closing(opened(losing.port)) as store:
        store.put(KEY, b"one", NEW)
        losing.lose_replies("checkAndPut")
        store.delete(KEY, 1)

        assert losing.lost_count == 1
        assert store.put(KEY, b"two", NEW) == 3


def test_a_write_whose_reply_is_lost_and_that_is_overwritten_has_an_unknown_outcome(
    stores: HBaseStores, losing: LosingGateway
) -> None:
    """Whether the version between the two is this write's can't be told any more."""
    other = stores.open()
    with closing(opened(losing.port)) as store:
        losing.lose_replies("checkAndPut", meanwhile=lambda: other.put(KEY, b"two", 1))

        with pytest.raises(MetadataUnavailableError, match="the outcome of a write"):
            store.put(KEY, b"one", NEW)

        assert other.get(KEY) == Versioned(b"two", 2)


def test_a_write_that_was_refused_in_a_lost_reply_is_refused(
    stores: HBaseStores, losing: LosingGateway
) -> None:
    """The version that it should have written is another writer's."""
    row = session_row("refused")
    first, late = first_entry(timeout_s=1.0), first_entry(timeout_s=2.0)
    stores.table.replace(row, None, first)
    with closing(gateways_at(losing.port)) as gateways:
        table = MetadataTable("faults_cluster", gateways, answer_s=15.0, elapsed_s=time.monotonic)
        losing.lose_replies("checkAndPut")

        refused = table.replace(row, None, late)

        assert losing.lost_count == 1
        assert refused == Refused(first.to_bytes())


def test_a_call_to_a_hanging_gateway_is_repeated_at_another_one(
    stores: HBaseStores, hanging_port: int, hbase: LocalHBase
) -> None:
    del stores  # it created the table
    with closing(opened(hanging_port, hbase.ports.thrift, call_s=0.5)) as store:
        assert store.put(KEY, b"one", NEW) == 1
        assert store.get(KEY) == Versioned(b"one", 1)


def test_a_store_behind_hanging_gateways_is_unavailable(hanging_port: int) -> None:
    begun_s = time.monotonic()

    with pytest.raises(MetadataUnavailableError, match="did not answer"):
        opened(hanging_port, call_s=0.2, answer_s=0.5)

    assert time.monotonic() - begun_s < PLENTY_S


# --- sessions ------------------------------------------------------------------------------------


def test_an_observer_ends_the_session_of_a_paused_holder_who_learns_of_it_once(
    stores: HBaseStores, hbase: LocalHBase
) -> None:
    threads = PausedThreads()
    calls: list[str] = []
    with closing(opened(hbase.ports.thrift, threads=threads)) as holder:
        session = holder.open_session(timeout_s=TIMEOUT_S, lost=lambda: calls.append("lost"))
        holder.put(KEY, b"mine", NEW, session=session)
        observer = stores.open()
        assert observer.get(KEY) is not None

        begun_s = time.monotonic()
        until(lambda: observer.get(KEY) is None, within_s=PLENTY_S)

        assert time.monotonic() - begun_s >= 0.9 * TIMEOUT_S
        with pytest.raises(SessionLostError):
            holder.put(KEY, b"late", ANY, session=session)
        assert observer.put(KEY, b"yours", NEW) == 2
        threads.resume()
        until(lambda: calls)
        assert not session.is_live
        session.close()
    assert calls == ["lost"]


def test_a_holder_without_heartbeats_for_its_timeout_waits_for_the_store_by_its_own_clock(
    stores: HBaseStores, losing: LosingGateway
) -> None:
    """No observer ends it meanwhile: none is open. The lost replies are of heartbeats that
    succeeded, and of others that can't succeed again."""
    calls: list[str] = []
    begun_s = time.monotonic()
    store = opened(losing.port)
    session = store.open_session(timeout_s=TIMEOUT_S, lost=lambda: calls.append("lost"))

    losing.lose_replies("", times=1_000_000)
    until(lambda: not session.is_live, within_s=PLENTY_S)

    assert time.monotonic() - begun_s >= TIMEOUT_S
    losing.lose_replies("", times=0)
    until(lambda: session.is_live, within_s=PLENTY_S)
    cell = stores.table.cell(session_row(session.id))
    assert cell is not None
    assert SessionState.from_cell(session.id, cell) is not None
    store.close()
    assert calls == []


def test_a_session_survives_heartbeats_whose_replies_are_lost(
    stores: HBaseStores, losing: LosingGateway
) -> None:
    calls: list[str] = []
    with closing(opened(losing.port)) as store:
        session = store.open_session(timeout_s=TIMEOUT_S, lost=lambda: calls.append("lost"))
        store.put(KEY, b"mine", NEW, session=session)
        losing.lose_replies("checkAndPut", times=3)
        until(lambda: losing.lost_count == 3, within_s=PLENTY_S)
        before = version_of(stores, session.id)

        until(lambda: version_of(stores, session.id) >= before + 4, within_s=PLENTY_S)

        assert session.is_live
        assert stores.open().get(KEY) is not None
    assert calls == []


def test_a_session_that_is_closed_during_a_heartbeat_is_not_lost(
    stores: HBaseStores, losing: LosingGateway
) -> None:
    calls: list[str] = []
    ended: list[str] = []
    threads = PausedThreads()
    with closing(opened(losing.port, threads=threads)) as store:
        session = store.open_session(timeout_s=TIMEOUT_S, lost=lambda: calls.append("lost"))
        losing.lose_replies("checkAndPut", meanwhile=session.close)

        threads.resume(then=lambda: ended.append("heartbeats"))
        until(lambda: ended, within_s=PLENTY_S)

        assert losing.lost_count == 1
        assert version_of(stores, session.id) == 3
    assert calls == []


def test_a_session_survives_a_hanging_gateway(
    stores: HBaseStores, hanging_port: int, hbase: LocalHBase
) -> None:
    """The first heartbeat waits for it, and the next attempt is at the other one."""
    calls: list[str] = []
    with closing(opened(hanging_port, hbase.ports.thrift, call_s=0.5)) as store:
        session = store.open_session(timeout_s=4.0, lost=lambda: calls.append("lost"))

        until(lambda: version_of(stores, session.id) >= 8, within_s=PLENTY_S)

        assert session.is_live
    assert calls == []


def test_of_a_heartbeat_and_an_end_only_one_succeeds(stores: HBaseStores) -> None:
    for number in range(20):
        row = session_row(f"race-{number}")
        first = first_entry(timeout_s=1.0)
        stores.table.replace(row, None, first)
        state = SessionState.from_cell(f"race-{number}", first.to_bytes())
        assert state is not None

        with ThreadPoolExecutor(2) as threads:
            outcomes = list(
                threads.map(
                    partial(stores.table.replace, row, state.cell),
                    [next_beat(state.entry), end_of(state)],
                )
            )

        assert outcomes.count(None) == 1


def test_several_observers_end_a_session_once(
    stores: HBaseStores, hbase: LocalHBase, caplog: pytest.LogCaptureFixture
) -> None:
    """The tombstone has the version behind the last heartbeat, and stays as it is."""
    threads = PausedThreads()
    with closing(opened(hbase.ports.thrift, threads=threads)) as holder:
        session = holder.open_session(timeout_s=TIMEOUT_S, lost=lambda: None)
        holder.put(KEY, b"mine", NEW, session=session)
        observers = [stores.open() for _ in range(4)]
        for observer in observers:
            observer.watch(KEY, lambda: None)

        until(lambda: all(observer.get(KEY) is None for observer in observers), within_s=PLENTY_S)

        assert version_of(stores, session.id) == 2
        # The observer that ended it logs that afterwards.
        until(lambda: [each for each in caplog.messages if ENDED % session.id in each])
    assert len([each for each in caplog.messages if ENDED % session.id in each]) == 1


def test_a_watch_of_another_client_is_called_when_a_holder_stops(
    stores: HBaseStores, hbase: LocalHBase
) -> None:
    threads = PausedThreads()
    calls: list[str] = []
    with closing(opened(hbase.ports.thrift, threads=threads)) as holder:
        session = holder.open_session(timeout_s=TIMEOUT_S, lost=lambda: None)
        holder.put(KEY, b"mine", NEW, session=session)
        observer = stores.open()
        observer.watch(("topics",), lambda: calls.append("changed"))

        until(lambda: calls, within_s=PLENTY_S)

        assert observer.get(KEY) is None


def version_of(stores: HBaseStores, session_id: str) -> int:
    cell = stores.table.cell(session_row(session_id))
    assert cell is not None
    return Entry.from_bytes(cell, ("session", session_id)).version
