"""The transaction service as a whole: makes its parts, and opens, runs and closes them.

Callers use the parts: `starts` and `completion` for single transactions, `runs`, `epochs`,
`invalid_list`, `maintenance` and `monitoring`; the message store uses `write_permits`.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from tuff.disk.event_loop import Arrivals, InThread
from tuff.protocol.errors import TransactionsUnavailableError
from tx.autocommit import Runs
from tx.commit_and_abort import Completion
from tx.durable_state import DurableState, ServiceState, ServiceStatus
from tx.edits import BlockReturned, Edit, Invalidated, InvalidReason, Restarted
from tx.in_flight_writes import EndedRows, InFlightWrites, Spawn
from tx.invalid_list import InvalidList, SweepMark
from tx.maintenance import Maintenance
from tx.message_rows import MessageRows
from tx.monitoring import Monitoring, TransactionCounters
from tx.recovery import StoreMark
from tx.settings import TransactionSettings
from tx.sink_fencing import Epochs
from tx.start_and_checkpoint import Starts
from tx.state import TransactionState
from tx.timeouts import Leases
from tx.transactions import EndedState, lost_outcome
from tx.view import ViewChange
from tx.wal import DiskFile, OpenFile
from tx.write_permits import WritePermits

log = logging.getLogger(__name__)


class TransactionManager:
    """Lives on one event loop, without locks. All async methods of its parts, and those that the
    message store uses, raise TransactionsUnavailableError while the service is down or stopped, at
    once."""

    def __init__(
        self,
        directory: Path,
        settings: TransactionSettings,
        *,
        rows: MessageRows,
        now_ms: Callable[[], int],
        elapsed_s: Callable[[], float],
        in_thread_log: InThread,
        in_thread_files: InThread,
        arrivals: Arrivals,
        spawn: Spawn,
        store_id: Callable[[], str],
        status_changed: Callable[[], None] = lambda: None,
        observe: Callable[[str, float], None] = lambda _name, _value: None,
        last_sweep: Callable[[], SweepMark | None] = lambda: None,
        open_file: OpenFile = DiskFile,
    ) -> None:
        self._settings = settings
        self._now_ms = now_ms
        # Not before `open`: until then it is not known what the message store remembers, nor which
        # pointers its rows carry, and the invalid list would be pruned of them.
        self._may_recover = False
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
        self._make_parts(rows, spawn=spawn, last_sweep=last_sweep)

    def _make_parts(
        self, rows: MessageRows, *, spawn: Spawn, last_sweep: Callable[[], SweepMark | None]
    ) -> None:
        settings, now_ms = self._settings, self._now_ms
        durable, in_flight = self.durable, InFlightWrites()
        self.counters = counters = TransactionCounters()
        self.leases = leases = Leases(now_ms=now_ms)
        ended_rows = EndedRows(durable, in_flight, rows, spawn=spawn)
        self.completion = completion = Completion(
            durable, in_flight, ended_rows, leases, rows, settings, counters, now_ms=now_ms
        )
        self.starts = starts = Starts(
            durable, completion, leases, rows, settings, counters, now_ms=now_ms, spawn=spawn
        )
        self.runs = Runs(durable, starts, completion)
        self.epochs = Epochs(durable, completion, starts, settings, counters, now_ms=now_ms)
        self.invalid_list = InvalidList(
            durable, in_flight, rows, now_ms=now_ms, last_sweep=last_sweep
        )
        self.maintenance = Maintenance(
            durable, self.invalid_list, rows, settings, counters, now_ms=now_ms, spawn=spawn
        )
        self.monitoring = Monitoring(durable, leases, now_ms=now_ms)
        self.write_permits = WritePermits(durable, in_flight)
        self._resumption = Resumption(in_flight, ended_rows, starts, leases, rows, now_ms=now_ms)

    @property
    def status(self) -> ServiceStatus:
        """Whether transactions can be used, and why not."""
        return self.durable.status

    def put_off(self, reason: str) -> None:
        """Say why `open` is not called yet."""
        status = self.status
        if self._settings.enabled and status.state is ServiceState.DOWN and status.reason != reason:
            self.durable.disable(reason)

    async def open(self, mark: StoreMark | None) -> None:
        """Recover. Never raises for bad files: the service is then down, with a reason.

        `mark` is what the message store remembers of the files, None when it knows of none.
        """
        if not self._settings.enabled:
            if mark is not None:
                await self.durable.begin_unused(mark)
            self.durable.disable("transactions are switched off (tx.enabled=false)")
            return
        self._may_recover = True
        await self.durable.open(mark, self._resumption)

    async def run(self) -> None:
        """Write the log, until `close`."""
        await self.durable.run()

    async def tick(self) -> None:
        """What is due: time-outs, forgetting, pruning, snapshots, and coming back from a failure.
        To be called several times a second."""
        if self.status.state is ServiceState.DOWN:
            await self.durable.retry()
            return
        self.durable.prove()
        if self.status.state is not ServiceState.RUNNING:
            return
        self.completion.expire()
        self.starts.tick()
        self.maintenance.tick()

    async def close(self) -> None:
        """A clean stop: give back what was reserved, write a snapshot, let go of the files. Needs
        `run` to be running."""
        if self.status.state is not ServiceState.DOWN:
            self.durable.stop("the server is stopping")
            try:
                self.durable.record(BlockReturned(self._now_ms()))
                await self.durable.snapshot()
            except (TransactionsUnavailableError, OSError) as error:
                log.warning("no snapshot at the stop, the log has it all: %s", error)
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
            self.leases.begin_all(self.durable.state.open.values())
        self.completion.expire()


class Resumption:
    """Between a recovered state and the first call: what the log goes on with, and what is made
    good for transactions that ended while the service was down. Lives on one event loop."""

    def __init__(
        self,
        in_flight: InFlightWrites,
        ended_rows: EndedRows,
        starts: Starts,
        leases: Leases,
        rows: MessageRows,
        *,
        now_ms: Callable[[], int],
    ) -> None:
        self._in_flight = in_flight
        self._ended_rows = ended_rows
        self._starts = starts
        self._leases = leases
        self._rows = rows
        self._now_ms = now_ms

    def first_edits(self, state: TransactionState) -> Iterator[Edit]:
        """The edits with which the log goes on; each is asked for when the one before was
        applied."""
        now_ms = self._now_ms()
        yield Restarted(now_ms, not state.is_clean, state.blocks)
        # A commit that was cut off: its rows are there, or on their way, and its record is not.
        cut_off = self._rows.final_pointers() | self._in_flight.claimed_pointers()
        for opened in list(state.open.values()):
            if not cut_off.isdisjoint(opened.pointers):
                topics = tuple(self._rows.topics(opened.pointers))
                reason = InvalidReason.LOST_IN_CRASH
                yield Invalidated(now_ms, opened.transaction_id, reason, topics)
        yield self._starts.first_block(state)

    def came_up(self, state: TransactionState) -> None:
        """The service is up, and all that the state holds is durable."""
        self._rows.note_durable(state.lsn)
        self._starts.came_up(state)
        self._leases.begin_all(state.open.values())
        # A crash may have kept the rows of ended transactions from being settled or marked, and
        # readers from being woken. This looks at the rows, since few have any left, and a million
        # transactions may have ended.
        ended: set[int] = set()
        for pointer in self._ended_rows.concerned():
            outcome = state.outcomes.find(pointer)
            if outcome is None and pointer in state.invalid:
                outcome = lost_outcome(pointer)
            if outcome is None:
                continue
            ended.update(outcome.pointers)
            if outcome.state is EndedState.COMMITTED:
                self._rows.settle(outcome.pointers)
            else:
                self._ended_rows.mark_if_needed(outcome.transaction_id, outcome.pointers)
        # A log that failed, and has an ending all the same, left readers asleep behind it.
        self._rows.wake_readers(ended)

    def synced(self, lsn: int, changes: list[ViewChange]) -> None:
        """Edits up to this LSN are durable, and these ends of transactions are in the view."""
        self._rows.note_durable(lsn)
        self._ended_rows.ended(changes)
