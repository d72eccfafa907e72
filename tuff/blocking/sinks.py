# Generated from tuff/aio/sinks.py by `make blocking`; change that one.
"""`client.sinks`: the calls of protocol §5.3."""

from tuff import transaction_calls
from tuff.blocking.topics import Send
from tuff.calls import Duration, maybe_seconds_of
from tuff.replies import Epoch, Sink

Found = list[Sink]  # inside the class, `list` is a method


class Sinks:
    """The sinks of one server: what makes a replayed batch of a writer a no-op. Safe to share
    between threads."""

    def __init__(self, send: Send, name: str) -> None:
        self._send = send
        self._name = name

    def begin(
        self,
        sink: str,
        epoch: int,
        run_id: str,
        *,
        lease: Duration | None = None,
        client: str | None = None,
    ) -> Epoch:
        """The transaction in which to write this epoch, the same for every task of a run.

            epoch = client.sinks.begin("orders/query-7", 41, run_id, lease=60)
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
        return self._send(
            transaction_calls.begin_epoch(
                sink, epoch, run_id, lease_s=maybe_seconds_of(lease, what="lease"), client=name
            )
        )

    def get(self, sink: str) -> Sink:
        """The newest epoch, and what became of it. Raises: SinkNotFoundError."""
        return self._send(transaction_calls.get_sink(sink))

    def list(self) -> Found:
        """All sinks, by name."""
        return self._send(transaction_calls.list_sinks())

    def delete(self, sink: str) -> None:
        """Forget it, durably: whatever epoch comes next is its first.

        Raises:
            SinkNotFoundError: nothing is recorded of it.
            SinkInUseError: its transaction is in progress.
        """
        self._send(transaction_calls.delete_sink(sink))
