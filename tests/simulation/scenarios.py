"""Operations that make a situation, and look at once whether the server does right in it."""

from collections.abc import Callable, Mapping
from dataclasses import replace

from messaging.read.poll import Poll
from tests.simulation import sink_writers
from tests.simulation.disk import Faults
from tests.simulation.invariants import BrokenPromiseError
from tests.simulation.loop import below
from tests.simulation.observations import Fate, TopicFacts
from tests.simulation.offsets_and_splits import surveyed
from tests.simulation.operations import LONG_WAITS_MS
from tests.simulation.runner import HOLD_AGES_MS, KEYS, LIFETIMES_S, Player
from tests.simulation.server import MESSAGES, SNAPSHOTS
from tuff.protocol.ids import FIRST_ID, MessageId
from tuff.protocol.requests import Isolation
from tx.durable_state import ServiceState

COMMITTED = Poll(isolation=Isolation.COMMITTED)
LEASE_MS = round(sink_writers.LEASE_S * 1000)


def alone(player: Player) -> None:
    """While the disk of transactions stands still and is full, messages go on (promise 7)."""
    life, disk = player.world.life, player.world.disk
    is_well = disk.faults[MESSAGES] == Faults() and disk.cut_in is None
    if not is_well or life.messaging.status[0] != "ok" or player.topic().deletions:
        return
    life.threads.hold_named("transaction-log", "transaction-files")
    # What the disk of messages did to them before is over first: until a failed write is
    # resolved, or a tick finds room again, they are rightly refused.
    life.settle(player.chance)
    life.complete(life.rooms.tick_messages(), player.chance)
    if life.messaging.status[0] != "ok" or player.topic().deletions:
        life.threads.release()
        return
    disk.faults[SNAPSHOTS].is_full = True
    publish = player.new_publish(player.topic(), None)
    life.complete(player.client.publish(publish), player.chance)
    if publish.fate is not Fate.DONE:
        raise BrokenPromiseError("promise 7: without transactions, nothing can be published")
    if life.complete(player.client.readers.read(player.topic(), Poll()), player.chance) is None:
        raise BrokenPromiseError("promise 7: without transactions, nothing can be read")
    disk.faults[SNAPSHOTS].is_full = False
    life.threads.release()


def overdue(player: Player) -> None:
    """While messages stand still, a transaction's time is over when it is over (promise 6)."""
    life, disk, facts = player.world.life, player.world.disk, player.facts
    is_well = disk.faults[SNAPSHOTS] == Faults() and disk.cut_in is None
    if not is_well or life.transactions.status.state is not ServiceState.RUNNING:
        return
    life.threads.release()
    life.settle(player.chance)
    life.threads.hold_named("store-writer")
    known = len(facts.transactions)
    life.complete(player.client.start(is_long=False, timeout_s=0.5), player.chance)
    player.world.advance(2_000)
    life.tick()
    life.settle(player.chance)
    for tx in list(facts.transactions.values())[known:]:
        life.complete(player.client.ask(tx), player.chance)
        if not tx.is_over:
            raise BrokenPromiseError(f"promise 6: {tx.id} goes on after its time")


def forgotten(player: Player) -> None:
    """What a can-commit named is lost with the power, and a rival commits the same meanwhile; a
    commit that leaves it to the can-commit must not pass (promise 5)."""
    world, client, facts = player.world, player.client, player.facts
    is_up = world.life.transactions.status.state is ServiceState.RUNNING
    if world.disk.cut_in is not None or not is_up:
        return
    known = len(facts.transactions)
    for _ in range(3):
        player.send(client.start(is_long=False, timeout_s=None))
    world.run(player.chance, None)
    started = list(facts.transactions.values())[known:][-3:]
    if len(started) < 3:
        return
    named, rival, other = started
    if player.b % 2:
        player.send(client.can_commit(named, frozenset(KEYS[:1])))
    # Its sync brings the starts to the disk; what is only named comes behind that.
    player.send(client.abort(other))
    world.run(player.chance, None)
    player.send(client.can_commit(named, player.changes()))
    world.run(player.chance, player.a % 8)
    world.crash(player.chance, cuts_power=True)
    player.send(client.commit(rival, player.changes(), []))
    world.run(player.chance, None)
    player.send(client.commit(named, None, []))


def renewed(player: Player) -> None:
    """A lease lasts as long as it says since it was renewed, and after a crash (promise 9)."""
    world = player.world
    player.epoch()
    world.run(player.chance, None)
    writer = world.writers[0]
    if not writer.begun or (tx := list(writer.begun.values())[-1]).is_over:
        return
    for crashes in (False, True):
        for _ in range(2):
            player.send(player.client.renew(tx))
            world.run(player.chance, None)
            world.advance(LEASE_MS * 3 // 4)
        player.send(player.client.renew(tx))
        world.run(player.chance, None)
        if crashes:
            world.crash(player.chance, cuts_power=player.a % 2 == 0)
            player.send(player.client.ask(tx))
            world.run(player.chance, None)
        world.advance(LEASE_MS // 2)
        world.life.tick()
        world.run(player.chance, None)
        player.send(player.client.ask(tx))
        world.run(player.chance, None)


def unproven(player: Player) -> None:
    """A sync fails, the log is taken up again, and the power goes meanwhile: what was told by what
    could be read of it stands (promise 1)."""
    world, disk = player.world, player.world.disk
    if disk.cut_in is not None:
        return
    disk.faults[SNAPSHOTS].failing_syncs = 1
    player.start()
    world.run(player.chance, None)
    player.commit([])
    world.run(player.chance, None)
    disk.cut_in = 1 + player.a % 16
    world.life.tick()
    world.run(player.chance, None)


def kept(player: Player) -> None:
    """What a reference brings is held with it, however long ago it was stored (promise 1)."""
    world, topic = player.world, player.topic()
    player.a = -1  # the newest transaction
    for step in (player.start, player.store, player.reference, player.commit_noted):
        step()
        world.run(player.chance, None)
    if not topic.publishes or (first := topic.publishes[-1].first) is None:
        return
    player.send(player.client.bookmarks.hold(topic, "h2", MessageId(*first), HOLD_AGES_MS[-1]))
    world.run(player.chance, None)
    world.advance(LONG_WAITS_MS[-1])
    player.sweep()
    world.run(player.chance, None)
    player.send(player.client.readers.read(topic, Poll()))


def overtaken(player: Player) -> None:
    """A transaction is to end while a write of it waits for the disk: readers after the ending are
    handed that write, or never (promise 5)."""
    world, topic = player.world, player.topic()
    player.a, ending = -1, player.a % 4
    player.start()
    world.run(player.chance, None)
    world.life.threads.hold_named("store-writer")
    player.publish_tx()
    world.run(player.chance, None if player.c % 4 else player.c % 32)
    endings = player.commit, player.commit_publish, player.abort, player.invalidate
    endings[ending]()
    if player.c % 3 == 0:  # and somebody else wants another end
        endings[player.b % 4]()
    for _ in range(2):
        world.run(player.chance, None)
        player.send(player.client.readers.read(topic, COMMITTED))
        world.run(player.chance, None)
        world.life.threads.release()


def marked(player: Player) -> None:
    """While the messages of a transaction that ended are marked, step by step, who reads with its
    object, which sees its own, is handed each publish whole or not at all (promise 4)."""
    world, topic, known = player.world, player.topic(), len(player.facts.transactions)
    player.a = -1
    player.start()
    world.run(player.chance, None)
    player.publish_tx()
    world.run(player.chance, None)
    for tx in list(player.facts.transactions.values())[known:]:
        player.send(player.client.invalidate(tx))
        for _ in range(6):
            world.run(player.chance, 1 + below(6, player.chance))
            poll = Poll(transaction=tx.snapshot_now())
            player.send(player.client.readers.read(topic, poll, tx))


def asleep(player: Player) -> None:
    """A poll sleeps behind a commit whose sync fails; should the log have it all the same, the poll
    wakes once the log is taken up again (promise 6)."""
    world = player.world
    if world.disk.cut_in is not None:
        return
    _sleep_behind_a_row(player)
    world.disk.faults[SNAPSHOTS].failing_syncs = 1
    player.commit()
    world.run(player.chance, None)
    world.advance(LONG_WAITS_MS[0])
    world.life.tick()
    world.run(player.chance, None)
    world.require_awake(player.chance)


def inside(player: Player) -> None:
    """A poll sleeps in a transaction that writes nothing and ends in some way, now and then while
    its log fails: it wakes, though its topic has nothing to do with it (promise 6)."""
    world, topic = player.world, player.topic()
    if world.disk.cut_in is not None:
        return
    world.life.threads.release()
    player.a, ending = -1, player.a % 6
    for step in (player.start, player.checkpoint) if ending % 2 else (player.start,):
        step()
        world.run(player.chance, None)
    player.send(player.client.readers.read(topic, Poll()))
    world.run(player.chance, None)
    if (tx := player.tx()) is None or tx.is_over:
        return
    start = _covered(topic)
    poll = Poll(tx=tx.pointers[-1], start=start, inclusive=False, wait_s=600.0)
    player.send(player.client.readers.read(topic, poll, tx))
    world.run(player.chance, None)
    if player.b % 4 == 0:
        world.disk.faults[SNAPSHOTS].failing_syncs = 1
    endings = player.commit_bare, player.commit, player.abort, player.invalidate
    if ending < 4:
        endings[ending]()
        world.run(player.chance, None)
    world.advance(LONG_WAITS_MS[player.c % 3])
    for _ in range(2):
        world.life.tick()
        world.run(player.chance, None)
    world.require_awake(player.chance)


def expiring(player: Player) -> None:
    """A poll sleeps behind a row of a transaction that goes on; the row expires in its time, or as
    soon as the hold on it is let go, and the poll wakes for what comes after it (promise 6)."""
    world, topic, bookmarks = player.world, player.topic(), player.client.bookmarks
    if world.disk.cut_in is not None:
        return
    player.send(player.client.give_lifetime(topic, 2))
    _sleep_behind_a_row(player)
    is_held = player.b // 2 % 2 == 0
    if is_held:
        player.send(bookmarks.hold(topic, "h2", FIRST_ID, HOLD_AGES_MS[-1]))
    world.advance(1_500)
    player.send(player.client.publish(player.new_publish(topic, None)))
    world.run(player.chance, None)
    world.advance(1_000)
    world.run(player.chance, None)
    if is_held and player.c % 2:
        player.send(bookmarks.release(topic, "h2"))
    elif is_held:
        now = MessageId(world.life.now_ms(), 0)
        player.send(bookmarks.hold(topic, "h2", now, HOLD_AGES_MS[-1]))
    world.run(player.chance, None)
    world.require_awake(player.chance)


def lengthened(player: Player) -> None:
    """While a longer time to live waits for the disk, the time by the shorter one ends; nobody goes
    on behind what others are handed later (promise 2)."""
    world, topic, life = player.world, player.topic(), player.world.life
    if world.disk.cut_in is not None:
        return
    for change in (
        player.client.give_lifetime(topic, 2),
        player.client.readers.read(topic, Poll()),
    ):
        player.send(change)
        world.run(player.chance, None)
    start = _covered(topic)
    player.send(player.client.publish(player.new_publish(topic, None)))
    world.run(player.chance, None)
    life.threads.hold_named("store-writer")
    player.send(player.client.give_lifetime(topic, LIFETIMES_S[-1]))
    world.run(player.chance, None)
    world.advance(3_000)
    poll = Poll(start=start, inclusive=False, wait_s=600.0)
    player.send(player.client.readers.read(topic, poll))
    world.run(player.chance, None)
    life.threads.release()
    world.run(player.chance, None)
    world.require_awake(player.chance)


def _covered(topic: TopicFacts) -> MessageId | None:
    """Up to where somebody has read the topic from its beginning."""
    return MessageId.from_bytes(topic.covered) if topic.covered else None


def _sleep_behind_a_row(player: Player) -> None:
    """Somebody has read the topic, and waits behind what a new transaction publishes to it."""
    world, topic = player.world, player.topic()
    world.life.threads.release()
    player.send(player.client.readers.read(topic, Poll()))
    player.a = -1
    for step in (player.start, player.publish_tx):
        world.run(player.chance, None)
        step()
    start = _covered(topic)
    poll = replace(COMMITTED, start=start, inclusive=False, wait_s=600.0)
    world.run(player.chance, None)
    player.send(player.client.readers.read(topic, poll))
    world.run(player.chance, None)


def outlived(player: Player) -> None:
    """While the rows of a commit wait for the disk its time runs out, or the log fails and is taken
    up again: it ends once, and readers go by that (promises 4 and 9)."""
    world, topic = player.world, player.topic()
    if world.disk.cut_in is not None:
        return
    player.a, fails = -1, player.a % 2 == 0
    player.send(player.client.start(is_long=False, timeout_s=None if fails else 0.5))
    world.run(player.chance, None)
    world.life.threads.hold_named("store-writer")
    player.commit_publish()
    world.run(player.chance, None)
    if fails:
        player.start()
        world.run(player.chance, None)
        world.disk.faults[SNAPSHOTS].failing_syncs = 1
        player.commit([])
        world.run(player.chance, None)
    world.advance(2_000)  # less than an ending waits for storage, so that all are still told
    world.life.tick()
    world.run(player.chance, None)
    world.life.threads.release()
    world.run(player.chance, None)
    player.send(player.client.readers.read(topic, COMMITTED))


def unnamed(player: Player) -> None:
    """A server comes up on a disk that fails to sync a directory, and the power goes when it tries
    again: its files still go on one from the other (promise 8)."""
    world, disk = player.world, player.world.disk
    if disk.cut_in is not None:
        return
    disk.faults[SNAPSHOTS].failing_names = 1 + player.b % 2
    world.crash(player.chance, cuts_power=False)
    disk.cut_in = 1 + player.a % 16
    world.advance(LONG_WAITS_MS[0])
    world.life.tick()
    world.run(player.chance, None)


def beside(player: Player) -> None:
    """Others go on while a snapshot is taken, step by step; a crash after it loses nothing that was
    acknowledged (promise 1)."""
    world = player.world
    for _ in range(3):
        player.start()
    world.run(player.chance, None)
    player.snapshot()
    for _ in range(9):
        world.run(player.chance, 1 + below(4, player.chance))
        player.a += 1
        (player.commit, player.start)[below(2, player.chance)]()
    world.run(player.chance, None)
    world.crash(player.chance, cuts_power=player.b % 2 == 0)


SCENES: Mapping[str, Callable[[Player], None]] = {
    "alone": alone,
    "asleep": asleep,
    "beside": beside,
    "expiring": expiring,
    "forgotten": forgotten,
    "inside": inside,
    "kept": kept,
    "lengthened": lengthened,
    "marked": marked,
    "outlived": outlived,
    "overdue": overdue,
    "overtaken": overtaken,
    "renewed": renewed,
    "surveyed": surveyed,
    "unnamed": unnamed,
    "unproven": unproven,
}
