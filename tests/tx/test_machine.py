"""The machine of transactions, alone: which call waits for which, and what is answered when.

The named cases are those of the table in `tx/state_machine.py`; a property test mixes all of them.
"""

from collections.abc import Callable
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.tx.machine_world import Asked, World, commit
from tests.tx.service import entry
from tuff.protocol.errors import (
    StorageUnavailableError,
    TopicNotFoundError,
    TransactionCommittedError,
    TransactionConflictError,
    TransactionInvalidatedError,
    TransactionPreparedError,
    TransactionsUnavailableError,
    TransactionTimedOutError,
)
from tuff.protocol.transaction import TransactionType
from tx.calls import (
    Abort,
    Answer,
    Call,
    CanCommit,
    Checkpoint,
    Commit,
    CommitPrepared,
    Invalidate,
    Join,
    Renew,
    Start,
    StartRequest,
    Use,
)
from tx.log_records import Aborted, Committed, Confirmed, InDoubt, Invalidated, Prepared
from tx.outcomes import EndedState, OpenTransaction, Outcome

LEASED = StartRequest(type=TransactionType.LONG, lease_s=5)


@pytest.fixture
def world() -> World:
    return World()


def begin(world: World, request: StartRequest | None = None) -> OpenTransaction:
    (asked,) = world.take(lambda answer: Start(answer, request or StartRequest()))
    assert isinstance(asked.answer, OpenTransaction)
    return asked.answer


def prepare(
    opened: OpenTransaction, *changes: bytes, publish: bool = False
) -> Callable[[Answer], Commit]:
    entries = [entry(b"a")] if publish else []
    return lambda answer: Commit(
        answer, opened.transaction_id, frozenset(changes), entries, database="bank"
    )


def of(kind: type[Call], opened: OpenTransaction) -> Callable[[Answer], Call]:
    return lambda answer: kind(answer, opened.transaction_id)


def resolved_as_aborted(opened: OpenTransaction) -> Callable[[Answer], Call]:
    return partial(Abort, pointer=opened.transaction_id, may_be_prepared=True)


def outcome(asked: Asked) -> EndedState:
    assert isinstance(asked.answer, Outcome)
    return asked.answer.state


def ends(world: World) -> list[type]:
    kinds = (Committed, InDoubt, Confirmed, Aborted, Invalidated, Prepared)
    return [type(edit) for edit in world.log.edits if isinstance(edit, kinds)]


# An end waits for another end.


def test_an_answer_waits_until_its_edit_is_durable(world: World) -> None:
    first, second = begin(world), begin(world)
    one, two = world.take(commit(first, b"a"), commit(second, b"b"))
    assert one.answers == two.answers == []

    world.synced(world.log.state.lsn - 1)
    assert one.answers == [()]
    assert two.answers == []

    world.synced()
    assert two.answers == [()]
    world.finish()


def test_a_second_end_has_the_answer_of_the_first(world: World) -> None:
    tx = begin(world)
    first, again, other = world.take(
        commit(tx, b"a", publish=True), commit(tx, b"a", publish=True), of(Abort, tx)
    )
    assert len(world.batches[0].commits) == 1

    world.rows_written()
    world.go_on()
    world.synced()

    assert first.answer == again.answer
    assert other.error is TransactionCommittedError
    assert ends(world) == [Committed]
    world.finish()


def test_two_aborts_of_what_has_no_rows_left_are_answered_together(world: World) -> None:
    tx = begin(world)
    world.written(world.write(tx))
    both = world.take(of(Abort, tx), of(Abort, tx))
    world.rows.carried.clear()  # retention has deleted them

    world.synced()
    assert [each.answers for each in both] == [[], []]  # that it is aborted is not durable yet
    world.synced()

    assert [outcome(each) for each in both] == [EndedState.ABORTED] * 2
    world.finish()


def test_two_aborts_at_once_record_one_end_and_one_rollback(world: World) -> None:
    tx = begin(world)
    world.written(world.write(tx))

    both = world.take(of(Abort, tx), of(Abort, tx))
    world.synced()
    assert len(world.rollbacks) == 1
    world.rolled_back()
    world.synced()

    assert [outcome(each) for each in both] == [EndedState.ABORTED] * 2
    assert ends(world) == [Invalidated, Aborted]
    world.finish()


# An end waits for the writes under way.


def test_an_end_waits_for_a_write_that_passed_before_it(world: World) -> None:
    tx = begin(world)
    write = world.write(tx)
    (ending,) = world.take(commit(tx))
    with pytest.raises(TransactionsUnavailableError):
        world.write(tx)
    world.synced()
    assert ends(world) == []

    world.written(write)
    world.go_on()
    world.synced()

    assert ending.answer == ()
    world.finish()


def test_an_end_recalls_a_server_that_has_joined(world: World) -> None:
    tx = begin(world)
    write = world.write(tx, is_joined=True)
    assert not write.is_recalled

    (ending,) = world.take(of(Abort, tx))
    assert write.is_recalled
    world.written(write, is_joined=True)
    world.finish()

    assert outcome(ending) is EndedState.ABORTED


def test_rows_are_rolled_back_after_the_writes_under_way(world: World) -> None:
    tx = begin(world)
    write = world.write(tx)
    world.take(of(Invalidate, tx))
    world.synced()
    assert world.rollbacks == []

    world.written(write)
    world.go_on()

    assert [which for which, _ in world.rollbacks] == [tx.transaction_id]
    world.finish()


# A commit waits for a claim.


def test_a_commit_waits_for_the_claim_of_one_of_its_changes(world: World) -> None:
    first, second, third = begin(world), begin(world), begin(world)
    claims, waits, passes = world.take(
        commit(first, b"a", publish=True), commit(second, b"a"), commit(third, b"b")
    )
    world.synced()
    assert (claims.answers, waits.answers, passes.answers) == ([], [], [()])

    world.rows_written()
    world.go_on()
    world.synced()

    assert len(claims.answers) == 1
    assert waits.error is TransactionConflictError
    world.finish()


def test_a_commit_passes_once_the_rows_of_the_one_that_claimed_failed(world: World) -> None:
    first, second = begin(world), begin(world)
    claims, waits = world.take(commit(first, b"a", publish=True), commit(second, b"a"))

    world.rows_written(0)
    world.go_on()
    world.finish()

    assert (claims.error, waits.answer) == (StorageUnavailableError, ())


def test_an_invalidation_waits_for_a_claim(world: World) -> None:
    tx = begin(world)
    ending, invalidation = world.take(commit(tx, publish=True), of(Invalidate, tx))
    assert ends(world) == []

    world.rows_written()
    world.go_on()
    world.synced()

    assert len(ending.answers) == 1
    assert invalidation.error is TransactionCommittedError
    world.finish()


def test_a_time_out_waits_for_a_claim_and_for_nothing_else(world: World) -> None:
    first, second, third = begin(world), begin(world), begin(world)
    claims, waits = world.take(commit(first, b"a", publish=True), commit(second, b"a"))
    world.now_ms += 60_000

    world.expire()
    assert ends(world) == [Invalidated] * 2
    world.rows_written()
    world.go_on()
    world.synced()

    assert len(claims.answers) == 1
    assert waits.error is TransactionTimedOutError
    assert world.take(commit(third))[0].error is TransactionTimedOutError
    world.finish()


def test_a_refusal_waits_until_the_commit_that_it_names_is_durable(world: World) -> None:
    first, second = begin(world), begin(world)
    _, refused = world.take(commit(first, b"a"), commit(second, b"a"))
    assert refused.answers == []

    world.synced()

    assert refused.error is TransactionConflictError
    world.finish()


# Rows and record at the same time.


def doubtful(world: World, *changes: bytes) -> Asked:
    """A commit whose rows and record are being written."""
    (asked,) = world.take(commit(begin(world), *changes, publish=True))
    world.rows_built()
    assert ends(world)[-1] is InDoubt
    return asked


@pytest.mark.parametrize("is_record_first", [True, False])
def test_a_commit_in_doubt_is_answered_once_both_are_durable(
    world: World, is_record_first: bool
) -> None:
    asked = doubtful(world, b"a")
    (waits,) = world.take(commit(begin(world), b"a"))

    both = [world.synced, world.rows_written]
    first, second = both if is_record_first else reversed(both)
    first()
    world.go_on()
    assert (asked.answers, waits.answers) == ([], [])
    second()

    assert len(asked.answers) == 1
    assert begin(world).transaction.is_visible(asked.call.pointer)
    world.go_on()
    world.synced()
    assert waits.error is TransactionConflictError
    world.finish()


def test_index_rows_stay_until_the_confirmation_is_durable(world: World) -> None:
    asked = doubtful(world)
    world.synced()
    world.rows_written()
    assert (len(asked.answers), world.rows.settled) == (1, [])
    assert world.rows.woken == [asked.call.pointer]

    world.expire()
    assert world.log.wanted_lsn == world.log.state.lsn
    world.synced()

    assert world.rows.settled == [asked.call.pointer]
    world.finish()


def test_delayed_messages_wait_for_no_tick_until_they_are_let_go(world: World) -> None:
    """They wait for their times from then on, and one of 50 ms would be late."""
    asked = doubtful(world)
    world.rows.delayed.add(asked.call.pointer)
    world.synced()
    world.rows_written()

    assert world.log.wanted_lsn == world.log.state.lsn
    world.synced()

    assert world.rows.settled == [asked.call.pointer]
    world.finish()


@pytest.mark.parametrize(
    ("has_record", "has_rows", "end"),
    [
        (True, True, Confirmed),
        (True, False, Invalidated),
        (False, True, Invalidated),
        (False, False, None),
    ],
)
def test_a_crash_leaves_both_or_nothing(
    world: World, has_record: bool, has_rows: bool, end: type | None
) -> None:
    asked = doubtful(world, b"a")
    pointer, record = asked.call.pointer, len(world.log.edits)

    world.restart(kept_lsn=record if has_record else record - 1, keeps_rows=has_rows)

    assert (ends(world)[-1] if ends(world) else None) is end
    state = world.log.state
    assert (pointer in state.open) == (end is None)
    assert (pointer in state.invalid) == (end is Invalidated)
    world.finish()


def test_a_commit_that_was_answered_survives_without_its_confirmation(world: World) -> None:
    asked = doubtful(world, b"a")
    world.rows_written()
    world.synced()
    assert len(asked.answers) == 1
    assert world.log.durable_lsn < world.log.state.lsn

    world.restart()

    assert ends(world) == [InDoubt, Confirmed]
    world.finish()


def test_a_log_that_fails_ends_a_commit_in_doubt_without_an_answer_of_success(world: World) -> None:
    early, late = doubtful(world, b"a"), doubtful(world, b"b")
    world.rows_written()

    world.fail()
    assert early.error is TransactionsUnavailableError
    assert late.answers == []
    world.recover(kept_lsn=len(world.log.edits))
    assert ends(world)[-2:] == [Invalidated] * 2

    world.rows_written()
    assert late.error is TransactionsUnavailableError
    world.finish()


def test_rows_that_fail_end_a_commit_in_doubt_as_invalid(world: World) -> None:
    asked = doubtful(world, b"a")
    world.synced()

    world.rows_written(0)
    assert asked.answers == []
    world.synced()
    world.rolled_back()

    assert asked.error is StorageUnavailableError
    world.restart()
    assert ends(world) == [InDoubt, Invalidated]
    world.finish()


def test_among_many_transactions_rows_are_durable_before_their_records(world: World) -> None:
    opened = [begin(world) for _ in range(17)]
    asked = world.take(*(commit(tx, publish=True) for tx in opened[:5]))

    world.rows_built()
    assert ends(world) == []
    world.rows_written()
    assert ends(world) == [Committed] * 5
    world.synced()

    assert [len(each.answers) for each in asked] == [1] * 5
    world.finish()


# Rows that are not written.


def test_rows_that_fail_fail_one_of_three_commits(world: World) -> None:
    opened = [begin(world) for _ in range(3)]
    asked = world.take(*(commit(tx, publish=True) for tx in opened))

    world.rows_written(1)
    world.synced()
    assert [len(each.answers) for each in asked] == [1, 0, 1]
    world.rolled_back()

    assert asked[1].error is StorageUnavailableError
    assert ends(world) == [Committed, Invalidated, Committed]
    world.finish()


def test_a_rollback_that_fails_leaves_the_transaction_invalid(world: World) -> None:
    tx = begin(world)
    world.written(world.write(tx))
    (ending,) = world.take(of(Abort, tx))
    world.synced()

    world.rolled_back(is_done=False)

    assert outcome(ending) is EndedState.INVALID
    assert ends(world) == [Invalidated]
    world.rows.carried.clear()  # the message store tries again by itself
    world.finish()


def test_entries_that_other_servers_refuse_leave_the_transaction_as_it_was(world: World) -> None:
    world.rows.asks_others = True
    tx = begin(world)
    refused, waits = world.take(commit(tx, b"a", publish=True), commit(tx))
    world.checked(TopicNotFoundError("there is no topic"))
    world.go_on()
    world.synced()

    assert (refused.error, waits.answer) == (TopicNotFoundError, ())
    world.finish()


# A log that fails.


def test_a_log_that_fails_before_an_edit_is_durable_leaves_it_to_recovery(world: World) -> None:
    first, second = begin(world), begin(world)
    world.synced()
    kept, lost = world.take(commit(first), commit(second))
    world.fail()
    assert [kept.error, lost.error] == [TransactionsUnavailableError] * 2

    world.recover(kept_lsn=world.log.durable_lsn + 1)

    again = world.take(commit(first), commit(second))
    world.synced()
    assert [each.answer for each in again] == [(), ()]
    assert ends(world) == [Committed, Committed]
    world.finish()


def test_rows_that_are_built_after_the_log_failed_have_no_record(world: World) -> None:
    """The error of the log reached the write of all that are in the batch."""
    tx = begin(world)
    world.synced()
    (asked,) = world.take(commit(tx, b"a", publish=True))
    world.fail()

    world.rows_built()
    world.rows_written()

    assert asked.error is TransactionsUnavailableError
    assert ends(world) == []
    world.recover()
    world.finish()


@pytest.mark.parametrize("is_up", [True, False])
def test_rows_that_come_after_the_log_failed_are_not_recorded(world: World, *, is_up: bool) -> None:
    tx = begin(world)
    world.synced()
    (ending,) = world.take(commit(tx, b"a", publish=True))
    world.fail()
    if is_up:
        world.recover()

    world.rows_written()

    assert ending.error is TransactionsUnavailableError
    world.finish()
    assert ends(world) == [Invalidated]


def test_calls_that_are_parked_while_the_log_fails_are_answered(world: World) -> None:
    first, second = begin(world), begin(world)
    write = world.write(first)
    waits, also, claims = world.take(
        of(Abort, first), of(Use, first), commit(second, b"a", publish=True)
    )
    world.fail()
    world.written(write)
    world.go_on()

    assert [waits.error, also.error] == [TransactionsUnavailableError] * 2
    world.rows_written()
    assert claims.error is TransactionsUnavailableError
    world.finish()


def test_a_commit_that_waits_for_a_prepare_that_is_lost_passes_after_recovery(world: World) -> None:
    first, second = begin(world), begin(world)
    world.synced()
    _, waits = world.take(prepare(first, b"a"), commit(second, b"a"))
    world.fail()
    world.recover()

    world.go_on()
    world.synced()

    assert waits.answer == ()
    world.finish()


# Pointers.


def test_a_start_without_pointers_waits_and_is_decided_again(world: World) -> None:
    tx = begin(world)
    world.pointers.is_empty = True
    started, checked = world.take(
        lambda answer: Start(answer, StartRequest(request_id="r")), of(Checkpoint, tx)
    )
    assert (started.answers, checked.answers) == ([], [])
    world.take(of(Invalidate, tx))
    world.machine.withdraw("r")

    world.refill()
    world.synced()

    assert isinstance(started.answer, Exception)
    assert checked.error is TransactionInvalidatedError
    world.finish()


def test_starts_without_pointers_are_answered_while_the_log_is_down(world: World) -> None:
    world.pointers.is_empty = True
    (started,) = world.take(lambda answer: Start(answer, StartRequest()))
    world.fail()

    world.refill()

    assert started.error is TransactionsUnavailableError
    world.finish()


# Prepared transactions.


def test_a_commit_waits_for_a_prepared_transaction_and_passes_after_its_abort(
    world: World,
) -> None:
    first, second = begin(world), begin(world)
    _, waits = world.take(prepare(first, b"a"), commit(second, b"a"))
    world.synced()
    assert waits.answers == []

    world.take(resolved_as_aborted(first))
    world.go_on()
    world.synced()

    assert waits.answer == ()
    world.finish()


def test_a_commit_that_has_waited_enough_is_refused_for_good(world: World) -> None:
    first, second = begin(world), begin(world)
    _, waits = world.take(prepare(first, b"a"), commit(second, b"a"))
    world.waited_enough()
    assert waits.answers == []  # the prepare that it names is not durable

    world.synced()

    assert waits.error is TransactionConflictError
    world.finish()


def test_a_commit_whose_time_is_over_when_it_has_waited_enough_timed_out(world: World) -> None:
    first, second = begin(world), begin(world)
    _, waits = world.take(prepare(first, b"a"), commit(second, b"a"))
    world.now_ms += 60_000

    world.waited_enough()
    world.synced()

    assert waits.error is TransactionTimedOutError
    world.finish()


def test_a_commit_that_has_waited_enough_is_not_decided_again(world: World) -> None:
    first, second = begin(world), begin(world)
    _, waits = world.take(prepare(first, b"a"), commit(second, b"a"))
    world.synced()
    world.take(resolved_as_aborted(first))
    world.go_on()
    assert ends(world) == [Prepared, Aborted, Committed]

    world.waited_enough()
    world.synced()

    assert waits.answer == ()
    world.finish()


def test_a_set_aside_and_a_resolve_wait_for_each_other(world: World) -> None:
    tx = begin(world)
    world.written(world.write(tx))
    world.rows.published_at_ms[tx.transaction_id] = world.now_ms
    world.take(prepare(tx))
    world.synced()
    world.now_ms += 40_000
    world.expire()
    (resolve,) = world.take(of(CommitPrepared, tx))
    world.synced()
    assert ends(world) == [Prepared]

    world.set_aside()
    world.go_on()
    world.synced()

    assert (resolve.answer, ends(world)) == ((), [Prepared, Committed])
    world.finish()


def test_what_was_resolved_is_not_set_aside(world: World) -> None:
    tx = begin(world)
    world.rows.published_at_ms[tx.transaction_id] = world.now_ms
    world.written(world.write(tx))
    world.take(prepare(tx))
    write = world.write(tx)
    resolve = world.take(of(CommitPrepared, tx))[0]
    world.now_ms += 40_000
    world.expire()

    world.written(write)
    world.go_on()
    world.synced()
    world.go_on()

    assert (resolve.answer, world.asides) == ((), [])
    world.finish()


def test_a_prepared_transaction_takes_nothing_but_its_resolve(world: World) -> None:
    tx = begin(world)
    world.take(prepare(tx))
    refused = world.take(
        commit(tx),
        of(Abort, tx),
        of(Invalidate, tx),
        of(Checkpoint, tx),
        of(Use, tx),
        of(Renew, tx),
    )
    assert [each.answers for each in refused] == [[]] * 6

    world.synced()

    assert {each.error for each in refused} == {TransactionPreparedError}
    world.finish()


# All of it, mixed.

KEYS = (b"a", b"b", b"c")


class Mixed:
    """A world in which numbers choose what happens next."""

    def __init__(self) -> None:
        self.world = World()
        self.opened: list[OpenTransaction] = [begin(self.world)]
        self.arrived: list[Asked] = []

    def step(self, kind: int, which: int, how: int) -> None:
        if kind < len(CALLS):
            opened = self.opened[which % len(self.opened)]
            self.arrived.append(self.world.call(CALLS[kind](opened, KEYS[how % len(KEYS)])))
            if how % 2:
                self.take()
        else:
            EVENTS[kind - len(CALLS)](self, which, how)

    def take(self) -> None:
        arrived, self.arrived = self.arrived, []
        self.world.take_all(arrived)
        self.opened += [
            each.answers[0]
            for each in arrived
            if isinstance(each.call, Start)
            and each.answers
            and isinstance(each.answers[0], OpenTransaction)
        ]

    def write(self, which: int, how: int) -> None:
        """As `tx/write_permits.py` lets writes pass."""
        world = self.world
        one = self.opened[which % len(self.opened)].transaction_id
        opened = None if world.log.is_down else world.log.state.opened(one)
        is_usable = opened is not None and not opened.prepared and not opened.conflict
        if opened is not None and is_usable and world.under_way.ends(one) is None:
            world.write(opened, is_joined=how % 3 == 0)
            world.rows.published_at_ms.setdefault(one, world.now_ms)

    def written(self, which: int, how: int) -> None:
        writes = self.world.writes
        if writes:
            self.world.written(writes[which % len(writes)], is_joined=True)

    def rows_built(self, which: int, how: int) -> None:
        batches = self.world.batches
        if batches and not batches[-1].is_built:
            self.world.rows_built(*([which % len(batches[-1].commits)] if how == 0 else []))

    def restarts(self, which: int, how: int) -> None:
        """The process is killed, and starts again with some of what was not durable."""
        if how == 0:
            log = self.world.log
            kept_lsn = min(log.durable_lsn + which, len(log.edits))
            self.world.restart(kept_lsn=kept_lsn, keeps_rows=which % 2 == 0)
            self.arrived = []

    def rows_written(self, which: int, how: int) -> None:
        if self.world.batches:
            batch = self.world.batches[0]
            failing = [which % len(batch.commits)] if how % 3 == 0 else []
            self.world.rows_written(*failing)

    def checked(self, which: int, how: int) -> None:
        if self.world.checks:
            self.world.checked(TopicNotFoundError("there is no topic") if how % 2 else None)

    def rolled_back(self, which: int, how: int) -> None:
        if self.world.rollbacks:
            pointers = self.world.rollbacks[0][1]
            self.world.rolled_back(is_done=how % 3 != 0)
            if how % 3 == 0:  # the message store tries again by itself
                for pointer in pointers:
                    self.world.rows.carried.pop(pointer, None)
                    self.world.rows.finals.discard(pointer)

    def set_aside(self, which: int, how: int) -> None:
        if self.world.asides:
            self.world.set_aside(is_done=how % 3 != 0)

    def waited_enough(self, which: int, how: int) -> None:
        if self.world.impatient:
            self.world.waited_enough()

    def synced(self, which: int, how: int) -> None:
        log = self.world.log
        if not log.is_down:
            left_count = which if how % 2 else 0
            self.world.synced(max(log.durable_lsn, log.state.lsn - left_count))

    def fails(self, which: int, how: int) -> None:
        """The log fails, and recovery keeps some of the edits that were not durable."""
        log = self.world.log
        if log.is_down:
            self.world.recover(kept_lsn=min(log.durable_lsn + which, len(log.edits)))
        elif how == 0:
            self.world.fail()

    def found(self, which: int, how: int) -> None:
        if not self.world.log.is_down:
            self.world.rows_found()

    def gives_up(self, which: int, how: int) -> None:
        waiting = [each for each in self.world.asked if not each.answers]
        if waiting:
            error = TransactionsUnavailableError("this is still under way")
            waiting[which % len(waiting)].call.finish(error)

    def later(self, which: int, how: int) -> None:
        self.world.now_ms += 4_000 * (which + 1)
        if not self.world.log.is_down:
            self.world.expire()

    def pointers(self, which: int, how: int) -> None:
        if self.world.pointers.is_empty:
            self.world.refill()
        else:
            self.world.pointers.is_empty = True

    def go_on(self, which: int, how: int) -> None:
        self.take()
        self.world.go_on()

    def asks_others(self, which: int, how: int) -> None:
        self.world.rows.asks_others = how % 2 == 0


CALLS: list[Callable[[OpenTransaction, bytes], Callable[[Answer], Call]]] = [
    lambda _tx, _key: lambda answer: Start(answer, StartRequest()),
    lambda _tx, _key: lambda answer: Start(answer, LEASED),
    lambda _tx, _key: lambda answer: Start(answer, StartRequest(is_messages_only=True)),
    lambda tx, key: partial(CanCommit, pointer=tx.transaction_id, changes=frozenset([key])),
    commit,
    lambda tx, key: commit(tx, key, publish=True),
    lambda tx, _key: of(Commit, tx),  # which leaves its changes to the can-commits
    lambda tx, _key: lambda answer: Commit(answer, tx.transaction_id, is_read_only=True),
    prepare,
    lambda tx, key: prepare(tx, key, publish=True),
    lambda tx, _key: of(CommitPrepared, tx),
    lambda tx, _key: of(Abort, tx),
    lambda tx, _key: resolved_as_aborted(tx),
    lambda tx, _key: of(Invalidate, tx),
    lambda tx, _key: of(Checkpoint, tx),
    lambda tx, _key: of(Join, tx),
    lambda tx, _key: of(Use, tx),
    lambda tx, _key: of(Renew, tx),
]
EVENTS: list[Callable[[Mixed, int, int], None]] = [
    Mixed.write, Mixed.written, Mixed.rows_written, Mixed.checked, Mixed.rolled_back,
    Mixed.set_aside, Mixed.waited_enough, Mixed.synced, Mixed.fails, Mixed.gives_up, Mixed.later,
    Mixed.pointers, Mixed.go_on, Mixed.asks_others, Mixed.found, Mixed.rows_built, Mixed.restarts,
]  # fmt: skip
STEPS = st.lists(
    st.tuples(st.integers(0, len(CALLS) + len(EVENTS) - 1), st.integers(0, 5), st.integers(0, 5)),
    min_size=20,
    max_size=60,
)


@given(STEPS)
@settings(max_examples=200)
def test_no_order_of_calls_and_events_breaks_a_promise(steps: list[tuple[int, int, int]]) -> None:
    mixed = Mixed()

    for step in steps:
        mixed.step(*step)

    mixed.take()
    mixed.world.finish()
