"""Snapshot isolation, against a model that remembers everything and compares everything."""

from copy import deepcopy
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from tests.tx.service import NOW_MS, STORE_ID
from tuff.protocol.errors import TuffError
from tuff.protocol.transaction import Transaction, TransactionType
from tx.consistency import contradiction
from tx.file_headers import FileHeader
from tx.invalid_list import truncate
from tx.log_records import (
    Aborted,
    BlockKept,
    BlockReserved,
    Checkpointed,
    Committed,
    Committing,
    Edit,
    EpochBegun,
    Invalidated,
    InvalidReason,
    PointerRange,
    Prepared,
    Refused,
    Restarted,
    Started,
    Truncated,
)
from tx.outcomes import EndedState, OpenTransaction
from tx.settings import TransactionSettings
from tx.sinks import EpochRequest, Step, next_step
from tx.snapshot_file import pack_snapshot, read_snapshot
from tx.state import StateImage, TransactionState, fresh_image
from tx.transaction_decisions import abort_edit, all_changes, can_commit, may_be_aborted

KEYS = st.frozensets(st.sampled_from([b"a", b"b"]), max_size=2)
CHOICE = st.integers(0, 5)
SETTINGS = TransactionSettings()
HEADER = FileHeader(sequence=1, store_id=STORE_ID, created_ms=NOW_MS, lsn=0)


@dataclass
class Tx:
    """A transaction in the model. `sees` are those that had durably committed at its start."""

    is_short: bool
    sees: frozenset[int]
    pointers: list[int]
    changes: frozenset[bytes] = frozenset()
    state: str = "open"
    ended_lsn: int = 0
    is_refused: bool = False
    is_prepared: bool = False


@dataclass
class Model:
    """The history up to one edit: brute force, and no lists of anything excluded."""

    transactions: dict[int, Tx] = field(default_factory=dict)
    lost: set[int] = field(default_factory=set)
    truncated: set[int] = field(default_factory=set)
    begun: list[tuple[int, str, int]] = field(default_factory=list)  # epoch, run, transaction

    def next_of_sink(self, epoch: int, run: str) -> str:
        """The reply to a run that asks for an epoch, by all epochs that were ever begun."""
        if not self.begun:
            return "BEGIN"
        newest, its_run, one = self.begun[-1]
        state = self.transactions[one].state
        if newest > epoch or (newest == epoch and state == "committed"):
            return "SinkEpochSupersededError" if newest > epoch else "NOTHING"
        if run != its_run and run in {each for _, each, _ in self.begun}:
            return "SinkFencedError"
        if newest < epoch:
            return "BEGIN" if state == "committed" else "SinkEpochOpenError"
        if run == its_run:
            return "GO_ON" if state == "open" else "TransactionInvalidatedError"
        return "FENCE" if state == "open" else "BEGIN"

    def committed(self, *, durable: int) -> frozenset[int]:
        return frozenset(
            one for one, tx in self.transactions.items()
            if tx.state == "committed" and tx.ended_lsn <= durable
        )  # fmt: skip

    def conflicts(self, tx: Tx, changes: frozenset[bytes]) -> bool:
        return tx.is_short and any(
            other.state == "committed" and other.is_short and other.changes & changes
            for one, other in self.transactions.items()
            if one not in tx.sees
        )


class SnapshotIsolation(RuleBasedStateMachine):
    @initialize()
    def begin(self) -> None:
        self.base: StateImage = fresh_image(now_ms=NOW_MS)
        self.state = TransactionState(self.base)
        self.edits: list[tuple[int, Edit]] = []
        self.durable = 0
        self.model = Model()
        self.history: dict[int, Model] = {0: deepcopy(self.model)}
        self._reserve()

    def record(self, edit: Edit) -> None:
        """Recovery accepts every edit that a decision produced."""
        assert contradiction(self.state, edit) is None
        lsn = self.state.lsn + 1
        self.state.apply(lsn, edit)
        self.edits.append((lsn, edit))

    def remember(self) -> None:
        self.history[self.state.lsn] = deepcopy(self.model)

    def _reserve(self) -> None:
        start = self.state.next_block_start
        self.record(BlockReserved(NOW_MS, PointerRange(start, start + 3)))
        self.remember()
        self.sync(0)

    @rule(count=st.integers(1, 3))
    def keep_few(self, count: int) -> None:
        if self.state.blocks:
            start = self.state.blocks[0].start
            self.record(BlockKept(NOW_MS, PointerRange(start, start + count)))
            self.remember()

    def next_pointer(self) -> int:
        if not self.state.blocks:
            self._reserve()
        return self.state.blocks[0].start

    def chosen(self, choice: int) -> OpenTransaction | None:
        opened = [each for each in self.state.open.values() if each.prepared is None]
        return opened[choice % len(opened)] if opened else None

    @rule(is_short=st.booleans())
    def start(self, is_short: bool) -> None:
        pointer = self.next_pointer()
        kind = TransactionType.SHORT if is_short else TransactionType.LONG
        seen = self.state.seen
        self.record(Started(NOW_MS, pointer, kind, 30_000, NOW_MS + 30_000, "c", seen))
        sees = self.model.committed(durable=self.durable)
        self.model.transactions[pointer] = Tx(is_short, sees, [pointer])
        self.remember()

    @rule(choice=CHOICE)
    def checkpoint(self, choice: int) -> None:
        pointer = self.next_pointer()
        opened = self.chosen(choice)
        if opened is None or opened.conflict is not None:
            return
        self.record(Checkpointed(NOW_MS, opened.transaction_id, pointer))
        self.model.transactions[opened.transaction_id].pointers.append(pointer)
        self.remember()

    @rule(choice=CHOICE, changes=KEYS)
    def can_commit(self, choice: int, changes: frozenset[bytes]) -> None:
        opened = self.chosen(choice)
        if opened is None or opened.conflict is not None:
            return
        tx = self.model.transactions[opened.transaction_id]
        committers = self.state.committers
        edit = can_commit(committers, opened, changes, settings=SETTINGS, now_ms=NOW_MS)
        every = tx.changes | changes
        assert isinstance(edit, Refused) == self.model.conflicts(tx, every)
        self.record(edit)
        if isinstance(edit, Committing):
            tx.changes = every
        else:
            tx.is_refused = True
        self.remember()

    @rule(choice=CHOICE, changes=KEYS)
    def commit(self, choice: int, changes: frozenset[bytes]) -> None:
        opened = self.chosen(choice)
        if opened is None or opened.conflict is not None:
            return
        tx = self.model.transactions[opened.transaction_id]
        every = all_changes(opened, changes, settings=SETTINGS)
        conflict = self.state.committers.conflict(opened.transaction, every)
        expected = self.model.conflicts(tx, tx.changes | changes)
        assert bool(conflict) == expected
        if self.is_claimed(tx, every):
            return
        if conflict:
            self.record(Refused(NOW_MS, opened.transaction_id, conflict))
            tx.is_refused = True
        else:
            added = every - (opened.changes or frozenset())
            self.record(Committed(NOW_MS, opened.transaction_id, added, False, (), (), None))
            tx.changes |= changes
            tx.state, tx.ended_lsn = "committed", self.state.lsn
        self.remember()

    @rule(choice=CHOICE, changes=KEYS)
    def prepare(self, choice: int, changes: frozenset[bytes]) -> None:
        opened = self.chosen(choice)
        if opened is None or opened.conflict is not None:
            return
        tx = self.model.transactions[opened.transaction_id]
        every = all_changes(opened, changes, settings=SETTINGS)
        if self.model.conflicts(tx, tx.changes | changes) or self.is_claimed(tx, every):
            return
        added = every - (opened.changes or frozenset())
        self.record(Prepared(NOW_MS, opened.transaction_id, added, "db", ()))
        tx.changes, tx.is_prepared = tx.changes | changes, True
        self.remember()

    def is_claimed(self, tx: Tx, changes: frozenset[bytes]) -> bool:
        """Whether a prepared transaction claims one of these; the state must say the same."""
        claimed = tx.is_short and any(
            other.is_prepared and other.state == "open" and other.is_short
            and other.changes & changes
            for other in self.model.transactions.values()
        )  # fmt: skip
        assert (self.state.prepared.conflict(changes) is not None) == claimed
        return claimed

    @rule(choice=CHOICE, commits=st.booleans())
    def resolve(self, choice: int, commits: bool) -> None:
        prepared = list(self.state.prepared)
        if not prepared:
            return
        opened = prepared[choice % len(prepared)]
        tx = self.model.transactions[opened.transaction_id]
        ended = Committed(NOW_MS, opened.transaction_id, frozenset(), False, (), (), None)
        edit = ended if commits else abort_edit(opened, [], has_rows=False, now_ms=NOW_MS)
        self.record(edit)
        aborted = "aborted" if isinstance(edit, Aborted) else "invalid"
        tx.state, tx.ended_lsn = "committed" if commits else aborted, self.state.lsn
        self.remember()

    @rule(choice=CHOICE, aborts=st.booleans())
    def give_up(self, choice: int, aborts: bool) -> None:
        opened = self.chosen(choice)
        if opened is None:
            return
        tx = self.model.transactions[opened.transaction_id]
        edit = (
            abort_edit(opened, [], has_rows=False, now_ms=NOW_MS)
            if aborts
            else Invalidated(NOW_MS, opened.transaction_id, InvalidReason.INVALIDATED, ())
        )
        assert isinstance(edit, Aborted) == (aborts and tx.is_short)
        self.record(edit)
        tx.state = "aborted" if isinstance(edit, Aborted) else "invalid"
        tx.ended_lsn = self.state.lsn
        self.remember()

    @rule(choice=CHOICE)
    def abort_an_invalid_one(self, choice: int) -> None:
        invalid = (o for o in self.state.outcomes if o.state is EndedState.INVALID)
        found = [o for o in invalid if may_be_aborted(o)]
        if not found:
            return
        outcome = found[choice % len(found)]
        self.record(Aborted(NOW_MS, outcome.transaction_id, ()))
        self.model.transactions[outcome.transaction_id].state = "aborted"
        self.remember()

    @precondition(lambda self: len(self.state.invalid) > 0)
    @rule(choice=CHOICE)
    def truncate(self, choice: int) -> None:
        listed = list(self.state.invalid)
        pointer = listed[choice % len(listed)]
        edit, kept = truncate(self.state, [pointer], keeps=lambda _: False, now_ms=NOW_MS)
        assert (edit, kept) == (Truncated(NOW_MS, (pointer,)), [])
        self.record(edit)
        self.model.truncated.add(pointer)
        self.remember()

    @rule(epoch=st.integers(0, 2), run=st.sampled_from("abcd"))
    def ask_for_an_epoch(self, epoch: int, run: str) -> None:
        asked = EpochRequest(sink="s", epoch=epoch, run_id=run, client="c")
        sink = self.state.sinks.find("s")
        expected = self.model.next_of_sink(epoch, run)
        try:
            step = next_step(sink, asked, count=len(self.state.sinks), count_max=1)
            assert step.name == expected
        except TuffError as error:
            assert type(error).__name__ == expected  # noqa: PT017 - the model says which one
            return
        if step is Step.FENCE:
            assert sink is not None
            if sink.transaction_id in self.state.prepared:
                return
            one = sink.transaction_id
            self.record(Invalidated(NOW_MS, one, InvalidReason.INVALIDATED, ()))
            tx = self.model.transactions[one]
            tx.state, tx.ended_lsn = "invalid", self.state.lsn
        elif step is Step.BEGIN:
            pointer = self.next_pointer()
            self.record(
                EpochBegun(
                    NOW_MS, pointer, 30_000, NOW_MS + 30_000, "c", self.state.seen, None, "s",
                    epoch, run,
                )
            )  # fmt: skip
            sees = self.model.committed(durable=self.durable)
            self.model.transactions[pointer] = Tx(False, sees, [pointer])
            self.model.begun.append((epoch, run, pointer))
        self.remember()

    @rule(choice=CHOICE)
    def sync(self, choice: int) -> None:
        """A sync reaches some of what is pending: what was decided meanwhile waits for the next."""
        self.durable = max(self.durable, self.state.lsn - choice % 4)
        self.state.advance_view(self.durable)

    @rule(image_is_packed=st.booleans())
    def snapshot(self, image_is_packed: bool) -> None:
        self.base = self.state.image()
        if image_is_packed:
            header = replace(HEADER, lsn=self.base.lsn)
            _, read = read_snapshot("snapshot.1", pack_snapshot(header, self.base))
            assert read == self.base
            self.base = read
        self.edits = []

    @rule(choice=CHOICE)
    def crash(self, choice: int) -> None:
        kept = max(self.durable, self.base.lsn, self.state.lsn - choice % 4)
        replayed = TransactionState(self.base)
        for lsn, edit in self.edits:
            if lsn <= kept:
                replayed.apply(lsn, edit)
        replayed.advance_view(kept)
        lost = replayed.blocks
        self.edits = [(lsn, edit) for lsn, edit in self.edits if lsn <= kept]
        self.state = replayed
        self.model = deepcopy(self.history[kept])
        self.history = {lsn: one for lsn, one in self.history.items() if lsn <= kept}
        self.record(Restarted(NOW_MS, True, lost))
        self.model.lost |= {p for r in lost for p in range(r.start, r.stop)}
        self.remember()
        self.durable = self.state.lsn
        self.state.advance_view(self.durable)

    @invariant()
    def what_is_open_is_what_the_model_says(self) -> None:
        opened = {one for one, tx in self.model.transactions.items() if tx.state == "open"}
        assert set(self.state.open) == opened
        for one in opened:
            tx = self.model.transactions[one]
            assert list(self.state.open[one].pointers) == tx.pointers
            assert (self.state.open[one].conflict is not None) == tx.is_refused
            assert (self.state.open[one].prepared is not None) == tx.is_prepared

    @invariant()
    def of_each_epoch_at_most_one_transaction_committed(self) -> None:
        committed = [
            epoch
            for epoch, _, one in self.model.begun
            if self.model.transactions[one].state == "committed"
        ]
        assert committed == sorted(set(committed))
        if self.model.begun:
            newest, run, one = self.model.begun[-1]
            sink, state = self.state.sinks.find("s"), self.model.transactions[one].state
            assert sink is not None
            assert (sink.epoch, sink.run_id, sink.transaction_id) == (newest, run, one)
            assert (sink.state.value if sink.state else "open") == state

    @invariant()
    def every_snapshot_shows_what_had_durably_committed(self) -> None:
        for one, opened in self.state.open.items():
            self._check(opened.transaction, self.model.transactions[one].sees, own=one)
        self._check(self.state.view.reader(), self.model.committed(durable=self.durable), own=0)

    def _check(self, transaction: Transaction, sees: frozenset[int], *, own: int) -> None:
        for one, tx in self.model.transactions.items():
            for pointer in tx.pointers:
                if one in sees or one == own:
                    assert transaction.is_visible(pointer), pointer
                elif tx.state != "aborted" and pointer not in self.model.truncated:
                    assert not transaction.is_visible(pointer), pointer
        for pointer in self.model.lost - self.model.truncated:
            assert not transaction.is_visible(pointer), pointer

    @invariant()
    def a_replay_from_the_snapshot_gives_the_same_transactions(self) -> None:
        replayed = TransactionState(self.base)
        for lsn, edit in self.edits:
            replayed.apply(lsn, edit)
        replayed.advance_view(self.durable)
        assert replayed.open == self.state.open
        assert replayed.invalid == self.state.invalid
        assert replayed.view == self.state.view
        assert list(replayed.outcomes) == list(self.state.outcomes)
        assert replayed.blocks == self.state.blocks
        assert list(replayed.sinks) == list(self.state.sinks)


class TestSnapshotIsolation(SnapshotIsolation.TestCase):
    settings = settings(max_examples=15, stateful_step_count=60)


@pytest.mark.slow
class TestSnapshotIsolationAtLength(SnapshotIsolation.TestCase):
    settings = settings(max_examples=300, stateful_step_count=60)
