"""Carries out the operations of a history on a simulated cluster."""

import json
import random
from collections.abc import Callable
from contextlib import suppress

from metadata.store import MetadataError
from tests.simulation.cluster.histories import LONG_WAITS_MS, WAITS_MS
from tests.simulation.cluster.node import Process, Work
from tests.simulation.cluster.observations import ObservedTopic, Tx
from tests.simulation.cluster.world import Slot, World
from tests.simulation.operations import Operation
from tuff.protocol.errors import TuffError

KEYS = ("k1", "k2", "k3")  # that transactions change
SYSTEMS = ("metadata", "tables", "peers")


class OperationRunner:
    """One operation. `a`, `b` and `c` pick its objects."""

    def __init__(self, world: World, operation: Operation, chance: random.Random) -> None:
        self.world = world
        self.clients = world.clients
        self.chance = chance
        self._operation = operation
        self.a, self.b, self.c = operation.a, operation.b, operation.c

    def play(self) -> None:
        getattr(self, self._operation.kind)()

    # What the numbers pick.

    def slot(self) -> Slot:
        return self.world.slots[self.a % len(self.world.slots)]

    def running(self) -> Process | None:
        """A process that is alive."""
        process = self.slot().process
        return process if process is not None and process.is_alive else None

    def topic(self) -> ObservedTopic:
        return self.world.topics[self.b % len(self.world.topics)]

    def tx(self) -> Tx | None:
        open_ = [each for each in self.world.transactions.by_id.values() if each.final is None]
        return open_[self.b % len(open_)] if open_ else None

    def owner(self) -> Process | None:
        """The process that owns the topic, as far as it knows."""
        for process in self.world.open:
            if self.topic().id in process.ownership.topics():
                return process
        return None

    def leader(self) -> Process | None:
        value = self.world.metadata.now(("leader",))
        if value is None:
            return None
        server_id = json.loads(value)["server_id"]
        return next((each for each in self.world.open if each.server_id == server_id), None)

    def send(self, request: Callable[[Process], Work]) -> None:
        process = self.running()
        if process is not None:
            self.world.request(process, request(process))

    # Requests.

    def publish(self) -> None:
        self.send(lambda process: self.clients.publish(process, self.topic()))

    def burst(self) -> None:
        """Several publishes, through different servers."""
        for _ in range(2 + self.c % 4):
            self.a += 1
            self.publish()

    def read(self) -> None:
        self.send(lambda process: self.clients.read(process, self.topic(), b""))

    def read_on(self) -> None:
        start = self.topic().prefix_end
        self.send(lambda process: self.clients.read(process, self.topic(), start))

    def create(self) -> None:
        topic = self.world.topics[-1]
        self.send(lambda process: self.clients.create(process, topic))

    def delete(self) -> None:
        topic = self.world.topics[-1]
        self.send(lambda process: self.clients.delete(process, topic))

    def truncate(self) -> None:
        topic = self.world.topics[-1]
        known = [each.id for each in topic.publishes.values() if each.id is not None]
        if known:
            before = max(known) if self.b % 2 else known[self.c % len(known)]
            self.send(lambda process: self.clients.truncate(process, topic, before))

    def read_behind(self) -> None:
        """Continue behind a message that may be gone by now."""
        topic = self.world.topics[-1]
        known = [each.id for each in topic.publishes.values() if each.id is not None]
        if known:
            start = known[self.b % len(known)]
            self.send(lambda process: self.clients.read(process, topic, start))

    def there_and_back(self) -> None:
        """A topic goes to another server, which writes to it, and comes back."""
        self.b = self.b if self.c % 2 else len(self.world.topics) - 1
        self.publish()
        self.world.run(300)
        self.world.pass_time(400)
        self.read()
        for _ in range(2):
            self.a += 1
            self.move()
            self.world.run(400)
            self.publish()
            self.world.run(300)
            self.world.pass_time(50)
        if self.c % 3:
            self.truncate()
            self.world.run(300)
        self.read()
        self.read_behind()

    def take_during_write(self) -> None:
        """A server takes a topic over while a batch with another one is being written, and
        readers read."""
        owner, topic = self.owner(), self.topic()
        self.b += 1 + self.c % (len(self.world.topics) - 1)
        other, taken = self.owner(), self.topic()
        if owner is None or other is None or owner is other:
            return
        self.world.request(other, self.clients.publish(other, taken))
        self.world.run(200)
        owner.threads.hang_named("store-writer")
        self.world.request(owner, self.clients.publish(owner, topic))
        self.world.run(100)
        self.world.request(other, _willing(other.ownership.move(taken.id, owner.server_id)))
        self.world.run(400)
        self.world.request(owner, self.clients.publish(owner, taken))
        self.world.run(200)
        self.world.request(owner, self.clients.read(owner, topic, topic.prefix_end))
        self.world.run(200)
        owner.threads.resume()

    def delete_and_move(self) -> None:
        """A topic is deleted by an owner whose clock may be slower than that of the one before, and
        is loaded by the next one."""
        self.b = len(self.world.topics) - 1
        self.publish()
        self.world.run(300)
        for step in (self.move, self.delete, self.move, self.read):
            self.a += 1
            step()
            self.world.run(400)
            self.world.pass_time(5)
        if self.c % 2:
            self.create()

    def start_tx(self) -> None:
        self.send(self.clients.start)

    def commit_tx(self) -> None:
        tx = self.tx()
        if tx is not None:
            changes = frozenset((KEYS[self.c % 3],))
            self.send(lambda process: self.clients.commit(process, tx, changes))

    def two_commits(self) -> None:
        """Two transactions with one change, through different servers."""
        self.commit_tx()
        self.a, self.b = self.a + 1, self.b + 1
        self.commit_tx()

    def ask_tx(self) -> None:
        found = list(self.world.transactions.by_id.values())
        if found:
            tx = found[self.b % len(found)]
            self.send(lambda process: self.clients.ask(process, tx))

    def snapshot(self) -> None:
        self.send(self.clients.snapshot)

    # Ownership.

    def move(self) -> None:
        owner, to = self.owner(), self.slot()
        if owner is not None:
            self.world.request(owner, _willing(owner.ownership.move(self.topic().id, to.server_id)))

    def drain(self) -> None:
        self.send(lambda process: _willing(process.ownership.drain()) if process.is_open else _no())

    def sweep(self) -> None:
        self.send(lambda process: process.components.sweep() if process.is_open else _no())

    def settle(self) -> None:
        for each in self.world.running:
            each.settle()

    # Faults.

    def kill(self) -> None:
        process = self.running()
        if process is not None:
            process.kill()

    def kill_owner(self) -> None:
        owner = self.owner()
        if owner is not None:
            owner.kill()

    def restart(self) -> None:
        for slot in self.world.slots:
            self.world.start(slot)

    def stop(self) -> None:
        """A clean stop, which hands topics over."""
        process = self.running()
        if process is not None and process.is_open:
            self.world.request(process, process.stop())

    def pause(self) -> None:
        process = self.running()
        if process is not None:
            process.is_paused = True

    def pause_owner(self) -> None:
        """The owner of a topic stops with writes under way, for longer than its session lives."""
        owner = self.owner()
        if owner is None:
            return
        for _ in range(1 + self.c % 3):
            self.world.request(owner, self.clients.publish(owner, self.topic()))
        self.world.request(owner, self.clients.read(owner, self.topic(), b""))
        self.world.run(self.c % 60)
        owner.is_paused = True
        self.world.pass_time(LONG_WAITS_MS[2])
        self.publish()
        self.a += 1
        self.publish()
        self.world.run(200)
        if self.c % 4:
            owner.is_paused = False

    def pause_leader(self) -> None:
        """The leader of transactions stops with commits under way."""
        leader = self.leader()
        if leader is None:
            return
        self.world.request(leader, self.clients.start(leader))
        self.world.run(300)
        found = [each for each in self.world.transactions.by_id.values() if each.final is None]
        if not found:
            return
        changes = frozenset((KEYS[self.c % 3],))
        self.world.request(leader, self.clients.commit(leader, found[-1], changes))
        self.world.run(self.c % 12)
        leader.is_paused = True
        self.world.pass_time(LONG_WAITS_MS[3])
        self.world.run(400)
        leader.is_paused = False

    def resume(self) -> None:
        for each in self.world.running:
            each.is_paused = False
            each.threads.resume()

    def hang(self) -> None:
        process = self.running()
        if process is not None:
            process.threads.hang(self.b)

    def cut(self) -> None:
        process = self.running()
        if process is not None:
            process.cut_from.add(SYSTEMS[self.b % 3])

    def heal(self) -> None:
        for each in self.world.running:
            each.cut_from.clear()
            each.hears_late = False

    def outage(self) -> None:
        """The metadata store restarts: for longer than a session's timeout, nobody reaches it."""
        self.world.metadata.is_away = True
        for _ in range(1 + self.c % 3):
            self.publish()
            self.a += 1
            self.read()
            self.start_tx()
            self.world.run(200)
            self.world.pass_time(LONG_WAITS_MS[self.c % len(LONG_WAITS_MS)])
        self.world.metadata.is_away = False
        self.world.run(100)

    def expire(self) -> None:
        process = self.running()
        if process is not None:
            self.world.expire(process, is_heard=True)

    def expire_unheard(self) -> None:
        process = self.running()
        if process is not None:
            self.world.expire(process, is_heard=False)

    def depose(self) -> None:
        """The session of the leader ends with a commit under way, and it does not know."""
        leader, tx = self.leader(), self.tx()
        if leader is None:
            return
        if tx is not None:
            changes = frozenset((KEYS[self.c % 3],))
            self.world.request(leader, self.clients.commit(leader, tx, changes))
        self.world.run(self.c % 40)
        self.world.expire(leader, is_heard=False)
        self.start_tx()

    # Time.

    def wait(self) -> None:
        self.world.pass_time(WAITS_MS[self.a % len(WAITS_MS)])

    def wait_long(self) -> None:
        self.world.pass_time(LONG_WAITS_MS[self.a % len(LONG_WAITS_MS)])


async def _willing(work: Work) -> None:
    """A request whose refusal is ignored."""
    with suppress(TuffError, MetadataError):
        await work


async def _no() -> None:
    pass
