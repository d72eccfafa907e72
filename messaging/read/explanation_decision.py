"""Why a reader does or does not receive a message: one decision from facts (protocol §3.14). Pure.

`messaging/read/explanation_facts.py` reads the facts. The order of the checks is that of a read:
first what the log no longer has, then the record itself, then the snapshot, and last the rows
before it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum
from typing import NamedTuple

from messaging.model.expiry import is_expired
from messaging.model.row_format import MessageRow
from messaging.model.visibility import Query, Verdict, live_after, visibility
from tuff.protocol.ids import DelayedId, MessageId, Offset, TopicId, past_group
from tuff.protocol.pointer_list import holds
from tuff.protocol.transaction import TransactionStatus

_OPEN_STATES = ("in_progress", "committing", "prepared")


class Reason(Enum):
    """Why; the values are the protocol's."""

    VISIBLE = "visible"
    ARCHIVED = "archived"
    IN_PROGRESS = "in_progress"
    PREPARED = "prepared"
    BEHIND_UNDECIDED = "behind_undecided"
    BEHIND_DAMAGED = "behind_damaged"
    AFTER_SNAPSHOT = "after_snapshot"
    OWN_CHECKPOINT = "own_checkpoint"
    SET_ASIDE = "set_aside"
    ABORTED = "aborted"
    INVALID = "invalid"
    EXPIRED = "expired"
    TRUNCATED = "truncated"
    DAMAGED = "damaged"
    DELAYED = "delayed"
    ENTERED = "entered"
    NOT_WRITTEN_YET = "not_written_yet"
    TOPIC_RECREATED = "topic_recreated"
    TOPIC_DELETED = "topic_deleted"
    TOPIC_NOT_FOUND = "topic_not_found"
    OTHER_NAMESPACE = "other_namespace"
    NO_SUCH_MESSAGE = "no_such_message"


@dataclass(frozen=True, slots=True)
class Blocker:
    """The first row before the message at which this reader stops: its offset and the pointer under
    which it was written; None for a damaged row. `status`: of that transaction."""

    offset: Offset
    pointer: int | None
    status: TransactionStatus | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What is known of a message and of a reader.

    `row`: that of the message, with the message's own time to live; the finding if it can't be
    read. `generation` and `query` are of the topic as it is now, None if it does not exist.
    `is_deleted`: it existed. `older_generation`: one that has the message. `elsewhere`: topics of
    other namespaces, with the same name, that have it. `status`: of the transaction that wrote it.
    `is_archived`: the archive has the message. `has_fixed_snapshot`: the reader reads in a snapshot
    that it was given, and not in a new one each time.
    """

    id: MessageId
    topic: TopicId
    generation: int | None = None
    query: Query | None = None
    row: MessageRow | str | None = None
    status: TransactionStatus | None = None
    blocker: Blocker | None = None
    expires_at_ms: int | None = None
    older_generation: int | None = None
    elsewhere: tuple[TopicId, ...] = ()
    is_deleted: bool = False
    is_archived: bool = False
    has_fixed_snapshot: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedFacts:
    """What is known of a delayed message. `is_waiting`: its row waits for the due time. `pointer`:
    that of its undecided row, while it is there."""

    id: DelayedId
    topic: TopicId
    generation: int
    now_ms: int
    is_waiting: bool = False
    pointer: int | None = None
    status: TransactionStatus | None = None


class Explanation(NamedTuple):
    """`detail` says why, in one sentence, and `advice` what to do about it. `blocked_by`: the
    transaction in progress for which the reader waits."""

    reason: Reason
    detail: str
    advice: str
    blocked_by: int | None = None


def explain(facts: Facts) -> Explanation:
    """Why this reader does or does not receive a message."""
    query = facts.query
    if query is None:
        return _without_topic(facts)
    if facts.row is None:
        return _without_row(facts, query)
    gone = _before_log(facts, query)
    if gone is not None:
        return gone
    if isinstance(facts.row, str):
        return Explanation(
            Reason.DAMAGED,
            f"the record of the message is damaged: {facts.row}",
            "readers get the error damaged_record there; check the store with `tuff fsck`, and "
            "continue with `tuff tail --from`, the id that the error names",
        )
    own_ttl_s, published_ms = facts.row.ttl_s, facts.id.publish_timestamp_ms
    if own_ttl_s is not None and is_expired(published_ms, own_ttl_s, now_ms=query.now_ms):
        return Explanation(
            Reason.EXPIRED,
            f"the message has expired: its own time to live was {own_ttl_s} s, and it was "
            f"published at {moment(published_ms)}",
            "publish with a longer ttl",
        )
    return _in_snapshot(facts, query, facts.row)


def _in_snapshot(facts: Facts, query: Query, row: MessageRow) -> Explanation:
    pointer, snapshot, status = row.tx_pointer, query.snapshot, facts.status
    if visibility(pointer, snapshot) is Verdict.ACCEPT:
        return _visible(facts) if facts.blocker is None else _behind(facts.blocker)
    assert pointer is not None
    assert snapshot is not None
    writer = _named(pointer, status)
    if status is not None and pointer < 0 and status.state in ("prepared", "committed"):
        # The row was rolled back, and its transaction was not.
        return _set_aside(writer, status)
    if status is not None and status.state in _OPEN_STATES:
        is_own = snapshot.is_own(pointer)
        return _own_checkpoint(writer) if is_own else _in_progress(writer, status)
    # The row and the snapshot say the outcome where it is forgotten.
    if pointer < 0 if status is None else status.state == "aborted":
        return Explanation(
            Reason.ABORTED,
            f"{writer} was aborted, so the message was rolled back",
            "publish it again in a transaction that commits; a reader with isolation=all receives "
            "also what was rolled back",
        )
    if holds(snapshot.invalids, pointer) if status is None else status.state == "invalid":
        return _invalid(writer, status)
    return Explanation(
        Reason.AFTER_SNAPSHOT,
        f"{writer} had not ended when the snapshot of this reader was taken"
        + (", and has committed since" if status is not None else ""),
        "read in a new snapshot: with isolation=committed, or in a new transaction",
    )


def _set_aside(writer: str, status: TransactionStatus) -> Explanation:
    why = "it blocked readers for longer than messaging.max_block, so its messages were set aside"
    if status.state == "prepared":
        return Explanation(
            Reason.SET_ASIDE,
            f"{writer} is prepared, and {why}; if the database {status.database!r} commits, they "
            "return behind all others, with new ids",
            "run `tuff sql resolve` for that database; `tuff tx prepared` lists such transactions",
            status.transaction_id,
        )
    return Explanation(
        Reason.SET_ASIDE,
        f"while {writer} was prepared, {why}; when it committed they returned behind all others, "
        "with new ids",
        f"read the topic from {status.ended_at_ms} on, the time of the commit in ms",
    )


def _visible(facts: Facts) -> Explanation:
    until = "" if facts.expires_at_ms is None else f", until {moment(facts.expires_at_ms)}"
    return Explanation(
        Reason.VISIBLE,
        f"this reader receives the message{until}",
        "if a consumer lacks it, compare its position with this id: it may read another partition, "
        "filter by tags, or have passed the message",
    )


def _own_checkpoint(writer: str) -> Explanation:
    return Explanation(
        Reason.OWN_CHECKPOINT,
        f"the reader is {writer}, and its visibility level hides what it wrote since its last "
        "checkpoint",
        "read with the visibility level SNAPSHOT, or make a checkpoint before the read",
    )


def _in_progress(writer: str, status: TransactionStatus) -> Explanation:
    if status.state == "prepared":
        return Explanation(
            Reason.PREPARED,
            f"{writer} is prepared, and the database {status.database!r} decides how it ends; "
            "readers of committed messages wait before the message",
            "run `tuff sql resolve` for that database; `tuff tx prepared` lists such transactions",
            status.transaction_id,
        )
    until = "" if status.expires_at_ms is None else f", by {moment(status.expires_at_ms)} at last"
    return Explanation(
        Reason.IN_PROGRESS,
        f"{writer} is still in progress; readers of committed messages wait before the message "
        f"until it ends{until}",
        "commit the transaction, or end it with `tuff tx abort`; a reader with isolation=all does "
        "not wait",
        status.transaction_id,
    )


def _invalid(writer: str, status: TransactionStatus | None) -> Explanation:
    why = "" if status is None or status.reason is None else f" ({status.reason})"
    return Explanation(
        Reason.INVALID,
        f"{writer} became invalid{why}, so the message does not count",
        "publish it again in a transaction that commits in time; `tuff tx show` has the outcome",
    )


def _behind(blocker: Blocker) -> Explanation:
    place = MessageId(*blocker.offset).hex()
    if blocker.pointer is None:
        return Explanation(
            Reason.BEHIND_DAMAGED,
            f"the message is there, but a damaged record before it, at {place}, stops this reader",
            "continue behind the damaged record, with the id that the error damaged_record names",
        )
    writer = _named(blocker.pointer, blocker.status)
    if blocker.status is not None and blocker.status.state in _OPEN_STATES:
        return Explanation(
            Reason.BEHIND_UNDECIDED,
            f"the message is there, but {writer} is still in progress and wrote before it, at "
            f"{place}; readers of committed messages receive messages in order, so they wait there",
            "end that transaction, or wait for its time-out; messaging.max_block bounds the wait",
            blocker.status.transaction_id,
        )
    return Explanation(
        Reason.BEHIND_UNDECIDED,
        f"the message is there, but {writer}, which wrote before it, at {place}, had not ended "
        "when the snapshot of this reader was taken; the reader stops there",
        "read in a new snapshot, or pass over such rows with undecided=skip",
    )


def _before_log(facts: Facts, query: Query) -> Explanation | None:
    """Why the log no longer has the message; None if it is within the log."""
    if facts.id.to_bytes() > live_after(query):
        return None
    if facts.is_archived and not facts.has_fixed_snapshot:
        return Explanation(
            Reason.ARCHIVED,
            "the log no longer has the message, and the archive of the topic has it: a read that "
            "starts at or before its id receives it",
            "start the read at this id; a read without a start begins with the log",
        )
    archived = "; the archive has the message" if facts.is_archived else ""
    if facts.id.offset < query.live_from:
        return Explanation(
            Reason.EXPIRED,
            f"the time to live of the topic has passed for all messages before "
            f"{moment(query.live_from.timestamp_ms)}, and this id is of "
            f"{moment(facts.id.publish_timestamp_ms)}{archived}",
            _ARCHIVE_ADVICE
            if archived
            else "set a longer ttl of the topic, or a retention hold, before messages expire",
        )
    return Explanation(
        Reason.TRUNCATED,
        f"the id is before the log start {query.log_start.hex()}, which a truncation or an "
        f"earlier, shorter time to live has raised{archived}",
        _ARCHIVE_ADVICE if archived else "messages before the log start are gone for good",
    )


_ARCHIVE_ADVICE = (
    "read it without a fixed snapshot: the archive does not know the transaction of a message"
)


def _without_row(facts: Facts, query: Query) -> Explanation:
    if facts.id.to_int() > past_group(query.high_water_mark).to_int():
        if facts.elsewhere:
            return _elsewhere(facts)
        return Explanation(
            Reason.NOT_WRITTEN_YET,
            f"the id is behind everything that was written, which ends with the offset "
            f"{MessageId(*query.high_water_mark).hex()}",
            "wait until the publish is acknowledged, and compare the id with that of its reply",
        )
    if facts.older_generation is not None:
        return Explanation(
            Reason.TOPIC_RECREATED,
            f"the message is in generation {facts.older_generation} of the topic, which was "
            f"deleted; the topic is there again as generation {facts.generation}, and has none of "
            "the old messages",
            "publish it again; a deleted generation can't be restored, except from a backup",
        )
    if facts.elsewhere:
        return _elsewhere(facts)
    return _before_log(facts, query) or _no_such_message(facts)


def _no_such_message(facts: Facts) -> Explanation:
    again = ""
    if facts.generation is not None and facts.generation > 1:
        again = (
            f", or it was in a generation of the topic before the present one ({facts.generation})"
        )
    return Explanation(
        Reason.NO_SUCH_MESSAGE,
        "the log reaches from before this id to behind it, and has no message with it: none was "
        "published with this id here, or its own time to live has passed and it was removed"
        f"{again}",
        "compare the id, the topic and the namespace with the reply to the publish; a publish with "
        "ack=none or ack=received may be lost; rolled-back messages stay until they expire",
    )


def _without_topic(facts: Facts) -> Explanation:
    if facts.elsewhere:
        return _elsewhere(facts)
    if facts.is_deleted:
        return Explanation(
            Reason.TOPIC_DELETED,
            f"the topic {facts.topic} was deleted, with its messages",
            "create it again with `tuff topics create`, and publish the message again",
        )
    return Explanation(
        Reason.TOPIC_NOT_FOUND,
        f"there is no topic {facts.topic}, and never was one",
        "list the topics with `tuff topics ls`: is it the right namespace, and the right server?",
    )


def _elsewhere(facts: Facts) -> Explanation:
    first = facts.elsewhere[0]
    here = "is not here" if facts.query else "can't be here, since there is no such topic"
    return Explanation(
        Reason.OTHER_NAMESPACE,
        f"the message {here}: {' and '.join(map(str, facts.elsewhere))} has a message with this id",
        f"read the topic of the namespace {first.namespace}",
    )


def explain_delayed(facts: DelayedFacts) -> Explanation:
    """Why readers do not receive a delayed message. Once it has entered its topic it has another
    id."""
    due = moment(facts.id.due_ms)
    if facts.is_waiting:
        late = ", and enters the topic next" if facts.id.due_ms <= facts.now_ms else ""
        return Explanation(
            Reason.DELAYED,
            f"the message waits until it is due, at {due}{late}",
            "wait, or delete it with `tuff delayed cancel`",
        )
    if facts.pointer is not None:
        return _undecided(facts, facts.pointer)
    if facts.id.due_ms <= facts.now_ms:
        return Explanation(
            Reason.ENTERED,
            f"no message with this delayed id waits any more: it was due at {due}, and has entered "
            "the topic with a new id, unless it was cancelled or its transaction did not commit",
            f"read the topic from {facts.id.due_ms} on, the due time in ms",
        )
    return Explanation(
        Reason.NO_SUCH_MESSAGE,
        f"no message with this delayed id waits, although it would be due at {due} only: it was "
        "cancelled, its transaction did not commit, or it was not accepted here",
        "compare the id with Tuff-Delayed-First and Tuff-Delayed-Last of the publish, and list "
        "what waits with `tuff delayed ls`",
    )


def _undecided(facts: DelayedFacts, pointer: int) -> Explanation:
    status = facts.status
    writer = _named(pointer, status)
    if status is not None and status.state in _OPEN_STATES:
        detail = f"{writer} is still in progress, and the message is delayed only when it commits"
        return _in_progress(writer, status)._replace(detail=detail)
    if status is not None and status.state == "invalid":
        return _invalid(writer, status)
    if status is not None and status.state == "aborted":
        return Explanation(
            Reason.ABORTED,
            f"{writer} was aborted, so the message was never delayed",
            "publish it again in a transaction that commits",
        )
    return Explanation(
        Reason.DELAYED,
        f"the message waits until it is due, at {moment(facts.id.due_ms)}",
        "wait, or delete it with `tuff delayed cancel`",
    )


def _named(pointer: int, status: TransactionStatus | None) -> str:
    if status is None:
        return f"the transaction of the write pointer {abs(pointer)}"
    of_client = "" if status.client in (None, "unknown") else f" of the client {status.client!r}"
    return f"transaction {status.transaction_id}{of_client}"


def moment(time_ms: int) -> str:
    """A time in ms since the epoch, as ISO 8601 in UTC; in ms if no year has four digits for it."""
    try:
        found = datetime.fromtimestamp(time_ms / 1000, UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")
