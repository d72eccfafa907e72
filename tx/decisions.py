"""What may be done to a transaction: pure decisions that return an edit, or raise (design §4).

A permanent refusal (a conflict, a deadline) is an edit too: the caller records it and raises its
error. Nothing here changes the state.
"""

from collections.abc import Callable, Collection, Sequence

from tuff.protocol.errors import (
    BadRequestError,
    ChangeSetTooLargeError,
    InvalidTimeoutError,
    TransactionsInProgressError,
)
from tuff.protocol.requests import PublishEntry
from tuff.protocol.transaction import TransactionType
from tx.edits import (
    Aborted,
    Checkpointed,
    Committing,
    Invalidated,
    InvalidReason,
    Refused,
    Started,
    Truncated,
)
from tx.settings import (
    CLIENT_LENGTH_MAX,
    REQUEST_ID_LENGTH_MAX,
    TransactionSettings,
)
from tx.state import TransactionState
from tx.transactions import EndedState, OpenTransaction, Outcome, conflict_error

Topics = Callable[[Collection[int]], list[str]]


def timeout_ms(
    settings: TransactionSettings, kind: TransactionType, timeout_s: float | None
) -> int:
    """How long a transaction may live, in ms, at least 1.

    Raises:
        InvalidTimeoutError: the time is not above 0, above the maximum, or given for a long one.
    """
    if kind is TransactionType.LONG:
        if timeout_s is not None:
            raise InvalidTimeoutError(
                f"a long transaction lives {settings.long_timeout_s:g} seconds; leave timeout out"
            )
        return _in_ms(settings.long_timeout_s)
    if timeout_s is None:
        return _in_ms(settings.default_timeout_s)
    if not 0 < timeout_s <= settings.max_timeout_s:
        raise InvalidTimeoutError(
            f"a timeout is above 0 and at most {settings.max_timeout_s:.15g} seconds, not "
            f"{timeout_s:.15g}"
        )
    return _in_ms(timeout_s)


def lease_ms(
    settings: TransactionSettings, kind: TransactionType, lease_s: float | None
) -> int | None:
    """How long a transaction lives without being renewed, in ms, at least 1; None without a lease.

    Raises:
        InvalidTimeoutError: the lease is not above 0, above the maximum, or of a short one.
    """
    if lease_s is None:
        return None
    if kind is TransactionType.SHORT:
        raise InvalidTimeoutError(
            "a lease is for long transactions; a short one ends after its timeout anyway"
        )
    if not 0 < lease_s <= settings.lease_max_s:
        raise InvalidTimeoutError(
            f"a lease is above 0 and at most {settings.lease_max_s:.15g} seconds, not "
            f"{lease_s:.15g}"
        )
    return _in_ms(lease_s)


def _in_ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))


def check_client(client: str) -> str:
    """The client's name itself. Raises: BadRequestError: too long, or no Unicode text."""
    return _check_text(client, what="client", length_max=CLIENT_LENGTH_MAX)


def check_request_id(request_id: str) -> str:
    """The id itself. Raises: BadRequestError: empty, too long, or no Unicode text."""
    if not request_id:
        raise BadRequestError("requestId is empty; leave it out, or name the request")
    return _check_text(request_id, what="requestId", length_max=REQUEST_ID_LENGTH_MAX)


def _check_text(text: str, *, what: str, length_max: int) -> str:
    if len(text) > length_max:
        raise BadRequestError(f"{what} has {len(text)} characters; it takes at most {length_max}")
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise BadRequestError(f"{what} has half a surrogate pair") from None
    return text


def start(
    state: TransactionState,
    pointer: int,
    *,
    kind: TransactionType,
    lives_ms: int,
    client: str,
    now_ms: int,
    lease_ms: int | None = None,
) -> Started:
    """Start a transaction, whose read snapshot is the present view."""
    return Started(now_ms, pointer, kind, lives_ms, now_ms + lives_ms, client, state.seen, lease_ms)


def invalidated(
    opened: OpenTransaction, reason: InvalidReason, *, topics: Topics, now_ms: int
) -> Invalidated:
    named = tuple(topics(opened.pointers))
    return Invalidated(now_ms, opened.transaction_id, reason, named)


def abort(
    opened: OpenTransaction, *, is_carried: Callable[[int], bool], topics: Topics, now_ms: int
) -> Aborted | Invalidated:
    """The first step of an abort. A long transaction ends as invalid, since its changes were not
    tracked. One with rows is invalid until they are marked, since they must not become visible in
    between."""
    if not opened.is_short:
        return invalidated(opened, InvalidReason.ABORT_OF_LONG, topics=topics, now_ms=now_ms)
    if any(map(is_carried, opened.pointers)):
        return invalidated(opened, InvalidReason.INVALIDATED, topics=topics, now_ms=now_ms)
    return Aborted(now_ms, opened.transaction_id, tuple(topics(opened.pointers)))


def can_commit(
    state: TransactionState,
    opened: OpenTransaction,
    changes: frozenset[bytes],
    *,
    settings: TransactionSettings,
    now_ms: int,
) -> Committing | Refused:
    """Note the changes, unless a transaction that this one can't see committed one of them.

    Raises:
        TransactionConflictError: it was refused before.
        ChangeSetTooLargeError: with those named before, there are too many, or too large ones.
    """
    if not opened.is_short:
        # Long transactions take no part in conflict detection.
        return Committing(now_ms, opened.transaction_id, frozenset())
    every = all_changes(opened, changes, settings=settings)
    conflict = state.committers.conflict(opened.transaction, every)
    if conflict is not None:
        return Refused(now_ms, opened.transaction_id, conflict)
    return Committing(now_ms, opened.transaction_id, changes - (opened.changes or frozenset()))


def all_changes(
    opened: OpenTransaction, changes: frozenset[bytes], *, settings: TransactionSettings
) -> frozenset[bytes]:
    """All changes that the transaction has named, before and now; none of a long one.

    Raises:
        TransactionConflictError: the transaction was refused before.
        ChangeSetTooLargeError: too many changes, or too large ones.
    """
    if opened.conflict is not None:
        raise conflict_error(opened.transaction_id, opened.conflict)
    if not opened.is_short:
        return frozenset()
    every = changes if not opened.changes else changes | opened.changes
    if len(every) > settings.change_set_count_max:
        raise ChangeSetTooLargeError(
            f"transaction {opened.transaction_id} names {len(every)} changes; it may name "
            f"{settings.change_set_count_max}, so change less, or use a long transaction"
        )
    size_bytes = sum(map(len, every))
    if size_bytes > settings.change_set_bytes_max:
        raise ChangeSetTooLargeError(
            f"the changes of transaction {opened.transaction_id} have {size_bytes} bytes; they may "
            f"have {settings.change_set_bytes_max}, so change less, or use a long transaction"
        )
    return every


def loses_changes(opened: OpenTransaction, *, names_changes: bool) -> bool:
    """Whether a commit would skip the check of changes that a crash made the service forget.

    A can-commit waits for no disk. If a crash lost its changes, a commit that leaves its changes to
    the can-commit would pass unchecked, and overwrite another transaction's update.
    """
    return (
        opened.survived_crash and opened.is_short and opened.changes is None and not names_changes
    )


def check_read_only(
    opened: OpenTransaction,
    *,
    changes: frozenset[bytes],
    publish: Sequence[PublishEntry],
    is_carried: Callable[[int], bool],
) -> None:
    """Raises: BadRequestError: the transaction wrote, or names, something to commit."""
    name = f"transaction {opened.transaction_id}"
    if publish or changes or opened.changes:
        raise BadRequestError(f"readOnly says that {name} wrote nothing, but it names writes")
    if opened.transaction.checkpoint_write_pointers:
        raise BadRequestError(f"{name} has a checkpoint, and can't be committed as readOnly")
    if any(map(is_carried, opened.pointers)):
        raise BadRequestError(f"{name} has published or stored, and can't be committed as readOnly")


def resolve_entries(opened: OpenTransaction, publish: Sequence[PublishEntry]) -> list[PublishEntry]:
    """The entries, each with its pointer: the current write pointer where none is named.

    Raises:
        BadRequestError: a pointer is not one of the transaction's.
    """
    for entry in publish:
        if entry.pointer is not None and entry.pointer not in opened.pointers:
            raise BadRequestError(
                f"pointer {entry.pointer} is none of transaction {opened.transaction_id}'s"
            )
    pointer = opened.transaction.write_pointer
    return [
        entry if entry.pointer is not None
        else PublishEntry(
            topic=entry.topic, payloads=entry.payloads, ttls_s=entry.ttls_s, pointer=pointer
        )
        for entry in publish
    ]  # fmt: skip


def checkpoint(opened: OpenTransaction, pointer: int, *, now_ms: int) -> Checkpointed:
    """Raises: TransactionConflictError: the transaction was refused before."""
    if opened.conflict is not None:
        raise conflict_error(opened.transaction_id, opened.conflict)
    return Checkpointed(now_ms, opened.transaction_id, pointer)


def may_be_aborted(outcome: Outcome) -> bool:
    """Whether an abort turns this invalid transaction into an aborted one."""
    return (
        outcome.state is EndedState.INVALID
        and outcome.is_short
        and outcome.reason is not InvalidReason.LOST_IN_CRASH
    )


def truncate(
    state: TransactionState, pointers: Collection[int], *, keeps: Callable[[int], bool], now_ms: int
) -> tuple[Truncated, list[int]]:
    """Take these pointers off the invalid list, except those for which `keeps` says that rows still
    carry them: the second part of the answer. Pointers that are not on the list are ignored."""
    listed = sorted({pointer for pointer in pointers if pointer in state.invalid})
    kept = [pointer for pointer in listed if keeps(pointer)]
    return Truncated(now_ms, tuple(sorted(set(listed) - set(kept)))), kept


def invalid_before(state: TransactionState, before_ms: int) -> list[int]:
    """The pointers on the invalid list of transactions that started before that time.

    Raises:
        TransactionsInProgressError: one that started before is still in progress: what it reads
            may need the list.
    """
    # The record says when a transaction started; a pointer comes from a block reserved earlier.
    for opened in state.open.values():
        if opened.started_at_ms < before_ms:
            raise TransactionsInProgressError(
                f"transaction {opened.transaction_id} started at {opened.started_at_ms}, before "
                f"{before_ms}, and is still in progress; wait until it has ended"
            )
    return [pointer for pointer in state.invalid if _started_at_ms(state, pointer) < before_ms]


def _started_at_ms(state: TransactionState, pointer: int) -> int:
    known = state.outcomes.started_at_ms(pointer)
    return state.find(pointer).started_at_ms if known is None else known
