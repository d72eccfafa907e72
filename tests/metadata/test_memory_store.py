"""The metadata store in memory, with which clusters are tested: the tests of every store."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import pytest

from metadata.keys import encode_key
from metadata.store_interface import Expected, Key, Session, SessionLostError, Versioned
from tests.metadata.conformance import *  # noqa: F403 - the tests that every store passes
from tests.metadata.memory_store import MemoryMetadataStore


class MemoryStores:
    """The one client, which another one continues after it was closed."""

    timeout_s = 1.0
    example_count = 40

    def __init__(self) -> None:
        self._store = MemoryMetadataStore()

    def open(self) -> MemoryMetadataStore:
        if self._store.is_closed:
            self._store = MemoryMetadataStore(self._store.rows)
        return self._store

    def end_session(self, session: Session) -> None:
        self._store.expire(session.id)

    def outage(self) -> AbstractContextManager[None]:
        return nullcontext()

    def write_raw(self, key: Key, data: bytes) -> None:
        self._store.rows[encode_key(key)] = data

    def close(self) -> None:
        self._store.close()


@pytest.fixture
def stores() -> Iterator[MemoryStores]:
    stores = MemoryStores()
    yield stores
    stores.close()


def test_an_ephemeral_entry_is_absent_after_the_store_was_opened_again(
    stores: MemoryStores,
) -> None:
    store = stores.open()
    earlier = store.open_session(timeout_s=1.0, lost=lambda: None)
    store.put(("ids", "1"), b"mine", Expected.NEW, session=earlier)
    store.close()

    store = stores.open()

    assert store.get(("ids", "1")) is None
    assert list(store.scan(("ids",))) == []
    with pytest.raises(SessionLostError, match=earlier.id):
        store.put(("ids", "2"), b"late", Expected.NEW, session=earlier)
    session = store.open_session(timeout_s=1.0, lost=lambda: None)
    assert store.put(("ids", "1"), b"again", Expected.NEW, session=session) == 2


def test_a_session_that_ended_can_not_be_ended_again(store: MemoryMetadataStore) -> None:
    calls: list[str] = []
    session = store.open_session(timeout_s=1.0, lost=lambda: calls.append("lost"))
    store.expire(session.id)

    store.expire(session.id)
    session.close()

    assert calls == ["lost"]


def test_the_end_of_a_session_changes_no_entry_that_is_another_ones_by_then(
    store: MemoryMetadataStore,
) -> None:
    one, two = (store.open_session(timeout_s=1.0, lost=lambda: None) for _ in range(2))
    for name, session in (("1", None), ("2", two), ("3", one)):
        store.put(("ids", name), b"", Expected.NEW, session=one)
        store.put(("ids", name), b"", Expected.ANY, session=session)
    called: list[str] = []
    for name in ("1", "2", "3"):
        store.watch(("ids", name), partial(called.append, name))

    one.close()

    assert called == ["3"]


def test_a_callback_may_use_the_store(store: MemoryMetadataStore) -> None:
    found: list[object] = []

    def copy() -> None:
        found.append(store.get(("a", "b")))
        store.put(("copy",), b"", Expected.NEW)

    store.watch(("a",), copy)
    store.put(("a", "b"), b"value", Expected.NEW)

    assert found == [Versioned(b"value", 1)]
    assert store.get(("copy",)) == Versioned(b"", 1)


def test_a_watch_that_another_callback_cancelled_is_not_called(store: MemoryMetadataStore) -> None:
    calls: list[int] = []
    cancels: list[Callable[[], None]] = []

    def changed(number: int) -> None:
        calls.append(number)
        cancels[1 - number]()

    cancels += [store.watch(("a",), partial(changed, number)) for number in range(2)]
    store.put(("a", "b"), b"", Expected.NEW)

    assert len(calls) == 1
