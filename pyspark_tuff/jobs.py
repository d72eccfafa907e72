"""Whose transaction a write goes into, and who ends it.

    OwnJob       begins one when the job does, and commits it
    JoinedJob    goes into one that somebody else began, and will end
    EpochJob     takes that of an epoch of a sink, which the server keeps beside its outcome

Each is a value that travels to every task. A task enters, and stores; the driver's host publishes
what the winning attempts stored, and commits.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from pyspark_tuff.storing import Stored
from tuff.client import Client
from tuff.protocol.errors import (
    SinkNotFoundError,
    TransactionCommittedError,
    TransactionNotInProgressError,
    TuffError,
)
from tuff.protocol.requests import PublishEntry
from tuff.transport import ConnectionLostError


class Job(Protocol):
    """One write. `lease_s`: what tasks renew while they work; None where that is not theirs."""

    @property
    def lease_s(self) -> float | None: ...

    def enter(self, client: Client) -> int | None:
        """The transaction to store under; None where all of this was committed before."""

    def renew(self, client: Client) -> None:
        """Let the lease begin anew, where it is ours and the transaction has begun.

        Raises:
            TransactionNotInProgressError: it has ended.
        """

    def commit(self, client: Client, winners: Sequence[Stored]) -> None:
        """Publish what these attempts stored."""

    def abort(self, client: Client) -> None:
        """Leave no trace; nothing where it has been committed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnJob:
    """A job that has begun a transaction for itself."""

    transaction: int
    lease_s: float

    def enter(self, client: Client) -> int:
        return self.transaction

    def renew(self, client: Client) -> None:
        client.transactions.renew(self.transaction)

    def commit(self, client: Client, winners: Sequence[Stored]) -> None:
        commit(client, self.transaction, winners)

    def abort(self, client: Client) -> None:
        abort(client, self.transaction)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedJob:
    """A job within a transaction that its owner commits or rolls back."""

    transaction: int

    @property
    def lease_s(self) -> None:
        return None

    def enter(self, client: Client) -> int:
        return self.transaction

    def renew(self, client: Client) -> None:
        """Nothing: its owner keeps it alive."""

    def commit(self, client: Client, winners: Sequence[Stored]) -> None:
        """Publish, for the owner to commit."""
        for entry in references(winners):
            try:
                client.publish(entry.topic, [], transaction=entry.pointer)
            except ConnectionLostError:
                # Once more: if the first reference is there, it has brought all that was stored,
                # and the second brings nothing.
                client.publish(entry.topic, [], transaction=entry.pointer)

    def abort(self, client: Client) -> None:
        """Nothing: what was stored is seen by nobody, and the transaction is its owner's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochJob:
    """One epoch of a sink: written once, however often and by whomever it is run. A later run takes
    it over from an earlier one, which from then on can't commit (protocol §5.3)."""

    sink: str
    epoch: int
    run_id: str
    lease_s: float

    def enter(self, client: Client) -> int | None:
        """The transaction of this run, which the first who asks begins.

        Raises:
            SinkError: a later epoch is recorded, an earlier one is open, or another run has taken
                over.
            TransactionNotInProgressError: this run has lost its transaction.
        """
        begun = client.sinks.begin(self.sink, self.epoch, self.run_id, lease=self.lease_s)
        return None if begun.transaction is None else begun.transaction.transaction_id

    def renew(self, client: Client) -> None:
        transaction = self._begun(client)
        if transaction is not None:
            client.transactions.renew(transaction)

    def commit(self, client: Client, winners: Sequence[Stored]) -> None:
        transaction = self.enter(client)
        if transaction is not None:
            commit(client, transaction, winners)

    def abort(self, client: Client) -> None:
        transaction = self._begun(client)
        if transaction is not None:
            abort(client, transaction)

    def _begun(self, client: Client) -> int | None:
        """The transaction that this run has begun for this epoch, whatever became of it."""
        try:
            found = client.sinks.get(self.sink)
        except SinkNotFoundError:
            return None  # nobody came so far
        is_ours = (found.epoch, found.run_id) == (self.epoch, self.run_id)
        return found.transaction_id if is_ours else None


def commit(client: Client, transaction: int, winners: Sequence[Stored]) -> None:
    """Publish and commit: all topics appear at once, or, where this raises, none does.

    Raises:
        ConnectionLostError: and whether they appear can't be learned, as nobody answers any more.
        TuffError: its kind for what the server refused.
    """
    try:
        client.transactions.commit(transaction, publish=references(winners))
    except TuffError as error:
        if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        # Whether it committed is unknown. Ending it tells, and keeps a late request out.
        try:
            client.transactions.invalidate(transaction)
        except TransactionCommittedError:
            return
        raise


def references(winners: Sequence[Stored]) -> list[PublishEntry]:
    """What brings the messages of these attempts: each topic in the order of partitions."""
    ordered = sorted(winners, key=lambda stored: stored.partition)
    parts = [part for stored in ordered for part in stored.parts]
    topics = sorted({topic for part in parts for topic in part.counts})
    return [
        PublishEntry(topic=topic, payloads=[], pointer=part.pointer)
        for topic in topics
        for part in parts
        if topic in part.counts
    ]


def abort(client: Client, transaction: int) -> None:
    """End a transaction, unless it has ended: Spark aborts also after a commit that raised."""
    try:
        client.transactions.abort(transaction)
    except TransactionNotInProgressError:
        return
