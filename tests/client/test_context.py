"""The order of the commit protocol, and what happens when a step of it fails (design §7).

The transaction service is played by `Recorder`, which keeps the order of the calls and fails where
a test says so: a lost reply can't be had from a real server at will.
"""

from collections.abc import Callable, Collection, Sequence

import pytest

from tuff.context import OutcomeUnknownError, TransactionContext
from tuff.protocol.errors import (
    BadRequestError,
    EmptyPublishError,
    RequestTooLargeError,
    TransactionCommittedError,
    TransactionConflictError,
    TransactionsUnavailableError,
)
from tuff.protocol.names import TopicId
from tuff.protocol.requests import PublishEntry
from tuff.protocol.transaction import Transaction
from tuff.transport import ConnectionLostError

ORDERS = TopicId("shop", "orders")
LOST = ConnectionLostError("lost", outcome_unknown=True)


class Recorder:
    """The calls in their order; `fail["commit"]` is what that call raises after it was noted."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.fail: dict[str, BaseException] = {}
        self.entries: Sequence[PublishEntry] = ()
        self.transactions = self

    def note(self, call: str, *, said: str = "") -> None:
        self.calls.append(call + said)
        if call in self.fail:
            raise self.fail[call]

    def start(self, type: str, *, timeout: float | None) -> Transaction:
        self.note("start")
        return Transaction(transaction_id=10, read_pointer=9, write_pointer=10)

    def checkpoint(self, tx: Transaction) -> Transaction:
        self.note("checkpoint")
        return tx.checkpointed(11)

    def can_commit(self, tx: Transaction, changes: Collection[bytes]) -> None:
        self.note("can_commit", said=f" {sorted(changes)}")

    def commit(
        self,
        tx: Transaction,
        changes: Collection[bytes],
        publish: Sequence[PublishEntry],
        *,
        read_only: bool,
    ) -> None:
        self.entries = publish
        self.note("commit", said=" read-only" if read_only else "")

    def abort(self, tx: Transaction) -> None:
        self.note("abort")

    def invalidate(self, tx: Transaction) -> None:
        self.note("invalidate")


class Shelf:
    """A participant that notes what it is asked."""

    def __init__(self, name: str, recorder: Recorder, *, changes: Collection[bytes] = ()) -> None:
        self.name = name
        self._recorder = recorder
        self._changes = changes

    def _note(self, call: str) -> None:
        self._recorder.note(f"{self.name}.{call}")

    def start_tx(self, transaction: Transaction) -> None:
        self._note("start_tx")

    def update_tx(self, transaction: Transaction) -> None:
        self._note(f"update_tx {transaction.write_pointer}")

    def tx_changes(self) -> Collection[bytes]:
        self._note("tx_changes")
        return self._changes

    def commit_tx(self) -> None:
        self._note("commit_tx")

    def post_commit(self) -> None:
        self._note("post_commit")

    def rollback_tx(self) -> None:
        self._note("rollback_tx")


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def context(recorder: Recorder) -> TransactionContext:
    shelves = [Shelf("a", recorder, changes=[b"x"]), Shelf("b", recorder, changes=[b"y"])]
    return TransactionContext(recorder, shelves, type="short", timeout_s=None)


BEGUN = ["start", "a.start_tx", "b.start_tx"]
CHECKED = [*BEGUN, "a.tx_changes", "b.tx_changes", "can_commit [b'x', b'y']"]
WRITTEN = [*CHECKED, "a.commit_tx", "b.commit_tx"]
ROLLED_BACK = ["a.rollback_tx", "b.rollback_tx"]


def run(context: TransactionContext) -> None:
    with context as tx:
        tx.publish(ORDERS, "sold")


def test_a_commit_runs_every_step_in_its_order(
    context: TransactionContext, recorder: Recorder
) -> None:
    run(context)

    assert recorder.calls == [*WRITTEN, "commit", "a.post_commit", "b.post_commit"]
    assert [(entry.topic, entry.payloads) for entry in recorder.entries] == [(ORDERS, [b"sold"])]


def test_the_messages_of_a_topic_travel_as_one_publish(
    context: TransactionContext, recorder: Recorder
) -> None:
    with context as tx:
        tx.publish(ORDERS, "one", ttl=5)
        tx.publish(TopicId("shop", "audit"), "other")
        tx.publish(ORDERS, "two")

    assert [(str(e.topic), e.payloads, e.ttls_s) for e in recorder.entries] == [
        ("shop:orders", [b"one", b"two"], [5, None]),
        ("shop:audit", [b"other"], [None]),
    ]


def test_a_context_without_changes_and_messages_commits_read_only(recorder: Recorder) -> None:
    with TransactionContext(recorder, [], type="short", timeout_s=None):
        pass

    assert recorder.calls == ["start", "commit read-only"]


def test_an_error_in_the_body_rolls_everybody_back_and_aborts(
    context: TransactionContext, recorder: Recorder
) -> None:
    with pytest.raises(ZeroDivisionError), context:
        raise ZeroDivisionError

    assert recorder.calls == [*BEGUN, *ROLLED_BACK, "abort"]


def test_an_interrupt_rolls_back_like_any_error(
    context: TransactionContext, recorder: Recorder
) -> None:
    with pytest.raises(KeyboardInterrupt), context:
        raise KeyboardInterrupt

    assert recorder.calls == [*BEGUN, *ROLLED_BACK, "abort"]


def test_a_conflict_rolls_everybody_back(context: TransactionContext, recorder: Recorder) -> None:
    recorder.fail["can_commit"] = TransactionConflictError("x")

    with pytest.raises(TransactionConflictError):
        run(context)

    assert recorder.calls == [*CHECKED, *ROLLED_BACK, "abort"]


def test_a_participant_that_fails_to_write_is_rolled_back_too(
    context: TransactionContext, recorder: Recorder
) -> None:
    recorder.fail["a.commit_tx"] = OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(context)

    assert recorder.calls == [*CHECKED, "a.commit_tx", *ROLLED_BACK, "abort"]


def test_a_roll_back_that_fails_invalidates_and_is_a_note_on_the_first_error(
    context: TransactionContext, recorder: Recorder
) -> None:
    recorder.fail["a.rollback_tx"] = OSError("disk full")

    with pytest.raises(ZeroDivisionError) as caught, context:
        raise ZeroDivisionError

    assert recorder.calls == [*BEGUN, *ROLLED_BACK, "invalidate"]
    assert caught.value.__notes__ == ["and then: OSError: disk full"]


def test_a_start_that_fails_aborts_and_rolls_nobody_back(
    context: TransactionContext, recorder: Recorder
) -> None:
    recorder.fail["b.start_tx"] = OSError("no")

    with pytest.raises(OSError, match="no"):
        run(context)

    assert recorder.calls == [*BEGUN, "abort"]


def test_a_post_commit_that_fails_stops_no_other_and_undoes_nothing(
    context: TransactionContext, recorder: Recorder
) -> None:
    recorder.fail["a.post_commit"] = OSError("no")

    with pytest.raises(OSError, match="no"):
        run(context)

    assert recorder.calls == [*WRITTEN, "commit", "a.post_commit", "b.post_commit"]


def test_a_commit_refused_by_the_server_rolls_back_without_asking_again(
    context: TransactionContext, recorder: Recorder
) -> None:
    recorder.fail["commit"] = BadRequestError("no")

    with pytest.raises(BadRequestError):
        run(context)

    assert recorder.calls == [*WRITTEN, "commit", *ROLLED_BACK, "abort"]


def test_a_lost_commit_reply_of_a_commit_that_happened_is_no_error(
    context: TransactionContext, recorder: Recorder
) -> None:
    recorder.fail = {"commit": LOST, "invalidate": TransactionCommittedError("it did")}

    run(context)

    assert recorder.calls == [
        *WRITTEN, "commit", "invalidate", "a.post_commit", "b.post_commit",
    ]  # fmt: skip


def test_a_lost_commit_is_ended_before_anybody_rolls_back(
    context: TransactionContext, recorder: Recorder
) -> None:
    """Reading "in progress" and rolling back lost rows once the late commit arrived after all."""
    recorder.fail["commit"] = LOST

    with pytest.raises(ConnectionLostError):
        run(context)

    assert recorder.calls == [*WRITTEN, "commit", "invalidate", *ROLLED_BACK, "abort"]


@pytest.mark.parametrize("error", [LOST, TransactionsUnavailableError("down")])
def test_while_the_outcome_is_unknown_nobody_is_rolled_back(
    context: TransactionContext, recorder: Recorder, error: Exception
) -> None:
    recorder.fail = {"commit": error, "invalidate": TransactionsUnavailableError("down")}

    with pytest.raises(OutcomeUnknownError) as caught:
        run(context)

    assert caught.value.outcome_unknown
    assert recorder.calls == [*WRITTEN, "commit", "invalidate"]


def test_an_interrupt_after_the_commit_still_tells_the_participants(
    context: TransactionContext, recorder: Recorder
) -> None:
    recorder.fail = {
        "commit": KeyboardInterrupt(),
        "invalidate": TransactionCommittedError("it did"),
    }

    with pytest.raises(KeyboardInterrupt):
        run(context)

    assert recorder.calls[-2:] == ["a.post_commit", "b.post_commit"]


def test_an_abort_ends_it_without_an_error_and_the_context_can_be_used_again(
    context: TransactionContext, recorder: Recorder
) -> None:
    with context as tx:
        tx.publish(ORDERS, "never")
        tx.abort()

    assert recorder.calls == [*BEGUN, *ROLLED_BACK, "abort"]
    with context:
        pass
    assert recorder.entries == []


def test_a_checkpoint_gives_everybody_the_new_pointer_and_messages_keep_theirs(
    context: TransactionContext, recorder: Recorder
) -> None:
    with context as tx:
        tx.publish(ORDERS, "before")
        tx.checkpoint()
        tx.publish(ORDERS, "after")

    assert recorder.calls[3:6] == ["checkpoint", "a.update_tx 11", "b.update_tx 11"]
    assert [entry.pointer for entry in recorder.entries] == [10, 11]


def test_a_late_participant_starts_at_once(context: TransactionContext, recorder: Recorder) -> None:
    with context as tx:
        tx.add(Shelf("late", recorder))

    assert recorder.calls[3] == "late.start_tx"
    assert recorder.calls[-1] == "late.post_commit"


def test_a_late_participant_that_can_not_start_joins_nobody(
    context: TransactionContext, recorder: Recorder
) -> None:
    recorder.fail["late.start_tx"] = OSError("no")

    with context as tx, pytest.raises(OSError, match="no"):
        tx.add(Shelf("late", recorder))

    assert "late.commit_tx" not in recorder.calls


def test_nobody_leaves_in_the_middle_of_a_transaction(recorder: Recorder) -> None:
    shelf = Shelf("a", recorder)
    context = TransactionContext(recorder, [shelf], type="short", timeout_s=None)

    with context, pytest.raises(BadRequestError, match="a can't leave"):
        context.remove(shelf)

    assert (context.remove(shelf), context.remove(shelf)) == (True, False)


@pytest.mark.parametrize(
    "use",
    [lambda c: c.publish(ORDERS, "x"), lambda c: c.abort(), lambda c: c.poll(ORDERS)],
    ids=["publish", "abort", "poll"],
)
def test_outside_of_a_transaction_its_calls_are_errors(
    context: TransactionContext, use: Callable[[TransactionContext], object]
) -> None:
    with pytest.raises(BadRequestError, match="not in a transaction"):
        use(context)


def test_an_empty_publish_and_one_too_large_are_refused(context: TransactionContext) -> None:
    with context as tx:
        with pytest.raises(EmptyPublishError):
            tx.publish(ORDERS)
        with pytest.raises(RequestTooLargeError, match="use several"):
            tx.publish(ORDERS, b"x" * (8 * 1024 * 1024 + 1))
