"""Starts and checkpoints: the calls that hand out a pointer (design §4, Pointers)."""

from collections.abc import Callable

from tuff.protocol.errors import OverloadedError
from tuff.protocol.exchange import Caller
from tuff.protocol.transaction import TransactionType
from tx.commit_and_abort import Completion
from tx.durable_state import DurableState
from tx.edits import Checkpointed, EpochBegun, Started
from tx.monitoring import TransactionCounters
from tx.outcomes import OpenTransaction
from tx.ownership import principal_of, require_quota
from tx.pointer_reservation import ReservedPointers
from tx.settings import OPEN_COUNT_MAX, TransactionSettings
from tx.timeouts import Timeouts, lease_ms, timeout_ms


class Starts:
    """Starts and checkpoints: pointers are handed out in the order in which their edits enter the
    log. Lives on one event loop."""

    def __init__(
        self,
        durable: DurableState,
        completion: Completion,
        pointers: ReservedPointers,
        timeouts: Timeouts,
        settings: TransactionSettings,
        counters: TransactionCounters,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._durable = durable
        self._completion = completion
        self._pointers = pointers
        self._timeouts = timeouts
        self._settings = settings
        self._counters = counters
        self._now_ms = now_ms

    def require_valid(
        self, kind: TransactionType, timeout_s: float | None, lease_s: float | None
    ) -> None:
        """Raises: InvalidTimeoutError: as `start`."""
        timeout_ms(self._settings, kind, timeout_s)
        lease_ms(self._settings, kind, lease_s)

    async def start(
        self,
        kind: TransactionType,
        timeout_s: float | None,
        client: str,
        *,
        lease_s: float | None = None,
        caller: Caller | None = None,
    ) -> OpenTransaction:
        """Start a transaction that reads what has durably ended. Waits for no disk.

        Raises:
            QuotaExceededError: the caller has too many open.
            InvalidTimeoutError: not above 0, above the maximum, or given for a long one; or so of
                the lease, which only a long one takes.
        """
        # Others start in each wait, so all is checked again.
        while (opened := self.start_now(kind, timeout_s, client, lease_s, caller)) is None:
            await self._pointers.renewed()
        return opened

    def start_now(
        self,
        kind: TransactionType,
        timeout_s: float | None,
        client: str,
        lease_s: float | None,
        caller: Caller | None,
    ) -> OpenTransaction | None:
        """As `start`; None if no pointer is left, so that it would wait. Nothing comes between the
        pointer and its record, so that edits enter the log in pointer order."""
        self._durable.require_running()
        lives_ms = timeout_ms(self._settings, kind, timeout_s)
        lease = lease_ms(self._settings, kind, lease_s)
        self.require_room(caller)
        pointer = self._pointers.take()
        if pointer is None:
            return None
        now_ms = self._now_ms()
        seen = self._durable.state.seen
        return self.record(
            Started(
                now_ms, pointer, kind, lives_ms, now_ms + lives_ms, client, seen, lease,
                principal_of(caller),
            )
        )  # fmt: skip

    def require_room(self, caller: Caller | None) -> None:
        """
        Raises:
            OverloadedError: too many are in progress, or too much waits for the disk.
            QuotaExceededError: the caller has too many open.
        """
        require_quota(caller, self._durable.state.owners)
        self._durable.require_room()
        if len(self._durable.state.open) >= OPEN_COUNT_MAX:
            raise OverloadedError(f"{OPEN_COUNT_MAX} transactions are in progress; end some first")

    def record(self, edit: Started | EpochBegun) -> OpenTransaction:
        """Record a start; the transaction that it opens."""
        self._counters.starts += 1
        self._durable.record(edit)
        opened = self._durable.state.open[edit.pointer]
        self._timeouts.begin_lease(opened)
        self._pointers.renew_if_due(now_ms=edit.at_ms)
        return opened

    async def checkpoint(self, pointer: int) -> OpenTransaction:
        """Give the transaction a new write pointer, durably: if the pointer were lost and the
        transaction survived, half a commit would be possible."""
        while True:
            # The transaction is read again after each wait, since it may have ended.
            opened = await self._completion.open_now(pointer)
            new_pointer = self._pointers.take()
            if new_pointer is not None:
                break
            await self._pointers.renewed()
        self._durable.require_room()
        now_ms = self._now_ms()
        edit = Checkpointed(now_ms, opened.transaction_id, new_pointer)
        lsn = self._durable.record(edit)
        checkpointed = self._durable.state.open[opened.transaction_id]
        self._pointers.renew_if_due(now_ms=now_ms)
        await self._durable.synced_in_time(lsn)
        return checkpointed
