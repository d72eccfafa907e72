"""`client.transactions`, where `tx` is a transaction or any of its pointers (protocol §5.2), and
`client.sinks` (§5.3)."""

import secrets
from collections.abc import Collection, Sequence

from tuff import transaction_calls
from tuff.aio.topics import AsyncSend
from tuff.calls import Duration, maybe_seconds_of
from tuff.protocol.requests import PublishEntry, RollbackDetail
from tuff.protocol.transaction import Transaction, TransactionState, TransactionTypeLike
from tuff.replies import Epoch, Invalids, Outcome, Overview, Renewed, Sink, SnapshotFile, Truncated
from tuff.transaction_calls import Tx, id_of

REQUEST_ID_BYTES = 16  # bytes by chance; two programs never draw the same

Found = list[Sink]  # inside the class, `list` is a method


class AsyncTransactions:
    """The transactions of one server. Safe to share between the tasks of one event loop."""

    def __init__(self, send: AsyncSend, name: str) -> None:
        self._send = send
        self._name = name

    async def start(
        self,
        type: TransactionTypeLike = "short",
        *,
        timeout: Duration | None = None,  # noqa: ASYNC109 - the transaction's, kept by the server
        client: str | None = None,
        lease: Duration | None = None,
    ) -> Transaction:
        """A new transaction, with the snapshot it reads in.

        `type`: `short`, checked for conflicts, or `long`, which is not. `timeout`: seconds until
        the server ends it (default: the server's; not for a long one). `client`: the name that
        others see (default: this client's). `lease`: seconds, up to 3,600, after which the server
        ends a long one unless it is renewed (default: it need not be).
        """
        name = self._name if client is None else client
        return await self._send(
            transaction_calls.start(
                type=type,
                timeout_s=maybe_seconds_of(timeout, what="timeout"),
                client=name,
                lease_s=maybe_seconds_of(lease, what="lease"),
            )
        )

    async def can_commit(self, tx: Tx, changes: Collection[bytes]) -> None:
        """Check early for conflicts, and keep the keys for the commit.

        Raises:
            TransactionConflictError: which key, and who was first.
            TransactionNotInProgressError: its kind says how it ended.
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

        Answers what each entry of `publish` wrote. Repeating it gives the first answer, so after a
        lost one it is sent again.

        Raises:
            TransactionConflictError: it can only be aborted or invalidated now.
            TransactionNotInProgressError: its kind says how it ended.
            ConnectionLostError: whether it committed is unknown; ask `outcome`.
        """
        call = transaction_calls.commit(id_of(tx), changes, publish, read_only=read_only)
        return await self._send(call)

    async def run(
        self, publish: Sequence[PublishEntry], *, request_id: str | None = None
    ) -> list[RollbackDetail]:
        """Publish to several topics, all or nothing, in a transaction of its own.

        `request_id` (up to 128 characters; default: one by chance) makes repeating it safe: the
        server answers a second time what it answered the first.
        """
        request_id = secrets.token_hex(REQUEST_ID_BYTES) if request_id is None else request_id
        return await self._send(
            transaction_calls.run(publish, client=self._name, request_id=request_id)
        )

    async def abort(self, tx: Tx) -> TransactionState:
        """End it, having undone its other writes: returns ABORTED, or INVALID (protocol §6)."""
        return await self._send(transaction_calls.abort(id_of(tx)))

    async def invalidate(self, tx: Tx) -> None:
        """End it, although its writes could not be undone: they are never visible.

        Raises:
            TransactionCommittedError: it had committed. TransactionAbortedError: it was aborted.
        """
        await self._send(transaction_calls.invalidate(id_of(tx)))

    async def checkpoint(self, tx: Tx) -> Transaction:
        """The same transaction, with a new write pointer."""
        return await self._send(transaction_calls.checkpoint(id_of(tx)))

    async def renew(self, tx: Tx) -> Renewed:
        """Let its lease begin anew; best at a third of it.

        Raises:
            BadRequestError: it has none.
            TransactionNotInProgressError: it is too late, or it has ended otherwise.
        """
        return await self._send(transaction_calls.renew(id_of(tx)))

    async def outcome(self, tx: Tx) -> Outcome:
        """What became of it; kept for 15 minutes (a setting of the server) after its end.

        Raises:
            TransactionUnknownError: it never was, or ended too long ago.
        """
        return await self._send(transaction_calls.outcome(id_of(tx)))

    async def overview(self) -> Overview:
        """What is in progress, and the counts around it."""
        return await self._send(transaction_calls.overview())

    async def invalids(self) -> Invalids:
        """The invalid list."""
        return await self._send(transaction_calls.invalids())

    async def truncate(
        self, *, ids: Collection[int] | None = None, before: int | None = None
    ) -> Truncated:
        """Take pointers off the invalid list: these, or those started before a time in ms.

        Only safe once no store holds a version of them; those a message row carries are kept. With
        `before`, an answer that is lost is not asked for again: look at `invalids`.
        """
        return await self._send(transaction_calls.truncate(ids=ids, before_ms=before))

    async def take_snapshot(self) -> SnapshotFile:
        """Have the server write its transaction state to a file, and say which."""
        return await self._send(transaction_calls.take_snapshot())


class AsyncSinks:
    """The sinks of one server: what makes a replayed batch of a writer a no-op. Safe to share
    between the tasks of one event loop."""

    def __init__(self, send: AsyncSend, name: str) -> None:
        self._send = send
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
        `run_id`: 1 to 128 characters, the same for all tasks of a run, and for no other run; who
        begins an epoch ends the transaction of an earlier run, and fences that run for good.
        `lease`: seconds, up to 3,600, after which the server ends the transaction unless
        `transactions.renew` renews it. `client`: the name that others see (default: this one's).

        Raises:
            SinkFencedError: another run took the sink.
            SinkEpochSupersededError: the sink is at a later epoch; its `members["epoch"]`.
            SinkEpochOpenError: an earlier epoch, `members["epoch"]`, has not committed.
            TransactionNotInProgressError: the epoch's transaction was lost; start another run.
            TooManySinksError: as many as may be are recorded.
        """
        name = self._name if client is None else client
        return await self._send(
            transaction_calls.begin_epoch(
                sink, epoch, run_id, lease_s=maybe_seconds_of(lease, what="lease"), client=name
            )
        )

    async def get(self, sink: str) -> Sink:
        """The newest epoch, and what became of it. Raises: SinkNotFoundError."""
        return await self._send(transaction_calls.get_sink(sink))

    async def list(self) -> Found:
        """All sinks, by name."""
        return await self._send(transaction_calls.list_sinks())

    async def delete(self, sink: str) -> None:
        """Forget it, durably: whatever epoch comes next is its first.

        Raises:
            SinkNotFoundError: nothing is recorded of it.
            SinkInUseError: its transaction is in progress.
        """
        await self._send(transaction_calls.delete_sink(sink))
