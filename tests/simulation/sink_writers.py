"""Writers of numbered batches on a simulated server: what they ask of a sink, and what must hold.

A writer has several runs, of which older ones may be zombies. Whatever crashes, of each of its
epochs at most one transaction commits, and an epoch that was told to have committed has.
"""

from dataclasses import dataclass, field

from tests.simulation import invariants
from tests.simulation.invariants import BrokenPromiseError, Faults, require
from tests.simulation.observations import Facts, Tx
from tests.simulation.server import Life
from tuff.protocol.errors import (
    SinkEpochOpenError,
    SinkError,
    TransactionNotInProgressError,
    UnavailableError,
)
from tx.sinks import EpochRequest

LEASE_S = 40.0


@dataclass(slots=True, eq=False)
class Writer:
    """What is known of a sink. `first_asked` are, for each epoch and run, the moment, the highest
    pointer and the time since boot, in ms, of before anybody could have begun it."""

    name: str
    run: int = 0
    newest: int = 0
    first_asked: dict[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    begun: dict[tuple[int, int], Tx] = field(default_factory=dict)
    committed: dict[int, int] = field(default_factory=dict)  # epoch: moment at which it was told

    def next_question(self, a: int, c: int) -> tuple[int, int]:
        """An epoch and a run: mostly those under way, now and then a new run, a zombie, or one that
        goes on too early."""
        if c % 4 == 0:
            self.run += 1
        run = max(0, self.run - 1) if c % 8 == 7 else self.run
        goes_on = self.newest in self.committed or c % 16 == 5
        return self.newest + (a % 2 if goes_on else 0), run


async def ask(facts: Facts, life: Life, writer: Writer, *, epoch: int, run: int) -> None:
    """Ask for an epoch; what is answered is checked at that very moment."""
    asked = facts.moment()
    first = asked, facts.highest_pointer, life.clock.boot_ms()
    before = writer.first_asked.setdefault((epoch, run), first)
    request = EpochRequest(sink=writer.name, epoch=epoch, run_id=f"run-{run}")
    try:
        _, opened = await life.transactions.epochs.begin(request, lease_s=LEASE_S, client="")
    except SinkEpochOpenError as error:
        if error.members["epoch"] in writer.committed:
            raise BrokenPromiseError(f"promise 9: {error.detail}, and it has") from None
        return
    except (UnavailableError, SinkError, TransactionNotInProgressError):
        return
    if opened is None:
        writer.committed.setdefault(epoch, facts.moment())
        return
    if writer.committed.get(epoch, asked) < asked:
        raise BrokenPromiseError(f"promise 9: epoch {epoch} of {writer.name} begins once more")
    if opened.transaction_id not in facts.transactions:
        tx = Tx(
            id=opened.transaction_id,
            is_long=True,
            snapshot=opened.transaction,
            asked=before[0],
            told=facts.moment(),
            pointers=list(opened.pointers),
        )
        require(9, invariants.pointers_rise(facts, tx.id, highest_before=before[1]))
        facts.note_pointer(tx.pointers[-1])
        facts.transactions[tx.id] = tx
    tx = writer.begun.setdefault((epoch, run), facts.transactions[opened.transaction_id])
    if tx.id != opened.transaction_id:
        raise BrokenPromiseError(f"promise 9: run {run} began epoch {epoch} twice: {tx.id}")
    tx.alive = max(tx.alive, asked)
    tx.renewed_boot_ms = tx.renewed_boot_ms or before[2]
    writer.newest = max(writer.newest, epoch)


def leases_last(facts: Facts, tx: Tx, *, boot_ms: int) -> Faults:
    """Told that a lease is over: it has had its time since it was renewed, and since the service
    serves. What ended in an earlier life may be told at once."""
    if tx.alive < facts.served_from:
        return
    lasted_ms = boot_ms - max(tx.renewed_boot_ms, facts.served_from_boot_ms)
    # The server's clock may go faster than this one, by a thousandth.
    if lasted_ms < LEASE_S * 1000 * 0.99:
        yield f"the lease of {tx.id} was over after {lasted_ms} ms"


def epochs_commit_once(writer: Writer) -> Faults:
    """Asked when every outcome is known: each epoch is there once, or not at all."""
    for epoch in {epoch for epoch, _ in writer.first_asked}:
        begun = {run: tx for (each, run), tx in writer.begun.items() if each == epoch}
        done = [tx.id for tx in begun.values() if tx.state == "committed"]
        if len(done) > 1:
            yield f"epoch {epoch} of {writer.name} was committed by {done}"
        # A begin whose answer was lost began a transaction that nobody knows; nobody commits it.
        if epoch in writer.committed and not done and all(tx.is_lost for tx in begun.values()):
            yield f"epoch {epoch} of {writer.name} was told to have committed, and nobody did"
        is_behind = epoch < writer.newest and begun
        if is_behind and all(tx.is_lost for tx in begun.values()):
            yield f"{writer.name} went on from epoch {epoch}, which nobody committed"
