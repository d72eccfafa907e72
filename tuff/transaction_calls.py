"""The calls of the transaction service and of sinks, as values (protocol §5.2, §5.3)."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Literal, TypeVar
from urllib.parse import quote

from tuff.calls import (
    Call,
    Request,
    Response,
    get,
    json_array,
    json_body,
    json_object,
    maybe_pointer,
    members,
    nothing,
    of_type,
    query,
    reply_object,
    text,
    texts,
)
from tuff.protocol.json_forms import (
    payload_to_json,
    pointer_from_json,
    pointer_to_json,
    pointers_from_json,
    publish_entry_to_json,
    rollback_detail_from_json,
    seconds_from_json,
    shown,
    transaction_from_json,
    whole_number,
)
from tuff.protocol.requests import PublishEntry, RollbackDetail
from tuff.protocol.transaction import (
    InvalidReason,
    Transaction,
    TransactionState,
    TransactionType,
    TransactionTypeLike,
)
from tuff.replies import (
    Epoch,
    Invalids,
    OpenTransaction,
    Outcome,
    Overview,
    Prepared,
    PreparedTransaction,
    Renewed,
    Sink,
    SnapshotFile,
    Truncated,
)

T = TypeVar("T")

Tx = Transaction | int
Resolution = Literal["commit", "abort"]

BATCH_COUNT_MAX = 128  # calls in one request; the server takes 256
BATCH_BYTES_MAX = 4 << 20  # bytes of their bodies, unless the first one is larger

_ROOT = "/v1/transactions"
_SINKS = "/v1/sinks"


def start(
    *,
    type: TransactionTypeLike,
    timeout_s: float | None,
    client: str | None,
    lease_s: float | None = None,
) -> Call[Transaction]:
    kind = str(type)
    body: dict[str, object] = {"type": kind}
    if timeout_s is not None:
        body["timeout"] = timeout_s
    if client is not None:
        body["client"] = client
    if lease_s is not None:
        body["lease"] = lease_s
    # A start that was lost leaves a transaction that no client ends: a short one, and one with a
    # lease, is over soon, and a long one would hold back what can be cleaned up for a day.
    is_repeatable = kind == "short" or lease_s is not None
    request = Request(method="POST", path=_ROOT, form=body, is_repeatable=is_repeatable)
    return Call(request, _read_transaction)


def can_commit(pointer: int, changes: Collection[bytes]) -> Call[None]:
    body = {"changes": _changes_form(changes)}
    return _post(f"{pointer}/can-commit", body, nothing)


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
    return _post(f"{pointer}/commit", body, _read_published)


def commit_and_start(
    committing: Call[list[RollbackDetail]], starting: Call[Transaction]
) -> Call[Transaction | None]:
    """A commit and the start of the next transaction in one call; None: the start was refused."""
    body = {
        **json_object(committing.request.form),
        "then": {"start": starting.request.form},
    }

    def read(response: Response) -> Transaction | None:
        following = reply_object(response)["next"]
        return None if following is None else _transaction(json_object(following))

    return Call(replace(committing.request, form=body), read)


def prepare(
    pointer: int, database: str, changes: Collection[bytes], publish: Sequence[PublishEntry]
) -> Call[Prepared]:
    body: dict[str, object] = {
        "changes": _changes_form(changes),
        "publish": _entries_to_json(publish),
        "database": database,
    }

    def read(response: Response) -> Prepared:
        found = reply_object(response)
        return Prepared(
            published=_read_published(response),
            database=text(found["database"]),
            prepared_at_ms=whole_number(found["preparedAt"], what="preparedAt"),
        )

    return _post(f"{pointer}/prepare", body, read)


def resolve(pointer: int, outcome: Resolution) -> Call[TransactionState]:
    """Returns the state in which the transaction ended: COMMITTED, or ABORTED, or INVALID."""
    return _post(f"{pointer}/resolve", {"outcome": outcome}, _read_state)


def batch(requests: Sequence[Request]) -> Call[list[Response]]:
    """These starts, prepares or resolves in one request; the response to each, in their order."""
    items = (
        b'{"path":"%b","body":%b}' % (each.path.encode("ascii"), each.content or b"{}")
        for each in requests
    )
    body = b'{"calls":[%b]}' % b",".join(items)
    request = Request(method="POST", path=f"{_ROOT}/batch", body=body, is_repeatable=True)

    def read(response: Response) -> list[Response]:
        replies = map(json_object, json_array(reply_object(response)["replies"]))
        return [
            Response(
                whole_number(each["status"], what="status"),
                response.headers,
                json_body(each["body"]),
            )
            for each in replies
        ]

    return Call(request, read)


def prepared(database: str | None) -> Call[list[PreparedTransaction]]:
    def read(response: Response) -> list[PreparedTransaction]:
        found = json_array(reply_object(response)["prepared"])
        return [_read_prepared(json_object(item)) for item in found]

    return get(f"{_ROOT}/prepared{query(database=database)}", read)


def _read_prepared(item: Mapping[str, object]) -> PreparedTransaction:
    return PreparedTransaction(
        transaction_id=pointer_from_json(item["transactionId"], what="transactionId"),
        database=text(item["database"]),
        client=_maybe_text(item.get("client")),
        prepared_at_ms=whole_number(item["preparedAt"], what="preparedAt"),
        topics=tuple(texts(item["topics"])),
        change_count=whole_number(item["changeCount"], what="changeCount"),
        blocks_readers=item.get("blocksReaders") is not False,
    )


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
    return _post("run", body, _read_published)


def abort(pointer: int) -> Call[TransactionState]:
    """Returns the state the transaction ended in: ABORTED, or INVALID."""
    return _post(f"{pointer}/abort", None, _read_state)


def invalidate(pointer: int) -> Call[None]:
    return _post(f"{pointer}/invalidate", None, nothing)


def checkpoint(pointer: int) -> Call[Transaction]:
    # The pointer of a checkpoint whose reply was lost is one that nothing was written under.
    return _post(f"{pointer}/checkpoint", None, _read_transaction)


def renew(pointer: int) -> Call[Renewed]:
    def read(response: Response) -> Renewed:
        body = reply_object(response)
        return Renewed(
            lease_expires_at_ms=whole_number(body["leaseExpiresAt"], what="leaseExpiresAt"),
            expires_at_ms=whole_number(body["expiresAt"], what="expiresAt"),
        )

    return _post(f"{pointer}/renew", None, read)


def outcome(pointer: int) -> Call[Outcome]:
    def read(response: Response) -> Outcome:
        body = reply_object(response)
        return Outcome(
            transaction_id=pointer_from_json(body["transactionId"], what="transactionId"),
            state=_state(body["state"]),
            type=None if body.get("type") is None else TransactionType(text(body["type"])),
            client=_maybe_text(body.get("client")),
            started_at_ms=_maybe_number(body.get("startedAt"), what="startedAt"),
            expires_at_ms=_maybe_number(body.get("expiresAt"), what="expiresAt"),
            reason=None if body.get("reason") is None else InvalidReason(text(body["reason"])),
            topics=tuple(texts(body.get("topics") or [])),
            lease_s=_maybe_seconds(body.get("lease")),
            lease_expires_at_ms=_maybe_number(body.get("leaseExpiresAt"), what="leaseExpiresAt"),
            database=_maybe_text(body.get("database")),
            prepared_at_ms=_maybe_number(body.get("preparedAt"), what="preparedAt"),
        )

    return get(f"{_ROOT}/{pointer}", read)


def overview() -> Call[Overview]:
    return get(_ROOT, _read_overview)


def invalids() -> Call[Invalids]:
    def read(response: Response) -> Invalids:
        body = reply_object(response)
        return Invalids(
            invalids=pointers_from_json(body["invalids"], what="invalids"),
            reasons=_reasons(body.get("reasons", {})),
            prunable=pointers_from_json(body["prunable"], what="prunable"),
            swept_at_ms=_maybe_number(body.get("sweptAt"), what="sweptAt"),
            swept_with=_maybe_text(body.get("sweptWith")),
        )

    return get(f"{_ROOT}/invalid", read)


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
    form = (
        {"before": before_ms}
        if ids is None
        else {"ids": list(map(pointer_to_json, members(ids, "ids")))}
    )

    def read(response: Response) -> Truncated:
        body = reply_object(response)
        return Truncated(
            removed_count=whole_number(body["removed"], what="removed"),
            kept=pointers_from_json(body["kept"], what="kept"),
        )

    return _post("invalid/truncate", form, read, is_repeatable=ids is not None)


def take_snapshot() -> Call[SnapshotFile]:
    def read(response: Response) -> SnapshotFile:
        body = reply_object(response)
        return SnapshotFile(text(body["file"]), whole_number(body["bytes"], what="bytes"))

    return _post("snapshot", None, read)


def _post(
    path: str,
    body: Mapping[str, object] | None,
    read: Callable[[Response], T],
    *,
    is_repeatable: bool = True,
) -> Call[T]:
    """A call on what exists: sending it again has no second effect (protocol §1, Idempotence)."""
    request = Request(method="POST", path=f"{_ROOT}/{path}", form=body, is_repeatable=is_repeatable)
    return Call(request, read)


def _changes_form(changes: Collection[bytes]) -> list[object]:
    """Raises: TypeError: one of them is not bytes."""
    for key in changes:
        if not isinstance(key, bytes):
            raise TypeError(f"a change is a key, as bytes, and not {shown(key)}")
    return [payload_to_json(key) for key in changes]


def _read_state(response: Response) -> TransactionState:
    return _state(reply_object(response)["state"])


def _read_published(response: Response) -> list[RollbackDetail]:
    published = json_array(reply_object(response).get("published", []))
    return [rollback_detail_from_json(item) for item in published]


def _read_transaction(response: Response) -> Transaction:
    return _transaction(reply_object(response))


def _transaction(body: Mapping[str, object]) -> Transaction:
    encoded = body["encoded"]  # of a session, bytes
    return transaction_from_json(encoded if isinstance(encoded, bytes) else text(encoded))


def _read_overview(response: Response) -> Overview:
    body = reply_object(response)
    return Overview(
        read_pointer=pointer_from_json(body["readPointer"], what="readPointer"),
        write_pointer=pointer_from_json(body["writePointer"], what="writePointer"),
        in_progress=tuple(_read_open(json_object(item)) for item in json_array(body["inProgress"])),
        invalid_count=whole_number(body["invalidCount"], what="invalidCount"),
        committing_count=whole_number(body["committingCount"], what="committingCount"),
        visibility_upper_bound=pointer_from_json(
            body["visibilityUpperBound"], what="visibilityUpperBound"
        ),
        oldest_in_progress=maybe_pointer(body["oldestInProgress"], what="oldestInProgress"),
    )


def _read_open(item: Mapping[str, object]) -> OpenTransaction:
    return OpenTransaction(
        transaction_id=pointer_from_json(item["transactionId"], what="transactionId"),
        type=TransactionType(text(item["type"])),
        client=_maybe_text(item.get("client")),
        started_at_ms=whole_number(item["startedAt"], what="startedAt"),
        expires_at_ms=whole_number(item["expiresAt"], what="expiresAt"),
        topics=tuple(texts(item["topics"])),
        lease_s=_maybe_seconds(item.get("lease")),
        lease_expires_at_ms=_maybe_number(item.get("leaseExpiresAt"), what="leaseExpiresAt"),
        database=_maybe_text(item.get("database")),
        prepared_at_ms=_maybe_number(item.get("preparedAt"), what="preparedAt"),
    )


def _reasons(value: object) -> dict[InvalidReason, tuple[int, ...]]:
    return {
        InvalidReason(reason): pointers_from_json(pointers, what=f"reasons.{reason}")
        for reason, pointers in json_object(value).items()
    }


def _state(value: object) -> TransactionState:
    return TransactionState(text(value))


def _maybe_text(value: object) -> str | None:
    return None if value is None else text(value)


def _maybe_seconds(value: object) -> float | None:
    return None if value is None else seconds_from_json(value, what="lease")


def _maybe_number(value: object, *, what: str) -> int | None:
    return None if value is None else whole_number(value, what=what)


def begin_epoch(
    sink: str, epoch: int, run_id: str, *, lease_s: float | None, client: str
) -> Call[Epoch]:
    body: dict[str, object] = {"runId": run_id, "client": client}
    if lease_s is not None:
        body["lease"] = lease_s

    def read(response: Response) -> Epoch:
        found = reply_object(response)
        begun = found["transaction"]
        return Epoch(
            sink=text(found["sink"]),
            epoch=whole_number(found["epoch"], what="epoch"),
            run_id=text(found["runId"]),
            transaction=None if begun is None else _transaction(json_object(begun)),
        )

    # The same run gets the same transaction again.
    request = Request(
        method="POST",
        path=f"{_sink_path(sink)}/epochs/{of_type(epoch, int, 'epoch')}",
        form=body,
        is_repeatable=True,
    )
    return Call(request, read)


def get_sink(sink: str) -> Call[Sink]:
    return get(_sink_path(sink), lambda response: _read_sink(reply_object(response)))


def list_sinks() -> Call[list[Sink]]:
    def read(response: Response) -> list[Sink]:
        found = json_array(reply_object(response)["sinks"])
        return [_read_sink(json_object(item)) for item in found]

    return get(_SINKS, read)


def delete_sink(sink: str) -> Call[None]:
    return Call(Request(method="DELETE", path=_sink_path(sink)), nothing)


def _sink_path(sink: str) -> str:
    return f"{_SINKS}/{quote(sink, safe='')}"


def _read_sink(item: Mapping[str, object]) -> Sink:
    return Sink(
        sink=text(item["sink"]),
        epoch=whole_number(item["epoch"], what="epoch"),
        run_id=text(item["runId"]),
        state=_state(item["state"]),
        transaction_id=pointer_from_json(item["transactionId"], what="transactionId"),
        updated_at_ms=whole_number(item["updatedAt"], what="updatedAt"),
    )


def id_of(tx: Tx) -> int:
    """The pointer to ask about it with. Raises: TypeError: it is no transaction."""
    return tx if isinstance(tx, int) else _checked(tx).transaction_id


def write_pointer_of(tx: Tx) -> int:
    """The pointer to write under in it. Raises: TypeError: it is no transaction."""
    return tx if isinstance(tx, int) else _checked(tx).write_pointer


def _checked(tx: object) -> Transaction:
    if not isinstance(tx, Transaction):
        raise TypeError(
            f"a transaction is a tuff.Transaction or one of its pointers, and not {shown(tx)}"
        )
    return tx
