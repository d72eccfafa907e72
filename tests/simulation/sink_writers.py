"""Writers of numbered batches (epochs) to a sink of a simulated server, and their checks.

A writer has several runs, of which older ones may be zombies. Whatever crashes, at most one
transaction commits for each epoch, and an epoch that a reply reported as committed has committed.
"""

from dataclasses import dataclass, field

from tests.simulation import invariants
from tests.simulation.invariants import BrokenPromiseError, Violations, require
from tests.simulation.observations import Observations, Tx
from tests.simulation.server import SimulatedServer
from tuff.protocol.errors import (
    SinkEpochOpenError,
    SinkError,
    TransactionError,
    UnavailableError,
)
from tx.sinks import EpochRequest

LEASE_S = 40.0


@dataclass(slots=True, eq=False)
class SinkWriter:
    """What is known of a sink. `first_invoked` has, for each epoch and run, the moment, the highest
    pointer and the time since boot, in ms, before its first request."""

    name: str
    run: int = 0
    newest: int = 0
    first_invoked: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    begun: dict[tuple[int, int], Tx] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)  # epoch: moment of the reply

    def next_question(self, a: int, c: int) -> tuple[int, int]:
        """An epoch and a run: mostly the current ones, sometimes a new run, a zombie, or a run that
        begins the next epoch too early."""
        if c % 4 == 0:
            self.run += 1
        run = max(0, self.run - 1) if c % 8 == 7 else self.run
        goes_on = self.newest in self.committed or c % 16 == 5
        return self.newest + (a % 2 if goes_on else 0), run


async def ask(
    observed: Observations, server: SimulatedServer, writer: SinkWriter, *, epoch: int, run: int
) -> None:
    """Begin an epoch, and check the reply."""
    invoked = observed.moment()
    first = invoked, observed.highest_pointer, server.clock.boot_ms()
    before = writer.first_invoked.setdefault((epoch, run), first)
    request = EpochRequest(
        sink=writer.name, epoch=epoch, run_id=f"run-{run}", client="", lease_s=LEASE_S
    )
    try:
        _, opened = await server.transactions.sinks.begin(request)
    except SinkEpochOpenError as error:
        if error.members["epoch"] in writer.committed:
            raise BrokenPromiseError(f"promise 9: {error.detail}, and it has") from None
        return
    except (UnavailableError, SinkError, TransactionError):
        return
    if opened is None:
        writer.committed.setdefault(epoch, observed.moment())
        return
    if writer.committed.get(epoch, invoked) < invoked:
        raise BrokenPromiseError(f"promise 9: epoch {epoch} of {writer.name} begins once more")
    if opened.transaction_id not in observed.transactions:
        tx = Tx(
            id=opened.transaction_id,
            is_long=True,
            snapshot=opened.transaction,
            invoked=before[0],
            completed=observed.moment(),
            pointers=list(opened.pointers),
        )
        require(9, invariants.pointers_rise(observed, tx.id, highest_before=before[1]))
        observed.note_pointer(tx.pointers[-1])
        observed.transactions[tx.id] = tx
    tx = writer.begun.setdefault((epoch, run), observed.transactions[opened.transaction_id])
    if tx.id != opened.transaction_id:
        raise BrokenPromiseError(f"promise 9: run {run} began epoch {epoch} twice: {tx.id}")
    tx.alive = max(tx.alive, invoked)
    tx.renewed_boot_ms = tx.renewed_boot_ms or before[2]
    writer.newest = max(writer.newest, epoch)


def leases_last(observed: Observations, tx: Tx, *, boot_ms: int) -> Violations:
    """A lease that a reply reports as expired has lasted its time since its renewal, and since the
    service began to serve. A lease that ended before a restart may be reported at once."""
    if tx.alive < observed.served_from:
        return
    lasted_ms = boot_ms - max(tx.renewed_boot_ms, observed.served_from_boot_ms)
    # The server's clock may go faster than this one, by a thousandth.
    if lasted_ms < LEASE_S * 1000 * 0.99:
        yield f"the lease of {tx.id} was over after {lasted_ms} ms"


def epochs_commit_once(writer: SinkWriter) -> Violations:
    """When every outcome is known: each epoch committed once, or not at all."""
    for epoch in {epoch for epoch, _ in writer.first_invoked}:
        begun = {run: tx for (each, run), tx in writer.begun.items() if each == epoch}
        done = [tx.id for tx in begun.values() if tx.state == "committed"]
        if len(done) > 1:
            yield f"epoch {epoch} of {writer.name} was committed by {done}"
        # A begin whose reply was lost began an unknown transaction, which is never committed.
        if epoch in writer.committed and not done and all(tx.is_lost for tx in begun.values()):
            yield f"epoch {epoch} of {writer.name} was reported as committed, and did not commit"
        is_behind = epoch < writer.newest and begun
        if is_behind and all(tx.is_lost for tx in begun.values()):
            yield f"{writer.name} went on from epoch {epoch}, which did not commit"
