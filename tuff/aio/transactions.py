"""`client.transactions`, where `tx` is a transaction or any of its pointers (protocol §5.2), and
`client.sinks` (§5.3)."""

from collections.abc import Collection, Sequence

from tuff import transaction_calls
from tuff.aio.driver import AsyncDriver
from tuff.protocol.durations import Duration
from tuff.protocol.requests import PublishEntry, RollbackDetail
from tuff.protocol.transaction import Transaction, TransactionState, TransactionTypeLike
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
from tuff.requests_and_responses import maybe_seconds_of
from tuff.transaction_calls import Resolution, Tx, id_of

Found = list[Sink]  # inside the class, `list` is a method


class AsyncTransactions:
    """The transactions of one server. Safe to share between the tasks of one event loop."""

    def __init__(self, driver: AsyncDriver, name: str) -> None:
        self._send = driver.ask
        self._name = name

    async def start(
        self,
        type: TransactionTypeLike = "short",
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109 - the transaction's, kept by the server
        client: str | None = None,
        lease: Duration | None = None,
        messages_only: bool = False,
    ) -> Transaction:
        """Start a transaction; returns it with the snapshot in which it reads. If the wait for the
        reply is interrupted, the start is withdrawn.

        `type`: `short`, checked for conflicts, or `long`, which is not. `timeout`: seconds until
        the server ends it (default: the server's; not for a long one). `client`: the name that
        others see (default: this client's). `lease`: seconds, up to 3,600, until the server ends it
        unless it is renewed (default: no lease); a short one has no other time-out then, unless
        `timeout` is given. `messages_only`: no other store keeps
        its pointers, so that it leaves nothing on the list of invalid transactions.
        """
        name = self._name if client is None else client
        return await self._send(
            transaction_calls.start(
                type=type,
                timeout_s=maybe_seconds_of(timeout, what="timeout"),
                client=name,
                request_id=transaction_calls.new_request_id(),
                lease_s=maybe_seconds_of(lease, what="lease"),
                messages_only=messages_only,
            )
        )

    async def can_commit(self, tx: Tx, changes: Collection[bytes]) -> None:
        """Check for conflicts before the commit, and keep the keys for it.

        Raises:
            TransactionConflictError: it names the key and the transaction that was first.
            TransactionNotInProgressError: its class says how it ended.
        """
        await self._send(transaction_calls.can_commit(id_of(tx), changes))

    async def commit(
        self,
        tx: Tx,
        changes: Collection[bytes] = (),
        publish: Sequence[PublishEntry] = (),
        *,
        read_only: bool = False,
    ) -> list[RollbackDetail]:
        """Check for conflicts, publish and commit, as one step for every snapshot reader.

        Returns what each entry of `publish` wrote. A repetition returns the same, so it is repeated
        after a lost reply.

        Raises:
            TransactionConflictError: it can only be aborted or invalidated now.
            TransactionNotInProgressError: its class says how it ended.
            ConnectionLostError: it is unknown whether it committed; ask `get`.
        """
        call = transaction_calls.commit(id_of(tx), changes, publish, read_only=read_only)
        return await self._send(call)

    async def prepare(
        self,
        tx: Tx,
        database: str,
        changes: Collection[bytes] = (),
        publish: Sequence[PublishEntry] = (),
    ) -> Prepared:
        """Check and publish as `commit` does, and let `database` (its name) decide how it ends.

        After this only `resolve` ends it, no time-out does. A repetition returns the same, so it is
        repeated after a lost reply.

        Raises:
            TransactionPreparedError: it is prepared for another database.
            TooManyPreparedError: the server has as many as it may have; nothing was written.
            As `commit`.
        """
        return await self._send(transaction_calls.prepare(id_of(tx), database, changes, publish))

    async def resolve(self, tx: Tx, outcome: Resolution) -> TransactionState:
        """End a prepared transaction as its database did: `commit` or `abort`. Returns the state in
        which it ended: COMMITTED, ABORTED, or INVALID for a long one that was aborted.

        An `abort` also ends one that is not prepared, so that a prepare whose reply was lost can't
        take effect later. A repetition returns the same.

        Raises:
            TransactionNotPreparedError: `commit` of one that is in progress.
            TransactionNotInProgressError: it ended the other way; its class says how.
        """
        return await self._send(transaction_calls.resolve(id_of(tx), outcome))

    async def prepared(self, database: str | None = None) -> list[PreparedTransaction]:
        """The prepared transactions, the one prepared first comes first; with `database` only those
        that it decides."""
        return await self._send(transaction_calls.prepared(database))

    async def run(
        self, publish: Sequence[PublishEntry], *, request_id: str | None = None
    ) -> list[RollbackDetail]:
        """Publish to several topics, all or nothing, in a transaction of its own.

        `request_id` (up to 128 characters; default: a random one) makes a repetition safe: the
        server returns its first answer again.
        """
        request_id = transaction_calls.new_request_id() if request_id is None else request_id
        return await self._send(
            transaction_calls.run(publish, client=self._name, request_id=request_id)
        )

    async def abort(self, tx: Tx) -> TransactionState:
        """End it after its other writes were undone; returns ABORTED, or INVALID (protocol §6)."""
        return await self._send(transaction_calls.abort(id_of(tx)))

    async def invalidate(self, tx: Tx) -> None:
        """End it without undoing its other writes: they are never visible.

        Raises:
            TransactionCommittedError: it had committed. TransactionAbortedError: it was aborted.
        """
        await self._send(transaction_calls.invalidate(id_of(tx)))

    async def checkpoint(self, tx: Tx) -> Transaction:
        """The transaction with a new write pointer."""
        return await self._send(transaction_calls.checkpoint(id_of(tx)))

    async def renew(self, tx: Tx) -> Renewed:
        """Restart its lease; best after a third of it.

        Raises:
            BadRequestError: it has no lease.
            TransactionNotInProgressError: the lease has expired, or it has ended otherwise.
        """
        return await self._send(transaction_calls.renew(id_of(tx)))

    async def get(self, tx: Tx) -> Outcome:
        """Its state or outcome; kept for 15 minutes (a setting of the server) after its end.

        Raises:
            TransactionUnknownError: it never existed, or ended too long ago.
        """
        return await self._send(transaction_calls.outcome(id_of(tx)))

    async def overview(self) -> Overview:
        """The transactions in progress, the pointers and the counts of the service."""
        return await self._send(transaction_calls.OVERVIEW)

    async def invalids(self) -> Invalids:
        """The invalid list."""
        return await self._send(transaction_calls.INVALIDS)

    async def truncate(
        self, *, ids: Collection[int] | None = None, before: int | None = None
    ) -> Truncated:
        """Remove pointers from the invalid list: these, or those started before a time in ms.

        Only safe when no store holds a version of them; those that a message row carries are kept.
        With `before` it is not repeated after a lost reply: check `invalids`.
        """
        return await self._send(transaction_calls.truncate(ids=ids, before_ms=before))

    async def take_snapshot(self) -> SnapshotFile:
        """Let the server write its transaction state to a file; returns the name of the file."""
        return await self._send(transaction_calls.TAKE_SNAPSHOT)


class AsyncSinks:
    """The sinks of one server: they make a replayed batch of an exactly-once writer a no-op. Safe
    to share between the tasks of one event loop."""

    def __init__(self, driver: AsyncDriver, name: str) -> None:
        self._send = driver.ask
        self._name = name

    async def begin(
        self,
        sink: str,
        epoch: int,
        run_id: str,
        *,
        lease: Duration | None = None,
        client: str | None = None,
    ) -> Epoch:
        """The transaction in which to write this epoch, the same for every task of a run.

            epoch = await client.sinks.begin("orders/query-7", 41, run_id, lease=60)
            if epoch.transaction is None:
                return  # it has committed

        `sink`: a name for all runs of the writer. `epoch`: 0 to 2**63 - 1, one more for each batch.
        `run_id`: 1 to 128 characters, the same for all tasks of a run, and different for each run.
        Beginning an epoch ends the transaction of an earlier run, and fences that run for ever.
        `lease`: seconds, up to 3,600, after which the server ends the transaction unless
        `transactions.renew` renews it. `client`: the name that others see (default: this client's).

        Raises:
            SinkFencedError: another run took the sink.
            SinkEpochSupersededError: the sink is at a later epoch, `members["epoch"]`.
            SinkEpochOpenError: an earlier epoch, `members["epoch"]`, has not committed.
            TransactionNotInProgressError: the epoch's transaction was lost; start another run.
            TooManySinksError: the server has as many sinks as it may have.
        """
        name = self._name if client is None else client
        return await self._send(
            transaction_calls.begin_epoch(
                sink, epoch, run_id, lease_s=maybe_seconds_of(lease, what="lease"), client=name
            )
        )

    async def get(self, sink: str) -> Sink:
        """The newest epoch and its state. Raises: SinkNotFoundError."""
        return await self._send(transaction_calls.get_sink(sink))

    async def list(self) -> Found:
        """All sinks, by name."""
        return await self._send(transaction_calls.LIST_SINKS)

    async def delete(self, sink: str) -> None:
        """Remove it, durably: the next epoch, whatever its number, is its first.

        Raises:
            SinkNotFoundError: it does not exist.
            SinkInUseError: its transaction is in progress.
        """
        await self._send(transaction_calls.delete_sink(sink))
