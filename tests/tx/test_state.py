"""Histories that once lost updates, one by one, over the pure state."""

import pytest

from tests.tx.service import NOW_MS, STORE_ID
from tuff.protocol.transaction import NO_SHORT_IN_PROGRESS, TransactionType
from tx.file_headers import FileHeader
from tx.invalid_list import invalid_before
from tx.log_records import (
    Aborted,
    BlockKept,
    BlockReserved,
    BlockReturned,
    Checkpointed,
    Committed,
    Edit,
    Invalidated,
    InvalidReason,
    PointerRange,
    Restarted,
    Started,
    Truncated,
)
from tx.monitoring import overview
from tx.snapshot_file import pack_snapshot, read_snapshot
from tx.state import TransactionState, fresh_image

FIRST = NOW_MS * 1_000_000 + 1


class Played:
    """A state, and the edits that made it."""

    def __init__(self) -> None:
        self.state = TransactionState(fresh_image(now_ms=NOW_MS))
        self.edits: list[tuple[int, Edit]] = []
        self.record(BlockReserved(NOW_MS, PointerRange(FIRST, FIRST + 100)))
        self.sync()

    def record(self, edit: Edit) -> int:
        self.edits.append((self.state.lsn + 1, edit))
        self.state.apply(*self.edits[-1])
        return self.state.lsn

    def sync(self) -> None:
        self.state.advance_view(self.state.lsn)

    def start(self, kind: TransactionType = TransactionType.SHORT, *, now_ms: int = NOW_MS) -> int:
        pointer = self.state.blocks[0].start
        self.record(Started(now_ms, pointer, kind, 30_000, now_ms + 30_000, "c", self.state.seen))
        return pointer

    def commit(self, transaction_id: int, *changes: bytes, read_only: bool = False) -> int:
        return self.record(
            Committed(NOW_MS, transaction_id, frozenset(changes), read_only, (), (), None)
        )

    def conflicts(self, transaction_id: int, *changes: bytes) -> bool:
        opened = self.state.open[transaction_id]
        return self.state.committers.conflict(opened.transaction, frozenset(changes)) is not None

    def sees(self, transaction_id: int, pointer: int) -> bool:
        return self.state.open[transaction_id].transaction.is_visible(pointer)

    def replayed(self) -> "Played":
        other = Played.__new__(Played)
        other.state = TransactionState(fresh_image(now_ms=NOW_MS))
        other.edits = []
        for _, edit in self.edits:
            other.record(edit)
        return other

    def through_a_snapshot_file(self) -> "Played":
        header = FileHeader(sequence=1, store_id=STORE_ID, created_ms=NOW_MS, lsn=self.state.lsn)
        other = Played.__new__(Played)
        _, image = read_snapshot("snapshot.1", pack_snapshot(header, self.state.image()))
        other.state, other.edits = TransactionState(image), []
        return other


@pytest.mark.parametrize("life", ["live", "replay", "snapshot"])
def test_a_commit_that_was_pending_at_a_start_conflicts_and_stays_invisible(life: str) -> None:
    played = Played()
    early = played.start()
    played.commit(early, b"k")
    reader = played.start()
    played.sync()
    later = played.start()

    if life == "replay":
        played = played.replayed()
        played.sync()
    elif life == "snapshot":
        played = played.through_a_snapshot_file()

    assert not played.sees(reader, early)
    assert played.conflicts(reader, b"k")
    assert played.sees(later, early)
    assert not played.conflicts(later, b"k")


def test_a_snapshot_file_keeps_what_was_decided_and_not_yet_in_the_view() -> None:
    played = Played()
    early = played.start()
    lsn = played.commit(early, b"k")

    again = played.through_a_snapshot_file()
    reader = again.start()

    assert not again.sees(reader, early)
    again.state.advance_view(lsn)
    assert again.sees(again.start(), early)


def test_forgetting_an_old_committer_keeps_the_new_one_of_the_same_change() -> None:
    played = Played()
    old, first = played.start(), played.start()
    played.commit(first, b"k")
    played.sync()
    second, late = played.start(), played.start()
    played.record(Aborted(NOW_MS, old, ()))
    played.commit(second, b"k")

    played.sync()

    assert played.conflicts(late, b"k")
    assert not played.sees(late, second)


def test_changes_are_forgotten_once_every_open_short_transaction_sees_them() -> None:
    played = Played()
    old, first = played.start(), played.start()
    played.commit(first, b"k")
    played.sync()
    assert len(played.state.committers) == 1
    played.start(TransactionType.LONG)

    played.record(Aborted(NOW_MS, old, ()))
    played.sync()

    assert len(played.state.committers) == 0


def test_an_ending_is_seen_only_once_it_is_durable() -> None:
    played = Played()
    one, other = played.start(), played.start()
    played.commit(one)
    played.record(Invalidated(NOW_MS, other, InvalidReason.INVALIDATED, ()))

    before = played.state.view
    played.sync()
    after = played.state.view

    assert (list(before.in_progress), list(before.invalid)) == ([one, other], [])
    assert before.read_pointer < one
    assert (list(after.in_progress), list(after.invalid)) == ([], [other])
    assert after.read_pointer == other


def test_the_bound_of_visibility_stays_below_an_ending_that_is_not_durable() -> None:
    played = Played()
    ending = played.start()
    played.commit(ending)

    assert overview(played.state).visibility_upper_bound == ending - 1


def test_the_read_pointer_ignores_long_ones_that_became_invalid() -> None:
    played = Played()
    short, long = played.start(), played.start(TransactionType.LONG)
    played.record(Checkpointed(NOW_MS, short, FIRST + 5))
    played.record(Invalidated(NOW_MS, long, InvalidReason.ABORT_OF_LONG, ()))
    played.record(Invalidated(NOW_MS, short, InvalidReason.TIMED_OUT, ()))

    played.sync()

    assert played.state.view.read_pointer == FIRST + 5
    assert list(played.state.view.invalid) == [short, long, FIRST + 5]

    highest = played.start(TransactionType.LONG)
    played.record(Invalidated(NOW_MS, highest, InvalidReason.TIMED_OUT, ()))
    played.sync()

    assert played.state.view.read_pointer == FIRST + 5 < highest


def test_a_read_only_commit_is_in_the_view_at_once() -> None:
    played = Played()
    one = played.start()

    played.commit(one, read_only=True)

    assert played.state.view.read_pointer == one
    assert list(played.state.view.in_progress) == []


def test_the_first_short_one_in_progress_counts_checkpoints_too() -> None:
    played = Played()
    long = played.start(TransactionType.LONG)
    before = played.start(TransactionType.LONG)
    played.record(Checkpointed(NOW_MS, long, FIRST + 5))
    after = played.start()

    firsts = [played.state.open[one].transaction.first_short_in_progress for one in (before, after)]

    assert firsts == [NO_SHORT_IN_PROGRESS, FIRST + 5]


def test_an_abort_takes_all_pointers_of_an_invalid_one_off_the_list() -> None:
    played = Played()
    one = played.start()
    played.record(Checkpointed(NOW_MS, one, FIRST + 5))
    played.record(Invalidated(NOW_MS, one, InvalidReason.TIMED_OUT, ()))
    played.record(Aborted(NOW_MS, one, ()))

    played.sync()

    assert list(played.state.view.invalid) == []
    assert played.state.find(FIRST + 5).transaction_id == one


def test_what_a_crash_leaves_reserved_is_lost_and_pointers_go_on_above() -> None:
    played = Played()
    one = played.start()
    played.record(BlockReserved(NOW_MS, PointerRange(FIRST + 200, FIRST + 203)))

    played.record(Restarted(NOW_MS, True, played.state.blocks))
    played.sync()

    assert played.state.next_block_start == FIRST + 203
    assert len(played.state.view.invalid) == 99 + 3
    assert one not in played.state.view.invalid
    assert FIRST + 150 not in played.state.view.invalid
    assert played.state.open[one].survived_crash
    assert played.state.invalid == played.state.view.invalid  # decisions know them as well


def test_what_was_given_back_is_in_doubt_no_more() -> None:
    played = Played()
    one = played.start()
    played.record(BlockReserved(NOW_MS, PointerRange(FIRST + 200, FIRST + 203)))

    played.record(BlockKept(NOW_MS, PointerRange(FIRST + 50, FIRST + 201)))

    left = (PointerRange(FIRST + 50, FIRST + 100), PointerRange(FIRST + 200, FIRST + 201))
    assert played.state.blocks == left
    assert not played.state.is_clean  # what is in progress may have lost a can-commit all the same
    # The message store may have been told of all of them.
    assert played.state.highest_reserved == FIRST + 202
    played.record(BlockKept(NOW_MS, PointerRange(one, FIRST + 50)))
    assert (played.state.blocks, played.state.next_block_start) == ((), one + 1)


def test_a_clean_stop_loses_nothing() -> None:
    played = Played()
    one = played.start()
    played.record(BlockReturned(NOW_MS))

    assert played.state.is_clean
    assert (played.state.blocks, played.state.next_block_start) == ((), one + 1)
    assert played.state.highest_reserved == FIRST + 99


@pytest.mark.parametrize("kind", [TransactionType.SHORT, TransactionType.LONG])
def test_committed_changes_are_kept_for_open_short_ones_alone(kind: TransactionType) -> None:
    played = Played()
    played.start(kind)

    again = played.through_a_snapshot_file()
    again.commit(again.start(), b"k")
    again.sync()

    is_kept = bool(again.state.image().commits)
    assert is_kept == (kind is TransactionType.SHORT)


def test_a_restart_leaves_no_deadline_further_away_than_its_full_time() -> None:
    played = Played()
    one = played.start()

    played.record(Restarted(NOW_MS - 20_000, False, ()))

    assert played.state.open[one].expires_at_ms == NOW_MS + 10_000
    assert not played.state.open[one].survived_crash


def test_truncation_takes_single_pointers() -> None:
    played = Played()
    one = played.start()
    played.record(Checkpointed(NOW_MS, one, FIRST + 5))
    played.record(Invalidated(NOW_MS, one, InvalidReason.TIMED_OUT, ()))
    played.record(Truncated(NOW_MS, (one,)))

    played.sync()

    assert list(played.state.view.invalid) == list(played.state.invalid) == [FIRST + 5]


def test_invalid_pointers_of_starts_before_a_time_are_found() -> None:
    played = Played()
    early = played.start()
    late = played.start(now_ms=NOW_MS + 1)
    for each in (early, late):
        played.record(Invalidated(NOW_MS + 2, each, InvalidReason.INVALIDATED, ()))

    assert invalid_before(played.state, NOW_MS + 1) == [early]

    lost = PointerRange(late + 1, late + 3)  # no outcome is known of these
    played.record(BlockKept(NOW_MS, lost))
    played.record(Restarted(NOW_MS, True, (lost,)))
    assert invalid_before(played.state, NOW_MS + 1) == [early, late + 1, late + 2]


@pytest.mark.slow
def test_ten_thousand_open_transactions_make_a_small_snapshot_file() -> None:
    played = Played()
    played.record(BlockReserved(NOW_MS, PointerRange(FIRST + 100, FIRST + 11_000)))
    for _ in range(10_000):
        played.start()

    header = FileHeader(sequence=1, store_id=STORE_ID, created_ms=NOW_MS, lsn=played.state.lsn)
    data = pack_snapshot(header, played.state.image())

    assert len(data) < 2_000_000
    found = read_snapshot("snapshot.1", data)[1]
    assert found.view == played.state.view
    for place in (0, 5_000, 9_999):
        assert found.open[place] == played.state.image().open[place]
