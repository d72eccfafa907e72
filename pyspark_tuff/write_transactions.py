"""Which transaction a write uses, and who commits it.

    OwnJob       starts a transaction for this write, and commits it
    JoinedJob    joins a transaction of the user, who commits or aborts it
    EpochJob     uses the transaction of one epoch of a sink, which the server records together
                 with its outcome

Each is a value that Spark pickles for every task. A task enters the job and stores its rows. The
driver's host then publishes what the winning attempts have stored, and commits.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from typing import Protocol

from pyspark.sql.datasource import WriterCommitMessage

from tuff.blocking.client import Client
from tuff.errors import ConnectionLostError
from tuff.protocol.errors import (
    SinkNotFoundError,
    TransactionCommittedError,
    TransactionNotInProgressError,
    TuffError,
)
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import PublishEntry
from tuff.publish_calls import publish_entry


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """The number of messages by topic that were stored under one write pointer."""

    pointer: int
    counts: Mapping[TopicId, int]


class Job(Protocol):
    """One write. `lease_s`: the lease that its tasks renew while they work; None if the lease is
    the user's."""

    @property
    def lease_s(self) -> float | None: ...

    def enter(self, client: Client) -> int | None:
        """The transaction to store under; None if this write was committed before."""

    def renew(self, client: Client) -> None:
        """Renew the lease, if it is this job's and its transaction has begun.

        Raises:
            TransactionNotInProgressError: the transaction has ended.
        """

    def commit(self, client: Client, winners: Sequence["TaskResult"]) -> None:
        """Publish what these attempts have stored."""

    def abort(self, client: Client) -> None:
        """Abort the transaction; does nothing after a commit."""


@dataclass(frozen=True, kw_only=True)
class TaskResult(WriterCommitMessage):
    """What the winning attempt of a task sends to the driver's host: the parts that it has stored,
    in order; none if it had no rows."""

    job: Job
    partition: int
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnJob:
    """A job that has started a transaction of its own."""

    transaction: int
    lease_s: float

    def enter(self, client: Client) -> int:
        return self.transaction

    def renew(self, client: Client) -> None:
        client.transactions.renew(self.transaction)

    def commit(self, client: Client, winners: Sequence[TaskResult]) -> None:
        commit(client, self.transaction, winners)

    def abort(self, client: Client) -> None:
        abort(client, self.transaction)


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedJob:
    """A job inside a transaction that its owner commits or aborts."""

    transaction: int

    @property
    def lease_s(self) -> None:
        return None

    def enter(self, client: Client) -> int:
        return self.transaction

    def renew(self, client: Client) -> None:
        """Does nothing: the owner of the transaction renews its lease."""

    def commit(self, client: Client, winners: Sequence[TaskResult]) -> None:
        """Publish the messages; the owner commits them."""
        for entry in references(winners):
            pointer = entry.pointer
            assert pointer is not None, "each attempt has a pointer of its own"
            try:
                client.publish_stored(entry.topic, transaction=pointer)
            except ConnectionLostError:
                # Publishing the reference again is safe: if the first request arrived, it has
                # published everything stored under the pointer, and the second publishes nothing.
                client.publish_stored(entry.topic, transaction=pointer)

    def abort(self, client: Client) -> None:
        """Does nothing: no reader sees what was stored, and the owner ends the transaction."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochJob:
    """One epoch of a sink. It is written once, however many runs write it.

    A later run takes the epoch over from an earlier one, which can't commit from then on (protocol
    §5.3).
    """

    sink: str
    epoch: int
    run_id: str
    lease_s: float

    def enter(self, client: Client) -> int | None:
        """The transaction of this run, which starts with the first call.

        Raises:
            SinkError: a later epoch is recorded, an earlier one is open, or another run has taken
                over.
            TransactionNotInProgressError: the transaction of this run has ended.
        """
        begun = client.sinks.begin(self.sink, self.epoch, self.run_id, lease=self.lease_s)
        return None if begun.transaction is None else begun.transaction.transaction_id

    def renew(self, client: Client) -> None:
        transaction = self._begun(client)
        if transaction is not None:
            client.transactions.renew(transaction)

    def commit(self, client: Client, winners: Sequence[TaskResult]) -> None:
        transaction = self.enter(client)
        if transaction is not None:
            commit(client, transaction, winners)

    def abort(self, client: Client) -> None:
        transaction = self._begun(client)
        if transaction is not None:
            abort(client, transaction)

    def _begun(self, client: Client) -> int | None:
        """The transaction that this run has started for this epoch, in whatever state it is."""
        try:
            found = client.sinks.get(self.sink)
        except SinkNotFoundError:
            return None  # no run has begun an epoch yet
        is_ours = (found.epoch, found.run_id) == (self.epoch, self.run_id)
        return found.transaction_id if is_ours else None


def commit(client: Client, transaction: int, winners: Sequence[TaskResult]) -> None:
    """Publish and commit: all messages appear at once, or none if this raises.

    Raises:
        ConnectionLostError: the server no longer answers, so the outcome is unknown.
        TuffError: the server refused the commit.
    """
    try:
        client.transactions.commit(transaction, publish=references(winners))
    except TuffError as error:
        if error.status < HTTPStatus.INTERNAL_SERVER_ERROR:
            raise
        # The outcome is unknown. Invalidating the transaction reveals whether it was committed,
        # and keeps a late commit request from succeeding.
        try:
            client.transactions.invalidate(transaction)
        except TransactionCommittedError:
            return
        raise


def references(winners: Sequence[TaskResult]) -> list[PublishEntry]:
    """Publishes that refer to the messages of these attempts by pointer: each topic in the order of
    the partitions."""
    ordered = sorted(winners, key=lambda result: result.partition)
    parts = [part for result in ordered for part in result.parts]
    topics = sorted({topic for part in parts for topic in part.counts})
    return [
        publish_entry(topic, pointer=part.pointer)
        for topic in topics
        for part in parts
        if topic in part.counts
    ]


def abort(client: Client, transaction: int) -> None:
    """Abort a transaction, unless it has ended: Spark also aborts after a commit that raised."""
    try:
        client.transactions.abort(transaction)
    except TransactionNotInProgressError:
        return
