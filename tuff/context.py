"""The commit protocol over participants, blocking (design §7).

    start, start_tx of all; the work; tx_changes of all, can-commit, commit_tx of all in the order
    they joined; commit, which carries the messages, so that they go out last; post_commit of all

An error before the commit: rollback_tx of all; abort if every one succeeded, else invalidate.
"""

from collections.abc import Callable, Collection
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Protocol

from tuff.calls import Payload, Start, payloads_of
from tuff.protocol.errors import (
    BadRequestError,
    EmptyPublishError,
    RequestTooLargeError,
    ShuttingDownError,
    TransactionAbortedError,
    TransactionCommittedError,
    TuffError,
)
from tuff.protocol.names import TopicId
from tuff.protocol.requests import PublishEntry
from tuff.protocol.transaction import Transaction
from tuff.replies import Poll
from tuff.transport import ConnectionLostError

if TYPE_CHECKING:
    from tuff.client import Client

# bytes; what is buffered travels in one commit, which the server's 16 MiB per request must hold
BUFFER_BYTES_MAX = 8 << 20


class TransactionAware(Protocol):
    """A participant: anything with writes in a transaction. Raising is failing.

    `commit_tx` makes the writes durable under the transaction's `write_pointer`; `rollback_tx`
    undoes them, durably, and raises where it could not.
    """

    name: str

    def start_tx(self, transaction: Transaction) -> None: ...
    def update_tx(self, transaction: Transaction) -> None: ...
    def tx_changes(self) -> Collection[bytes]: ...
    def commit_tx(self) -> None: ...
    def post_commit(self) -> None: ...
    def rollback_tx(self) -> None: ...


class TransactionContext:
    """One transaction at a time over its participants; it can be used again after it ended.

    Belongs to one thread at a time.
    """

    def __init__(
        self,
        client: "Client",
        participants: Collection[TransactionAware],
        *,
        type: str,
        timeout_s: float | None,
    ) -> None:
        self._client = client
        self._participants = list(participants)
        self._type = type
        self._timeout_s = timeout_s
        self._current: Transaction | None = None
        self._messages = _Buffer()

    @property
    def transaction(self) -> Transaction:
        """The current transaction. Raises: BadRequestError: there is none."""
        if self._current is None:
            raise BadRequestError(
                "the context is not in a transaction; enter it with `with client.transaction(…)`"
            )
        return self._current

    def __enter__(self) -> "TransactionContext":
        if self._current is not None:
            raise BadRequestError("the context is in a transaction already; use another one")
        transaction = self._client.transactions.start(self._type, timeout=self._timeout_s)
        try:
            for participant in self._participants:
                participant.start_tx(transaction)
        except BaseException as error:
            # Nothing was written yet, so there is nothing to roll back.
            _attempt(lambda: self._client.transactions.abort(transaction), cause=error)
            raise
        self._current = transaction
        self._messages = _Buffer()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._current is None:
            return
        if error is None:
            self._finish(self._current)
        else:
            self._undo(self._current, cause=error)

    def add(self, participant: TransactionAware) -> None:
        """Let a participant join; inside a transaction its `start_tx` runs at once.

        What that raises is passed on, and then nobody joined.
        """
        if self._current is not None:
            participant.start_tx(self._current)
        self._participants.append(participant)

    def remove(self, participant: TransactionAware) -> bool:
        """Whether the participant was there. Raises: BadRequestError: inside a transaction."""
        if self._current is not None:
            raise BadRequestError(f"{participant.name} can't leave in the middle of a transaction")
        before = len(self._participants)
        self._participants = [other for other in self._participants if other is not participant]
        return len(self._participants) < before

    def checkpoint(self) -> None:
        """Give everybody a new write pointer in the same transaction."""
        current = self._client.transactions.checkpoint(self.transaction)
        self._current = current
        for participant in self._participants:
            participant.update_tx(current)

    def publish(self, topic: TopicId, *messages: Payload, ttl: int | None = None) -> None:
        """Have the commit publish these; the messages of one topic stand together and in order.

        Raises:
            EmptyPublishError: there are none.
            RequestTooLargeError: the transaction's messages are more than `BUFFER_BYTES_MAX`.
        """
        pointer = self.transaction.write_pointer
        self._messages.add(topic, pointer, payloads_of(messages), ttl)

    def poll(
        self,
        topic: TopicId,
        start: Start | None = None,
        *,
        inclusive: bool = True,
        limit: int | None = None,
        undecided: str = "hold",
    ) -> Poll:
        """Read in the transaction's snapshot (protocol §3.4)."""
        pointer = self.transaction.transaction_id
        return self._client.poll(
            topic,
            start,
            inclusive=inclusive,
            limit=limit,
            transaction=pointer,
            undecided=undecided,
        )

    def abort(self) -> None:
        """Roll back and end the transaction, which is no error."""
        self._roll_back(self.transaction)

    def _finish(self, transaction: Transaction) -> None:
        participants = self._participants
        try:
            changes = frozenset[bytes]().union(*(one.tx_changes() for one in participants))
            if participants:
                self._client.transactions.can_commit(transaction, changes)
            for participant in participants:
                participant.commit_tx()
            interrupt = self._commit(transaction, changes)
        except OutcomeUnknownError:
            self._current = None
            raise
        except BaseException as error:
            self._undo(transaction, cause=error)
            raise
        self._current = None
        finish = partial(_run_all, [one.post_commit for one in participants])
        if interrupt is not None:
            _attempt(finish, cause=interrupt)
            raise interrupt
        finish()

    def _commit(self, transaction: Transaction, changes: frozenset[bytes]) -> BaseException | None:
        """Commit; answers an interrupt that came when the transaction had committed already."""
        entries = self._messages.entries()
        read_only = not (changes or entries or transaction.checkpoint_write_pointers)
        try:
            self._client.transactions.commit(transaction, changes, entries, read_only=read_only)
        except BaseException as error:
            if _is_refusal(error) or not self._did_commit(transaction, cause=error):
                raise
            return None if isinstance(error, Exception) else error
        return None

    def _did_commit(self, transaction: Transaction, *, cause: BaseException) -> bool:
        # A commit whose reply was lost may still be on its way, so merely reading its state decides
        # nothing: participants that rolled back on "in progress" would see it commit a moment
        # later. Invalidating asks and closes that door at once.
        try:
            self._client.transactions.invalidate(transaction)
        except TransactionCommittedError:
            return True
        except TransactionAbortedError:
            return False
        except TuffError as error:
            raise OutcomeUnknownError(
                f"whether transaction {transaction.transaction_id} committed can't be learned now "
                f"({error}); ask `tuff tx show {transaction.transaction_id}` before going on",
            ) from cause
        return False

    def _undo(self, transaction: Transaction, *, cause: BaseException) -> None:
        _attempt(lambda: self._roll_back(transaction), cause=cause)

    def _roll_back(self, transaction: Transaction) -> None:
        self._current = None
        self._messages = _Buffer()
        transactions = self._client.transactions
        try:
            _run_all([participant.rollback_tx for participant in self._participants])
        except BaseException as error:
            _attempt(lambda: transactions.invalidate(transaction), cause=error)
            raise
        transactions.abort(transaction)


class OutcomeUnknownError(ConnectionLostError):
    """Neither `rollback_tx` nor `post_commit` has run: the transaction may have committed."""

    def __init__(self, detail: str) -> None:
        super().__init__(detail, outcome_unknown=True)


class _Buffer:
    """Messages by topic and write pointer, until the commit takes them."""

    def __init__(self) -> None:
        self._size_bytes = 0
        self._by_place: dict[tuple[TopicId, int], list[tuple[bytes, int | None]]] = {}

    def add(self, topic: TopicId, pointer: int, payloads: list[bytes], ttl_s: int | None) -> None:
        if not payloads:
            raise EmptyPublishError(f"nothing to publish to {topic}; give at least one message")
        size_bytes = self._size_bytes + sum(map(len, payloads))
        if size_bytes > BUFFER_BYTES_MAX:
            raise RequestTooLargeError(
                f"the transaction's messages come to {size_bytes} bytes, and at most "
                f"{BUFFER_BYTES_MAX} go with one commit; use several transactions"
            )
        self._size_bytes = size_bytes
        held = self._by_place.setdefault((topic, pointer), [])
        held.extend((payload, ttl_s) for payload in payloads)

    def entries(self) -> list[PublishEntry]:
        return [
            PublishEntry(
                topic=topic,
                payloads=[payload for payload, _ in held],
                ttls_s=[ttl_s for _, ttl_s in held],
                pointer=pointer,
            )
            for (topic, pointer), held in self._by_place.items()
        ]


def _is_refusal(error: BaseException) -> bool:
    """Whether the server, or the want of one, proves that this commit did not happen."""
    if isinstance(error, ConnectionLostError):
        return not error.outcome_unknown
    return isinstance(error, ShuttingDownError) or (
        isinstance(error, TuffError) and 400 <= error.status < 500
    )


def _attempt(step: Callable[[], object], *, cause: BaseException) -> None:
    """Run a step of the clean-up; what it raises becomes a note on the error that led to it."""
    try:
        step()
    except BaseException as error:  # noqa: BLE001 - the cause is raised, and this must not hide it
        cause.add_note(f"and then: {type(error).__name__}: {error}")
        for note in getattr(error, "__notes__", ()):
            cause.add_note(note)


def _run_all(steps: list[Callable[[], None]]) -> None:
    """Run every step, whatever the others do; the first error is raised, later ones are notes."""
    first: BaseException | None = None
    for step in steps:
        if first is not None:
            _attempt(step, cause=first)
            continue
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - raised below, after all have run
            first = error
    if first is not None:
        raise first
