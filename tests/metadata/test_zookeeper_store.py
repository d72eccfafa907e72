"""The metadata store in ZooKeeper: the tests of every store, on a real server."""

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from itertools import count

import pytest
from kazoo.client import KazooClient

from metadata.keys import encode_key
from metadata.store_interface import Expected, Key, Session
from metadata.zookeeper_session import ZooKeeperSession
from metadata.zookeeper_store import ZooKeeperStore
from tests.metadata.conformance import *  # noqa: F403 - the tests that every store passes
from tests.metadata.zookeeper_server import NEEDS_JAVA, ZooKeeperServer

pytestmark = NEEDS_JAVA

_root = count()  # one for each test, since all use the same server


class ZooKeeperStores:
    """Clients of one root."""

    timeout_s = 3.0
    example_count = 10

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server
        self._root = f"/test-{next(_root)}"
        self._opened: list[ZooKeeperStore] = []

    def open(self) -> ZooKeeperStore:
        store = ZooKeeperStore(self._server.address, root=self._root, elapsed_s=time.monotonic)
        self._opened.append(store)
        return store

    def end_session(self, session: Session) -> None:
        """Another client that knows a session's password can close it."""
        assert isinstance(session, ZooKeeperSession)
        id_and_password = session._connection.client.client_id
        other = KazooClient(self._server.address, client_id=id_and_password)
        other.start()
        other.stop()
        other.close()

    @contextmanager
    def outage(self) -> Iterator[None]:
        """A restart: it continues with its data and its sessions."""
        self._server.kill()
        try:
            yield
        finally:
            self._server.start()

    def write_raw(self, key: Key, data: bytes) -> None:
        with closing(KazooClient(self._server.address)) as client:
            client.start()
            client.set(f"{self._root}/entries/{encode_key(key)}", data)
            client.stop()

    def close(self) -> None:
        for store in self._opened:
            store.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.stop()


@pytest.fixture
def stores(server: ZooKeeperServer) -> Iterator[ZooKeeperStores]:
    stores = ZooKeeperStores(server)
    yield stores
    stores.close()


def test_the_znodes_are_those_of_the_formats_page(
    stores: ZooKeeperStores, server: ZooKeeperServer
) -> None:
    store = stores.open()
    session = store.open_session(timeout_s=3.0, lost=lambda: None)
    store.put(("a b", "é"), b"one", Expected.NEW, session=session)
    store.put(("a b", "x"), b"two", Expected.NEW)
    store.delete(("a b", "x"), 1)

    with closing(KazooClient(f"{server.address}{stores._root}")) as client:
        client.start()
        entry, stat = client.get("/entries/a%20b/%C3%A9")
        assert entry[:10] == bytes.fromhex("01 00 0000000000000001")
        assert entry[26:] == b"\x20" + session.id.encode() + b"one"
        assert stat.ephemeralOwner == 0
        assert client.get("/entries/a%20b/x")[0][:10] == bytes.fromhex("01 01 0000000000000002")
        assert client.get("/entries/a%20b")[0] == b"\x00"
        assert client.get("/changes/a%20b")[0] == b"a%20b/x"
        assert client.get_children("/sessions") == [session.id]
        assert client.get(f"/sessions/{session.id}")[1].ephemeralOwner != 0
        client.stop()


@pytest.mark.parametrize("window", [1, 2, 3, 5])
def test_a_scan_of_several_windows_is_ordered_and_whole(
    stores: ZooKeeperStores, monkeypatch: pytest.MonkeyPatch, window: int
) -> None:
    monkeypatch.setattr("metadata.zookeeper_znodes.SCAN_CALLS_MAX", window)
    store = stores.open()
    # Encoded: s/a, s/a%20, s/a-b, s/a/x, s/a/x-y, s/a/x/y, ..., where s/b and s/c/d are no entries
    ordered: list[Key] = [
        ("s", "a"), ("s", "a "), ("s", "a-b"), ("s", "a", "x"), ("s", "a", "x-y"),
        ("s", "a", "x", "y"), ("s", "a0"), ("s", "b-"), ("s", "b", "1"), ("s", "b", "2"),
        ("s", "c", "d", "e"), ("s", "c", "f"),
    ]  # fmt: skip
    for key in reversed(ordered):
        store.put(key, b"", Expected.NEW)

    assert [key for key, _ in store.scan(("s",))] == ordered
    assert [key for key, _ in store.scan(("s", "c"))] == ordered[-2:]
