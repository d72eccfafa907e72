"""The metadata store in ZooKeeper while its server is gone, hangs, or loses connections."""

import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path

import pytest

from metadata.store_interface import (
    BadVersionError,
    Expected,
    Key,
    MetadataError,
    MetadataUnavailableError,
    NoEntryError,
    SessionLostError,
    Versioned,
)
from metadata.zookeeper_store import ZooKeeperStore
from metadata.zookeeper_znodes import Found
from tests.http.client import until
from tests.metadata.links import Links
from tests.metadata.zookeeper_proxy import ZooKeeperProxy, proxy_before
from tests.metadata.zookeeper_server import (
    NEEDS_JAVA,
    ZooKeeperServer,
    free_port,
    launch_ensemble,
)

pytestmark = NEEDS_JAVA

NEW, ANY = Expected.NEW, Expected.ANY
KEY = ("owners", "sales")
HOLDER = """
import os, sys, time
from metadata.store_interface import Expected
from metadata.zookeeper_store import ZooKeeperStore

def tell(line):
    os.write(1, line.encode() + b"\\n")  # whole, while the other thread tells its line

store = ZooKeeperStore(sys.argv[1], root=sys.argv[2], elapsed_s=time.monotonic)
session = store.open_session(timeout_s=3.0, lost=lambda: tell("lost"))
store.put(("owners", "sales"), b"mine", Expected.NEW, session=session)
tell("holds")
sys.stdin.readline()
tell(str(session.is_live))
sys.stdin.read()
"""

_root = count()  # one for each test, since all use the same server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    server = ZooKeeperServer(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.stop()


@pytest.fixture
def root() -> str:
    return f"/faults-{next(_root)}"


@pytest.fixture
def proxy(server: ZooKeeperServer) -> Iterator[ZooKeeperProxy]:
    with proxy_before(server.port) as proxy:
        yield proxy


@pytest.fixture
def links() -> Iterator[Links]:
    links = Links()
    yield links
    links.close()


def threads_since(before: list[threading.Thread]) -> set[threading.Thread]:
    """Those that were begun since then. Threads of earlier tests may end meanwhile."""
    return set(threading.enumerate()) - set(before)


def store_of(address: str, root: str, *, call_s: float = 10.0) -> ZooKeeperStore:
    return ZooKeeperStore(address, root=root, elapsed_s=time.monotonic, call_s=call_s)


@contextmanager
def another_process_holds(server: ZooKeeperServer, root: str) -> Iterator[subprocess.Popen[str]]:
    """A process with an ephemeral entry of a session of three seconds."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDER, server.address, root],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "holds\n"
        yield holder
        holder.kill()


# --- the server ----------------------------------------------------------------------------------


def test_a_store_without_a_server_is_refused_with_its_address() -> None:
    before = threading.enumerate()
    address = f"127.0.0.1:{free_port()}"

    with pytest.raises(MetadataUnavailableError) as refused:
        store_of(address, "/tuff", call_s=0.5)

    assert str(refused.value) == (
        f"no ZooKeeper answers at {address} within 0.5 s; start it, or correct its addresses in "
        "the settings"
    )
    assert threads_since(before) == set()


def test_sessions_and_entries_survive_a_restart_of_the_server(
    server: ZooKeeperServer, root: str
) -> None:
    losses: list[str] = []
    with closing(store_of(server.address, root)) as store:
        session = store.open_session(timeout_s=20.0, lost=lambda: losses.append("lost"))
        version = store.put(KEY, b"mine", NEW, session=session)

        server.kill()
        server.start()

        assert store.get(KEY) == Versioned(b"mine", version)
        store.require(KEY, version)
        assert store.put(KEY, b"again", version, session=session) == version + 1
        assert session.is_live
        assert losses == []


def test_calls_are_refused_while_there_is_no_server_and_answered_afterwards(
    server: ZooKeeperServer, root: str
) -> None:
    with closing(store_of(server.address, root, call_s=1.0)) as store:
        version = store.put(KEY, b"", NEW)
        calls: list[Callable[[], object]] = [
            lambda: store.get(KEY),
            lambda: list(store.scan(("owners",))),
            lambda: store.put(KEY, b"", ANY),
        ]

        server.kill()
        try:
            for call in calls:
                with pytest.raises(MetadataUnavailableError) as refused:
                    call()
                assert str(refused.value) == (
                    f"ZooKeeper at {server.address} did not answer within 1.0 s"
                )
        finally:
            server.start()

        until(lambda: _answers(store))
        assert store.get(KEY) == Versioned(b"", version)


def test_a_write_that_a_hanging_server_may_still_carry_out_is_reported_as_that(
    server: ZooKeeperServer, root: str
) -> None:
    with closing(store_of(server.address, root, call_s=1.0)) as store:
        store.put(KEY, b"one", NEW)
        decided = threading.Event()
        original = store._znodes.commit

        def pause_and_commit(*arguments: object) -> None:
            if not decided.is_set():
                decided.set()
                server.pause()
            original(*arguments)  # type: ignore[arg-type]  # as they come

        store._znodes.commit = pause_and_commit  # type: ignore[method-assign]  # after the read

        try:
            with pytest.raises(MetadataUnavailableError) as refused:
                store.put(KEY, b"two", ANY)
        finally:
            server.resume()

        assert str(refused.value) == (
            "the write of owners/sales may or may not have been carried out: "
            f"ZooKeeper at {server.address} did not answer within 1.0 s"
        )


@pytest.mark.parametrize("silently", [True, False])
def test_a_session_that_ends_during_a_cut_is_lost_once_and_a_new_one_can_be_opened(
    server: ZooKeeperServer, links: Links, root: str, silently: bool
) -> None:
    losses: list[str] = []
    calls: list[str] = []
    link = links.to(server.port)
    with (
        closing(store_of(f"127.0.0.1:{link.port}", root, call_s=2.0)) as store,
        closing(store_of(server.address, root)) as other,
    ):
        session = store.open_session(timeout_s=3.0, lost=lambda: losses.append("lost"))
        version = store.put(KEY, b"mine", NEW, session=session)
        store.watch(KEY, lambda: calls.append("changed"))
        calls.clear()

        with links.cut(link, silently=silently):
            until(lambda: other.get(KEY) is None)
            assert not session.is_live
            assert losses == []
            with pytest.raises(MetadataUnavailableError):
                store.put(KEY, b"mine", NEW, session=session)

        until(lambda: losses)
        assert not session.is_live
        with pytest.raises(SessionLostError):
            store.put(KEY, b"mine", NEW, session=session)
        until(lambda: calls)
        another = store.open_session(timeout_s=3.0, lost=lambda: losses.append("another"))
        assert store.put(KEY, b"again", NEW, session=another) == version + 1
        assert another.is_live
        another.close()
        session.close()
        assert losses == ["lost"]


def test_a_session_is_decided_after_its_server_hung(server: ZooKeeperServer, root: str) -> None:
    """Whether it has ended depends on what the server does first when it continues."""
    losses: list[str] = []
    with closing(store_of(server.address, root, call_s=2.0)) as store:
        session = store.open_session(timeout_s=3.0, lost=lambda: losses.append("lost"))
        version = store.put(KEY, b"mine", NEW, session=session)

        server.pause()
        try:
            until(lambda: not session.is_live)
            assert losses == []
        finally:
            server.resume()

        until(lambda: session.is_live or losses)
        if session.is_live:
            store.require(KEY, version)
        else:
            until(lambda: _is_absent(store))


def test_a_server_that_accepts_connections_and_never_answers_is_passed_over(
    server: ZooKeeperServer, root: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        hosts = f"127.0.0.1:{silent.getsockname()[1]},{server.address}"
        for _ in range(2):  # the order is random
            with closing(store_of(hosts, root)) as store:
                assert store.open_session(timeout_s=60.0, lost=lambda: None).is_live


def test_watches_are_called_after_a_lost_connection_and_made_again(
    server: ZooKeeperServer, root: str
) -> None:
    with (
        closing(store_of(server.address, root)) as store,
        closing(store_of(server.address, root)) as other,
    ):
        other.put(KEY, b"one", NEW)
        calls: list[str] = []
        store.watch(("owners",), lambda: calls.append("owners"))
        cancel = store.watch(("leader",), lambda: calls.append("leader"))
        cancel()

        server.kill()
        server.start()

        until(lambda: calls)
        assert set(calls) == {"owners"}
        seen = len(calls)
        other.put(KEY, b"two", ANY)
        until(lambda: len(calls) > seen)


@pytest.mark.slow
def test_a_store_and_its_session_survive_the_loss_of_each_of_three_servers(tmp_path: Path) -> None:
    losses: list[str] = []
    servers = launch_ensemble(tmp_path, 3)
    try:
        for each in servers:
            each.wait()
        hosts = ",".join(each.address for each in servers)
        with (
            closing(store_of(hosts, "/tuff", call_s=20.0)) as store,
            closing(store_of(hosts, "/tuff", call_s=20.0)) as other,
        ):
            called = threading.Event()
            other.watch(KEY, called.set)
            session = store.open_session(timeout_s=20.0, lost=lambda: losses.append("lost"))
            version = store.put(KEY, b"mine", NEW, session=session)

            for each in servers:  # one of them is the leader, and one or two have the connections
                each.kill()
                called.clear()
                version = store.put(KEY, b"mine", version, session=session)
                other.require(KEY, version)
                assert called.wait(60.0)
                assert session.is_live
                each.start()

            assert losses == []
            assert version == 4
            session.close()
            with pytest.raises(NoEntryError):
                other.require(KEY, version)
    finally:
        for each in servers:
            each.kill()


# --- the holder of a session ---------------------------------------------------------------------


def test_a_paused_holder_knows_at_once_that_its_session_may_have_ended(
    server: ZooKeeperServer, root: str
) -> None:
    with (
        closing(store_of(server.address, root)) as store,
        another_process_holds(server, root) as holder,
    ):
        assert holder.stdin is not None
        assert holder.stdout is not None
        called = threading.Event()
        store.watch(KEY, called.set)

        holder.send_signal(signal.SIGSTOP)
        assert called.wait(60.0)
        until(lambda: store.get(KEY) is None)
        assert store.put(KEY, b"yours", NEW) == 2
        holder.stdin.write("\n")
        holder.stdin.flush()
        holder.send_signal(signal.SIGCONT)

        assert sorted(holder.stdout.readline() for _ in range(2)) == ["False\n", "lost\n"]
        assert store.get(KEY) == Versioned(b"yours", 2)


def test_a_holder_counts_its_timeout_by_its_own_clock(server: ZooKeeperServer, root: str) -> None:
    losses: list[str] = []
    ahead_s = [0.0]
    store = ZooKeeperStore(
        server.address, root=root, elapsed_s=lambda: time.monotonic() + ahead_s[0]
    )
    with closing(store):
        session = store.open_session(timeout_s=20.0, lost=lambda: losses.append("lost"))
        assert session.is_live

        ahead_s[0] = 20.0

        assert not session.is_live
        until(lambda: session.is_live)
        assert losses == []


def test_an_entry_of_a_killed_holder_vanishes_and_its_watch_is_called(
    server: ZooKeeperServer, root: str
) -> None:
    with (
        closing(store_of(server.address, root)) as store,
        another_process_holds(server, root) as holder,
    ):
        called = threading.Event()
        store.watch(KEY, called.set)
        assert store.get(KEY) == Versioned(b"mine", 1)

        holder.kill()

        assert called.wait(60.0)
        assert store.get(KEY) is None


def test_a_timeout_that_the_server_does_not_grant_is_refused(tmp_path: Path) -> None:
    server = ZooKeeperServer(tmp_path, session_ms_max=2_000)
    try:
        with closing(store_of(server.address, "/tuff")) as store:
            assert store.open_session(timeout_s=2.0, lost=lambda: None).is_live

            with pytest.raises(MetadataError) as refused:
                store.open_session(timeout_s=2.5, lost=lambda: None)

            assert str(refused.value) == (
                f"ZooKeeper at {server.address} grants a session timeout of 2.0 s instead of 2.5 "
                "s; it grants 2 to 20 of its ticks (tickTime), or what its minSessionTimeout and "
                "maxSessionTimeout say; correct cluster.session_timeout"
            )
    finally:
        server.stop()


# --- lost transactions ---------------------------------------------------------------------------


@pytest.mark.parametrize("part", ["request", "reply"])
@pytest.mark.parametrize("is_new", [True, False])
def test_a_write_that_was_lost_is_carried_out_once(
    server: ZooKeeperServer, proxy: ZooKeeperProxy, root: str, part: str, is_new: bool
) -> None:
    with (
        closing(store_of(proxy.address, root)) as store,
        closing(store_of(server.address, root)) as other,
    ):
        other.put(("owners", "other"), b"", NEW)  # creates the parents
        expected = NEW if is_new else other.put(KEY, b"one", NEW)
        version = 1 if is_new else 2
        proxy.lose(part)

        assert store.put(KEY, b"mine", expected) == version

        assert proxy.has_lost.is_set()
        assert other.get(KEY) == Versioned(b"mine", version)
        assert other.put(KEY, b"next", version) == version + 1


@pytest.mark.parametrize("part", ["request", "reply"])
def test_a_deletion_that_was_lost_is_carried_out_once(
    server: ZooKeeperServer, proxy: ZooKeeperProxy, root: str, part: str
) -> None:
    with closing(store_of(proxy.address, root)) as store:
        version = store.put(KEY, b"one", NEW)
        proxy.lose(part)

        store.delete(KEY, version)

        assert proxy.has_lost.is_set()
        assert store.get(KEY) is None
        assert store.put(KEY, b"two", NEW) == 3


def test_a_requirement_whose_reply_was_lost_holds(
    server: ZooKeeperServer, proxy: ZooKeeperProxy, root: str
) -> None:
    with closing(store_of(proxy.address, root)) as store:
        version = store.put(KEY, b"one", NEW)
        proxy.lose("reply")

        store.require(KEY, version)

        assert proxy.has_lost.is_set()


def test_a_lost_request_is_refused_if_another_client_wrote_the_version(
    server: ZooKeeperServer, proxy: ZooKeeperProxy, root: str
) -> None:
    with (
        closing(store_of(proxy.address, root)) as store,
        closing(store_of(server.address, root)) as other,
    ):
        version = store.put(KEY, b"one", NEW)
        proxy.lose("request", meanwhile=lambda: other.put(KEY, b"theirs", version))

        with pytest.raises(BadVersionError, match="has version 2, not 1"):
            store.put(KEY, b"mine", version)

        assert other.get(KEY) == Versioned(b"theirs", 2)


def test_the_outcome_of_a_lost_write_is_unknown_once_it_was_overwritten(
    server: ZooKeeperServer, proxy: ZooKeeperProxy, root: str
) -> None:
    with (
        closing(store_of(proxy.address, root)) as store,
        closing(store_of(server.address, root)) as other,
    ):
        version = store.put(KEY, b"one", NEW)
        proxy.lose("reply", meanwhile=lambda: other.put(KEY, b"theirs", ANY))

        with pytest.raises(MetadataUnavailableError) as refused:
            store.put(KEY, b"mine", version)

        assert str(refused.value) == (
            "the write of owners/sales may or may not have been carried out: others have written "
            "since"
        )
        assert other.get(KEY) == Versioned(b"theirs", 3)


def test_a_server_that_is_behind_refuses_and_confirms_nothing(
    server: ZooKeeperServer, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One server of several may answer reads from an older state than that of the last write."""
    with (
        closing(store_of(server.address, root)) as store,
        closing(store_of(server.address, root)) as other,
    ):
        first = other.put(KEY, b"one", NEW)
        find = store._znodes.find
        older = find(KEY, time.monotonic() + 10.0)
        second = other.put(KEY, b"two", ANY)

        def find_older(key: Key, deadline_s: float, *, is_newest: bool = False) -> Found:
            return find(key, deadline_s, is_newest=True) if is_newest else older

        monkeypatch.setattr(store._znodes, "find", find_older)

        store.require(KEY, second)
        with pytest.raises(BadVersionError):
            store.require(KEY, first)
        with pytest.raises(BadVersionError):
            store.put(KEY, b"late", first)
        assert store.put(KEY, b"three", second) == 3
        store.delete(KEY, 3)
        with pytest.raises(NoEntryError):
            store.require(KEY, first)
        assert store.put(KEY, b"four", NEW) == 5


# --- places, and the end -------------------------------------------------------------------------


def test_a_path_behind_the_addresses_is_created_and_precedes_the_root(
    server: ZooKeeperServer, root: str
) -> None:
    with (
        closing(store_of(f"{server.address}{root}/a", "/b")) as store,
        closing(store_of(server.address, f"{root}/a/b")) as same,
        closing(store_of(server.address, f"{root}/a/b/c")) as other,
    ):
        version = store.put(KEY, b"", NEW)

        assert same.get(KEY) == Versioned(b"", version)
        assert other.get(KEY) is None


@pytest.mark.parametrize(
    "root", ["", "/", "tuff", "/tuff/", "//tuff", "/a b", "/../x", "/zookeeper/x"]
)
def test_a_root_that_zookeeper_can_not_have_is_refused(server: ZooKeeperServer, root: str) -> None:
    before = threading.enumerate()

    with pytest.raises(ValueError, match="is not a root"):
        store_of(server.address, root)

    assert threads_since(before) == set()


@pytest.mark.parametrize("hosts", ["", ":2181", "localhost:x", "localhost:1,,"])
def test_addresses_that_are_none_are_refused(hosts: str) -> None:
    with pytest.raises(ValueError, match="are not addresses of ZooKeeper"):
        store_of(hosts, "/tuff")


def test_a_closed_store_leaves_no_thread(server: ZooKeeperServer, root: str) -> None:
    before = threading.enumerate()
    store = store_of(server.address, root)
    open_session, closed_session = (
        store.open_session(timeout_s=3.0, lost=lambda: None) for _ in range(2)
    )
    store.watch(("owners",), lambda: None)
    closed_session.close()
    assert open_session.is_live

    store.close()

    assert threads_since(before) == set()


def test_a_store_is_closed_in_a_bounded_time_while_its_server_hangs(
    server: ZooKeeperServer, root: str
) -> None:
    before = threading.enumerate()
    store = store_of(server.address, root, call_s=2.0)
    store.open_session(timeout_s=40.0, lost=lambda: None)

    server.pause()
    try:
        started_s = time.monotonic()
        store.close()
        assert time.monotonic() - started_s < 35.0  # it does not wait for the session's forty
    finally:
        server.resume()

    until(lambda: threads_since(before) == set())


def _answers(store: ZooKeeperStore) -> bool:
    try:
        store.get(KEY)
    except MetadataUnavailableError:
        return False
    return True


def _is_absent(store: ZooKeeperStore) -> bool:
    try:
        return store.get(KEY) is None
    except MetadataUnavailableError:
        return False
