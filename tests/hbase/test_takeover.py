"""Servers take the tables in HBase over from each other: only one of them writes, no commit is
lost, and the journal keeps only the slots that it needs for that (decision 0029)."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from messaging.engines.engine_interface import StoreError, TakenOverError
from messaging.engines.hbase import journal
from messaging.engines.hbase.connections_and_writes import SyncWrites
from messaging.engines.hbase.engine import HBaseStore, _Tables
from messaging.engines.hbase.journal import CHUNK_BYTES, TRIM_SLOTS, Journal
from messaging.engines.hbase.settings import HBaseSettings
from tests.hbase.deployments import deploy, settings_of, stores_of, through
from tests.hbase.local_hbase import LocalHBase
from tests.hbase.marks import NEEDS_HBASE
from tests.http.client import until
from tests.messaging.world import rows_of

pytestmark = NEEDS_HBASE

CHECKED_WITHIN_S = 120.0  # seconds, on a busy machine; a call would hang for an hour
LARGE = b"%0100d"  # larger than a claim, which is kept
BOUNDS = b"\x00", b"\xff" * 4


def test_a_replaced_store_refuses_writes_and_reopening(hbase: LocalHBase) -> None:
    place = deploy(settings_of(hbase.ports))
    open_first, open_second = stores_of(place), stores_of(place)
    with closing(open_first()) as first, closing(open_second()) as second:
        with pytest.raises(TakenOverError, match="taken"):
            first.write([(b"a", b"first")])
        second.write([(b"a", b"second")])
        until(lambda: first.get(b"a") == b"second", within_s=60, what="the row to be put")
    with pytest.raises(TakenOverError, match="process"):
        open_first()
    open_second().close()


def test_require_owned_raises_after_a_takeover(hbase: LocalHBase) -> None:
    place = deploy(settings_of(hbase.ports))
    with closing(stores_of(place)()) as first:
        first.write([(b"a", b"first")])
        first.require_owned()
        with closing(stores_of(place)()) as second:
            with pytest.raises(TakenOverError, match="taken"):
                first.require_owned()
            second.require_owned()
            for number in range(3 * TRIM_SLOTS):  # its commits are deleted, and its claim stays
                second.write([(b"tns:topic:", LARGE % number)])
            with pytest.raises(TakenOverError, match="taken"):
                first.require_owned()


def test_an_ownership_check_tries_another_gateway_after_one_hangs(hbase: LocalHBase) -> None:
    """The next check uses another one, long before the time-out of a write."""
    with socket.create_server(("127.0.0.1", 0)) as hanging, ThreadPoolExecutor(1) as pool:
        place = deploy(settings_of(hbase.ports))
        both = replace(
            through(place, hbase.ports.thrift, hanging.getsockname()[1]), timeout_s=3_600.0
        )
        with closing(stores_of(both)()) as store:
            with pytest.raises(StoreError, match="did not answer"):
                pool.submit(store.require_owned).result(CHECKED_WITHIN_S)
            pool.submit(store.require_owned).result(CHECKED_WITHIN_S)


def test_an_ownership_check_during_a_write_succeeds(
    hbase: LocalHBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check finds a slot of this store that is newer than its last known commit."""
    place = deploy(settings_of(hbase.ports))
    with closing(stores_of(place)()) as store:
        put_if_absent = SyncWrites.put_if_absent
        checked = []

        def check_behind_it(self: SyncWrites, table: bytes, row: bytes, value: bytes) -> bool:
            taken = put_if_absent(self, table, row, value)
            store.require_owned()
            checked.append(row)
            return taken

        monkeypatch.setattr(SyncWrites, "put_if_absent", check_behind_it)
        store.write([(b"a", b"1")])
        store.write([(b"a", b"2")])
        assert len(checked) == 2


def test_a_store_that_was_replaced_long_ago_refuses_writes(hbase: LocalHBase) -> None:
    """The later commits were deleted from the journal; the claims that replaced it were not."""
    place = deploy(settings_of(hbase.ports))
    with ExitStack() as opened:
        first, second, third = (
            opened.enter_context(closing(stores_of(place)())) for _ in ("first", "second", "third")
        )
        for number in range(3 * TRIM_SLOTS):
            third.write([(b"tns:topic:", LARGE % number)])
        with pytest.raises(TakenOverError, match="taken"):
            first.write([(b"a", b"first")])
        stores_of(place)().close()  # an opening deletes old slots
        for late in (second, third):
            with pytest.raises(TakenOverError, match="taken"):
                late.write([(b"a", b"late")])


def test_a_store_that_writes_continuously_can_be_taken_over(
    hbase: LocalHBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two of its commits there is time for one call, and not for puts of rows."""
    place = deploy(settings_of(hbase.ports))
    with closing(stores_of(place)()) as first:
        first.write([(b"a", b"first")])
        put = _Tables.put
        refusals = []

        def put_beside_it(self: _Tables, rows: journal.Rows, timestamp_ms: int) -> None:
            if self is not first._tables:
                with pytest.raises(StoreError) as refused:
                    first.write([(b"a", b"late")])
                refusals.append(refused.value)
            put(self, rows, timestamp_ms)

        monkeypatch.setattr(_Tables, "put", put_beside_it)
        with closing(stores_of(place)()) as second:
            assert second.get(b"a") == b"first"
    assert isinstance(refusals[0], TakenOverError)


@pytest.mark.parametrize("size_bytes", [100, CHUNK_BYTES + 1])
def test_commits_may_be_deleted_while_a_takeover_reads_them(
    hbase: LocalHBase, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    """The server that has the tables still writes. So the newest commit that a takeover finds, and
    those before it, may be deleted before it reads them."""
    place = deploy(settings_of(hbase.ports))
    newest = Journal._newest
    with closing(stores_of(place)()) as first:
        for _ in range(2):  # the second one says that rows of the first may be missing
            first.write([(b"a", bytes(size_bytes))])

        def newest_of_long_ago(self: Journal) -> object:
            found = newest(self)
            monkeypatch.undo()
            for number in range(3 * TRIM_SLOTS):
                first.write([(b"a", LARGE % number)])
            return found

        monkeypatch.setattr(Journal, "_newest", newest_of_long_ago)
        with closing(stores_of(place)()) as second:
            assert second.get(b"a") == LARGE % (3 * TRIM_SLOTS - 1)
        with pytest.raises(TakenOverError):
            first.write([(b"a", b"late")])


def test_a_takeover_that_fails_loses_no_commits(
    hbase: LocalHBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its claim, and did not put the rows that it found in the journal."""
    place = deploy(settings_of(hbase.ports))
    monkeypatch.setattr(HBaseStore, "_flush", lambda self: None)
    dying = stores_of(place)()
    for number in range(3):
        dying.write([(b"mns:topic:%d" % number, b"value")])
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(_Tables, "put", _is_gone)
            with pytest.raises(StoreError, match="gone"):
                stores_of(place)()
    with closing(stores_of(place)()) as last:
        assert len(rows_of(last.scan(*BOUNDS))) == 3


def test_a_takeover_during_a_takeover_is_not_reported_as_damage(
    hbase: LocalHBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next server deletes the slots that it reads."""
    place = deploy(settings_of(hbase.ports))
    with monkeypatch.context() as patch:
        patch.setattr(HBaseStore, "_flush", lambda self: None)
        dying = stores_of(place)()
        for number in range(3):
            dying.write([(b"a", LARGE % number)])
    missing = Journal._missing
    with ExitStack() as opened:

        def missing_beside_it(self: Journal, newest: journal.Commit) -> journal.Rows:
            monkeypatch.undo()
            opened.enter_context(closing(stores_of(place)()))
            return missing(self, newest)

        monkeypatch.setattr(Journal, "_missing", missing_beside_it)
        with pytest.raises(TakenOverError, match="taken"):
            stores_of(place)()


@pytest.mark.parametrize("step", ["_newest", "_take", "_is_newest"])
def test_a_takeover_that_failed_near_its_claim_can_be_repeated(
    hbase: LocalHBase, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The server before it is not mistaken for one that replaced it."""
    place = deploy(settings_of(hbase.ports))
    with closing(stores_of(place)()) as before:
        before.write([(b"a", b"1")])
    started = stores_of(place)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, step, _is_gone)
        with pytest.raises(StoreError, match="gone"):
            started()
    with closing(started()) as store:
        assert store.get(b"a") == b"1"


def _is_gone(*_arguments: object, **_named: object) -> None:
    raise StoreError("gone")


def test_old_commits_are_deleted_from_the_journal(hbase: LocalHBase) -> None:
    place = deploy(settings_of(hbase.ports))
    with closing(stores_of(place)()) as store:
        for number in range(200):
            store.write([(b"tns:topic:", LARGE % number)])
    with closing(stores_of(place)()) as store:
        assert store.get(b"tns:topic:") == LARGE % 199
    assert len(rows_of_journal(hbase, place)) == 5  # the layout, and two claims of each server


def test_repeated_openings_leave_two_claims(hbase: LocalHBase) -> None:
    """A store that can't be loaded is reopened five times a second."""
    place = deploy(settings_of(hbase.ports))
    stores_of(place)().close()
    open_store = stores_of(place)

    for _ in range(10):
        open_store().close()

    assert len(rows_of_journal(hbase, place)) == 5  # with those of the replaced server


def rows_of_journal(hbase: LocalHBase, place: HBaseSettings) -> list[str]:
    """The rows of the journal after a major compaction."""
    hbase.command("flush", f"{place.prefix}journal")
    hbase.command("major", f"{place.prefix}journal")
    cells = hbase.command("raw", f"{place.prefix}journal")
    return [cell for cell in cells if " Put " in cell]
