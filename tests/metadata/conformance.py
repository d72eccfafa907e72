"""The tests that every metadata store passes (metadata/store_interface.py, decision 0042).

The test module of a store has a fixture `stores` that returns a `Stores`, and imports all names of
this module. `get` and `scan` may be behind other clients, so what another client wrote is polled.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from functools import partial
from itertools import count, pairwise
from threading import Barrier, Event
from typing import Protocol, TypeVar

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from metadata.store_interface import (
    BadVersionError,
    DamagedEntryError,
    EntryExistsError,
    Expected,
    Key,
    MetadataStore,
    MetadataUnavailableError,
    NoEntryError,
    Session,
    SessionLostError,
    Versioned,
)
from tests.http.client import until
from tests.metadata.store_machine import StoreMachine

T = TypeVar("T")

NEW, ANY = Expected.NEW, Expected.ANY
KEY = ("topics", "sales")
VALUE_BYTES_MAX = 524_288
NAMES = [
    " ", "a b", "é", "日本", "😀", ".", "..", "...", "%2F", "%", "/", "a/b", "//", "\\", "\x00",
    "\n", "\x7f", "\x85", "\ufffd", "\u202e", "zookeeper", "-", "~", "*", "?", "#", "'", '"',
    "A", "a",
]  # fmt: skip
CLIENT_COUNT = 4  # clients that write at the same time
ROUND_COUNT = 5
WAIT_S_MAX = 60.0  # of a loop in a thread


class Stores(Protocol):
    """Opens clients of one store, as several processes have them. The store is empty at first. The
    fixture closes what the test left open."""

    timeout_s: float  # of the sessions in tests: a short one of those that the store allows
    example_count: int  # how many examples of the state machine are cheap

    def open(self) -> MetadataStore:
        """A client; of a store for one process it is always the same until it is closed."""

    def end_session(self, session: Session) -> None:
        """End a session of an open client as the store does when it has not heard of its holder for
        the timeout. The store has ended it when this returns, or soon after."""

    def outage(self) -> AbstractContextManager[None]:
        """No client reaches the store during the block. A store in this process is never away."""

    def write_raw(self, key: Key, data: bytes) -> None:
        """Store bytes in place of an entry, past all clients."""


# --- reading and writing -------------------------------------------------------------------------


def test_an_entry_that_was_never_written_is_absent(stores: Stores) -> None:
    store = stores.open()

    assert store.get(KEY) is None
    assert list(store.scan(("topics",))) == []


def test_a_written_entry_is_read_with_the_version_that_the_write_returned(stores: Stores) -> None:
    store = stores.open()

    version = store.put(KEY, b"one", NEW)

    assert store.get(KEY) == Versioned(b"one", version)


def test_another_client_reads_what_one_wrote(stores: Stores) -> None:
    one, other = stores.open(), stores.open()

    version = one.put(KEY, b"one", NEW)

    until(lambda: other.get(KEY) == Versioned(b"one", version))


def test_what_is_written_is_there_after_all_clients_were_closed(stores: Stores) -> None:
    store = stores.open()
    version = store.put(KEY, b"one", NEW)
    store.put(("topics", "gone"), b"", NEW)
    store.delete(("topics", "gone"), ANY)
    store.close()

    again = stores.open()

    until(lambda: list(again.scan(("topics",))) == [(KEY, Versioned(b"one", version))])
    assert again.get(("topics", "gone")) is None


def test_a_write_of_a_new_entry_is_refused_if_it_exists(stores: Stores) -> None:
    store = stores.open()
    version = store.put(KEY, b"one", NEW)

    with pytest.raises(EntryExistsError, match="topics/sales"):
        store.put(KEY, b"two", NEW)

    assert store.get(KEY) == Versioned(b"one", version)


def test_a_write_of_an_existing_entry_is_refused_if_there_is_none(stores: Stores) -> None:
    store = stores.open()

    for condition in (ANY, 0, 1, 7):
        with pytest.raises(NoEntryError, match="topics/sales"):
            store.put(KEY, b"one", condition)

    assert store.get(KEY) is None


def test_a_write_of_any_version_replaces_the_entry(stores: Stores) -> None:
    store = stores.open()
    first = store.put(KEY, b"one", NEW)

    second = store.put(KEY, b"two", ANY)

    assert second > first
    assert store.get(KEY) == Versioned(b"two", second)


def test_a_write_of_a_version_replaces_this_version_only(stores: Stores) -> None:
    store = stores.open()
    first = store.put(KEY, b"one", NEW)
    second = store.put(KEY, b"two", first)

    for condition in (first, second + 1, 0):
        with pytest.raises(BadVersionError, match="topics/sales"):
            store.put(KEY, b"three", condition)

    assert second > first
    assert store.get(KEY) == Versioned(b"two", second)


def test_a_write_of_the_same_value_is_a_new_version(stores: Stores) -> None:
    store = stores.open()
    first = store.put(KEY, b"one", NEW)

    second = store.put(KEY, b"one", first)

    assert second > first
    with pytest.raises(BadVersionError):
        store.put(KEY, b"one", first)


@pytest.mark.parametrize("is_by_version", [True, False])
def test_a_deleted_entry_is_absent(stores: Stores, is_by_version: bool) -> None:
    store = stores.open()
    version = store.put(KEY, b"one", NEW)

    store.delete(KEY, version if is_by_version else ANY)

    assert store.get(KEY) is None
    assert list(store.scan(("topics",))) == []
    with pytest.raises(NoEntryError):
        store.put(KEY, b"two", version)
    with pytest.raises(NoEntryError):
        store.put(KEY, b"two", ANY)


def test_a_deletion_is_refused_if_there_is_no_entry(stores: Stores) -> None:
    store = stores.open()
    store.put(("topics", "gone"), b"", NEW)
    store.delete(("topics", "gone"), ANY)

    for key in (KEY, ("topics", "gone")):
        for condition in (ANY, NEW, 1, 2):
            with pytest.raises(NoEntryError, match="topics/"):
                store.delete(key, condition)


def test_a_deletion_is_refused_if_the_entry_has_another_version(stores: Stores) -> None:
    store = stores.open()
    first = store.put(KEY, b"one", NEW)
    second = store.put(KEY, b"two", ANY)

    for condition in (NEW, first, second + 1, 0):
        with pytest.raises(BadVersionError, match="topics/sales"):
            store.delete(KEY, condition)

    assert store.get(KEY) == Versioned(b"two", second)


def test_versions_rise_over_deletions(stores: Stores) -> None:
    store = stores.open()
    versions = []

    for _ in range(3):
        versions.append(store.put(KEY, b"one", NEW))
        versions.append(store.put(KEY, b"two", ANY))
        store.delete(KEY, ANY)

    assert all(earlier < later for earlier, later in pairwise(versions))


def test_a_version_of_before_a_deletion_is_never_that_of_a_later_entry(stores: Stores) -> None:
    store = stores.open()
    before = store.put(KEY, b"one", NEW)
    store.delete(KEY, before)
    after = store.put(KEY, b"one", NEW)

    with pytest.raises(BadVersionError):
        store.put(KEY, b"two", before)
    with pytest.raises(BadVersionError):
        store.delete(KEY, before)
    with pytest.raises(BadVersionError):
        store.require(KEY, before)
    assert store.get(KEY) == Versioned(b"one", after)


def test_an_entry_and_those_below_it_are_independent(stores: Stores) -> None:
    store = stores.open()
    below = store.put(("a", "b", "c"), b"below", NEW)
    assert store.get(("a",)) is None
    assert store.get(("a", "b")) is None

    version = store.put(("a", "b"), b"above", NEW)
    store.delete(("a", "b"), version)

    assert store.get(("a", "b")) is None
    assert store.get(("a", "b", "c")) == Versioned(b"below", below)


# --- keys and values -----------------------------------------------------------------------------


def test_any_text_is_a_name(stores: Stores) -> None:
    store = stores.open()

    versions = {name: store.put(("names", name), name.encode(), NEW) for name in NAMES}

    found = dict(store.scan(("names",)))
    assert found == {
        ("names", name): Versioned(name.encode(), version) for name, version in versions.items()
    }
    for name, version in versions.items():
        assert store.get(("names", name)) == Versioned(name.encode(), version)
        store.delete(("names", name), version)
    assert list(store.scan(("names",))) == []


def test_any_text_is_a_prefix(stores: Stores) -> None:
    store = stores.open()

    for name in NAMES:
        version = store.put((name, "below"), b"", NEW)
        assert list(store.scan((name,))) == [((name, "below"), Versioned(b"", version))]


@pytest.mark.parametrize(
    "key", [(), ("",), ("a", ""), ("", "a"), ("\ud800",), ("a", "b\udfff"), ("a" * 1_025,)]
)
def test_a_key_out_of_range_is_refused(stores: Stores, key: Key) -> None:
    store = stores.open()

    with pytest.raises(ValueError, match="key"):
        store.get(key)
    with pytest.raises(ValueError, match="key"):
        store.put(key, b"", NEW)
    with pytest.raises(ValueError, match="key"):
        store.delete(key, ANY)
    with pytest.raises(ValueError, match="key"):
        store.require(key, 1)
    with pytest.raises(ValueError, match="key"):
        list(store.scan(key))
    with pytest.raises(ValueError, match="key"):
        store.watch(key, lambda: None)
    # The client still works: a bad key does not end its connection.
    assert store.get(KEY) is None
    store.put(KEY, b"", NEW)


def test_a_key_of_the_greatest_size_is_allowed(stores: Stores) -> None:
    store = stores.open()
    key = ("a", "b" * 1_022)

    version = store.put(key, b"long", NEW)

    assert list(store.scan(("a",))) == [(key, Versioned(b"long", version))]


@pytest.mark.parametrize(
    "value", [b"", b"\x00", bytes(range(256)), b"v" * VALUE_BYTES_MAX], ids=len
)
def test_a_value_is_any_bytes_up_to_the_greatest_size(stores: Stores, value: bytes) -> None:
    store = stores.open()

    version = store.put(KEY, value, NEW)

    assert store.get(KEY) == Versioned(value, version)
    assert list(store.scan(("topics",))) == [(KEY, Versioned(value, version))]


def test_a_larger_value_is_refused(stores: Stores) -> None:
    store = stores.open()

    with pytest.raises(ValueError, match="524289 bytes"):
        store.put(KEY, b"v" * (VALUE_BYTES_MAX + 1), NEW)

    assert store.get(KEY) is None
    store.put(KEY, b"", NEW)


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02 of a later version", b"\xff" * 100])
def test_bytes_that_are_no_entry_are_reported_with_their_key(stores: Stores, data: bytes) -> None:
    store = stores.open()
    store.put(KEY, b"one", NEW)
    stores.write_raw(KEY, data)

    with pytest.raises(DamagedEntryError, match="topics/sales"):
        until(lambda: store.get(KEY) is None)  # until the damage is read
    with pytest.raises(DamagedEntryError, match="topics/sales"):
        list(store.scan(("topics",)))
    with pytest.raises(DamagedEntryError, match="topics/sales"):
        store.put(KEY, b"two", ANY)
    with pytest.raises(DamagedEntryError, match="topics/sales"):
        store.delete(KEY, ANY)
    with pytest.raises(DamagedEntryError, match="topics/sales"):
        store.require(KEY, 1)


# --- scans ---------------------------------------------------------------------------------------


def test_a_scan_returns_what_is_below_its_prefix_and_nothing_beside_it(stores: Stores) -> None:
    store = stores.open()
    below = [("a", "1"), ("a", "2"), ("a", "2", "x")]
    beside = [("a",), ("A", "1"), ("a ", "1"), ("a-b", "1"), ("a.", "1"), ("a0",), ("ab", "1")]
    for key in (*below, *beside, ("b", "a", "1")):
        store.put(key, b"", NEW)

    assert [key for key, _ in store.scan(("a",))] == below
    assert [key for key, _ in store.scan(("a", "2"))] == [("a", "2", "x")]
    assert [key for key, _ in store.scan(("b",))] == [("b", "a", "1")]


@pytest.mark.parametrize("prefix", [("0",), ("b",), ("m", "x"), ("z",), ("m", "n", "o", "p")])
def test_a_scan_of_a_prefix_without_entries_is_empty(stores: Stores, prefix: Key) -> None:
    store = stores.open()
    for key in (("a", "1"), ("c", "1"), ("m", "n", "o")):
        store.put(key, b"", NEW)

    assert list(store.scan(prefix)) == []


def test_a_scan_is_ordered_by_the_encoded_key(stores: Stores) -> None:
    store = stores.open()
    # Encoded: %C3%A9, %F0..., B, b, b-c, b.c, b/%20, b/c, b0, b~
    ordered = [
        ("s", "é"), ("s", "😀"), ("s", "B"), ("s", "b"), ("s", "b-c"), ("s", "b.c"),
        ("s", "b", " "), ("s", "b", "c"), ("s", "b0"), ("s", "b~"),
    ]  # fmt: skip
    for key in reversed(ordered):
        store.put(key, b"", NEW)

    assert [key for key, _ in store.scan(("s",))] == ordered


def test_a_scan_returns_all_of_many_entries_once(stores: Stores) -> None:
    store = stores.open()
    # Behind a key come those that continue with "-" and ".", and then those below it.
    keys = [("many", f"{number:02}{end}") for number in range(50) for end in ("", "-", ".")]
    versions = [store.put(key, key[1].encode(), NEW) for key in keys]

    found = list(store.scan(("many",)))

    assert found == [
        (key, Versioned(key[1].encode(), version))
        for key, version in zip(keys, versions, strict=True)
    ]


def test_a_scan_during_which_entries_vanish_returns_all_others(stores: Stores) -> None:
    store, other = stores.open(), stores.open()
    keys = [("s", f"{number:03}") for number in range(150)]
    vanishing = {key for key in keys[1:] if int(key[1]) % 3}
    session = other.open_session(timeout_s=stores.timeout_s, lost=lambda: None)
    for key in keys:
        is_ephemeral = key in vanishing and int(key[1]) % 2 == 0
        other.put(key, b"", NEW, session=session if is_ephemeral else None)
    until(lambda: len(list(store.scan(("s",)))) == 150)

    scan = store.scan(("s",))
    found = [next(scan)[0]]
    session.close()
    for key in vanishing:
        if int(key[1]) % 2:
            other.delete(key, ANY)
    found += [key for key, _ in scan]

    assert len(found) == len(set(found))
    assert found == sorted(found)
    assert set(keys) - vanishing <= set(found) <= set(keys)


# --- requirements --------------------------------------------------------------------------------


def test_a_required_version_is_that_of_the_newest_write_of_any_client(stores: Stores) -> None:
    one, other = stores.open(), stores.open()
    earlier = one.put(KEY, b"", NEW)

    for _ in range(ROUND_COUNT):
        for writer, reader in ((one, other), (other, one)):
            version = writer.put(KEY, b"", ANY)

            reader.require(KEY, version)
            with pytest.raises(BadVersionError, match="topics/sales"):
                reader.require(KEY, earlier)
            earlier = version


def test_a_requirement_of_a_deleted_entry_does_not_hold(stores: Stores) -> None:
    one, other = stores.open(), stores.open()

    for _ in range(ROUND_COUNT):
        version = one.put(KEY, b"", NEW)
        other.require(KEY, version)
        one.delete(KEY, version)
        with pytest.raises(NoEntryError, match="topics/sales"):
            other.require(KEY, version)


# --- several clients -----------------------------------------------------------------------------


def test_a_condition_is_checked_against_the_newest_write_of_any_client(stores: Stores) -> None:
    one, other = stores.open(), stores.open()
    version = one.put(KEY, b"", NEW)

    for writer, late in [(one, other), (other, one)] * ROUND_COUNT:
        newer = writer.put(KEY, b"newer", version)
        with pytest.raises(BadVersionError):
            late.put(KEY, b"late", version)
        with pytest.raises(EntryExistsError):
            late.put(KEY, b"late", NEW)
        with pytest.raises(BadVersionError):
            late.delete(KEY, version)
        version = newer

    until(lambda: one.get(KEY) == other.get(KEY) == Versioned(b"newer", version))


def test_one_of_several_clients_creates_an_entry(stores: Stores) -> None:
    clients = [stores.open() for _ in range(CLIENT_COUNT)]

    for number in range(ROUND_COUNT):
        key = ("race", f"{number}")
        results = _at_once(
            [_attempt(client, key, b"%d" % index, NEW) for index, client in enumerate(clients)]
        )

        (winner,) = [index for index, result in enumerate(results) if isinstance(result, int)]
        others = results[:winner] + results[winner + 1 :]
        assert {type(result) for result in others} == {EntryExistsError}
        found = clients[winner].get(key)
        assert found == Versioned(b"%d" % winner, results[winner])


def test_one_of_several_clients_replaces_a_version(stores: Stores) -> None:
    clients = [stores.open() for _ in range(CLIENT_COUNT)]
    version = clients[0].put(KEY, b"", NEW)

    for _ in range(ROUND_COUNT):
        results = _at_once(
            [_attempt(client, KEY, b"%d" % index, version) for index, client in enumerate(clients)]
        )

        (winner,) = [index for index, result in enumerate(results) if isinstance(result, int)]
        others = results[:winner] + results[winner + 1 :]
        assert {type(result) for result in others} == {BadVersionError}
        found = clients[winner].get(KEY)
        assert found is not None
        assert found == Versioned(b"%d" % winner, results[winner])
        assert found.version > version
        version = found.version


def test_one_of_several_clients_deletes_an_entry(stores: Stores) -> None:
    clients = [stores.open() for _ in range(CLIENT_COUNT)]

    for _ in range(ROUND_COUNT):
        version = clients[0].put(KEY, b"", NEW)

        def delete(client: MetadataStore, version: int = version) -> Exception | None:
            try:
                return client.delete(KEY, version)
            except (NoEntryError, BadVersionError) as error:
                return error

        results = _at_once([lambda client=client: delete(client) for client in clients])

        assert results.count(None) == 1
        assert {type(result) for result in results if result is not None} == {NoEntryError}


def test_no_increment_of_several_clients_is_lost(stores: Stores) -> None:
    clients = [stores.open() for _ in range(CLIENT_COUNT)]
    clients[0].put(KEY, b"0", NEW)
    until(lambda: all(client.get(KEY) is not None for client in clients))

    def increment(client: MetadataStore) -> list[int]:
        deadline = time.monotonic() + WAIT_S_MAX
        versions: list[int] = []
        while len(versions) < 10:
            assert time.monotonic() < deadline, f"only {len(versions)} increments"
            found = client.get(KEY)
            assert found is not None
            try:
                versions.append(client.put(KEY, b"%d" % (int(found.value) + 1), found.version))
            except BadVersionError:
                continue
        return versions

    versions = _at_once([lambda client=client: increment(client) for client in clients])

    assert len({version for of_client in versions for version in of_client}) == 40
    assert all(of_client == sorted(of_client) for of_client in versions)
    newest = max(of_client[-1] for of_client in versions)
    until(lambda: all(client.get(KEY) == Versioned(b"40", newest) for client in clients))


def test_threads_share_a_client(stores: Stores) -> None:
    store = stores.open()

    def write(thread: int) -> None:
        for number in range(10):
            store.put(("shared", f"{thread}", f"{number}"), b"", NEW)
            assert len(list(store.scan(("shared", f"{thread}")))) == number + 1

    _at_once([lambda thread=thread: write(thread) for thread in range(CLIENT_COUNT)])

    assert len(list(store.scan(("shared",)))) == 40


# --- sessions ------------------------------------------------------------------------------------


def test_an_ephemeral_entry_is_there_until_its_session_is_closed(stores: Stores) -> None:
    store, other = stores.open(), stores.open()
    session = _session(stores, store)
    version = store.put(KEY, b"mine", NEW, session=session)
    assert session.is_live
    assert store.get(KEY) == Versioned(b"mine", version)
    until(lambda: list(other.scan(("topics",))) == [(KEY, Versioned(b"mine", version))])

    session.close()

    assert not session.is_live
    _require_absent(store, KEY, version)
    until(lambda: other.get(KEY) is None and not list(other.scan(("topics",))))


def test_an_ephemeral_entry_vanishes_when_its_client_is_closed(stores: Stores) -> None:
    store = stores.open()
    session = _session(stores, store)
    store.put(KEY, b"mine", NEW, session=session)

    store.close()

    assert not session.is_live
    other = stores.open()
    until(lambda: other.get(KEY) is None)
    other.put(KEY, b"yours", NEW)


def test_an_ephemeral_entry_vanishes_when_the_store_ends_its_session(stores: Stores) -> None:
    store, other = stores.open(), stores.open()
    session = _session(stores, store)
    version = store.put(KEY, b"mine", NEW, session=session)

    stores.end_session(session)

    until(lambda: other.get(KEY) is None and not list(other.scan(("topics",))))
    until(lambda: store.get(KEY) is None)
    _require_absent(other, KEY, version)


def test_the_holder_is_told_once_that_its_session_was_lost(stores: Stores) -> None:
    store = stores.open()
    calls: list[str] = []
    session = store.open_session(timeout_s=stores.timeout_s, lost=lambda: calls.append("lost"))
    store.put(KEY, b"mine", NEW, session=session)

    stores.end_session(session)

    until(lambda: calls)
    assert not session.is_live
    session.close()
    store.close()
    assert calls == ["lost"]


@pytest.mark.parametrize("timeouts", [0.3, 1.2])
def test_an_outage_of_the_store_ends_no_session(stores: Stores, timeouts: float) -> None:
    """The holder suspects its end meanwhile, and continues once the store has confirmed it."""
    store = stores.open()
    calls: list[str] = []
    timeout_s = 2 * stores.timeout_s  # after the outage, a busy machine needs most of it
    session = store.open_session(timeout_s=timeout_s, lost=lambda: calls.append("lost"))
    version = store.put(KEY, b"mine", NEW, session=session)
    observer = stores.open()
    observer.watch(KEY, lambda: None)

    with stores.outage():
        Event().wait(timeouts * timeout_s)

    until(lambda: session.is_live)
    store.require(KEY, version)
    observer.require(KEY, version)
    assert store.put(KEY, b"still mine", version, session=session) > version
    assert calls == []


def test_a_session_that_ended_before_an_outage_is_lost_after_it(stores: Stores) -> None:
    store, other = stores.open(), stores.open()
    calls: list[str] = []
    session = store.open_session(timeout_s=stores.timeout_s, lost=lambda: calls.append("lost"))
    store.put(KEY, b"mine", NEW, session=session)

    stores.end_session(session)
    with stores.outage():
        Event().wait(1.2 * stores.timeout_s)
        assert not session.is_live

    until(lambda: calls)
    assert not session.is_live
    until(lambda: other.get(KEY) is None)
    assert calls == ["lost"]


def test_the_holder_is_not_told_that_it_closed_its_session(stores: Stores) -> None:
    store = stores.open()
    calls: list[str] = []
    closed, lost, left = (
        store.open_session(timeout_s=stores.timeout_s, lost=lambda name=name: calls.append(name))
        for name in ("closed", "lost", "left")
    )

    closed.close()
    closed.close()
    stores.end_session(lost)
    until(lambda: "lost" in calls)
    store.close()

    assert calls == ["lost"]
    assert not left.is_live


def test_an_ended_session_writes_nothing(stores: Stores) -> None:
    store = stores.open()
    closed, lost = _session(stores, store), _session(stores, store)
    version = store.put(KEY, b"", NEW)
    closed.close()
    stores.end_session(lost)
    until(lambda: not lost.is_live)

    for session in (closed, lost):
        with pytest.raises(SessionLostError):
            store.put(("topics", "new"), b"", NEW, session=session)
        with pytest.raises(SessionLostError):
            store.put(KEY, b"mine", ANY, session=session)
        with pytest.raises(SessionLostError):
            store.put(KEY, b"mine", version, session=session)

    assert list(store.scan(("topics",))) == [(KEY, Versioned(b"", version))]


def test_a_session_that_the_store_ended_writes_nothing_before_its_holder_knows(
    stores: Stores,
) -> None:
    store, other = stores.open(), stores.open()
    session = _session(stores, store)
    store.put(("ids", "1"), b"", NEW, session=session)
    stores.end_session(session)
    until(lambda: other.get(("ids", "1")) is None)

    with pytest.raises(SessionLostError):
        store.put(KEY, b"mine", NEW, session=session)

    assert other.get(KEY) is None
    other.put(KEY, b"yours", NEW)


def test_versions_rise_over_the_end_of_a_session(stores: Stores) -> None:
    store = stores.open()
    versions = []

    for _ in range(3):
        session = _session(stores, store)
        versions.append(store.put(KEY, b"mine", NEW, session=session))
        session.close()
    versions.append(store.put(KEY, b"yours", NEW))

    assert all(earlier < later for earlier, later in pairwise(versions))
    for version in versions[:-1]:
        with pytest.raises(BadVersionError):
            store.put(KEY, b"late", version)


def test_sessions_end_one_by_one(stores: Stores) -> None:
    store, other = stores.open(), stores.open()
    one, two, three = _session(stores, store), _session(stores, store), _session(stores, other)
    for number, (client, session) in enumerate([(store, one), (store, two), (other, three)]):
        client.put(("ids", f"{number}"), b"", NEW, session=session)

    assert len({one.id, two.id, three.id}) == 3
    one.close()
    until(lambda: [key for key, _ in store.scan(("ids",))] == [("ids", "1"), ("ids", "2")])
    stores.end_session(two)
    until(lambda: [key for key, _ in store.scan(("ids",))] == [("ids", "2")])
    assert three.is_live
    three.close()
    until(lambda: not list(store.scan(("ids",))))


def test_a_write_without_a_session_makes_an_entry_persistent(stores: Stores) -> None:
    store = stores.open()
    session = _session(stores, store)
    store.put(KEY, b"mine", NEW, session=session)

    version = store.put(KEY, b"ours", ANY)
    session.close()

    assert store.get(KEY) == Versioned(b"ours", version)


def test_a_write_with_a_session_makes_an_entry_ephemeral(stores: Stores) -> None:
    store = stores.open()
    session = _session(stores, store)
    version = store.put(KEY, b"ours", NEW)

    store.put(KEY, b"mine", version, session=session)
    session.close()

    assert store.get(KEY) is None


def test_an_entry_belongs_to_the_session_that_wrote_it_last(stores: Stores) -> None:
    store, other = stores.open(), stores.open()
    one, two = _session(stores, store), _session(stores, other)
    version = store.put(KEY, b"one", NEW, session=one)

    version = other.put(KEY, b"two", version, session=two)
    one.close()

    until(lambda: store.get(KEY) == Versioned(b"two", version))
    two.close()
    until(lambda: store.get(KEY) is None)


def test_an_entry_of_an_ended_session_can_be_created_anew(stores: Stores) -> None:
    store, other = stores.open(), stores.open()
    ended, session = _session(stores, store), _session(stores, other)
    earlier = store.put(KEY, b"one", NEW, session=ended)
    ended.close()
    until(lambda: other.get(KEY) is None)

    version = other.put(KEY, b"two", NEW, session=session)

    assert version > earlier
    until(lambda: store.get(KEY) == Versioned(b"two", version))


def test_the_late_holder_of_a_lost_session_does_not_remove_the_entry_of_the_next_one(
    stores: Stores,
) -> None:
    store, other = stores.open(), stores.open()
    ended, session = _session(stores, store), _session(stores, other)
    store.put(KEY, b"one", NEW, session=ended)
    stores.end_session(ended)
    until(lambda: other.get(KEY) is None)

    version = other.put(KEY, b"two", NEW, session=session)
    until(lambda: not ended.is_live)
    ended.close()

    assert other.get(KEY) == Versioned(b"two", version)
    until(lambda: store.get(KEY) == Versioned(b"two", version))


@pytest.mark.parametrize("is_closed", [True, False])
def test_a_session_that_ends_during_its_writes_leaves_no_entry(
    stores: Stores, is_closed: bool
) -> None:
    store, other = stores.open(), stores.open()

    for number in range(ROUND_COUNT):
        session = _session(stores, store)
        has_begun = Event()
        end = partial(_end_after, has_begun, session, stores=None if is_closed else stores)

        _at_once([partial(_write_until_lost, store, session, f"{number}", has_begun), end])

        until(lambda: not list(store.scan(("ids",))) and not list(other.scan(("ids",))))


def test_an_ephemeral_entry_has_entries_below_it(stores: Stores) -> None:
    store = stores.open()
    session = _session(stores, store)
    store.put(("a", "b"), b"mine", NEW, session=session)
    version = store.put(("a", "b", "c"), b"below", NEW)

    session.close()

    assert list(store.scan(("a",))) == [(("a", "b", "c"), Versioned(b"below", version))]


@pytest.mark.parametrize("timeout_s", [-1.0, 0.0, 0.19, 3_601.0, float("inf"), float("nan")])
def test_a_timeout_out_of_range_is_refused(stores: Stores, timeout_s: float) -> None:
    store = stores.open()

    with pytest.raises(ValueError, match="timeout"):
        store.open_session(timeout_s=timeout_s, lost=lambda: None)


# --- watches -------------------------------------------------------------------------------------


class Calls:
    """Counts the calls of a watch."""

    def __init__(self) -> None:
        self.count = 0
        self.event = Event()

    def __call__(self) -> None:
        self.count += 1
        self.event.set()


@pytest.mark.parametrize("prefix", [("a",), ("a", "b"), ("a", "b", "c")])
def test_a_watch_is_called_after_each_change_at_or_below_its_prefix(
    stores: Stores, prefix: Key
) -> None:
    store, other = stores.open(), stores.open()
    calls = Calls()
    store.watch(prefix, calls)
    session = _session(stores, other)
    changes: list[Callable[[], object]] = [
        lambda: other.put(("a", "b", "c"), b"1", NEW),
        lambda: other.put(("a", "b", "c"), b"2", ANY),
        lambda: other.put(("a", "b", "c"), b"3", ANY),
        lambda: other.delete(("a", "b", "c"), ANY),
        lambda: other.put(("a", "b", "c"), b"4", NEW, session=session),
        lambda: other.put(("a", "b", "c", "d", "e"), b"5", NEW),
        session.close,
    ]

    for change in changes:
        _require_call(change, calls)


def test_a_watch_is_called_after_a_change_of_the_own_client(stores: Stores) -> None:
    store = stores.open()
    calls = Calls()
    store.watch(("a",), calls)

    _require_call(lambda: store.put(("a", "b"), b"1", NEW), calls)
    _require_call(lambda: store.delete(("a", "b"), ANY), calls)


def test_a_watch_is_called_after_the_store_ended_a_session(stores: Stores) -> None:
    store, other = stores.open(), stores.open()
    session = _session(stores, other)
    other.put(("ids", "1"), b"", NEW, session=session)
    calls = Calls()
    store.watch(("ids",), calls)
    until(lambda: store.get(("ids", "1")) is not None)

    _require_call(lambda: stores.end_session(session), calls)

    until(lambda: store.get(("ids", "1")) is None)


def test_a_watch_is_not_called_for_changes_beside_its_prefix(stores: Stores) -> None:
    store, other = stores.open(), stores.open()
    calls, calls_beside = Calls(), Calls()
    store.watch(("a", "b"), calls)
    for prefix in (("a",), ("ab",), ("b",)):
        store.watch(prefix, calls_beside)

    for key in (("a",), ("a", "b2"), ("a", "c"), ("ab",), ("ab", "b"), ("b", "a", "b")):
        _require_call(lambda key=key: other.put(key, b"", NEW), calls_beside)

    assert calls.count == 0


def test_a_cancelled_watch_is_not_called(stores: Stores) -> None:
    store, other = stores.open(), stores.open()
    cancelled, calls = Calls(), Calls()
    cancel = store.watch(("a",), cancelled)
    store.watch(("a",), calls)
    _require_call(lambda: other.put(("a", "b"), b"", NEW), calls)
    until(lambda: cancelled.count)

    cancel()
    cancel()
    count = cancelled.count
    for _ in range(ROUND_COUNT):
        _require_call(lambda: other.put(("a", "b"), b"", ANY), calls)

    assert cancelled.count == count


def test_the_last_of_many_changes_is_seen_after_a_call(stores: Stores) -> None:
    """A reader that reads after each call, and only then, sees the newest value in the end."""
    store, other = stores.open(), stores.open()
    calls = Calls()
    store.watch(KEY, calls)

    def write() -> None:
        other.put(KEY, b"0", NEW)
        for number in range(1, 50):
            other.put(KEY, b"%d" % number, ANY)

    def read() -> None:
        deadline = time.monotonic() + WAIT_S_MAX
        newest = None
        while newest is None or newest.value != b"49":
            assert calls.event.wait(deadline - time.monotonic()), f"no call after {newest}"
            calls.event.clear()
            newest = store.get(KEY)

    _at_once([write, read])


def test_a_callback_may_cancel_its_watch(stores: Stores) -> None:
    store, other = stores.open(), stores.open()
    cancelled, calls = Calls(), Calls()

    def changed() -> None:
        cancelled()
        cancel()

    cancel = store.watch(("a",), changed)
    _require_call(lambda: other.put(("a", "b"), b"", NEW), cancelled)
    store.watch(("a",), calls)
    for _ in range(ROUND_COUNT):
        _require_call(lambda: other.put(("a", "b"), b"", ANY), calls)

    assert cancelled.count == 1


# --- closing, and all of it together -------------------------------------------------------------


def test_a_closed_client_answers_nothing(stores: Stores) -> None:
    store = stores.open()
    store.put(KEY, b"", NEW)
    store.close()
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: store.get(KEY),
        lambda: store.put(KEY, b"", ANY),
        lambda: store.delete(KEY, ANY),
        lambda: list(store.scan(("topics",))),
        lambda: store.require(KEY, 1),
        lambda: store.watch(("topics",), lambda: None),
        lambda: store.open_session(timeout_s=stores.timeout_s, lost=lambda: None),
    ]

    for call in calls:
        with pytest.raises(MetadataUnavailableError, match="closed"):
            call()


def test_a_session_is_closed_after_its_client(stores: Stores) -> None:
    store = stores.open()
    session = _session(stores, store)

    store.close()
    session.close()

    assert not session.is_live


def test_the_store_is_a_map_of_versioned_values(stores: Stores) -> None:
    run_state_machine_as_test(
        lambda: StoreMachine(stores.open(), timeout_s=stores.timeout_s),
        settings=settings(max_examples=stores.example_count, stateful_step_count=30),
    )


# --- what the tests share ------------------------------------------------------------------------


def _session(stores: Stores, store: MetadataStore) -> Session:
    return store.open_session(timeout_s=stores.timeout_s, lost=lambda: None)


def _write_until_lost(store: MetadataStore, session: Session, name: str, has_begun: Event) -> None:
    deadline = time.monotonic() + WAIT_S_MAX
    for index in count():
        assert time.monotonic() < deadline, f"not refused after {index} writes"
        try:
            store.put(("ids", name, f"{index}"), b"", NEW, session=session)
        except SessionLostError:
            return
        has_begun.set()


def _end_after(has_begun: Event, session: Session, *, stores: Stores | None) -> None:
    """Close the session after its first write, or let the store end it."""
    assert has_begun.wait(WAIT_S_MAX)
    if stores is None:
        session.close()
    else:
        stores.end_session(session)


def _require_absent(store: MetadataStore, key: Key, version: int) -> None:
    assert store.get(key) is None
    for condition in (ANY, version):
        with pytest.raises(NoEntryError):
            store.put(key, b"", condition)
        with pytest.raises(NoEntryError):
            store.delete(key, condition)
    with pytest.raises(NoEntryError):
        store.require(key, version)


def _require_call(change: Callable[[], object], calls: Calls) -> None:
    count = calls.count
    change()
    until(lambda: calls.count > count, what="a call of the watch")


def _attempt(
    client: MetadataStore, key: Key, value: bytes, expected: Expected | int
) -> Callable[[], int | Exception]:
    def put() -> int | Exception:
        try:
            return client.put(key, value, expected)
        except (EntryExistsError, BadVersionError) as error:
            return error

    return put


def _at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """The results of calls that threads begin at the same moment."""
    barrier = Barrier(len(calls))

    def called(call: Callable[[], T]) -> T:
        barrier.wait(WAIT_S_MAX)
        return call()

    with ThreadPoolExecutor(len(calls)) as threads:
        return list(threads.map(called, calls))
