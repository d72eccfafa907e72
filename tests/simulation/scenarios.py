"""Scenarios: operations that provoke one situation and check it at once.

Each does nothing if the server or its disk is in no state for it.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace

from messaging.read.poll import Poll
from tests.simulation import sink_writers
from tests.simulation.disk import Faults
from tests.simulation.invariants import BrokenPromiseError
from tests.simulation.loop import below
from tests.simulation.observations import Applied, ObservedTopic
from tests.simulation.offsets_and_splits import offsets_and_splits
from tests.simulation.operations import LONG_WAITS_MS
from tests.simulation.runner import HOLD_AGES_MS, KEYS, LIFETIMES_S, OperationRunner
from tests.simulation.server import MESSAGES, SNAPSHOTS
from tuff.protocol.ids import FIRST_ID, MessageId
from tuff.protocol.requests import Isolation
from tx.durable_state import ServiceState

COMMITTED = Poll(isolation=Isolation.COMMITTED)
LEASE_MS = round(sink_writers.LEASE_S * 1000)


def messages_without_transactions(runner: OperationRunner) -> None:
    """While the disk of transactions hangs and is full, messages are published and read
    (promise 7)."""
    server, disk = runner.world.server, runner.world.disk
    is_well = disk.faults[MESSAGES] == Faults() and disk.cut_in is None
    if not is_well or server.messaging.status[0] != "ok" or runner.topic().deletions:
        return
    server.threads.hang_named("transaction-log", "transaction-files")
    # After earlier faults of their own disk, messages are refused until a failed write is resolved
    # or a tick finds room, so the server first recovers from these.
    server.settle(runner.chance)
    server.complete(server.components.tick_messages(), runner.chance)
    if server.messaging.status[0] != "ok" or runner.topic().deletions:
        server.threads.resume()
        return
    disk.faults[SNAPSHOTS].is_full = True
    publish = runner.new_publish(runner.topic(), None)
    server.complete(runner.client.publish(publish), runner.chance)
    if publish.applied is not Applied.YES:
        raise BrokenPromiseError("promise 7: without transactions, nothing can be published")
    if server.complete(runner.client.readers.read(runner.topic(), Poll()), runner.chance) is None:
        raise BrokenPromiseError("promise 7: without transactions, nothing can be read")
    disk.faults[SNAPSHOTS].is_full = False
    server.threads.resume()


def timeout_while_messages_hang(runner: OperationRunner) -> None:
    """While the message store hangs, a transaction times out in time (promise 6)."""
    server, disk, observed = runner.world.server, runner.world.disk, runner.observed
    is_well = disk.faults[SNAPSHOTS] == Faults() and disk.cut_in is None
    if not is_well or server.transactions.status.state is not ServiceState.RUNNING:
        return
    server.threads.resume()
    server.settle(runner.chance)
    server.threads.hang_named("store-writer")
    known = len(observed.transactions)
    server.complete(runner.client.start(is_long=False, timeout_s=0.5), runner.chance)
    runner.world.advance(2_000)
    server.tick()
    server.settle(runner.chance)
    for tx in list(observed.transactions.values())[known:]:
        server.complete(runner.client.ask(tx), runner.chance)
        if not tx.is_over:
            raise BrokenPromiseError(f"promise 6: {tx.id} has not timed out")


def can_commit_lost_in_crash(runner: OperationRunner) -> None:
    """A power cut loses a can-commit, and another transaction commits the same change. The commit
    of the first one, which names no changes, must be refused (promise 5)."""
    world, client, observed = runner.world, runner.client, runner.observed
    is_up = world.server.transactions.status.state is ServiceState.RUNNING
    if world.disk.cut_in is not None or not is_up:
        return
    known = len(observed.transactions)
    for _ in range(3):
        runner.send(client.start(is_long=False, timeout_s=None))
    world.run(runner.chance, None)
    started = list(observed.transactions.values())[known:][-3:]
    if len(started) < 3:
        return
    named, rival, other = started
    if runner.b % 2:
        runner.send(client.can_commit(named, frozenset(KEYS[:1])))
    # The sync of this abort makes the starts durable, but not the can-commit after it.
    runner.send(client.abort(other))
    world.run(runner.chance, None)
    runner.send(client.can_commit(named, runner.changes()))
    world.run(runner.chance, runner.a % 8)
    world.crash(runner.chance, cuts_power=True)
    runner.send(client.commit(rival, runner.changes(), []))
    world.run(runner.chance, None)
    runner.send(client.commit(named, None, []))


def lease_renewals(runner: OperationRunner) -> None:
    """A lease lasts its whole time after each renewal and after a crash (promise 9)."""
    world = runner.world
    runner.begin_epoch()
    world.run(runner.chance, None)
    writer = world.writers[0]
    if not writer.begun or (tx := list(writer.begun.values())[-1]).is_over:
        return
    for crashes in (False, True):
        for _ in range(2):
            runner.send(runner.client.renew(tx))
            world.run(runner.chance, None)
            world.advance(LEASE_MS * 3 // 4)
        runner.send(runner.client.renew(tx))
        world.run(runner.chance, None)
        if crashes:
            world.crash(runner.chance, cuts_power=runner.a % 2 == 0)
            runner.send(runner.client.ask(tx))
            world.run(runner.chance, None)
        world.advance(LEASE_MS // 2)
        world.server.tick()
        world.run(runner.chance, None)
        runner.send(runner.client.ask(tx))
        world.run(runner.chance, None)


def power_cut_during_recovery(runner: OperationRunner) -> None:
    """A sync of the log fails, and the power is cut during the recovery: replies that rest on what
    was readable of the log stay true (promise 1)."""
    world, disk = runner.world, runner.world.disk
    if disk.cut_in is not None:
        return
    disk.faults[SNAPSHOTS].failing_syncs = 1
    runner.start()
    world.run(runner.chance, None)
    runner.commit([])
    world.run(runner.chance, None)
    disk.cut_in = 1 + runner.a % 16
    world.server.tick()
    world.run(runner.chance, None)


def held_reference(runner: OperationRunner) -> None:
    """A hold of a reference row also keeps its payload rows, however old they are (promise 1)."""
    world, topic = runner.world, runner.topic()
    runner.a = -1  # the newest transaction
    for step in (runner.start, runner.store, runner.reference, runner.commit_without_changes):
        step()
        world.run(runner.chance, None)
    if not topic.publishes or (first := topic.publishes[-1].first) is None:
        return
    runner.send(
        runner.client.holds_and_positions.hold(topic, "h2", MessageId(*first), HOLD_AGES_MS[-1])
    )
    world.run(runner.chance, None)
    world.advance(LONG_WAITS_MS[-1])
    runner.sweep()
    world.run(runner.chance, None)
    runner.send(runner.client.readers.read(topic, Poll()))


def end_during_write(runner: OperationRunner) -> None:
    """A transaction ends while a write of it waits for the disk: readers after the end either get
    that write, or no reader ever does (promise 5)."""
    world, topic = runner.world, runner.topic()
    runner.a, ending = -1, runner.a % 4
    runner.start()
    world.run(runner.chance, None)
    world.server.threads.hang_named("store-writer")
    runner.publish_tx()
    world.run(runner.chance, None if runner.c % 4 else runner.c % 32)
    endings = runner.commit, runner.commit_publish, runner.abort, runner.invalidate
    endings[ending]()
    if runner.c % 3 == 0:  # a concurrent request for another end
        endings[runner.b % 4]()
    for _ in range(2):
        world.run(runner.chance, None)
        runner.send(runner.client.readers.read(topic, COMMITTED))
        world.run(runner.chance, None)
        world.server.threads.resume()


def reads_while_marking(runner: OperationRunner) -> None:
    """While the messages of an ended transaction are marked step by step, a reader with that
    transaction's object, which sees its own writes, gets each publish whole or not (promise 4)."""
    world, topic, known = runner.world, runner.topic(), len(runner.observed.transactions)
    runner.a = -1
    runner.start()
    world.run(runner.chance, None)
    runner.publish_tx()
    world.run(runner.chance, None)
    for tx in list(runner.observed.transactions.values())[known:]:
        runner.send(runner.client.invalidate(tx))
        for _ in range(6):
            world.run(runner.chance, 1 + below(6, runner.chance))
            poll = Poll(transaction=tx.snapshot_now())
            runner.send(runner.client.readers.read(topic, poll, tx))


def reader_behind_failed_sync(runner: OperationRunner) -> None:
    """A long poll waits behind a commit whose sync fails. If the log has the commit all the same,
    the poll wakes after the recovery of the log (promise 6)."""
    world = runner.world
    if world.disk.cut_in is not None:
        return
    _wait_behind_a_row(runner)
    world.disk.faults[SNAPSHOTS].failing_syncs = 1
    runner.commit()
    world.run(runner.chance, None)
    world.advance(LONG_WAITS_MS[0])
    world.server.tick()
    world.run(runner.chance, None)
    world.require_awake(runner.chance)


def reader_in_ending_transaction(runner: OperationRunner) -> None:
    """A long poll in a transaction without writes wakes when the transaction ends, in any way and
    also while the log fails, though nothing happens on its topic (promise 6)."""
    world, topic = runner.world, runner.topic()
    if world.disk.cut_in is not None:
        return
    world.server.threads.resume()
    runner.a, ending = -1, runner.a % 6
    for step in (runner.start, runner.checkpoint) if ending % 2 else (runner.start,):
        step()
        world.run(runner.chance, None)
    runner.send(runner.client.readers.read(topic, Poll()))
    world.run(runner.chance, None)
    if (tx := runner.tx()) is None or tx.is_over:
        return
    start = _covered(topic)
    poll = Poll(tx=tx.pointers[-1], start=start, inclusive=False, wait_s=600.0)
    runner.send(runner.client.readers.read(topic, poll, tx))
    world.run(runner.chance, None)
    if runner.b % 4 == 0:
        world.disk.faults[SNAPSHOTS].failing_syncs = 1
    endings = runner.commit_bare, runner.commit, runner.abort, runner.invalidate
    if ending < 4:
        endings[ending]()
        world.run(runner.chance, None)
    world.advance(LONG_WAITS_MS[runner.c % 3])
    for _ in range(2):
        world.server.tick()
        world.run(runner.chance, None)
    world.require_awake(runner.chance)


def reader_behind_expiring_row(runner: OperationRunner) -> None:
    """A long poll waits behind a row of a transaction in progress. When the row expires, or when
    the hold on it is released, the poll wakes for the messages behind it (promise 6)."""
    world, topic, holds_and_positions = (
        runner.world,
        runner.topic(),
        runner.client.holds_and_positions,
    )
    if world.disk.cut_in is not None:
        return
    runner.send(runner.client.set_ttl(topic, 2))
    _wait_behind_a_row(runner)
    is_held = runner.b // 2 % 2 == 0
    if is_held:
        runner.send(holds_and_positions.hold(topic, "h2", FIRST_ID, HOLD_AGES_MS[-1]))
    world.advance(1_500)
    runner.send(runner.client.publish(runner.new_publish(topic, None)))
    world.run(runner.chance, None)
    world.advance(1_000)
    world.run(runner.chance, None)
    if is_held and runner.c % 2:
        runner.send(holds_and_positions.release(topic, "h2"))
    elif is_held:
        now = MessageId(world.server.now_ms(), 0)
        runner.send(holds_and_positions.hold(topic, "h2", now, HOLD_AGES_MS[-1]))
    world.run(runner.chance, None)
    world.require_awake(runner.chance)


def ttl_raised_while_rows_expire(runner: OperationRunner) -> None:
    """A message expires by the old time to live while a longer one waits for the disk: no reader
    may pass a message that others get later (promise 2)."""
    world, topic, server = runner.world, runner.topic(), runner.world.server
    if world.disk.cut_in is not None:
        return
    for change in (
        runner.client.set_ttl(topic, 2),
        runner.client.readers.read(topic, Poll()),
    ):
        runner.send(change)
        world.run(runner.chance, None)
    start = _covered(topic)
    runner.send(runner.client.publish(runner.new_publish(topic, None)))
    world.run(runner.chance, None)
    server.threads.hang_named("store-writer")
    runner.send(runner.client.set_ttl(topic, LIFETIMES_S[-1]))
    world.run(runner.chance, None)
    world.advance(3_000)
    poll = Poll(start=start, inclusive=False, wait_s=600.0)
    runner.send(runner.client.readers.read(topic, poll))
    world.run(runner.chance, None)
    server.threads.resume()
    world.run(runner.chance, None)
    world.require_awake(runner.chance)


def _covered(topic: ObservedTopic) -> MessageId | None:
    """Up to where a reader has read the topic from its beginning."""
    return MessageId.from_bytes(topic.read_up_to) if topic.read_up_to else None


def _wait_behind_a_row(runner: OperationRunner) -> None:
    """A reader has read the topic, and waits behind a message of a new transaction."""
    world, topic = runner.world, runner.topic()
    world.server.threads.resume()
    runner.send(runner.client.readers.read(topic, Poll()))
    runner.a = -1
    for step in (runner.start, runner.publish_tx):
        world.run(runner.chance, None)
        step()
    start = _covered(topic)
    poll = replace(COMMITTED, start=start, inclusive=False, wait_s=600.0)
    world.run(runner.chance, None)
    runner.send(runner.client.readers.read(topic, poll))
    world.run(runner.chance, None)


def commit_past_deadline(runner: OperationRunner) -> None:
    """While the rows of a commit wait for the disk, the transaction's deadline passes, or the log
    fails and recovers: it ends once, and readers see that end (promises 4 and 9)."""
    world, topic = runner.world, runner.topic()
    if world.disk.cut_in is not None:
        return
    runner.a, fails = -1, runner.a % 2 == 0
    runner.send(runner.client.start(is_long=False, timeout_s=None if fails else 0.5))
    world.run(runner.chance, None)
    world.server.threads.hang_named("store-writer")
    runner.commit_publish()
    world.run(runner.chance, None)
    if fails:
        runner.start()
        world.run(runner.chance, None)
        world.disk.faults[SNAPSHOTS].failing_syncs = 1
        runner.commit([])
        world.run(runner.chance, None)
    world.advance(2_000)  # less than `tx.ending_timeout`, so that every request gets a reply
    world.server.tick()
    world.run(runner.chance, None)
    world.server.threads.resume()
    world.run(runner.chance, None)
    runner.send(runner.client.readers.read(topic, COMMITTED))


def unsynced_log_name(runner: OperationRunner) -> None:
    """A server starts on a disk that fails to sync a directory, and the power is cut when it tries
    again: the chain of its files is still whole (promise 8)."""
    world, disk = runner.world, runner.world.disk
    if disk.cut_in is not None:
        return
    disk.faults[SNAPSHOTS].failing_names = 1 + runner.b % 2
    world.crash(runner.chance, cuts_power=False)
    disk.cut_in = 1 + runner.a % 16
    world.advance(LONG_WAITS_MS[0])
    world.server.tick()
    world.run(runner.chance, None)


def snapshot_beside_commits(runner: OperationRunner) -> None:
    """Transactions start and commit between the steps of a snapshot; a crash after it loses nothing
    that was acknowledged (promise 1)."""
    world = runner.world
    for _ in range(3):
        runner.start()
    world.run(runner.chance, None)
    runner.snapshot()
    for _ in range(9):
        world.run(runner.chance, 1 + below(4, runner.chance))
        runner.a += 1
        (runner.commit, runner.start)[below(2, runner.chance)]()
    world.run(runner.chance, None)
    world.crash(runner.chance, cuts_power=runner.b % 2 == 0)


SCENARIOS: Mapping[str, Callable[[OperationRunner], None]] = {
    "can_commit_lost_in_crash": can_commit_lost_in_crash,
    "commit_past_deadline": commit_past_deadline,
    "end_during_write": end_during_write,
    "held_reference": held_reference,
    "lease_renewals": lease_renewals,
    "messages_without_transactions": messages_without_transactions,
    "offsets_and_splits": offsets_and_splits,
    "power_cut_during_recovery": power_cut_during_recovery,
    "reader_behind_expiring_row": reader_behind_expiring_row,
    "reader_behind_failed_sync": reader_behind_failed_sync,
    "reader_in_ending_transaction": reader_in_ending_transaction,
    "reads_while_marking": reads_while_marking,
    "snapshot_beside_commits": snapshot_beside_commits,
    "timeout_while_messages_hang": timeout_while_messages_hang,
    "ttl_raised_while_rows_expire": ttl_raised_while_rows_expire,
    "unsynced_log_name": unsynced_log_name,
}
