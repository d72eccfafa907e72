"""Renews the lease of a transaction beside whoever works in it."""

from threading import Event
from threading import Thread as _Thread  # noqa: TID251 - a task computes while its lease is renewed
from types import TracebackType

from pyspark_tuff.renewing import BEATS_PER_LEASE
from tuff.client import Client
from tuff.protocol.errors import TransactionNotInProgressError, TuffError


class Heartbeat:
    """Renews a lease until its block ends; without one (None) it does nothing. `_lost` is written
    by the thread, and read by others."""

    def __init__(self, client: Client, transaction: int, *, lease_s: float | None) -> None:
        self._client = client
        self._transaction = transaction
        self._lease_s = lease_s
        self._is_over = Event()
        self._lost: TransactionNotInProgressError | None = None
        self._thread = _Thread(target=self._beat, name="tuff-heartbeat", daemon=True)

    def check(self) -> None:
        """Raises: TransactionNotInProgressError: it has ended, so that working on is in vain."""
        if self._lost is not None:
            raise self._lost

    def __enter__(self) -> "Heartbeat":
        if self._lease_s is not None:
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._is_over.set()
        if self._lease_s is not None:
            self._thread.join()

    def _beat(self) -> None:
        assert self._lease_s is not None, "it was started for one"
        while not self._is_over.wait(self._lease_s / BEATS_PER_LEASE):
            try:
                self._client.transactions.renew(self._transaction)
            except TransactionNotInProgressError as error:
                self._lost = error
                return
            except TuffError:
                # The weather: the next beat comes well before the lease is over.
                continue
