"""HBase behind the seam does what every engine does, and says how it does not (design §5)."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from itertools import islice
from typing import Any

import pytest

from tests.hbase.local import LocalHBase, why_missing

pytest.importorskip("happybase")

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from messaging.storage import hbase_journal as journal
from messaging.storage.hbase import HBaseStore
from messaging.storage.hbase_commits import TRIM_SLOTS, Commits, TakenOverError
from messaging.storage.hbase_journal import CHUNK_BYTES
from messaging.storage.seam import Store, StoreError
from tests.hbase.tables import deploy, settings_of, stores_of
from tests.http.client import until
from tests.messaging.test_storage import (
    Batches,
    OpenStore,
    check_dictionary,
    keys,
    test_a_closed_store_refuses_everything_and_closes_again,
    test_the_last_value_of_a_key_wins_within_a_batch,
    test_what_was_written_is_there_after_opening_again,
)
from tuff.hbase_gateway import Gateways

# The suite of all engines; the one test that is missing here needs views (seam.Store.has_views).
__all__ = [
    "test_a_closed_store_refuses_everything_and_closes_again",
    "test_the_last_value_of_a_key_wins_within_a_batch",
    "test_what_was_written_is_there_after_opening_again",
]

pytestmark = [
    pytest.mark.slow,
    pytest.mark.hbase,
    pytest.mark.skipif(why_missing() is not None, reason=str(why_missing())),
]

ROWS = [(b"mns:topic:%04d" % number, b"\x00crc!payload %d" % number) for number in range(3_000)]
LARGE = b"%0100d"  # larger than a claim, which is kept
BOUNDS = b"\x00", b"\xff" * 4


@pytest.fixture
def open_store(hbase: LocalHBase) -> OpenStore:
    return stores_of(deploy(settings_of(hbase.ports)))


@pytest.fixture
def store(open_store: OpenStore) -> Iterator[Store]:
    with closing(open_store()) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(hbase: LocalHBase) -> Iterator[Store]:
    with closing(stores_of(deploy(settings_of(hbase.ports)))()) as opened:
        yield opened


# Keys of every table besides those of none: the salted ones, and those the journal carries.
of_tables = st.tuples(st.sampled_from([b"m", b"p", b"i", b"s", b"ma:b:", b"ma:c:"]), keys).map(
    b"".join
)
any_key = keys | of_tables
any_batches = st.lists(
    st.lists(st.tuples(any_key, st.none() | st.binary(max_size=12)), max_size=8), max_size=5
)


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(written=any_batches, start=any_key, stop=any_key)
def test_a_table_is_a_sorted_dictionary(
    shared: Store, written: Batches, start: bytes, stop: bytes
) -> None:
    shared.write([(key, None) for key, _ in shared.scan(*BOUNDS)])

    check_dictionary(shared, written, start=start, stop=stop)


def test_many_rows_are_read_in_pieces_both_ways(store: Store) -> None:
    store.write(ROWS)

    assert list(store.scan(b"mns:topic:", b"mns:topic;")) == ROWS
    assert list(store.scan(b"m", b"n")) == ROWS
    assert (
        list(store.scan(b"mns:topic:0500", b"mns:topic:1500", reverse=True))
        == (ROWS[500:1500][::-1])
    )


def sizes_of_answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many bytes of values each answer of a gateway has that is rows, from now on."""
    call, sizes = Gateways.call, []

    def measured(self: Gateways, work: Callable[[Any], Any]) -> Any:
        found = call(self, work)
        if isinstance(found, list):
            sizes.append(sum(len(cell.value) for row in found for cell in row.columns.values()))
        return found

    monkeypatch.setattr(Gateways, "call", measured)
    return sizes


def test_no_answer_is_large_whatever_rows_come_next(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A gateway that has to hold hundreds of megabytes dies of it, and so does a region server."""
    assert isinstance(store, HBaseStore)
    small = [(b"mns:topic:%04d" % number, ROWS[0][1]) for number in range(400)]
    large = [(b"mns:topic:%04d" % number, bytes(1 << 20)) for number in range(400, 440)]
    for rows in (small, *([row] for row in large)):
        store.write(rows)
    store.settle()
    sizes = sizes_of_answers(monkeypatch)

    assert next(store.scan(large[0][0], b"n")) == large[0]
    assert max(sizes) < 6 << 20
    assert list(store.scan(b"m", b"n")) == small + large
    assert list(store.scan(b"m", b"n", reverse=True)) == (small + large)[::-1]
    assert max(sizes) < 6 << 20


def test_a_page_of_small_rows_takes_two_answers(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store, HBaseStore)
    store.write(ROWS)
    store.settle()
    sizes = sizes_of_answers(monkeypatch)

    assert len(list(islice(store.scan(b"mns:topic:", b"mns:topic;"), 100))) == 100
    assert len(sizes) == 2
    assert list(store.scan(b"mns:topic:", b"mns:topic;")) == ROWS
    assert len(sizes) == 2 + 8


def test_topics_of_all_salts_are_one_order(store: Store) -> None:
    rows = [(b"mns:topic-%03d:row" % number, b"value") for number in range(100)]
    store.write(rows)

    assert list(store.scan(b"m", b"n")) == rows
    assert list(store.scan(b"a", b"z", reverse=True)) == rows[::-1]


def test_a_batch_larger_than_a_cell_is_whole_after_opening_again(open_store: OpenStore) -> None:
    rows = [(b"mns:topic:%d" % n, bytes((n,)) * (CHUNK_BYTES // 2)) for n in range(5)]
    with closing(open_store()) as first:
        first.write(rows)
    with closing(open_store()) as second:
        assert list(second.scan(b"m", b"n")) == rows


def test_commits_that_reached_no_table_are_there_after_opening_again(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if the server died before any of their rows were put."""
    rows = [(b"mns:topic:1", b"value"), (b"iindex", b"row"), (b"tns:topic:", b"topic")]
    with closing(open_store()) as first:
        first.write([(b"tns:topic:", b"before"), (b"mns:topic:0", b"goes")])
    with monkeypatch.context() as patch:
        patch.setattr(HBaseStore, "_settle", lambda self: None)
        dying = open_store()
        dying.write([*rows[:1], (b"mns:topic:0", None), (b"iindex", b"old")])
        dying.write(rows[1:])
        assert list(dying.scan(*BOUNDS)) == sorted(rows)  # readers see them all the same
        assert dying.get(b"mns:topic:0") is None
    with closing(open_store()) as second:
        assert list(second.scan(*BOUNDS)) == sorted(rows)


def test_rows_are_put_soon_without_further_writes(hbase: LocalHBase, open_store: OpenStore) -> None:
    with closing(open_store()) as store:
        assert isinstance(store, HBaseStore)
        store.write([(b"mns:topic:1", b"value")])
        until(lambda: not store._is_settling, within_s=60, what="the row to be put")
        hbase.command("flush", f"{store._prefix}message")

        assert len(hbase.command("raw", f"{store._prefix}message")) == 2


def test_rows_that_cannot_be_put_are_told_to_the_next_writer(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: object) -> None:
        raise StoreError("no room")

    with closing(open_store()) as first:
        with monkeypatch.context() as patch:
            patch.setattr(HBaseStore, "_put", fails)
            first.write([(b"mns:topic:1", b"value")])
            until(lambda: not first._is_settling, within_s=60, what="the put to fail")
        with pytest.raises(StoreError, match="no room"):
            first.write([(b"mns:topic:2", b"value")])
        assert first.get(b"mns:topic:1") == b"value"
    with closing(open_store()) as second:
        assert list(second.scan(*BOUNDS)) == [(b"mns:topic:1", b"value")]


def test_what_arrives_very_late_changes_nothing(open_store: OpenStore) -> None:
    """A gateway that hung may carry a put out long after it was resolved."""
    with closing(open_store()) as store:
        assert isinstance(store, HBaseStore)
        store.write([(b"tns:topic:", b"old"), (b"mns:topic:0", b"goes")])
        late_ms = store._commits.timestamp_ms
        store.write([(b"tns:topic:", b"new"), (b"mns:topic:0", None)])
        store.settle()

        store._put({b"tns:topic:": b"old", b"mns:topic:0": b"goes"}, late_ms)

        assert list(store.scan(*BOUNDS)) == [(b"tns:topic:", b"new")]


def test_writers_wait_where_much_is_not_put_yet(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("messaging.storage.hbase.BEHIND_COMMITS_MAX", 3)
    with closing(open_store()) as store:
        assert isinstance(store, HBaseStore)
        for number in range(40):
            store.write([(b"mns:topic:%02d" % number, b"value")])
            assert store._newest[0] - store._settled <= 4
        assert len(list(store.scan(*BOUNDS))) == 40


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
    newest = Commits._newest
    with closing(stores_of(place)()) as first:
        for _ in range(2):  # the second one says that the first may be missing
            first.write([(b"a", bytes(size_bytes))])

        def newest_of_long_ago(self: Commits) -> object:
            found = newest(self)
            monkeypatch.undo()
            for number in range(3 * TRIM_SLOTS):
                first.write([(b"a", LARGE % number)])
            return found

        monkeypatch.setattr(Commits, "_newest", newest_of_long_ago)
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
    missing = Commits._missing
    with ExitStack() as opened:

        def missing_beside_it(self: Commits, newest: journal.Commit) -> journal.Rows:
            monkeypatch.undo()
            opened.enter_context(closing(stores_of(place)()))
            return missing(self, newest)

        monkeypatch.setattr(Commits, "_missing", missing_beside_it)
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
        patch.setattr(Commits, step, _is_gone)
        with pytest.raises(StoreError, match="gone"):
            started()
    with closing(started()) as store:
        assert store.get(b"a") == b"1"


def _is_gone(*_arguments: object, **_named: object) -> None:
    raise StoreError("gone")


def test_old_commits_leave_the_journal(hbase: LocalHBase) -> None:
    place = deploy(settings_of(hbase.ports))
    open_store = stores_of(place)
    with closing(open_store()) as store:
        for number in range(200):
            store.write([(b"tns:topic:", LARGE % number)])
    with closing(open_store()) as store:
        assert store.get(b"tns:topic:") == LARGE % 199
    hbase.command("flush", f"{place.prefix}journal")
    hbase.command("major", f"{place.prefix}journal")
    puts = [cell for cell in hbase.command("raw", f"{place.prefix}journal") if " Put " in cell]
    assert len(puts) == 5  # the layout, and two claims of each opening
