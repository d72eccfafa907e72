"""Servers take the tables in HBase over from each other: one of them writes, nothing is lost, and
the journal keeps what it needs for that, and no more (decision 0029)."""

import socket
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import replace

import pytest

from tests.hbase.local_hbase import LocalHBase, why_missing

pytest.importorskip("happybase")

from messaging.storage.engine import StoreError, TakenOverError
from messaging.storage.hbase import journal
from messaging.storage.hbase.connections_and_writes import LoggedWrites
from messaging.storage.hbase.journal import CHUNK_BYTES, TRIM_SLOTS, Journal
from messaging.storage.hbase.settings import HBaseSettings
from messaging.storage.hbase.store import HBaseStore
from tests.hbase.deployments import deploy, settings_of, stores_of, through
from tests.http.client import until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.hbase,
    pytest.mark.skipif(why_missing() is not None, reason=str(why_missing())),
]

LOOKS_WITHIN_S = 120.0  # seconds, on a busy machine; else it hangs for an hour
LARGE = b"%0100d"  # larger than a claim, which is kept
BOUNDS = b"\x00", b"\xff" * 4


def test_who_is_taken_over_can_write_nothing_any_more(hbase: LocalHBase) -> None:
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


def test_who_is_taken_over_finds_that_out_without_a_write(hbase: LocalHBase) -> None:
    place = deploy(settings_of(hbase.ports))
    with closing(stores_of(place)()) as first:
        first.write([(b"a", b"first")])
        first.require_owned()
        with closing(stores_of(place)()) as second:
            with pytest.raises(TakenOverError, match="taken"):
                first.require_owned()
            second.require_owned()
            for number in range(3 * TRIM_SLOTS):  # its commits go again, and its claim stays
                second.write([(b"tns:topic:", LARGE % number)])
            with pytest.raises(TakenOverError, match="taken"):
                first.require_owned()


def test_a_look_at_who_has_the_tables_leaves_a_gateway_that_hangs(hbase: LocalHBase) -> None:
    """Another one is asked next, and long before the time of a write is over."""
    with socket.create_server(("127.0.0.1", 0)) as hanging, ThreadPoolExecutor(1) as pool:
        place = deploy(settings_of(hbase.ports))
        both = replace(
            through(place, hbase.ports.thrift, hanging.getsockname()[1]), timeout_s=3_600.0
        )
        with closing(stores_of(both)()) as store:
            with pytest.raises(StoreError, match="did not answer"):
                pool.submit(store.require_owned).result(LOOKS_WITHIN_S)
            pool.submit(store.require_owned).result(LOOKS_WITHIN_S)


def test_who_writes_beside_its_look_is_not_taken_over(
    hbase: LocalHBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The look finds slots that the writer took since, of the last of which it knows nothing."""
    place = deploy(settings_of(hbase.ports))
    with closing(stores_of(place)()) as store:
        put_if_absent = LoggedWrites.put_if_absent
        looks = []

        def look_behind_it(self: LoggedWrites, table: bytes, row: bytes, value: bytes) -> bool:
            taken = put_if_absent(self, table, row, value)
            store.require_owned()
            looks.append(row)
            return taken

        monkeypatch.setattr(LoggedWrites, "put_if_absent", look_behind_it)
        store.write([(b"a", b"1")])
        store.write([(b"a", b"2")])
        assert len(looks) == 2


def test_who_is_taken_over_and_wakes_up_very_late_can_write_nothing(hbase: LocalHBase) -> None:
    """The commits since then are long out of the journal; what took it over is not."""
    place = deploy(settings_of(hbase.ports))
    with ExitStack() as opened:
        first, second, third = (
            opened.enter_context(closing(stores_of(place)())) for _ in ("first", "second", "third")
        )
        for number in range(3 * TRIM_SLOTS):
            third.write([(b"tns:topic:", LARGE % number)])
        with pytest.raises(TakenOverError, match="taken"):
            first.write([(b"a", b"first")])
        stores_of(place)().close()  # whoever opens it tidies up
        for late in (second, third):
            with pytest.raises(TakenOverError, match="taken"):
                late.write([(b"a", b"late")])


def test_who_writes_all_the_time_is_taken_over(
    hbase: LocalHBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two of its commits is time for one call, not for putting rows."""
    place = deploy(settings_of(hbase.ports))
    with closing(stores_of(place)()) as first:
        first.write([(b"a", b"first")])
        put = HBaseStore._put
        refusals = []

        def put_beside_it(self: HBaseStore, rows: journal.Rows, timestamp_ms: int) -> None:
            if self is not first:
                with pytest.raises(StoreError) as refused:
                    first.write([(b"a", b"late")])
                refusals.append(refused.value)
            put(self, rows, timestamp_ms)

        monkeypatch.setattr(HBaseStore, "_put", put_beside_it)
        with closing(stores_of(place)()) as second:
            assert second.get(b"a") == b"first"
    assert isinstance(refusals[0], TakenOverError)


@pytest.mark.parametrize("size_bytes", [100, CHUNK_BYTES + 1])
def test_what_is_read_of_the_journal_may_be_gone_at_once(
    hbase: LocalHBase, monkeypatch: pytest.MonkeyPatch, size_bytes: int
) -> None:
    """The newest commit that a server finds, and those before it, are old and deleted when it goes
    on: whoever it takes the tables from is still writing."""
    place = deploy(settings_of(hbase.ports))
    newest = Journal._newest
    with closing(stores_of(place)()) as first:
        for _ in range(2):  # the second one says that the first may be missing
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


def test_a_server_that_dies_while_it_takes_over_lost_nothing(
    hbase: LocalHBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has its claim, and put no rows of those that it found in the journal."""
    place = deploy(settings_of(hbase.ports))
    monkeypatch.setattr(HBaseStore, "_settle", lambda self: None)
    dying = stores_of(place)()
    for number in range(3):
        dying.write([(b"mns:topic:%d" % number, b"value")])
    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr(HBaseStore, "_put", _is_gone)
            with pytest.raises(StoreError, match="gone"):
                stores_of(place)()
    with closing(stores_of(place)()) as last:
        assert len(list(last.scan(*BOUNDS))) == 3


def test_who_is_taken_over_while_it_takes_over_calls_nothing_damaged(
    hbase: LocalHBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it reads is deleted by whoever came after it."""
    place = deploy(settings_of(hbase.ports))
    with monkeypatch.context() as patch:
        patch.setattr(HBaseStore, "_settle", lambda self: None)
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
def test_a_start_that_fails_near_its_claim_is_still_a_start(
    hbase: LocalHBase, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Whoever ran before is not taken for one that replaced it."""
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


def test_old_commits_leave_the_journal(hbase: LocalHBase) -> None:
    place = deploy(settings_of(hbase.ports))
    with closing(stores_of(place)()) as store:
        for number in range(200):
            store.write([(b"tns:topic:", LARGE % number)])
    with closing(stores_of(place)()) as store:
        assert store.get(b"tns:topic:") == LARGE % 199
    assert len(rows_of_journal(hbase, place)) == 5  # the layout, and two claims of each server


def test_a_store_that_is_opened_again_and_again_leaves_two_claims(hbase: LocalHBase) -> None:
    """As one that can't be loaded is, five times a second, until somebody mends it."""
    place = deploy(settings_of(hbase.ports))
    stores_of(place)().close()
    open_store = stores_of(place)

    for _ in range(10):
        open_store().close()

    assert len(rows_of_journal(hbase, place)) == 5  # with those of whom it replaced


def rows_of_journal(hbase: LocalHBase, place: HBaseSettings) -> list[str]:
    """What the journal holds once HBase has tidied up."""
    hbase.command("flush", f"{place.prefix}journal")
    hbase.command("major", f"{place.prefix}journal")
    cells = hbase.command("raw", f"{place.prefix}journal")
    return [cell for cell in cells if " Put " in cell]
