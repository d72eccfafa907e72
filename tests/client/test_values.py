"""What a program gets holds still, and travels between processes."""

import pickle
from collections.abc import Iterator
from dataclasses import FrozenInstanceError, fields, replace
from enum import Enum, StrEnum

import pytest

import tuff
from process.health import Status
from tuff.errors import ConnectionLostError
from tuff.protocol.errors import TuffError
from tuff.protocol.ids import Offset
from tx.log_records import InvalidReason

ID = tuff.MessageId(1, 2)
VALUES = [
    tuff.Transaction(transaction_id=3, read_pointer=2, write_pointer=3, invalids=(1,)),
    tuff.connectors.RollbackDetail(1, Offset(1, 0), Offset(1, 2)),
    tuff.connectors.PublishEntry(topic=tuff.TopicId("a", "b"), payloads=[b"x"]),
    tuff.Message(ID, b"x"),
    tuff.admin.Offsets(generation=1, earliest=ID, end=None, blocked_by=None),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_a_value_can_not_be_changed_and_can_be_copied(value: tuff.Transaction) -> None:
    """The pointer of a transaction could be set, and its next writes went under it."""
    for one in fields(value):
        with pytest.raises(FrozenInstanceError):
            setattr(value, one.name, 99)
        with pytest.raises(FrozenInstanceError):
            delattr(value, one.name)

    assert pickle.loads(pickle.dumps(value)) == value
    assert replace(value) == value


def test_a_value_is_made_with_its_defaults_and_no_other_names() -> None:
    made = tuff.Transaction(transaction_id=3, read_pointer=2, write_pointer=3)

    assert (made.invalids, made.type) == ((), tuff.TransactionType.SHORT)
    with pytest.raises(TypeError, match="unexpected"):
        tuff.Transaction(transaction_id=3, read_pointer=2, write_pointer=3, other=1)  # type: ignore[call-arg]  # it is what is tried
    with pytest.raises(TypeError, match="missing"):
        tuff.Transaction(transaction_id=3)  # type: ignore[call-arg]  # it is what is tried


def kinds(root: type[TuffError]) -> Iterator[type[TuffError]]:
    yield root
    for kind in root.__subclasses__():
        yield from kinds(kind)


def made(kind: type[TuffError]) -> TuffError:
    if kind is tuff.errors.ClientClosedError:
        return tuff.errors.ClientClosedError()
    if kind is ConnectionLostError:
        return ConnectionLostError("gone", outcome_unknown=True)
    if kind is tuff.errors.DeserializationError:
        topic, message = tuff.TopicId("shop", "orders"), tuff.Message(ID, b"x", tags=("a",))
        return tuff.errors.DeserializationError(topic, message, ValueError("gone"))
    return kind("gone")


@pytest.mark.parametrize("kind", sorted(set(kinds(TuffError)), key=lambda kind: kind.__name__))
def test_an_error_comes_out_of_another_process_as_it_was(kind: type[TuffError]) -> None:
    """A pool of processes broke where one with a constructor of its own came back."""
    error = made(kind)
    error.retry_after_s = 2.5
    error.add_note("and then")

    again = pickle.loads(pickle.dumps(error))

    assert type(again) is kind
    assert (vars(again), str(again)) == (vars(error), str(error))
    assert (again.code, again.retry_safe) == (error.code, error.retry_safe)


def test_an_error_has_its_members_after_pickling() -> None:
    conflict = pickle.loads(
        pickle.dumps(
            tuff.TransactionConflictError(
                "x",
                members={"key": "row", "conflictingTransaction": "7", "conflictingClient": "me"},
            )
        )
    )
    lost = pickle.loads(pickle.dumps(ConnectionLostError("gone", outcome_unknown=True)))

    assert (conflict.key, conflict.transaction, conflict.client) == (b"row", 7, "me")
    assert (conflict.detail, conflict.code) == ("x", "transaction_conflict")
    assert (lost.outcome_unknown, lost.retry_safe) == (True, False)


@pytest.mark.parametrize(
    ("ours", "servers"),
    [(tuff.admin.InvalidReason, InvalidReason), (tuff.admin.HealthStatus, Status)],
)
def test_an_enum_has_the_values_of_the_server(ours: type[StrEnum], servers: type[Enum]) -> None:
    assert {one.value for one in ours} == {one.value for one in servers}


def test_a_value_that_a_later_server_adds_is_equal_to_its_string() -> None:
    added = pickle.loads(pickle.dumps(tuff.admin.InvalidReason("of_tomorrow")))

    assert isinstance(added, tuff.admin.InvalidReason)
    assert (added, str(added), added.name) == ("of_tomorrow", "of_tomorrow", "OF_TOMORROW")
    assert added not in list(tuff.admin.InvalidReason)
