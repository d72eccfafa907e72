"""The transaction service as a whole: makes its parts, opens and closes them, and does its periodic
work: time-outs, forgetting old outcomes, pruning the invalid list, snapshots.

Callers use the parts: `runner` for transactions, `sinks`, `invalid_list` and `monitoring`; the
message store uses `write_permits`.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from kernel.event_loop import Arrivals, InThread, Spawn
from kernel.log_events import event
from tuff.protocol.errors import TransactionsUnavailableError
from tx.claims_and_waits import UnderWay
from tx.counters import TransactionCounters
from tx.deadlines_and_leases import Timeouts
from tx.durable_state import DurableState, ServiceState, ServiceStatus
from tx.invalid_list import InvalidList, LastSweep
from tx.leadership import Leadership
from tx.log_records import BlockReturned, Edit, Restarted
from tx.messaging_interface import MessageRows
from tx.mixed_backups import RecordedFiles
from tx.monitoring import Monitoring
from tx.pointer_reservation import ReservedPointers
from tx.settings import (
    FULL_LOG_INTERVAL_MS,
    LOGGED_COUNT_MAX,
    PRUNE_INTERVAL_MS,
    TransactionSettings,
)
from tx.sinks import Sinks
from tx.state import TransactionState, ViewChange
from tx.state_machine import Machine
from tx.state_machine_runner import MachineRunner
from tx.wal import DiskFile, OpenFile
from tx.write_permits import WritePermits

log = logging.getLogger(__name__)


class TransactionManager:
    """`may_forget`: whether the clock can be trusted so far that outcomes are forgotten by age.

    Lives on one event loop. While the service is down or stopped, the async methods of its
    parts, and those that the message store uses, raise TransactionsUnavailableError at once."""

    def __init__(
        self,
        directory: Path,
        settings: TransactionSettings,
        *,
        rows: MessageRows,
        max_block_s: float,
        now_ms: Callable[[], int],
        elapsed_s: Callable[[], float],
        in_thread_log: InThread,
        in_thread_files: InThread,
        arrivals: Arrivals,
        spawn: Spawn,
        store_id: Callable[[], str],
        status_changed: Callable[[], None] = lambda: None,
        observe: Callable[[str, float], None] = lambda _name, _value: None,
        last_sweep: Callable[[], LastSweep | None] = lambda: None,
        may_forget: Callable[[], bool] = lambda: True,
        open_file: OpenFile = DiskFile,
    ) -> None:
        self._settings = settings
        self._rows = rows
        self._now_ms = now_ms
        self._may_forget = may_forget
        self._spawn = spawn
        # Not before `open`: until then it is not known what the message store has recorded, nor
        # which pointers its rows carry, and pruning would take these off the invalid list.
        self._may_recover = False
        self._pruned_at_ms = 0
        self._up_since_ms = 0
        self._snapshot_tried_at_ms = 0
        self._under_way = UnderWay(self._go_on_soon)
        self.durable = DurableState(
            directory,
            settings,
            now_ms=now_ms,
            elapsed_s=elapsed_s,
            in_thread_log=in_thread_log,
            in_thread_files=in_thread_files,
            arrivals=arrivals,
            store_id=store_id,
            open_file=open_file,
            status_changed=status_changed,
            observe=observe,
        )
        self.counters = TransactionCounters()
        self.timeouts = Timeouts(rows, max_block_s=max_block_s, now_ms=now_ms)
        self._make_parts(last_sweep)

    def _make_parts(self, last_sweep: Callable[[], LastSweep | None]) -> None:
        durable, under_way, rows = self.durable, self._under_way, self._rows
        settings, counters, now_ms, spawn = self._settings, self.counters, self._now_ms, self._spawn
        self._pointers = pointers = ReservedPointers(
            durable, rows, let_go_on=under_way.let_go_on, now_ms=now_ms, spawn=spawn
        )
        self.machine = machine = Machine(
            durable, under_way, pointers, self.timeouts, rows, settings, counters, now_ms=now_ms
        )
        self.runner = runner = MachineRunner(durable, machine, rows, settings, spawn=spawn)
        self.sinks = Sinks(durable, runner, machine, pointers, settings, counters, now_ms=now_ms)
        self.invalid_list = InvalidList(
            durable, under_way, rows, now_ms=now_ms, last_sweep=last_sweep
        )
        self.monitoring = Monitoring(durable, self.timeouts, now_ms=now_ms)
        self.write_permits = WritePermits(durable, under_way)

    def _go_on_soon(self) -> None:
        asyncio.get_running_loop().call_soon(self.runner.go_on)

    @property
    def status(self) -> ServiceStatus:
        """Whether transactions can be used, and why not."""
        return self.durable.status

    def put_off(self, reason: str) -> None:
        """Set the reason why `open` is not called yet: the message store is not open, or another
        server leads transactions."""
        status = self.status
        if self._settings.enabled and status.state is ServiceState.DOWN and status.reason != reason:
            self.durable.disable(reason)

    async def open(
        self, recorded: RecordedFiles | None, *, leadership: Leadership | None = None
    ) -> None:
        """Recover. Never raises for bad files: the service is then down, with a reason.

        `recorded` is what the message store remembers of the files, None when it knows of none. A
        server that shares the files with others opens once it leads, and passes its leadership.
        Once that is lost, the service is down until the process ends (`durable.lost_leadership`).
        """
        if not self._settings.enabled:
            if recorded is not None:
                await self.durable.begin_unused(recorded)
            self.durable.disable("transactions are switched off (tx.enabled=false)")
            return
        self._may_recover = True
        await self.durable.open(recorded, self, leadership)

    def first_edits(self, state: TransactionState) -> Iterator[Edit]:
        """The edits with which the log continues after a recovered state. Each is applied before
        the next one is computed."""
        now_ms = self._now_ms()
        yield Restarted(now_ms, not state.is_clean, state.blocks)
        yield from self.machine.cut_off(state)
        yield self._pointers.next_block(state)

    def came_up(self, state: TransactionState) -> None:
        """The service is up, and all that the state holds is durable."""
        self._up_since_ms = self._now_ms()
        self.machine.came_up(state)
        self._pointers.came_up(state)
        self.timeouts.begin_all(state.open.values())
        self.runner.act()

    def became_durable(self, lsn: int, changes: Sequence[ViewChange]) -> None:
        """Edits up to this one are durable, and these changes are in the view now."""
        self.machine.durable(lsn, changes)
        self.runner.act()

    def log_failed(self, reason: str) -> None:
        """The log failed: a recovery decides which edits stand."""
        self.machine.failed(reason)

    def rows_found(self, pointers: Iterable[int]) -> None:
        """Rows of these pointers were found that may not have been ended or rolled back. Does
        nothing while the service is not running: coming up, it looks at all rows."""
        if self.status.state is ServiceState.RUNNING:
            self.machine.rows_found(pointers)
            self.runner.act()

    async def tick(self) -> None:
        """The periodic work: time-outs, forgetting outcomes, pruning, snapshots, and recovery after
        a failed disk. Call it several times a second."""
        if self.status.state is ServiceState.DOWN:
            await self.durable.retry()
        self.durable.prove()
        self.machine.sync_confirmations()
        if self.status.state is not ServiceState.RUNNING:
            return
        self.runner.expire()
        self._pointers.tick()
        self._forget_outcomes()
        self._prune_if_due()
        self._snapshot_if_due()

    def _forget_outcomes(self) -> None:
        state = self.durable.state

        def is_needed(lsn: int, pointers: tuple[int, ...]) -> bool:
            return lsn > state.seen or any(
                pointer in state.invalid or self._rows.is_carried(pointer) for pointer in pointers
            )

        # By a clock that is wrongly ahead, all of them would be old.
        ended_before_ms = self._now_ms() - self._outcomes_kept_ms if self._may_forget() else 0
        forgotten = state.outcomes.forget(ended_before_ms=ended_before_ms, is_needed=is_needed)
        state.principals.forget(forgotten)

    @property
    def _outcomes_kept_ms(self) -> int:
        return round(self._settings.outcome_retention_s * 1000)

    def _prune_if_due(self) -> None:
        now_ms = self._now_ms()
        if now_ms - self._pruned_at_ms < PRUNE_INTERVAL_MS:
            return
        self._pruned_at_ms = now_ms
        self.invalid_list.prune_messages_only()
        if self._settings.prune_invalid:
            # A transaction that a crash lost can be asked for as long as any other outcome.
            is_past_crash = now_ms - self._up_since_ms >= self._outcomes_kept_ms
            self.invalid_list.prune(also_lost=is_past_crash)

    def _snapshot_if_due(self) -> None:
        now_ms = self._now_ms()
        interval_ms = round(self._settings.snapshot_interval_s * 1000)
        if self.durable.logged_count > LOGGED_COUNT_MAX:
            interval_ms = min(interval_ms, FULL_LOG_INTERVAL_MS)
        # Each attempt begins a new log, so one that fails is not repeated at every tick.
        newest_ms = self.durable.newest_snapshot.header.created_ms
        last_ms = max(newest_ms, self._snapshot_tried_at_ms)
        if self.durable.logged_count > 0 and now_ms - last_ms >= interval_ms:
            self._snapshot_tried_at_ms = now_ms
            self._spawn(self._snapshot_in_background())

    async def _snapshot_in_background(self) -> None:
        try:
            name, size = await self.durable.snapshot()
            self.counters.snapshots += 1
            extra = event("snapshot_written", file=name, bytes=size)
            log.info("wrote %s, %d bytes", name, size, extra=extra)
        except (TransactionsUnavailableError, OSError) as error:
            log.warning("no snapshot was written: %s", error, extra=event("snapshot_failed"))

    async def take_snapshot(self) -> tuple[str, int]:
        """Write the state to a file, durably: its name, and its size in bytes.

        Raises:
            TransactionsUnavailableError: the service is down, or the file can't be written.
        """
        self.durable.require_running()
        try:
            taken = await self.durable.snapshot()
        except OSError as error:
            raise TransactionsUnavailableError(f"the snapshot can't be written: {error}") from error
        self.counters.snapshots += 1
        return taken

    async def close(self) -> None:
        """A clean stop: return the reserved pointers, write a snapshot, close the files.
        `durable.run` must be running."""
        if self.status.state is not ServiceState.DOWN:
            self.durable.stop("the server is stopping")
            try:
                self.durable.record(BlockReturned(self._now_ms()))
                await self.durable.snapshot()
            except (TransactionsUnavailableError, OSError) as error:
                log.warning(
                    "no snapshot at the stop, the log has it all: %s",
                    error,
                    extra=event("snapshot_failed"),
                )
        await self.durable.close()

    async def stop_service(self) -> None:
        """Refuse everything until `start_service`. Raises: TransactionsUnavailableError: down."""
        if self.status.state is ServiceState.DOWN:
            raise TransactionsUnavailableError(self.status.reason)
        self.durable.stop(
            "the transaction service is stopped; start it with POST /v1/transactions/service/start"
        )

    async def start_service(self) -> None:
        """Go on after `stop_service`, or try to come up again.

        Raises:
            TransactionsUnavailableError: it is down, and stays so for the reason that this says.
        """
        was_stopped = self.status.state is ServiceState.STOPPED
        self.durable.resume()
        if self.status.state is ServiceState.DOWN and self._may_recover:
            await self.durable.reopen()
        self.durable.require_running()
        if was_stopped:
            # While it was stopped no lease could be renewed.
            self.timeouts.begin_all(self.durable.state.open.values())
        self.runner.expire()
