"""The HBase engine: the conformance suite of all engines, and its own behaviour (design §5)."""

from collections.abc import Callable, Iterator
from contextlib import closing
from itertools import chain, islice
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from messaging.engines.engine_interface import Engine, StoreError
from messaging.engines.hbase.engine import HBaseStore, _Tables
from messaging.engines.hbase.journal import CHUNK_BYTES
from tests.hbase.deployments import deploy, settings_of, stores_of
from tests.hbase.local_hbase import LocalHBase
from tests.hbase.marks import NEEDS_HBASE
from tests.http.client import until
from tests.messaging.test_engines import (
    Batches,
    OpenStore,
    check_dictionary,
    keys,
    test_a_closed_store_refuses_everything_and_closes_again,
    test_the_last_value_of_a_key_wins_within_a_batch,
    test_written_rows_are_there_after_a_reopen,
)
from tests.messaging.world import rows_of
from tuff_storage.hbase_gateway import Gateways

# The conformance suite, without the test that needs `Engine.has_views`.
__all__ = [
    "test_a_closed_store_refuses_everything_and_closes_again",
    "test_the_last_value_of_a_key_wins_within_a_batch",
    "test_written_rows_are_there_after_a_reopen",
]

pytestmark = NEEDS_HBASE

ROWS = [(b"mns:topic:%04d" % number, b"\x00crc!payload %d" % number) for number in range(3_000)]
BOUNDS = b"\x00", b"\xff" * 4


@pytest.fixture
def open_store(hbase: LocalHBase) -> OpenStore:
    return stores_of(deploy(settings_of(hbase.ports)))


@pytest.fixture
def store(open_store: OpenStore) -> Iterator[Engine]:
    with closing(open_store()) as opened:
        yield opened


@pytest.fixture(scope="module")
def shared(hbase: LocalHBase) -> Iterator[Engine]:
    with closing(stores_of(deploy(settings_of(hbase.ports)))()) as opened:
        yield opened


# Keys of all four tables of HBase.
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
    shared: Engine, written: Batches, start: bytes, stop: bytes
) -> None:
    shared.write([(key, None) for key, _ in rows_of(shared.scan(*BOUNDS))])

    check_dictionary(shared, written, start=start, stop=stop)


def test_many_rows_are_scanned_in_both_directions(store: Engine) -> None:
    store.write(ROWS)

    assert rows_of(store.scan(b"mns:topic:", b"mns:topic;")) == ROWS
    assert rows_of(store.scan(b"m", b"n")) == ROWS
    assert (
        rows_of(store.scan(b"mns:topic:0500", b"mns:topic:1500", reverse=True))
        == (ROWS[500:1500][::-1])
    )


def sizes_of_answers(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of the values in all later answers of gateways that are rows."""
    call, sizes = Gateways.call, []

    def measured(self: Gateways, work: Callable[[Any], Any]) -> Any:
        found = call(self, work)
        if isinstance(found, list):
            sizes.append(sum(len(cell.value) for row in found for cell in row.columns.values()))
        return found

    monkeypatch.setattr(Gateways, "call", measured)
    return sizes


def test_answers_of_a_gateway_are_bounded(store: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gateways and region servers die of answers of hundreds of megabytes."""
    assert isinstance(store, HBaseStore)
    small = [(b"mns:topic:%04d" % number, ROWS[0][1]) for number in range(400)]
    large = [(b"mns:topic:%04d" % number, bytes(1 << 20)) for number in range(400, 440)]
    for rows in (small, *([row] for row in large)):
        store.write(rows)
    store.wait_until_shared()
    sizes = sizes_of_answers(monkeypatch)

    assert next(store.scan(large[0][0], b"n")) == large[:1]
    assert max(sizes) < 6 << 20
    assert rows_of(store.scan(b"m", b"n")) == small + large
    assert rows_of(store.scan(b"m", b"n", reverse=True)) == (small + large)[::-1]
    assert max(sizes) < 6 << 20


def test_a_page_of_small_rows_takes_two_answers(
    store: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isinstance(store, HBaseStore)
    store.write(ROWS)
    store.wait_until_shared()
    sizes = sizes_of_answers(monkeypatch)

    assert (
        len(list(islice(chain.from_iterable(store.scan(b"mns:topic:", b"mns:topic;")), 100))) == 100
    )
    assert len(sizes) == 2
    assert rows_of(store.scan(b"mns:topic:", b"mns:topic;")) == ROWS
    assert len(sizes) == 2 + 8


def test_a_scan_merges_topics_of_all_salts(store: Engine) -> None:
    rows = [(b"mns:topic-%03d:row" % number, b"value") for number in range(100)]
    store.write(rows)

    assert rows_of(store.scan(b"m", b"n")) == rows
    assert rows_of(store.scan(b"a", b"z", reverse=True)) == rows[::-1]


def test_a_batch_larger_than_a_cell_is_complete_after_opening_again(open_store: OpenStore) -> None:
    rows = [(b"mns:topic:%d" % n, bytes((n,)) * (CHUNK_BYTES // 2)) for n in range(5)]
    with closing(open_store()) as first:
        first.write(rows)
    with closing(open_store()) as second:
        assert rows_of(second.scan(b"m", b"n")) == rows


def test_commits_without_rows_in_the_tables_are_put_by_the_next_opening(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As after the death of a server before it put any rows."""
    rows = [(b"mns:topic:1", b"value"), (b"iindex", b"row"), (b"tns:topic:", b"topic")]
    with closing(open_store()) as first:
        first.write([(b"tns:topic:", b"before"), (b"mns:topic:0", b"goes")])
    with monkeypatch.context() as patch:
        patch.setattr(HBaseStore, "_flush", lambda self: None)
        dying = open_store()
        dying.write([*rows[:1], (b"mns:topic:0", None), (b"iindex", b"old")])
        dying.write(rows[1:])
        assert rows_of(dying.scan(*BOUNDS)) == sorted(rows)  # readers see them nevertheless
        assert dying.get(b"mns:topic:0") is None
    with closing(open_store()) as second:
        assert rows_of(second.scan(*BOUNDS)) == sorted(rows)


def test_rows_are_put_without_further_writes(hbase: LocalHBase, open_store: OpenStore) -> None:
    with closing(open_store()) as store:
        assert isinstance(store, HBaseStore)
        store.write([(b"mns:topic:1", b"value")])
        until(lambda: not store._is_flushing, within_s=60, what="the row to be put")
        hbase.command("flush", f"{store._prefix}message")

        assert len(hbase.command("raw", f"{store._prefix}message")) == 2


def test_a_failed_put_fails_the_next_write(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_arguments: object) -> None:
        raise StoreError("no room")

    with closing(open_store()) as first:
        with monkeypatch.context() as patch:
            patch.setattr(_Tables, "put", fails)
            first.write([(b"mns:topic:1", b"value")])
            until(lambda: not first._is_flushing, within_s=60, what="the put to fail")
        with pytest.raises(StoreError, match="no room"):
            first.write([(b"mns:topic:2", b"value")])
        assert first.get(b"mns:topic:1") == b"value"
    with closing(open_store()) as second:
        assert rows_of(second.scan(*BOUNDS)) == [(b"mns:topic:1", b"value")]


def test_a_put_that_arrives_late_changes_nothing(open_store: OpenStore) -> None:
    """A gateway that hung may carry out a put long after its outcome was resolved."""
    with closing(open_store()) as store:
        assert isinstance(store, HBaseStore)
        store.write([(b"tns:topic:", b"old"), (b"mns:topic:0", b"goes")])
        late_ms = store._commits.timestamp_ms
        store.write([(b"tns:topic:", b"new"), (b"mns:topic:0", None)])
        store.wait_until_shared()

        store._tables.put({b"tns:topic:": b"old", b"mns:topic:0": b"goes"}, late_ms)

        assert rows_of(store.scan(*BOUNDS)) == [(b"tns:topic:", b"new")]


def test_writers_wait_while_too_many_commits_are_not_put(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("messaging.engines.hbase.engine.BEHIND_COMMITS_MAX", 3)
    with closing(open_store()) as store:
        assert isinstance(store, HBaseStore)
        for number in range(40):
            store.write([(b"mns:topic:%02d" % number, b"value")])
            assert store._newest[0] - store._flushed <= 4
        assert len(rows_of(store.scan(*BOUNDS))) == 40
