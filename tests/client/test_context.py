"""The order of the commit protocol, and what happens when a step of it fails (design §7).

The transaction service is played where the transport is. `test_failing_hooks.py` has the same
against a real one, and `test_lost_replies.py` loses real replies.
"""

from collections.abc import Callable

import pytest

import tuff
from tests.client.recording import NestingShelf, Record, Service, Shelf
from tuff.blocking.context import TransactionContext
from tuff.protocol.errors import (
    EmptyPublishError,
    TransactionConflictError,
)
from tuff.protocol.ids import TopicId

ORDERS = TopicId("shop", "orders")


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.fixture
def service(record: Record) -> Service:
    return Service(record)


@pytest.fixture
def client(service: Service) -> tuff.Client:
    return tuff.Client(transport=service, client_id="tests", retries=0)


@pytest.fixture
def context(client: tuff.Client, record: Record) -> TransactionContext:
    shelves = [Shelf("a", record, changes=[b"x"]), Shelf("b", record, changes=[b"y"])]
    return client.transaction(*shelves)


BEGUN = ["start", "a.start_tx", "b.start_tx"]
CHECKED = [*BEGUN, "a.tx_changes", "b.tx_changes", "can_commit ['x', 'y']"]
WRITTEN = [*CHECKED, "a.commit_tx", "b.commit_tx"]
ROLLED_BACK = ["a.rollback_tx", "b.rollback_tx"]


def run(context: TransactionContext) -> None:
    with context as tx:
        tx.publish(ORDERS, "sold")


def test_a_commit_runs_every_step_in_its_order(
    context: TransactionContext, record: Record, service: Service
) -> None:
    run(context)

    assert record.steps == [*WRITTEN, "commit", "a.post_commit", "b.post_commit"]
    assert [(entry["topic"], entry["messages"]) for entry in service.entries] == [
        ("orders", ["sold"])
    ]


def test_the_messages_of_a_topic_travel_as_one_publish(
    context: TransactionContext, service: Service
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


def test_a_context_that_is_used_again_publishes_what_the_new_block_did_and_no_more(
    context: TransactionContext, service: Service
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


def test_who_nests_transactions_goes_back_to_the_outer_one_where_another_can_not_start(
    client: tuff.Client, record: Record
) -> None:
    """The next write was meant for the transaction around it, and went into the dead one."""

    record.fail["b.start_tx"] = OSError("no")
    shelves = [NestingShelf("a", record), NestingShelf("b", record)]

    with pytest.raises(OSError, match="no"), client.transaction(*shelves):
        pass

    assert record.steps == [*BEGUN, "a.leave_tx", "abort"]


def test_an_abort_ends_it_without_an_error_and_the_context_can_be_used_again(
    context: TransactionContext, record: Record, service: Service
) -> None:
    with context as tx:
        tx.publish(ORDERS, "never")
        tx.abort()

    assert record.steps == [*BEGUN, *ROLLED_BACK, "abort"]
    with context:
        pass
    assert service.entries == []


def test_a_block_that_somebody_else_ended_is_told_so_though_the_one_before_was_aborted(
    context: TransactionContext,
) -> None:
    with context as tx:
        tx.abort()
    context.__enter__()
    context._protocol._current = None  # as a second block over the same context leaves it

    with pytest.raises(RuntimeError, match="ended by another user"):
        context.__exit__(None, None, None)


def test_a_checkpoint_gives_everybody_the_new_pointer_and_messages_keep_theirs(
    context: TransactionContext, record: Record, service: Service
) -> None:
    with context as tx:
        tx.publish(ORDERS, "before")
        tx.checkpoint()
        tx.publish(ORDERS, "after")

    assert record.steps[3:6] == ["checkpoint", "a.update_tx 11", "b.update_tx 11"]
    assert [entry["pointer"] for entry in service.entries] == ["10", "11"]


def test_a_late_participant_starts_at_once(context: TransactionContext, record: Record) -> None:
    with context as tx:
        tx.add(Shelf("late", record))

    assert record.steps[3] == "late.start_tx"
    assert record.steps[-1] == "late.post_commit"


def test_a_late_participant_that_can_not_start_joins_nobody(
    context: TransactionContext, record: Record
) -> None:
    record.fail["late.start_tx"] = OSError("no")

    with context as tx, pytest.raises(OSError, match="no"):
        tx.add(Shelf("late", record))

    assert "late.commit_tx" not in record.steps


def test_who_joins_twice_starts_once(
    context: TransactionContext, client: tuff.Client, record: Record
) -> None:
    """A second start had it forget what it wrote, and the commit went through without that; a
    context whose block added the same one each time ended it more often from use to use."""
    shelf = Shelf("a", record)
    twice = client.transaction(shelf, shelf)

    for _ in range(2):
        record.steps.clear()
        with twice as tx:
            tx.add(shelf)

        assert record.steps.count("a.start_tx") == record.steps.count("a.post_commit") == 1


def test_two_participants_that_are_equal_are_two(client: tuff.Client, record: Record) -> None:
    class Alike(Shelf):
        def __eq__(self, other: object) -> bool:
            return True

        __hash__ = None  # type: ignore[assignment]  # two that are equal, and neither is the other

    with client.transaction(Alike("a", record)) as tx:
        tx.add(Alike("b", record))

    assert {"a.commit_tx", "b.commit_tx"} <= set(record.steps)


def test_a_participant_that_missed_a_checkpoint_dooms_the_transaction(
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


def test_a_doomed_transaction_dooms_none_that_its_context_is_used_for_after_it(
    context: TransactionContext, record: Record, service: Service
) -> None:
    record.fail["a.update_tx"] = OSError("no")
    context.__enter__().publish(ORDERS, "doomed")
    with pytest.raises(OSError, match="no"):
        context.checkpoint()
    with pytest.raises(RuntimeError, match="could not follow a checkpoint"):
        context.__exit__(None, None, None)
    record.steps.clear()

    run(context)

    assert record.steps == [*WRITTEN, "commit", "a.post_commit", "b.post_commit"]
    assert [entry["messages"] for entry in service.entries] == [["sold"]]


def test_a_hook_that_ends_generators_rolls_back_like_any_error(
    context: TransactionContext, record: Record
) -> None:
    """Taken for the end of the program's loop, it left the transaction open until its time-out."""
    record.fail["a.commit_tx"] = GeneratorExit()

    with pytest.raises(RuntimeError, match="GeneratorExit"):
        run(context)

    assert record.steps == [*CHECKED, "a.commit_tx", *ROLLED_BACK, "abort"]


def test_nobody_leaves_in_the_middle_of_a_transaction(client: tuff.Client, record: Record) -> None:
    shelf = Shelf("a", record)
    context = client.transaction(shelf)

    with context, pytest.raises(RuntimeError, match="a can't leave"):
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
    with pytest.raises(RuntimeError, match="not in a transaction"):
        use(context)


def test_an_empty_publish_is_refused(context: TransactionContext) -> None:
    with context as tx, pytest.raises(EmptyPublishError):
        tx.publish(ORDERS)


def test_a_blocking_client_refuses_a_hook_that_would_never_run(
    client: tuff.Client, record: Record
) -> None:
    """A coroutine function only makes a coroutine: rows were once committed that nobody wrote."""

    class Careless(Shelf):
        async def commit_tx(self) -> None:
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

    assert client.run(work, Shelf("a", record)) == "done"
    assert len(rounds) == record.steps.count("start") == 3


def test_a_conflict_at_each_attempt_is_raised_at_last(client: tuff.Client, record: Record) -> None:
    record.fail["commit"] = TransactionConflictError("x")

    with pytest.raises(TransactionConflictError):
        client.run(lambda _: None, attempts=2)

    assert record.steps == ["start", "commit read-only", "abort"] * 2


def test_work_that_is_tried_once_is_tried_and_less_is_refused() -> None:
    record = Record()
    client = tuff.Client(transport=Service(record), client_id="tests", retries=0)

    client.run(lambda _: None, attempts=1)
    with pytest.raises(ValueError, match="from 1 on, not 0"):
        client.run(lambda _: None, attempts=0)

    assert record.steps == ["start", "commit read-only"]
