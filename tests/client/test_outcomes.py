"""What is known of a commit whose reply did not come, and what follows from it (decision 0010).

The transaction service is played where the transport is; `test_lost_replies.py` loses real ones.
"""

import pytest

import tuff
from tests.client.recording import NestingShelf, Record, Service, Shelf
from tuff.blocking.context import TransactionContext
from tuff.client_errors import ClientClosedError, ConnectionLostError, OutcomeUnknownError
from tuff.protocol.errors import (
    BadRequestError,
    TransactionAbortedError,
    TransactionCommittedError,
    TransactionsUnavailableError,
    TransactionUnknownError,
)
from tuff.protocol.ids import TopicId

ORDERS = TopicId("shop", "orders")

WRITTEN = [
    "start", "a.start_tx", "b.start_tx", "a.tx_changes", "b.tx_changes", "can_commit ['x', 'y']",
    "a.commit_tx", "b.commit_tx",
]  # fmt: skip
ROLLED_BACK = ["a.rollback_tx", "b.rollback_tx"]


def lost() -> ConnectionLostError:
    return ConnectionLostError("lost", outcome_unknown=True)


@pytest.fixture
def record() -> Record:
    return Record()


@pytest.fixture
def client(record: Record) -> tuff.Client:
    return tuff.Client(transport=Service(record), client_id="tests", retries=0)


@pytest.fixture
def context(client: tuff.Client, record: Record) -> TransactionContext:
    shelves = [Shelf("a", record, changes=[b"x"]), Shelf("b", record, changes=[b"y"])]
    return client.transaction(*shelves)


def run(context: TransactionContext) -> None:
    with context as tx:
        tx.publish(ORDERS, "sold")


def test_a_commit_that_somebody_else_had_aborted_is_rolled_back(
    context: TransactionContext, record: Record
) -> None:
    record.fail = {"commit": lost(), "invalidate": TransactionAbortedError("an operator did")}

    with pytest.raises(ConnectionLostError) as caught:
        run(context)

    assert not isinstance(caught.value, OutcomeUnknownError)
    assert record.steps == [*WRITTEN, "commit", "invalidate", *ROLLED_BACK, "abort"]


def test_who_nests_transactions_goes_back_to_the_outer_one_where_the_outcome_is_unknown(
    client: tuff.Client, record: Record
) -> None:
    record.fail = {"commit": lost(), "invalidate": lost()}

    with pytest.raises(OutcomeUnknownError), client.transaction(NestingShelf("a", record)):
        pass

    assert record.steps[-3:] == ["commit read-only", "invalidate", "a.leave_tx"]


def test_a_commit_refused_by_the_server_rolls_back_without_asking_again(
    context: TransactionContext, record: Record
) -> None:
    record.fail["commit"] = BadRequestError("no")

    with pytest.raises(BadRequestError):
        run(context)

    assert record.steps == [*WRITTEN, "commit", *ROLLED_BACK, "abort"]


def test_a_commit_that_a_closed_client_never_sent_did_not_happen(
    context: TransactionContext, record: Record
) -> None:
    record.fail = {"commit": ClientClosedError(), "invalidate": ClientClosedError()}

    with pytest.raises(ClientClosedError):
        run(context)

    assert record.steps == [*WRITTEN, "commit", *ROLLED_BACK, "abort"]


def test_a_lost_commit_reply_of_a_commit_that_happened_is_no_error(
    context: TransactionContext, record: Record
) -> None:
    record.fail = {"commit": lost(), "invalidate": TransactionCommittedError("it did")}

    run(context)

    assert record.steps == [
        *WRITTEN, "commit", "invalidate", "a.post_commit", "b.post_commit",
    ]  # fmt: skip


def test_a_lost_commit_is_ended_before_anybody_rolls_back(
    context: TransactionContext, record: Record
) -> None:
    """Reading "in progress" and rolling back lost rows once the late commit arrived after all."""
    record.fail["commit"] = lost()

    with pytest.raises(ConnectionLostError):
        run(context)

    assert record.steps == [*WRITTEN, "commit", "invalidate", *ROLLED_BACK, "abort"]


@pytest.mark.parametrize("error", [lost(), TransactionsUnavailableError("down")])
def test_while_the_outcome_is_unknown_nobody_is_rolled_back(
    context: TransactionContext, record: Record, error: Exception
) -> None:
    record.fail = {"commit": error, "invalidate": TransactionsUnavailableError("down")}

    with pytest.raises(OutcomeUnknownError) as caught:
        run(context)

    assert caught.value.outcome_unknown
    assert not caught.value.retry_safe
    assert record.steps == [*WRITTEN, "commit", "invalidate"]


def test_an_interrupt_after_the_commit_still_tells_the_participants(
    context: TransactionContext, record: Record
) -> None:
    record.fail = {
        "commit": KeyboardInterrupt(),
        "invalidate": TransactionCommittedError("it did"),
    }

    with pytest.raises(KeyboardInterrupt):
        run(context)

    assert record.steps[-2:] == ["a.post_commit", "b.post_commit"]


def test_an_outcome_that_was_forgotten_is_unknown(
    context: TransactionContext, record: Record
) -> None:
    record.fail = {"commit": lost(), "invalidate": TransactionUnknownError("who?")}

    with pytest.raises(OutcomeUnknownError, match="tuff tx show 10") as caught:
        run(context)

    assert isinstance(caught.value.__cause__, ConnectionLostError)
    assert record.steps == [*WRITTEN, "commit", "invalidate"]


def test_an_interrupt_while_the_outcome_is_asked_for_undoes_nothing(
    context: TransactionContext, record: Record
) -> None:
    """It rolled back once, and the commit had been done."""
    record.fail = {
        "commit": lost(),
        "invalidate": KeyboardInterrupt(),
    }

    with pytest.raises(OutcomeUnknownError):
        run(context)

    assert record.steps == [*WRITTEN, "commit", "invalidate"]


@pytest.mark.parametrize("error", [lost(), TransactionsUnavailableError("down")])
def test_an_interrupt_of_a_commit_whose_outcome_is_unknown_says_so(
    context: TransactionContext, record: Record, error: Exception
) -> None:
    record.fail = {"commit": KeyboardInterrupt(), "invalidate": error}

    with pytest.raises(KeyboardInterrupt) as caught:
        run(context)

    notes = "\n".join(caught.value.__notes__)
    assert "whether transaction 10 committed can't be learned now" in notes
    assert f"when the outcome was asked for: {type(error).__name__}" in notes
    assert record.steps == [*WRITTEN, "commit", "invalidate"]
