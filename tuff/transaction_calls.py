"""The calls of the transaction service and of sinks, as values (protocol §5.2, §5.3)."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar

from tuff.flows_and_repeated_calls import Call, call
from tuff.protocol import operations
from tuff.protocol.json_bodies import (
    array_from_json,
    object_from_json,
    payload_to_json,
    pointer_to_json,
    publish_entry_to_json,
    rollback_detail_from_json,
    shown,
    text_from_json,
    transaction_from_json,
)
from tuff.protocol.operations import Operation
from tuff.protocol.requests import PublishEntry, RollbackDetail
from tuff.protocol.transaction import (
    Transaction,
    TransactionState,
    TransactionTypeLike,
)
from tuff.replies import (
    Epoch,
    Invalids,
    Outcome,
    Overview,
    Prepared,
    PreparedTransaction,
    Renewed,
    Sink,
    SnapshotFile,
    Truncated,
)
from tuff.requests_and_responses import (
    Request,
    Response,
    maybe_pointer,
    members,
    nothing,
    number_of,
    of_type,
    reply,
    reply_list,
    reply_object,
)

T = TypeVar("T")

Tx = Transaction | int
Resolution = Literal["commit", "abort"]

REQUEST_ID_BYTES = 16  # random bytes; two programs never draw the same


def new_request_id() -> str:
    """The id of one request, by which the server recognizes its repetitions."""
    return secrets.token_hex(REQUEST_ID_BYTES)


def start(
    *,
    type: TransactionTypeLike,
    timeout_s: float | None,
    client: str | None,
    request_id: str,
    lease_s: float | None = None,
    messages_only: bool = False,
) -> Call[Transaction]:
    """A repetition returns the same transaction while it is in progress. If the caller is
    interrupted before the reply, the start is withdrawn: no client would end what it began."""
    body: dict[str, object] = {"type": str(type), "requestId": request_id}
    if timeout_s is not None:
        body["timeout"] = timeout_s
    if client is not None:
        body["client"] = client
    if lease_s is not None:
        body["lease"] = lease_s
    if of_type(messages_only, bool, "messages_only"):
        body["messagesOnly"] = True
    request = Request(operation=operations.START_TRANSACTION, body=body, has_id=True)
    return Call(request, _read_transaction, withdrawal=_withdraw(request_id))


def _withdraw(request_id: str) -> Call[int | None]:
    """Returns the transaction that the start with this id had begun, and that is aborted."""

    def read(response: Response) -> int | None:
        return maybe_pointer(reply_object(response)["transactionId"], what="transactionId")

    return call(operations.WITHDRAW_START, (), read, form={"requestId": request_id})


def can_commit(pointer: int, changes: Collection[bytes]) -> Call[None]:
    body = {"changes": _changes_form(changes)}
    return _of(operations.CAN_COMMIT, pointer, nothing, body)


def commit(
    pointer: int,
    changes: Collection[bytes],
    publish: Sequence[PublishEntry],
    *,
    read_only: bool,
) -> Call[list[RollbackDetail]]:
    body: dict[str, object] = {
        "changes": _changes_form(changes),
        "publish": _entries_to_json(publish),
        "readOnly": of_type(read_only, bool, "read_only"),
    }
    return _of(operations.COMMIT, pointer, _read_published, body)


def commit_and_start(
    committing: Call[list[RollbackDetail]], starting: Call[Transaction]
) -> Call[tuple[list[RollbackDetail], Transaction | None]]:
    """A commit and the start of the next transaction in one call; None: the start was refused."""
    body = {
        **object_from_json(committing.request.body),
        "then": {"start": starting.request.body},
    }

    def read(response: Response) -> tuple[list[RollbackDetail], Transaction | None]:
        following = reply_object(response)["next"]
        started = None if following is None else _transaction(object_from_json(following))
        return committing.read(response), started

    return Call(replace(committing.request, body=body), read, withdrawal=starting.withdrawal)


def prepare(
    pointer: int, database: str, changes: Collection[bytes], publish: Sequence[PublishEntry]
) -> Call[Prepared]:
    body: dict[str, object] = {
        "changes": _changes_form(changes),
        "publish": _entries_to_json(publish),
        "database": database,
    }

    return _of(operations.PREPARE, pointer, reply(Prepared), body)


def resolve(pointer: int, outcome: Resolution) -> Call[TransactionState]:
    """Returns the state in which the transaction ended: COMMITTED, or ABORTED, or INVALID."""
    return _of(operations.RESOLVE, pointer, _read_state, {"outcome": outcome})


def prepared(database: str | None) -> Call[list[PreparedTransaction]]:
    read = reply_list(PreparedTransaction, "prepared")
    return call(operations.LIST_PREPARED, (), read, query={"database": database})


def run(
    publish: Sequence[PublishEntry], *, client: str | None, request_id: str
) -> Call[list[RollbackDetail]]:
    """`request_id` (up to 128 characters) is what makes repeating it safe."""
    body: dict[str, object] = {
        "publish": _entries_to_json(publish),
        "requestId": request_id,
    }
    if client is not None:
        body["client"] = client
    return call(operations.RUN_TRANSACTION, (), _read_published, form=body)


def _entries_to_json(publish: Sequence[PublishEntry]) -> list[dict[str, object]]:
    entries = members(publish, "publish")
    return [
        publish_entry_to_json(of_type(each, PublishEntry, "an entry of publish"))
        for each in entries
    ]


def truncate(*, ids: Collection[int] | None, before_ms: int | None) -> Call[Truncated]:
    """A time is not sent again: where it is to come, by the server's clock, that would take off
    what has become invalid since.

    Raises:
        ValueError: not exactly one of the two is given.
    """
    if (ids is None) == (before_ms is None):
        raise ValueError("a truncation takes ids or before, and exactly one of them")
    form: dict[str, object] = {}
    if ids is None:
        form["before"] = number_of(before_ms, "before", at_least=0)
    else:
        form["ids"] = [pointer_to_json(of_type(each, int, "an id")) for each in members(ids, "ids")]
    request = Request(operation=operations.TRUNCATE_INVALID, body=form, has_id=ids is not None)
    return Call(request, reply(Truncated))


def _of(
    operation: Operation, pointer: int, read: Callable[[Response], T], form: object = None
) -> Call[T]:
    return call(operation, (str(pointer),), read, form=form)


def _changes_form(changes: Collection[bytes]) -> list[object]:
    """Raises: TypeError: one of them is not bytes."""
    for key in changes:
        if not isinstance(key, bytes):
            raise TypeError(f"a change is a key, as bytes, and not {shown(key)}")
    return [payload_to_json(key) for key in changes]


def _read_state(response: Response) -> TransactionState:
    return TransactionState(text_from_json(reply_object(response)["state"], "state"))


def _read_published(response: Response) -> list[RollbackDetail]:
    published = array_from_json(reply_object(response).get("published", []))
    return [rollback_detail_from_json(item) for item in published]


def _read_transaction(response: Response) -> Transaction:
    return _transaction(reply_object(response))


def _transaction(body: Mapping[str, object]) -> Transaction:
    encoded = body["encoded"]  # of a session, bytes
    return transaction_from_json(encoded if isinstance(encoded, bytes) else text_from_json(encoded))


def begin_epoch(
    sink: str, epoch: int, run_id: str, *, lease_s: float | None, client: str
) -> Call[Epoch]:
    body: dict[str, object] = {"runId": run_id, "client": client}
    if lease_s is not None:
        body["lease"] = lease_s

    # The same run gets the same transaction again.
    parameters = (sink, str(number_of(epoch, "epoch", at_least=0)))
    return call(operations.BEGIN_EPOCH, parameters, reply(Epoch), form=body)


def _about(operation: Operation, read: Callable[[Response], T]) -> Callable[[int | str], Call[T]]:
    """The calls that have only the pointer of a transaction, or the name of a sink."""
    return lambda subject: call(operation, (str(subject),), read)


join = _about(operations.JOIN, nothing)  # another store than the messages takes part from now on
abort = _about(operations.ABORT, _read_state)  # returns the state it ended in: ABORTED, or INVALID
invalidate = _about(operations.INVALIDATE, nothing)
# The pointer of a checkpoint whose reply was lost is one that nothing was written under.
checkpoint = _about(operations.CHECKPOINT, _read_transaction)
renew = _about(operations.RENEW, reply(Renewed))
outcome = _about(operations.GET_OUTCOME, reply(Outcome))
get_sink = _about(operations.GET_SINK, reply(Sink))
delete_sink = _about(operations.FORGET_SINK, nothing)

OVERVIEW = call(operations.GET_OVERVIEW, (), reply(Overview))
INVALIDS = call(operations.LIST_INVALID, (), reply(Invalids))
TAKE_SNAPSHOT = call(operations.TAKE_SNAPSHOT, (), reply(SnapshotFile))
LIST_SINKS = call(operations.LIST_SINKS, (), reply_list(Sink, "sinks"))


def id_of(tx: Tx) -> int:
    """The pointer to ask about it with. Raises: TypeError: it is no transaction."""
    return tx if type(tx) is int else _checked(tx).transaction_id


def write_pointer_of(tx: Tx) -> int:
    """The pointer to write under in it. Raises: TypeError: it is no transaction."""
    return tx if type(tx) is int else _checked(tx).write_pointer


def _checked(tx: object) -> Transaction:
    if not isinstance(tx, Transaction):
        raise TypeError(
            f"a transaction is a tuff.Transaction or one of its pointers, and not {shown(tx)}"
        )
    return tx
