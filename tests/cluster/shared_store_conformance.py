"""What every implementation of tables that servers share must do (decision 0042). Modules that test
one import these tests, and have a fixture `tables`."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Protocol

import pytest

from kernel.owner_floor import Floor
from messaging.engines.engine_interface import Engine, StoreError, TakenOverError
from messaging.engines.hbase.journal import CHUNK_BYTES
from messaging.model.row_format import (
    BEFORE_ALL,
    LAST_BATCH_KEY,
    METADATA_KEY,
    LastBatch,
    StoreMetadata,
)
from tests.messaging.world import rows_of
from tuff.protocol.ids import Offset

CLUSTER_ID, OTHER_ID = "0" * 32, "1" * 32
NOON_MS = 1_480_000_000_000
ROW, HOLD = b"mns:topic:\x00\x00\x00\x01", b"hns:topic:\x00\x00\x00\x01name"
LARGE = bytes(CHUNK_BYTES + 1)  # more than fits into the cell of a commit
BOUNDS = b"\x00", b"\xff" * 4
Write = list[tuple[bytes, bytes | None]]


class MemberStore(Engine, Protocol):
    """A store of a server of a cluster (`Engine`, `SharedStore` and `CanBeTakenOver`)."""

    cell_ms: int

    def raise_time(self, floor_ms: int) -> None: ...
    def wait_until_shared(self) -> None: ...
    def require_owned(self) -> None: ...


class SharedStores(Protocol):
    """Tables for one test. Rows of a store stay out of the tables until `flush`, or until the
    server waits for them."""

    def opener(
        self, server_id: str, incarnation: int = 1, *, now_ms: int = NOON_MS
    ) -> Callable[[], MemberStore]:
        """Opens the store of one server, whose clock stands still."""

    def single(self) -> Callable[[], Engine]:
        """Opens the store for a single server."""

    def fence(self, server_id: str, incarnation: int = 1, *, now_ms: int = NOON_MS) -> Floor: ...
    def adopt(self, cluster_id: str) -> None: ...

    def flush(self, store: MemberStore) -> None:
        """Run the background work of a store."""


def last_batch(number: int, last: Offset) -> tuple[bytes, bytes]:
    row = LastBatch(batch_number=number, last=last, clock_ms=NOON_MS, seen_lsn=None)
    return LAST_BATCH_KEY, row.to_bytes(LAST_BATCH_KEY)


@pytest.fixture
def adopted(tables: SharedStores) -> SharedStores:
    tables.adopt(CLUSTER_ID)
    return tables


def test_a_server_reads_its_unflushed_rows_and_the_others_do_not(adopted: SharedStores) -> None:
    with closing(adopted.opener("a")()) as first, closing(adopted.opener("b")()) as second:
        first.write([(ROW, b"1"), (HOLD, b"2")])

        assert first.get(ROW) == b"1"
        assert rows_of(first.scan(*BOUNDS)) == [(HOLD, b"2"), (ROW, b"1")]
        assert second.get(ROW) is None
        assert rows_of(second.scan(*BOUNDS)) == []

        adopted.flush(first)
        assert second.get(ROW) == b"1"
        assert rows_of(second.scan(*BOUNDS)) == [(HOLD, b"2"), (ROW, b"1")]


def test_all_rows_can_be_read_by_others_after_a_wait(adopted: SharedStores) -> None:
    with closing(adopted.opener("a")()) as first, closing(adopted.opener("b")()) as second:
        first.write([(ROW, b"1")])
        first.write([(ROW + b"2", LARGE)])
        first.wait_until_shared()

        assert second.get(ROW) == b"1"
        assert second.get(ROW + b"2") == LARGE


def test_each_server_has_its_own_rows_about_its_store(adopted: SharedStores) -> None:
    open_first = adopted.opener("a")
    with closing(open_first()) as first, closing(adopted.opener("b")()) as second:
        first.write([(METADATA_KEY, b"of a"), (LAST_BATCH_KEY, b"1")])
        second.write([(METADATA_KEY, b"of b"), (LAST_BATCH_KEY, b"2")])
        first.wait_until_shared()
        second.wait_until_shared()

        assert (first.get(METADATA_KEY), first.get(LAST_BATCH_KEY)) == (b"of a", b"1")
        assert (second.get(METADATA_KEY), second.get(LAST_BATCH_KEY)) == (b"of b", b"2")
    with closing(open_first()) as again, closing(adopted.opener("a", 2)()) as next_start:
        assert again.get(METADATA_KEY) == b"of a"
        assert next_start.get(METADATA_KEY) is None


@pytest.mark.parametrize("batch", [[(ROW, b"late")], [(ROW, LARGE)]], ids=["small", "large"])
def test_a_fenced_server_commits_nothing(adopted: SharedStores, batch: Write) -> None:
    with closing(adopted.opener("a")()) as fenced, closing(adopted.opener("b")()) as other:
        fenced.write([(HOLD, b"1")])
        adopted.fence("a")

        with pytest.raises(TakenOverError, match="taken the tables"):
            fenced.write(batch)
        with pytest.raises(TakenOverError, match="taken the tables"):
            fenced.require_owned()
        assert other.get(ROW) is None
        other.require_owned()


def test_a_fenced_server_cannot_open_again(adopted: SharedStores) -> None:
    open_fenced = adopted.opener("a")
    open_fenced().close()
    adopted.fence("a")

    with pytest.raises(TakenOverError, match="taken the tables"):
        open_fenced()


def test_a_server_that_was_fenced_before_it_opened_cannot_open(adopted: SharedStores) -> None:
    assert adopted.fence("a").offset == BEFORE_ALL

    with pytest.raises(TakenOverError, match="taken the tables"):
        adopted.opener("a")()


def test_a_fence_does_not_concern_the_next_start_and_other_servers(adopted: SharedStores) -> None:
    with closing(adopted.opener("a", 2)()) as restarted, closing(adopted.opener("ab")()) as other:
        adopted.fence("a", 1)

        restarted.write([(ROW, b"1")])
        other.write([(HOLD, b"2")])
        restarted.require_owned()
        other.require_owned()


@pytest.mark.parametrize("value", [b"1", LARGE], ids=["small", "large"])
def test_all_rows_of_a_fenced_server_can_be_read(adopted: SharedStores, value: bytes) -> None:
    with closing(adopted.opener("a")()) as fenced, closing(adopted.opener("b")()) as other:
        fenced.write([(ROW, b"settled"), (HOLD, b"old"), (ROW + b"2", b"deleted")])
        adopted.flush(fenced)
        fenced.write([(ROW + b"1", value)])
        fenced.write([(HOLD, b"new"), (ROW + b"2", None)])
        assert other.get(HOLD) == b"old"

        adopted.fence("a")

        expected = [(HOLD, b"new"), (ROW, b"settled"), (ROW + b"1", value)]
        assert rows_of(other.scan(*BOUNDS)) == expected


def test_the_floor_is_above_everything_that_was_written(adopted: SharedStores) -> None:
    later_ms = NOON_MS + 3_600_000  # its clock is an hour ahead of the others
    with closing(adopted.opener("a", now_ms=later_ms)()) as fenced:
        fenced.write([(ROW, b"1"), last_batch(1, Offset(later_ms, 7))])
        floor = adopted.fence("a")

        assert floor.offset == Offset(later_ms, 7)
        assert floor.cell_ms > fenced.cell_ms > later_ms


def test_the_floor_has_the_longest_life_of_a_transaction(adopted: SharedStores) -> None:
    with closing(adopted.opener("a")()) as fenced:
        found = StoreMetadata(longest_transaction_ms=7)
        fenced.write([(METADATA_KEY, found.to_bytes(METADATA_KEY))])

        assert adopted.fence("a").longest_transaction_ms == 7


def test_a_put_with_a_slower_clock_wins_above_the_floor(adopted: SharedStores) -> None:
    ahead = adopted.opener("a", now_ms=NOON_MS + 3_600_000)
    with closing(ahead()) as fenced, closing(adopted.opener("b")()) as other:
        fenced.write([(HOLD, b"of a"), (ROW, b"of a")])
        floor = adopted.fence("a")
        other.raise_time(floor.cell_ms)
        other.write([(HOLD, b"of b"), (ROW, None)])

        other.wait_until_shared()
        adopted.flush(fenced)  # its background work was paused all the time

        assert other.cell_ms > floor.cell_ms
        with closing(adopted.opener("c")()) as third:
            assert (third.get(HOLD), third.get(ROW)) == (b"of b", None)


def test_a_store_that_was_opened_again_stays_above_the_floor(adopted: SharedStores) -> None:
    open_other = adopted.opener("b")
    floor_ms = NOON_MS + 3_600_000
    with closing(open_other()) as other:
        other.raise_time(floor_ms)
        other.write([(ROW, b"1")])
    with closing(open_other()) as again:
        assert again.cell_ms > floor_ms


def test_fencing_twice_is_harmless(adopted: SharedStores) -> None:
    with closing(adopted.opener("a")()) as fenced, closing(adopted.opener("b")()) as other:
        fenced.write([(HOLD, b"of a"), last_batch(1, Offset(NOON_MS, 7))])
        first = adopted.fence("a")
        other.raise_time(first.cell_ms)
        other.write([(HOLD, b"of b")])
        other.wait_until_shared()

        again = adopted.fence("a")

        assert again.offset == first.offset == Offset(NOON_MS, 7)
        assert again.cell_ms >= first.cell_ms
        assert other.get(HOLD) == b"of b"
        with pytest.raises(TakenOverError):
            fenced.write([(ROW, b"late")])


def test_two_fences_at_once_leave_the_server_fenced(adopted: SharedStores) -> None:
    with closing(adopted.opener("a")()) as fenced, ThreadPoolExecutor(2) as pool:
        fenced.write([(ROW, b"1"), last_batch(1, Offset(NOON_MS, 7))])
        both = [pool.submit(adopted.fence, "a") for _ in range(2)]

        assert [each.result().offset for each in both] == [Offset(NOON_MS, 7)] * 2
        with pytest.raises(TakenOverError):
            fenced.write([(ROW, b"late")])
        with closing(adopted.opener("b")()) as other:
            assert other.get(ROW) == b"1"


def test_a_single_server_refuses_the_tables_of_a_cluster(tables: SharedStores) -> None:
    tables.adopt(CLUSTER_ID)
    with pytest.raises(StoreError, match=f"belong to the cluster {CLUSTER_ID}"):
        tables.single()()


def test_a_cluster_refuses_the_tables_of_a_single_server(tables: SharedStores) -> None:
    tables.single()().close()
    with pytest.raises(StoreError, match="belong to a single server"):
        tables.adopt(CLUSTER_ID)
    with pytest.raises(StoreError, match="belong to a single server"):
        tables.opener("a")()
    tables.single()().close()


def test_a_cluster_refuses_the_tables_of_another_one(tables: SharedStores) -> None:
    tables.adopt(CLUSTER_ID)
    tables.adopt(CLUSTER_ID)
    with pytest.raises(StoreError, match=f"belong to the cluster {CLUSTER_ID}"):
        tables.adopt(OTHER_ID)
