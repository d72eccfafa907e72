"""The commit protocol: the order of its steps, what follows when one fails, and how it finds the
outcome of a commit whose reply was lost (design §7, decision 0010).

The transport plays the transaction service. `test_failing_hooks.py` has the same against a real
server, and `test_lost_replies.py` loses real replies.
"""

from collections.abc import Callable

import pytest

import tuff
from tests.client.recording import LeavingParticipant, Participant, PlayedService, Record
from tuff.blocking.context import TransactionContext
from tuff.errors import (
    ClientClosedError,
    ConnectionLostError,
    OutcomeUnknownError,
    TransactionInvalidatedError,
    TransactionTimedOutError,
    WrongStateError,
)
from tuff.protocol.errors import (
    BadRequestError,
    EmptyPublishError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionConflictError,
    TransactionsUnavailableError,
    TransactionUnknownError,
)
from tuff.protocol.ids import TopicId
from tuff.publish_calls import BUFFER_BYTES_MAX

ORDERS = TopicId("shop", "orders")


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.fixture
def service(record: Record) -> PlayedService:
    return PlayedService(record)


@pytest.fixture
def client(service: PlayedService) -> tuff.Client:
    return tuff.Client(transport=service, client_id="tests", retries=0)


@pytest.fixture
def context(client: tuff.Client, record: Record) -> TransactionContext:
    participants = [
        Participant("a", record, changes=[b"x"]),
        Participant("b", record, changes=[b"y"]),
    ]
    return client.transaction(*participants)


BEGUN = ["start", "a.start_tx", "b.start_tx"]
CHECKED = [*BEGUN, "a.tx_changes", "b.tx_changes", "can_commit ['x', 'y']"]
WRITTEN = [*CHECKED, "a.commit_tx", "b.commit_tx"]
ROLLED_BACK = ["a.rollback_tx", "b.rollback_tx"]


def run(context: TransactionContext) -> None:
    with context as tx:
        tx.publish(ORDERS, "sold")


def test_a_commit_runs_every_step_in_its_order(
    context: TransactionContext, record: Record, service: PlayedService
) -> None:
    run(context)

    assert record.steps == [*WRITTEN, "commit", "a.post_commit", "b.post_commit"]
    assert [(entry["topic"], entry["messages"]) for entry in service.entries] == [
        ("orders", ["sold"])
    ]


def test_the_messages_of_a_topic_are_one_publish_of_the_commit(
    context: TransactionContext, service: PlayedService
) -> None:
    with context as tx:
        tx.publish(ORDERS, "one", ttl=5)
        tx.publish(TopicId("shop", "audit"), "other")
        tx.publish(ORDERS, "two")

    assert [(entry["topic"], entry["messages"]) for entry in service.entries] == [
        ("orders", [{"payload": "one", "ttl": 5}, "two"]),
        ("audit", ["other"]),
    ]


def test_a_context_without_changes_and_messages_commits_read_only(
    client: tuff.Client, record: Record
) -> None:
    with client.transaction():
        pass

    assert record.steps == ["start", "commit read-only"]


def test_a_context_with_a_checkpoint_never_commits_read_only(
    client: tuff.Client, record: Record
) -> None:
    """The server refuses that, and would be asked twice."""
    with client.transaction() as tx:
        tx.checkpoint()

    assert record.steps == ["start", "checkpoint", "commit"]


def test_a_context_that_is_used_again_publishes_only_the_messages_of_the_new_block(
    context: TransactionContext, service: PlayedService
) -> None:
    run(context)

    with context as tx:
        tx.publish(ORDERS, "again")

    assert [entry["messages"] for entry in service.entries] == [["again"]]


def test_a_context_that_never_began_has_not_committed(context: TransactionContext) -> None:
    assert not context._protocol.has_committed


def test_the_end_of_a_block_that_never_began_is_refused(
    context: TransactionContext, record: Record
) -> None:
    with pytest.raises(RuntimeError, match="nothing was committed"):
        context.__exit__(None, None, None)

    assert record.steps == []


def test_a_participant_that_fails_to_write_is_rolled_back_too(
    context: TransactionContext, record: Record
) -> None:
    record.fail["a.commit_tx"] = OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        run(context)

    assert record.steps == [*CHECKED, "a.commit_tx", *ROLLED_BACK, "abort"]


def test_a_participant_learns_that_a_transaction_is_over_if_another_one_did_not_start(
    client: tuff.Client, record: Record
) -> None:
    """The next write was meant for the outer transaction, and went into this one, and was lost."""
    record.fail["b.start_tx"] = OSError("no")
    participants = [LeavingParticipant("a", record), LeavingParticipant("b", record)]

    with pytest.raises(OSError, match="no"), client.transaction(*participants):
        pass

    assert record.steps == [*BEGUN, "a.leave_tx", "abort"]


LOST = ConnectionLostError("lost", outcome_unknown=True)
DOWN = TransactionsUnavailableError("down")
DONE = TransactionCommittedError("it did")
UNDONE = [*ROLLED_BACK, "abort"]
POST_COMMIT = ["a.post_commit", "b.post_commit"]


@pytest.mark.parametrize(
    ("commit", "invalidate", "raised", "steps"),
    [
        # The server proves that it did not commit, or nothing was sent.
        (BadRequestError("no"), None, BadRequestError, UNDONE),
        (ClientClosedError(), ClientClosedError(), ClientClosedError, UNDONE),
        # The invalidation finds the outcome, and prevents a commit that arrives late.
        (LOST, None, ConnectionLostError, ["invalidate", *UNDONE]),
        (LOST, TransactionAbortedError("x"), ConnectionLostError, ["invalidate", *UNDONE]),
        (LOST, DONE, None, ["invalidate", *POST_COMMIT]),
        (KeyboardInterrupt(), DONE, KeyboardInterrupt, ["invalidate", *POST_COMMIT]),
        # It can't: no participant is rolled back, as the transaction may have committed.
        (LOST, DOWN, OutcomeUnknownError, ["invalidate"]),
        (DOWN, DOWN, OutcomeUnknownError, ["invalidate"]),
        (LOST, TransactionUnknownError("?"), OutcomeUnknownError, ["invalidate"]),
        (LOST, KeyboardInterrupt(), OutcomeUnknownError, ["invalidate"]),
        (KeyboardInterrupt(), LOST, KeyboardInterrupt, ["invalidate"]),
        (KeyboardInterrupt(), DOWN, KeyboardInterrupt, ["invalidate"]),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else "",
)
def test_participants_are_rolled_back_only_if_the_commit_did_not_and_will_not_happen(
    context: TransactionContext,
    record: Record,
    commit: BaseException,
    invalidate: BaseException | None,
    raised: type[BaseException] | None,
    steps: list[str],
) -> None:
    record.fail = {"commit": commit} | ({"invalidate": invalidate} if invalidate else {})
    error: BaseException | None = None

    try:
        run(context)
    except BaseException as caught:  # noqa: BLE001 - what a row expects, interrupts too
        error = caught

    assert (type(error) if error else None) is raised
    assert record.steps == [*WRITTEN, "commit", *steps]


def test_an_unknown_outcome_names_the_command_that_asks_for_it(
    context: TransactionContext, record: Record
) -> None:
    record.fail = {"commit": LOST, "invalidate": DOWN}

    with pytest.raises(OutcomeUnknownError, match="tuff tx show 10") as caught:
        run(context)

    assert (caught.value.outcome_unknown, caught.value.retry_safe) == (True, False)
    assert caught.value.__cause__ is LOST


def test_an_interrupt_of_a_commit_with_an_unknown_outcome_says_so_in_its_notes(
    context: TransactionContext, record: Record
) -> None:
    record.fail = {"commit": KeyboardInterrupt(), "invalidate": DOWN}

    with pytest.raises(KeyboardInterrupt) as caught:
        run(context)

    notes = "\n".join(caught.value.__notes__)
    assert "whether transaction 10 committed can't be learned now" in notes
    assert "when the outcome was asked for: TransactionsUnavailableError" in notes


def test_a_participant_learns_that_a_transaction_with_an_unknown_outcome_is_over(
    client: tuff.Client, record: Record
) -> None:
    record.fail = {"commit": LOST, "invalidate": LOST}

    with pytest.raises(OutcomeUnknownError), client.transaction(LeavingParticipant("a", record)):
        pass

    assert record.steps[-3:] == ["commit read-only", "invalidate", "a.leave_tx"]


def test_an_abort_ends_it_without_an_error_and_the_context_can_be_used_again(
    context: TransactionContext, record: Record, service: PlayedService
) -> None:
    with context as tx:
        tx.publish(ORDERS, "never")
        tx.abort()

    assert record.steps == [*BEGUN, *ROLLED_BACK, "abort"]
    with context:
        pass
    assert service.entries == []


def test_the_end_of_a_block_is_refused_if_another_block_ended_its_transaction(
    context: TransactionContext,
) -> None:
    with context as tx:
        tx.abort()
    context.__enter__()
    context._protocol._current = None  # as a second block over the same context leaves it

    with pytest.raises(RuntimeError, match="ended by another user"):
        context.__exit__(None, None, None)


def test_a_checkpoint_gives_participants_the_new_pointer_and_messages_keep_theirs(
    context: TransactionContext, record: Record, service: PlayedService
) -> None:
    with context as tx:
        tx.publish(ORDERS, "before")
        tx.checkpoint()
        tx.publish(ORDERS, "after")

    assert record.steps[3:6] == ["checkpoint", "a.update_tx 11", "b.update_tx 11"]
    assert [entry["pointer"] for entry in service.entries] == ["10", "11"]


def test_a_late_participant_starts_at_once(context: TransactionContext, record: Record) -> None:
    with context as tx:
        tx.add(Participant("late", record))

    assert record.steps[3] == "late.start_tx"
    assert record.steps[-1] == "late.post_commit"


def test_a_late_participant_that_does_not_start_has_not_joined(
    context: TransactionContext, record: Record
) -> None:
    record.fail["late.start_tx"] = OSError("no")

    with context as tx, pytest.raises(OSError, match="no"):
        tx.add(Participant("late", record))

    assert "late.commit_tx" not in record.steps


def test_a_participant_that_joins_twice_starts_once(
    context: TransactionContext, client: tuff.Client, record: Record
) -> None:
    """A second start had it forget what it wrote, and the commit went through without that; a
    context whose block added the same one each time ended it more often from use to use."""
    participant = Participant("a", record)
    twice = client.transaction(participant, participant)

    for _ in range(2):
        record.steps.clear()
        with twice as tx:
            tx.add(participant)

        assert record.steps.count("a.start_tx") == record.steps.count("a.post_commit") == 1


def test_two_participants_that_are_equal_are_two(client: tuff.Client, record: Record) -> None:
    class Alike(Participant):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]  # two that are equal, and neither is the other

    with client.transaction(Alike("a", record)) as tx:
        tx.add(Alike("b", record))

    assert {"a.commit_tx", "b.commit_tx"} <= set(record.steps)


def test_after_a_checkpoint_that_a_participant_missed_the_transaction_is_rolled_back(
    context: TransactionContext, record: Record
) -> None:
    """It went on under the old pointer, and committed, when the block swallowed the error."""
    record.fail["a.update_tx"] = OSError("no")

    with (
        pytest.raises(RuntimeError, match="could not follow a checkpoint") as caught,
        context as tx,
        pytest.raises(OSError, match="no"),
    ):
        tx.checkpoint()

    assert caught.value.__cause__ is record.fail["a.update_tx"]
    assert record.steps[3:] == ["checkpoint", "a.update_tx 11", *ROLLED_BACK, "abort"]


def test_a_context_can_be_used_again_after_a_checkpoint_failed_in_it(
    context: TransactionContext, record: Record, service: PlayedService
) -> None:
    record.fail["a.update_tx"] = OSError("no")
    context.__enter__().publish(ORDERS, "never")
    with pytest.raises(OSError, match="no"):
        context.checkpoint()
    with pytest.raises(RuntimeError, match="could not follow a checkpoint"):
        context.__exit__(None, None, None)
    record.steps.clear()

    run(context)

    assert record.steps == [*WRITTEN, "commit", "a.post_commit", "b.post_commit"]
    assert [entry["messages"] for entry in service.entries] == [["sold"]]


def test_a_generator_exit_of_a_hook_rolls_back_like_any_error(
    context: TransactionContext, record: Record
) -> None:
    """Taken for the end of the program's loop, it left the transaction open until its time-out."""
    record.fail["a.commit_tx"] = GeneratorExit()

    with pytest.raises(RuntimeError, match="GeneratorExit"):
        run(context)

    assert record.steps == [*CHECKED, "a.commit_tx", *ROLLED_BACK, "abort"]


def test_a_participant_can_not_leave_inside_a_transaction(
    client: tuff.Client, record: Record
) -> None:
    participant = Participant("a", record)
    context = client.transaction(participant)

    with context, pytest.raises(RuntimeError, match="a can't leave"):
        context.remove(participant)

    assert (context.remove(participant), context.remove(participant)) == (True, False)


@pytest.mark.parametrize(
    "use",
    [lambda c: c.publish(ORDERS, "x"), lambda c: c.abort(), lambda c: c.poll(ORDERS)],
    ids=["publish", "abort", "poll"],
)
def test_outside_of_a_transaction_its_calls_are_errors(
    context: TransactionContext, use: Callable[[TransactionContext], object]
) -> None:
    with pytest.raises(RuntimeError, match="not in a transaction"):
        use(context)


def test_an_empty_publish_is_refused(context: TransactionContext) -> None:
    with context as tx, pytest.raises(EmptyPublishError):
        tx.publish(ORDERS)


def test_a_blocking_client_refuses_a_hook_that_is_a_coroutine_function(
    client: tuff.Client, record: Record
) -> None:
    """Its call only makes a coroutine: rows were once committed that were not written."""

    class Careless(Participant):
        async def commit_tx(self, transaction: tuff.Transaction) -> None:
            raise AssertionError

    with pytest.raises(TypeError, match="AsyncClient"), client.transaction(Careless("a", record)):
        pass

    assert record.steps[-2:] == ["a.rollback_tx", "abort"]


def test_a_transaction_that_is_run_again_after_a_conflict_begins_anew(
    client: tuff.Client, record: Record
) -> None:
    record.fail["can_commit"] = TransactionConflictError("x")
    rounds: list[int] = []

    def work(tx: TransactionContext) -> str:
        rounds.append(tx.transaction.write_pointer)
        if len(rounds) == 3:
            record.fail.clear()
        return "done"

    assert client.run(work, Participant("a", record)) == "done"
    assert len(rounds) == record.steps.count("start") == 3


def test_a_conflict_at_each_attempt_is_raised_at_last(client: tuff.Client, record: Record) -> None:
    record.fail["commit"] = TransactionConflictError("x")

    with pytest.raises(TransactionConflictError):
        client.run(lambda _: None, attempts=2)

    assert record.steps == ["start", "commit read-only", "abort"] * 2


def test_one_attempt_is_possible_and_none_is_refused() -> None:
    record = Record()
    client = tuff.Client(transport=PlayedService(record), client_id="tests", retries=0)

    client.run(lambda _: None, attempts=1)
    with pytest.raises(ValueError, match="from 1 on, not 0"):
        client.run(lambda _: None, attempts=0)

    assert record.steps == ["start", "commit read-only"]


@pytest.mark.parametrize("step", ["can_commit", "commit"])
def test_a_conflict_within_a_block_does_not_advise_to_abort(step: str) -> None:
    record = Record()
    record.fail[step] = tuff.TransactionConflictError(
        "transaction 10 conflicts with transaction 9; undo its writes, abort it, and run it again"
    )
    client = tuff.Client(transport=PlayedService(record), retries=0)

    context = client.transaction(Participant("a", record, changes=[b"x"]))
    with pytest.raises(tuff.TransactionConflictError) as caught, context:
        pass

    assert str(caught.value) == caught.value.detail
    assert caught.value.detail == (
        "transaction 10 conflicts with transaction 9; run the block again, as `client.run` does"
    )


@pytest.mark.parametrize("ended", [TransactionTimedOutError, TransactionInvalidatedError])
@pytest.mark.parametrize("step", ["can_commit", "commit"])
def test_a_block_whose_transaction_was_ended_does_not_advise_what_it_has_done(
    step: str, ended: type[tuff.TuffError]
) -> None:
    record = Record()
    record.fail[step] = ended(
        "transaction 10 did not end within its 1 seconds; undo its other writes, abort it, and "
        "start another one"
    )
    client = tuff.Client(transport=PlayedService(record), retries=0)

    context = client.transaction(Participant("a", record, changes=[b"x"]))
    with pytest.raises(ended) as caught, context:
        pass

    assert str(caught.value) == (
        "transaction 10 did not end within its 1 seconds; it is rolled back; run the block again, "
        "with a longer `timeout` if it takes so long"
    )
    assert "a.rollback_tx" in record.steps


@pytest.mark.parametrize(
    ("step", "call"),
    [
        ("checkpoint", lambda tx: tx.checkpoint()),
        ("join", lambda tx: tx.add(Participant("late", Record()))),
        ("store", lambda tx: tx.publish(ORDERS, b"x" * (BUFFER_BYTES_MAX + 1))),
        ("poll?tx=10", lambda tx: tx.poll(ORDERS)),
    ],
)
def test_a_call_within_a_block_whose_transaction_was_ended_advises_to_run_the_block_again(
    step: str, call: Callable[[TransactionContext], object]
) -> None:
    """A checkpoint advised to undo other writes and to abort, which the block does by itself."""
    record = Record()
    record.fail[step] = TransactionTimedOutError(
        "transaction 10 did not end within its 1 seconds; undo its other writes, abort it, and "
        "start another one"
    )
    client = tuff.Client(transport=PlayedService(record), retries=0)

    with pytest.raises(TransactionTimedOutError) as caught, client.transaction() as tx:
        call(tx)

    assert str(caught.value) == (
        "transaction 10 did not end within its 1 seconds; it is rolled back; run the block again, "
        "with a longer `timeout` if it takes so long"
    )
    assert record.steps[-1] == "abort"


def test_a_publish_behind_an_abort_says_that_the_block_has_aborted(
    context: TransactionContext,
) -> None:
    with context as tx:
        tx.abort()

        with pytest.raises(WrongStateError, match="the block has aborted its transaction"):
            tx.publish(ORDERS, "late")


@pytest.mark.parametrize("wrong", [None, "a", b"a", ["a"], 3], ids=repr)
def test_changes_that_are_no_keys_are_refused_with_the_class_and_the_hook(wrong: object) -> None:
    record = Record()
    client = tuff.Client(transport=PlayedService(record), retries=0)
    context = client.transaction(Participant("stock", record, changes=wrong))

    with (
        pytest.raises(TypeError, match=r"tx_changes of Participant \(participant 'stock'\)"),
        context,
    ):
        pass

    assert record.steps[-2:] == ["stock.rollback_tx", "abort"]


def test_a_participant_without_a_name_is_refused_with_its_class(client: tuff.Client) -> None:
    class Stock(tuff.TransactionAware):
        def tx_changes(self, transaction: tuff.Transaction) -> list[bytes]:
            return []

        def commit_tx(self, transaction: tuff.Transaction) -> None: ...

        def rollback_tx(self, transaction: tuff.Transaction) -> None: ...

    with pytest.raises(TypeError, match=r'class Stock has no `name`.* name = "stock"'):
        client.transaction(Stock())
