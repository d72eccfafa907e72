"""The call that explains what a reader receives, as a value (protocol §3.14)."""

from base64 import b64encode
from collections.abc import Mapping
from urllib.parse import quote

from tuff.calls import (
    Call,
    IdOrHex,
    Request,
    Response,
    get,
    json_array,
    json_object,
    maybe_pointer,
    of_type,
    query,
    reply_object,
    text,
    topic_path,
)
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.json_forms import pointer_from_json, whole_number
from tuff.protocol.requests import IsolationLike
from tuff.protocol.transaction import Transaction, TransactionStatus
from tuff.replies import Explanation


def explain(
    topic: TopicId,
    id: IdOrHex,
    *,
    isolation: IsolationLike | None,
    tx: int | None,
    snapshot: Transaction | None,
) -> Call[Explanation]:
    """Why a reader receives this message, or does not. `id` may be that of a delayed message."""
    if sum(given is not None for given in (isolation, tx, snapshot)) > 1:
        raise ValueError("give at most one of isolation, tx and snapshot")
    digits = id.hex() if isinstance(id, MessageId) else id
    path = f"{topic_path(topic)}/messages/{quote(digits, safe='')}/explain"
    if snapshot is None:
        return get(f"{path}{query(isolation=isolation, tx=tx)}", _read_explanation)
    encoded = of_type(snapshot, Transaction, "snapshot").to_bytes()
    form = {"transaction": b64encode(encoded).decode("ascii")}
    request = Request(method="POST", path=path, form=form, is_read=True)
    return Call(request, _read_explanation)


def _read_explanation(response: Response) -> Explanation:
    return explanation_from(reply_object(response))


def explanation_from(body: Mapping[str, object]) -> Explanation:
    """An explanation from its JSON."""
    generation, transaction = body["generation"], body["transaction"]
    return Explanation(
        id=text(body["id"]),
        topic=TopicId(text(body["namespace"]), text(body["topic"])),
        generation=None if generation is None else whole_number(generation, what="generation"),
        is_visible=body["visible"] is True,
        reason=text(body["reason"]),
        detail=text(body["detail"]),
        advice=text(body["advice"]),
        blocked_by=maybe_pointer(body["blockedBy"], what="blockedBy"),
        transaction=None if transaction is None else _read_status(json_object(transaction)),
        elsewhere=tuple(
            TopicId(text(each["namespace"]), text(each["topic"]))
            for each in map(json_object, json_array(body.get("elsewhere", [])))
        ),
    )


def _read_status(body: Mapping[str, object]) -> TransactionStatus:
    def maybe_ms(name: str) -> int | None:
        found = body.get(name)
        return None if found is None else whole_number(found, what=name)

    def maybe_text(name: str) -> str | None:
        return None if body.get(name) is None else text(body[name])

    return TransactionStatus(
        transaction_id=pointer_from_json(body["transactionId"], what="transactionId"),
        state=text(body["state"]),
        client=text(body["client"]),
        started_at_ms=whole_number(body["startedAt"], what="startedAt"),
        reason=maybe_text("reason"),
        ended_at_ms=maybe_ms("endedAt"),
        expires_at_ms=maybe_ms("expiresAt"),
        database=maybe_text("database"),
    )
