"""The JSON of transactions, as the routes answer it (protocol §5.1, §5.2)."""

from collections.abc import Iterable

from tuff.protocol.json_forms import (
    payload_to_json,
    pointer_to_json,
    rollback_detail_to_json,
    transaction_to_json,
)
from tx.invalid_list import Invalids
from tx.monitoring import Overview
from tx.sinks import Sink
from tx.state import StateImage
from tx.transactions import OpenTransaction, Outcome


def transaction_object(
    opened: OpenTransaction, *, lists: bool, lease_ends_at_ms: int | None = None
) -> dict[str, object]:
    """The transaction object of protocol §5.1."""
    form = transaction_to_json(opened.transaction, lists=lists)
    form["state"] = opened.state
    form["client"] = opened.client
    form["timeout"] = _seconds(opened.timeout_ms)
    form["startedAt"] = opened.started_at_ms
    form["expiresAt"] = opened.expires_at_ms
    if opened.lease_ms is not None:
        form |= lease_members(opened, lease_ends_at_ms)
    return form


def lease_members(opened: OpenTransaction, ends_at_ms: int | None) -> dict[str, object]:
    """The members for a lease; none without one."""
    if opened.lease_ms is None:
        return {}
    return {"lease": _seconds(opened.lease_ms), "leaseExpiresAt": ends_at_ms}


def _seconds(duration_ms: int) -> float:
    seconds, rest_ms = divmod(duration_ms, 1000)
    return duration_ms / 1000 if rest_ms else seconds


def committed_object(outcome: Outcome) -> dict[str, object]:
    """The reply to a commit and to every repetition of it."""
    return {
        "state": outcome.state.value,
        "published": [rollback_detail_to_json(detail) for detail in outcome.published],
    }


def outcome_object(found: OpenTransaction | Outcome, topics: list[str]) -> dict[str, object]:
    """What became of a transaction."""
    if isinstance(found, OpenTransaction):
        state, reason, kind = found.state, None, found.transaction.type
    else:
        state, kind = found.state.value, found.type
        reason = found.reason.value if found.reason is not None else None
    return {
        "transactionId": pointer_to_json(found.transaction_id),
        "state": state,
        "type": kind.value,
        "client": found.client,
        "startedAt": found.started_at_ms,
        "expiresAt": found.expires_at_ms,
        "reason": reason,
        "topics": topics,
    }


def open_object(
    opened: OpenTransaction, topics: list[str], lease_ends_at_ms: int | None
) -> dict[str, object]:
    """One line of the overview."""
    return {
        "transactionId": pointer_to_json(opened.transaction_id),
        "type": opened.transaction.type.value,
        "client": opened.client,
        "startedAt": opened.started_at_ms,
        "expiresAt": opened.expires_at_ms,
        "topics": topics,
        **lease_members(opened, lease_ends_at_ms),
    }


def overview_object(
    overview: Overview, in_progress: Iterable[dict[str, object]]
) -> dict[str, object]:
    oldest = overview.oldest_in_progress
    return {
        "readPointer": pointer_to_json(overview.read_pointer),
        "writePointer": pointer_to_json(overview.write_pointer),
        "inProgress": list(in_progress),
        "visibilityUpperBound": pointer_to_json(overview.visibility_upper_bound),
        "invalidCount": overview.invalid_count,
        "committingCount": overview.committing_count,
        "oldestInProgress": None if oldest is None else pointer_to_json(oldest),
    }


def sink_object(sink: Sink, state: str) -> dict[str, object]:
    """A sink, with the state of its epoch's transaction."""
    return {
        "sink": sink.name,
        "epoch": sink.epoch,
        "runId": sink.run_id,
        "state": state,
        "transactionId": pointer_to_json(sink.transaction_id),
        "updatedAt": sink.updated_ms,
    }


def invalids_object(invalids: Invalids) -> dict[str, object]:
    swept = invalids.swept
    return {
        "invalids": list(map(pointer_to_json, invalids.pointers)),
        "reasons": {
            reason.value: list(map(pointer_to_json, pointers))
            for reason, pointers in invalids.by_reason.items()
        },
        "prunable": list(map(pointer_to_json, invalids.prunable)),
        "sweptAt": None if swept is None else swept.at_ms,
        "sweptWith": None if swept is None else swept.source,
    }


def state_object(image: StateImage) -> dict[str, object]:
    """The newest state, for debugging: its members may change from version to version."""
    view = image.view
    return {
        "lsn": image.lsn,
        "durableLsn": image.seen,
        "readPointer": pointer_to_json(view.read_pointer),
        "writePointer": pointer_to_json(image.last_pointer),
        "highestReservedPointer": pointer_to_json(image.highest_reserved),
        "inProgressPointers": list(map(pointer_to_json, view.in_progress)),
        "invalids": list(map(pointer_to_json, view.invalid)),
        "open": [_open_object(opened) for opened in image.open],
        "ended": [outcome_object(outcome, list(outcome.topics)) for outcome in image.outcomes],
        "committed": [
            {
                "lsn": commit.lsn,
                "transactionId": pointer_to_json(commit.transaction_id),
                "client": commit.client,
                "changes": [payload_to_json(change) for change in sorted(commit.changes)],
            }
            for commit in image.commits
        ],
        "sinks": [
            sink_object(sink, "in_progress" if sink.state is None else sink.state.value)
            for sink in image.sinks
        ],
    }


def _open_object(opened: OpenTransaction) -> dict[str, object]:
    changes = opened.changes
    conflict = opened.conflict
    return {
        **transaction_object(opened, lists=False),
        "seenLsn": opened.seen,
        "changes": None if changes is None else [payload_to_json(c) for c in sorted(changes)],
        "conflictsWith": None if conflict is None else pointer_to_json(conflict.committer),
        "survivedCrash": opened.survived_crash,
    }
