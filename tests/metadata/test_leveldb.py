"""The metadata store of a single process: the tests of every store, and those of its directory."""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path

import pytest

from metadata.keys import encode_key
from metadata.leveldb import LevelDbMetadataStore
from metadata.store import (
    DamagedEntryError,
    Expected,
    Key,
    MetadataUnavailableError,
    Session,
    SessionLostError,
    Versioned,
)
from tests.metadata.conformance import *  # noqa: F403 - the tests that every store passes

WRITER = """
import sys
from pathlib import Path
from metadata.leveldb import LevelDbMetadataStore
from metadata.store import Expected
store = LevelDbMetadataStore(Path(sys.argv[1]))
session = store.open_session(timeout_s=3_600.0, lost=lambda: None)
print(store.put(("ids", "1"), b"mine", Expected.NEW, session=session))
print(store.put(("topics", "sales"), b"ours", Expected.NEW), flush=True)
sys.stdin.read()
"""


class LevelDbStores:
    """The one client of a directory, opened again after it was closed."""

    timeout_s = 1.0
    example_count = 40

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._store = LevelDbMetadataStore(directory)

    def open(self) -> LevelDbMetadataStore:
        if self._store._database.calls.is_closing:
            self._store = LevelDbMetadataStore(self._directory)
        return self._store

    def end_session(self, session: Session) -> None:
        self._store.expire(session.id)

    def outage(self) -> AbstractContextManager[None]:
        return nullcontext()

    def write_raw(self, key: Key, data: bytes) -> None:
        self._store._database.write([(encode_key(key).encode(), data)])

    def close(self) -> None:
        self._store.close()


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[LevelDbStores]:
    stores = LevelDbStores(tmp_path / "metadata")
    yield stores
    stores.close()


@contextmanager
def another_process_writes(directory: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that wrote an ephemeral and a persistent entry, and has the store open until it is
    killed."""
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(directory)],
        cwd=Path(__file__).parents[2],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with writer:
        assert writer.stdout is not None
        assert [writer.stdout.readline(), writer.stdout.readline()] == ["1\n", "1\n"]
        yield writer
        writer.kill()


@contextmanager
def files_up_to(size_bytes: int) -> Iterator[None]:
    """A full disk: no file of this process grows beyond this size."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_killed_process_leaves_its_persistent_entries_only(tmp_path: Path) -> None:
    with another_process_writes(tmp_path) as writer:
        writer.send_signal(signal.SIGKILL)
        writer.wait()

    with closing(LevelDbMetadataStore(tmp_path)) as store:
        assert list(store.scan(("topics",))) == [(("topics", "sales"), Versioned(b"ours", 1))]
        assert list(store.scan(("ids",))) == []
        assert store.get(("ids", "1")) is None
        assert store.put(("ids", "1"), b"again", Expected.NEW) == 2


def test_a_store_that_another_process_has_open_is_refused(tmp_path: Path) -> None:
    with another_process_writes(tmp_path) as writer:
        with pytest.raises(MetadataUnavailableError) as refused:
            LevelDbMetadataStore(tmp_path)

        assert str(refused.value) == (
            f"the metadata store can't be opened: {tmp_path} is in use by process {writer.pid}; "
            "stop that server, or give another directory"
        )


def test_a_store_that_this_process_has_open_is_refused_and_stays_open(tmp_path: Path) -> None:
    with closing(LevelDbMetadataStore(tmp_path)) as store:
        with pytest.raises(MetadataUnavailableError, match="already open in this process"):
            LevelDbMetadataStore(tmp_path)

        assert store.put(("a",), b"", Expected.NEW) == 1


def test_a_directory_that_can_not_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()

    with pytest.raises(MetadataUnavailableError, match=r"can't open .*file/in"):
        LevelDbMetadataStore(tmp_path / "file" / "in")


def test_an_ephemeral_entry_is_absent_after_the_store_was_opened_again(tmp_path: Path) -> None:
    with closing(LevelDbMetadataStore(tmp_path)) as store:
        earlier = store.open_session(timeout_s=1.0, lost=lambda: None)
        store.put(("ids", "1"), b"mine", Expected.NEW, session=earlier)

    with closing(LevelDbMetadataStore(tmp_path)) as store:
        assert store.get(("ids", "1")) is None
        assert list(store.scan(("ids",))) == []
        with pytest.raises(SessionLostError, match=earlier.id):
            store.put(("ids", "2"), b"late", Expected.NEW, session=earlier)
        session = store.open_session(timeout_s=1.0, lost=lambda: None)
        assert store.put(("ids", "1"), b"again", Expected.NEW, session=session) == 2


def test_a_session_that_ended_can_not_be_ended_again(tmp_path: Path) -> None:
    with closing(LevelDbMetadataStore(tmp_path)) as store:
        calls: list[str] = []
        session = store.open_session(timeout_s=1.0, lost=lambda: calls.append("lost"))
        store.expire(session.id)

        store.expire(session.id)
        session.close()

        assert calls == ["lost"]


def test_the_end_of_a_session_changes_no_entry_that_is_another_ones_by_then(
    tmp_path: Path,
) -> None:
    with closing(LevelDbMetadataStore(tmp_path)) as store:
        one, two = (store.open_session(timeout_s=1.0, lost=lambda: None) for _ in range(2))
        for name, session in (("1", None), ("2", two), ("3", one)):
            store.put(("ids", name), b"", Expected.NEW, session=one)
            store.put(("ids", name), b"", Expected.ANY, session=session)
        called: list[str] = []
        for name in ("1", "2", "3"):
            store.watch(("ids", name), partial(called.append, name))

        one.close()

        assert called == ["3"]


def test_a_callback_may_use_the_store(tmp_path: Path) -> None:
    with closing(LevelDbMetadataStore(tmp_path)) as store:
        found: list[object] = []

        def copy() -> None:
            found.append(store.get(("a", "b")))
            store.put(("copy",), b"", Expected.NEW)

        store.watch(("a",), copy)
        store.put(("a", "b"), b"value", Expected.NEW)

        assert found == [Versioned(b"value", 1)]
        assert store.get(("copy",)) == Versioned(b"", 1)


def test_a_watch_that_another_callback_cancelled_is_not_called(tmp_path: Path) -> None:
    with closing(LevelDbMetadataStore(tmp_path)) as store:
        calls: list[int] = []
        cancels: list[Callable[[], None]] = []

        def changed(number: int) -> None:
            calls.append(number)
            cancels[1 - number]()

        cancels += [store.watch(("a",), partial(changed, number)) for number in range(2)]
        store.put(("a", "b"), b"", Expected.NEW)

        assert len(calls) == 1


def test_nothing_is_written_to_a_directory_that_was_moved(tmp_path: Path) -> None:
    with closing(LevelDbMetadataStore(tmp_path / "metadata")) as store:
        (tmp_path / "metadata").rename(tmp_path / "moved")
        (tmp_path / "metadata").mkdir()

        with pytest.raises(MetadataUnavailableError, match="was moved"):
            store.put(("a",), b"", Expected.NEW)


def test_after_a_write_that_failed_nothing_is_written_until_the_store_is_opened_again(
    tmp_path: Path,
) -> None:
    with closing(LevelDbMetadataStore(tmp_path)) as store:
        store.put(("a",), b"whole", Expected.NEW)
        (log,) = tmp_path.glob("*.log")
        with (
            files_up_to(log.stat().st_size + 20),
            pytest.raises(MetadataUnavailableError, match="failed"),
        ):
            store.put(("a",), b"lost", Expected.ANY)

        with pytest.raises(MetadataUnavailableError, match="until it is opened again"):
            store.put(("b",), b"", Expected.NEW)
        with pytest.raises(MetadataUnavailableError, match="until it is opened again"):
            store.delete(("a",), Expected.ANY)

    with closing(LevelDbMetadataStore(tmp_path)) as store:
        assert store.get(("a",)) == Versioned(b"whole", 1)
        assert store.put(("b",), b"", Expected.NEW) == 1


def test_a_damaged_block_is_reported(tmp_path: Path) -> None:
    with closing(LevelDbMetadataStore(tmp_path)) as store:
        store.put(("a", "b"), b"value" * 20, Expected.NEW)
        store._database.db.compact_range()
    (table,) = tmp_path.glob("*.ldb")
    table.write_bytes(table.read_bytes().replace(b"value", b"VALUE", 1))

    with closing(LevelDbMetadataStore(tmp_path)) as store:
        for call in (
            lambda: store.get(("a", "b")),
            lambda: list(store.scan(("a",))),
            lambda: store.put(("a", "b"), b"", Expected.ANY),
            lambda: store.require(("a", "b"), 1),
        ):
            with pytest.raises(DamagedEntryError, match=r"damaged: .*; restore it"):
                call()


def test_a_stored_key_that_is_none_is_reported(tmp_path: Path) -> None:
    with closing(LevelDbMetadataStore(tmp_path)) as store:
        store.put(("a", "b"), b"", Expected.NEW)
        store._database.write([(b"a/b c", b"")])

        scan = store.scan(("a",))
        assert next(scan) == (("a", "b"), Versioned(b"", 1))
        with pytest.raises(DamagedEntryError, match="'a/b c' is no encoded key"):
            next(scan)


def test_a_forked_child_can_not_use_the_store(tmp_path: Path) -> None:
    with closing(LevelDbMetadataStore(tmp_path)) as store:
        store.put(("a",), b"", Expected.NEW)
        child = os.fork()
        if not child:
            try:
                store.put(("a",), b"of the child", Expected.ANY)
            except MetadataUnavailableError:
                os._exit(7)
            os._exit(1)

        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        assert store.get(("a",)) == Versioned(b"", 1)
