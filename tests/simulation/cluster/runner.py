"""Carries out the operations of a history on a simulated cluster."""

import json
import random
from collections.abc import Callable

from messaging.log.read_lease import READ_LEASE_MS
from tests.simulation.cluster.histories import LONG_WAITS_MS, WAITS_MS
from tests.simulation.cluster.node import Process, Work
from tests.simulation.cluster.observations import ObservedTopic
from tests.simulation.cluster.world import MAX_BLOCK_MS, Slot, World, willing
from tests.simulation.observations import Tx
from tests.simulation.operations import Operation

KEYS = ("k1", "k2", "k3")  # that transactions change
SYSTEMS = ("metadata", "tables", "peers", "replies")


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
        open_ = self.world.transactions.open
        return open_[self.b % len(open_)] if open_ else None

    def topics(self) -> list[ObservedTopic]:
        """Some topics, or none."""
        return [each for n, each in enumerate(self.world.topics) if self.c >> n & 1]

    def owner(self) -> Process | None:
        """The process that owns the topic, as far as it knows."""
        for process in self.world.open:
            if self.topic().id.unit in process.ownership.topics():
                return process
        return None

    def _leader_and_open(self) -> tuple[Process | None, list[Tx]]:
        """The leader, and the open transactions after a start there."""
        leader = self.leader()
        if leader is None:
            return None, []
        self.world.request(leader, self.clients.start(leader))
        self.world.run(300)
        return leader, self.world.transactions.open

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
        start = self.topic().prefix.end
        self.send(lambda process: self.clients.read(process, self.topic(), start))

    def read_committed(self) -> None:
        start = self.topic().committed.end if self.c % 2 else b""
        self.send(
            lambda process: self.clients.read(process, self.topic(), start, is_committed=True)
        )

    def read_in_tx(self) -> None:
        """Read all topics in the snapshot of a transaction, through different servers."""
        tx = self.tx()
        if tx is not None:
            for topic in self.world.topics:
                self.a += 1
                self.send(
                    lambda process, each=topic: self.clients.read(process, each, b"", reader=tx)
                )

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
        self.world.request(other, willing(other.ownership.move(taken.id.unit, owner.server_id)))
        self.world.run(400)
        self.world.request(owner, self.clients.publish(owner, taken))
        self.world.run(200)
        self.world.request(owner, self.clients.read(owner, topic, topic.prefix.end))
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
        timeout_s = (4, 30, 30)[self.c % 3]
        self.send(lambda process: self.clients.start(process, timeout_s))

    def publish_tx(self) -> None:
        """Publish to several topics in a transaction, through different servers."""
        tx = self.tx()
        for topic in self.topics() if tx is not None else ():
            self.a += 1
            self.send(lambda process, each=topic: self.clients.publish(process, each, tx))

    def commit_tx(self) -> None:
        tx = self.tx()
        if tx is not None:
            self.send(lambda process: self._commit(process, tx))

    def abort_tx(self) -> None:
        tx = self.tx()
        if tx is not None:
            self.send(lambda process: self.clients.abort(process, tx))

    def end_anew(self) -> None:
        """Commit, abort or publish in a transaction that may have ended."""
        found = list(self.world.transactions.by_id.values())
        if found:
            tx = found[self.b % len(found)]
            match self.c % 3:
                case 0:
                    self.send(lambda process: self.clients.abort(process, tx))
                case 1:
                    self.send(lambda process: self._commit(process, tx))
                case 2:
                    self.send(lambda process: self.clients.publish(process, self.topic(), tx))

    def end_while_moving(self) -> None:
        """A transaction with rows in several topics ends while they move, and a late client
        continues to publish in it."""
        tx = self._tx_with_rows()
        if tx is None:
            return
        for _ in range(1 + self.c % 4):
            self.a, self.b = self.a + 1, self.b + 1
            self.move()
        self.world.run(self.b % 200)
        self._end(tx)
        self.world.run(self.c % 400)
        self._publish_everywhere(tx)

    def end_during_write(self) -> None:
        """A transaction ends while an owner writes a row of it."""
        tx, owner = self._tx_with_rows(), self.owner()
        if tx is None or owner is None:
            return
        owner.threads.hang_named("store-writer")
        self.world.request(owner, self.clients.publish(owner, self.topic(), tx))
        self.world.run(50 + self.c % 100)
        self._end(tx)
        self.world.run(400)
        owner.threads.resume()
        self.world.run(100)
        self.read_committed()

    def late_final(self) -> None:
        """The messages of a commit reach an owner after the leader gave the commit up, or ended."""
        tx, leader = self._tx_with_rows(), self.leader()
        if tx is None or leader is None:
            return
        self.world.request(leader, self.clients.snapshot(leader))  # so that the start is durable
        self.world.run(200)
        # With other messages in the tables a new leader would know of the commit.
        owned = leader.ownership.topics()
        topics = [each for each in self.world.topics if each.id.unit not in owned][:1]
        late_ms = (3_000, 22_000)[self.c % 2]
        self.world.late_calls["/v1/cluster/final"] = [late_ms]
        self.world.request(leader, self.clients.commit(leader, tx, topics=topics))
        self.world.run(200)
        if self.c % 2:
            leader.kill()
        self.world.pass_time(late_ms - 1_500)
        self._abort_everywhere(tx)
        self.world.pass_time(1_500)
        self.world.run(300)
        self._read_committed_everywhere()

    def unheard_leader(self) -> None:
        """A new leader is elected while a server that joined a transaction is cut off from it. The
        transaction times out, and a late client continues to publish in it."""
        leader = self.leader()
        if leader is None:
            return
        tx = self._tx_with_rows(timeout_s=4)
        if tx is None:
            return
        self.world.request(leader, self.clients.snapshot(leader))  # so that the start is durable
        self.world.run(400)
        others = [each for each in self.world.open if each is not leader]
        for each in others[self.c % 2 :][:1]:
            each.cut_from.add("peers")
        leader.kill()
        self.world.pass_time(15_000)
        for process in self.world.open:
            self.world.request(process, self.clients.ask(process, tx))
        self.world.run(200)
        for process in self.world.open:
            for topic in self.world.topics:
                self.world.request(process, self.clients.publish(process, topic, tx))
        self.world.run(300)
        self.heal()

    def rows_without_an_owner(self) -> None:
        """A transaction is aborted at a new leader before the topics of the former one, in which it
        has rows, are loaded by another server."""
        tx, leader = self._tx_with_rows(), self.leader()
        if tx is None or leader is None:
            return
        self.world.request(leader, self.clients.snapshot(leader))  # so that the start is durable
        self.world.run(400)
        leader.kill()
        for process in self.world.open:
            process.threads.hang_named("store-reader")
        self.world.pass_time(12_000)
        self._abort_everywhere(tx)
        self.resume()
        self.world.run(300)
        self._read_committed_everywhere()

    def _tx_with_rows(self, *, timeout_s: int = 30) -> Tx | None:
        """A new transaction that publishes to all topics, through different servers."""
        count = len(self.world.transactions.open)
        self.send(lambda process: self.clients.start(process, timeout_s))
        self.world.run(300)
        found = self.world.transactions.open
        if len(found) <= count:
            return None
        self._publish_everywhere(found[-1])
        self.world.run(self.c % 600)
        return found[-1]

    def _publish_everywhere(self, tx: Tx) -> None:
        for topic in self.world.topics:
            self.a += 1
            self.send(lambda process, each=topic: self.clients.publish(process, each, tx))

    def _abort_everywhere(self, tx: Tx) -> None:
        for process in self.world.open:
            self.world.request(process, self.clients.abort(process, tx))
        self.world.run(400)

    def _read_committed_everywhere(self) -> None:
        for process in self.world.open:
            for topic in self.world.topics:
                read = self.clients.read(process, topic, b"", is_committed=True)
                self.world.request(process, read)
        self.world.run(300)

    def _end(self, tx: Tx) -> None:
        if self.c % 3:
            self.send(lambda process: self.clients.abort(process, tx))
        else:
            self.send(lambda process: self._commit(process, tx))

    def _commit(self, process: Process, tx: Tx) -> Work:
        changes = frozenset((KEYS[self.c % 3],)) if self.c % 2 else frozenset()
        return self.clients.commit(process, tx, changes, self.topics())

    def prepare(self) -> None:
        """Prepare a transaction that may have rows."""
        tx = self.tx()
        if tx is not None:
            changes = frozenset((KEYS[self.c % 3],)) if self.c % 2 else frozenset()
            topics = self.topics()
            self.send(lambda process: self.clients.prepare(process, tx, changes, topics))

    def resolve(self) -> None:
        """The database of a prepared transaction has decided, or of one that may be prepared."""
        found = list(self.world.transactions.by_id.values())
        prepared = [tx for tx in found if tx.state == "prepared"] or found
        if prepared:
            tx = prepared[self.b % len(prepared)]
            outcome = "commit" if self.c % 3 else "abort"
            self.send(lambda process: self.clients.resolve(process, tx, outcome))

    def late_aside(self) -> None:
        """The call that sets messages aside reaches an owner after the transaction has committed,
        and the owner learns of the commit even later."""
        tx, leader = self._tx_with_rows(), self.leader()
        if tx is None or leader is None:
            return
        self.world.request(leader, self.clients.prepare(leader, tx))
        self.world.run(300)
        self.world.late_calls["/v1/cluster/aside"] = [3_000]
        self.world.pass_time(MAX_BLOCK_MS + 1_000)
        self.world.late_calls["/v1/cluster/end"] = [6_000] * 8
        self.world.request(leader, self.clients.resolve(leader, tx, "commit"))
        self.world.run(400)
        self._read_committed_everywhere()
        self.world.pass_time(12_000)
        self._read_committed_everywhere()

    def set_aside(self) -> None:
        """A prepared transaction holds readers back too long, and is resolved while topics move or
        the leader ends."""
        tx = self._tx_with_rows()
        if tx is None:
            return
        self.send(lambda process: self.clients.prepare(process, tx, topics=self.topics()))
        self.world.run(300)
        self.world.pass_time(MAX_BLOCK_MS + (0, 2_000, 5_000)[self.b % 3])
        match self.c % 4:
            case 0:
                self.kill()
            case 1:
                self.move()
                self.world.run(self.b % 200)
            case 2 if (leader := self.leader()) is not None:
                leader.kill()
        self.world.pass_time((0, 50, 12_000)[self.c % 3])
        self._read_committed_everywhere()
        outcome = "commit" if self.c % 5 else "abort"
        for process in self.world.open:
            self.world.request(process, self.clients.resolve(process, tx, outcome))
        self.world.run(self.b % 300)
        self._read_committed_everywhere()

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
            self.world.request(
                owner, willing(owner.ownership.move(self.topic().id.unit, to.server_id))
            )

    def drain(self) -> None:
        self.send(lambda process: willing(process.ownership.drain()) if process.is_open else _no())

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
        leader, found = self._leader_and_open()
        if leader is None or not found:
            return
        self.world.request(leader, self._commit(leader, found[-1]))
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
            process.cut_from.add(SYSTEMS[self.b % len(SYSTEMS)])

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
            self.world.request(leader, self._commit(leader, tx))
        self.world.run(self.c % 40)
        self.world.expire(leader, is_heard=False)
        self.start_tx()

    def depose_during_sync(self) -> None:
        """The store ends the session of the leader too early. The leader reaches no store, and a
        commit is still being synced when another server leads and commits, too."""
        leader, found = self._leader_and_open()
        if leader is None or not found:
            return
        leader.threads.hang_named("transaction-log")
        commit = self.clients.commit(leader, found[-1], frozenset(KEYS[:1]))
        self.world.request(leader, commit)
        self.world.run(100)
        leader.cut_from.update(("metadata", "tables"))
        self.world.expire(leader, is_heard=False)
        self.world.pass_time(3_000)  # until another server leads
        self.world.run(300)
        self._commit_elsewhere(leader)
        leader.threads.resume()
        self.world.run(200)
        self.heal()

    def _commit_elsewhere(self, former: Process) -> None:
        """A transaction is committed at other servers, and the former leader is asked for it."""
        others = [each for each in self.world.open if each is not former]
        if not others:
            return
        count = len(self.world.transactions.open)
        self.world.request(others[0], self.clients.start(others[0]))
        self.world.run(200)
        if len(self.world.transactions.open) > count:
            tx = self.world.transactions.open[-1]
            self.world.request(others[-1], self.clients.commit(others[-1], tx))
            self.world.run(200)
            self.world.request(former, self.clients.ask(former, tx))
            self.world.request(former, self.clients.publish(former, self.topic(), tx))
            self.world.run(50)

    def read_at_former_owner(self) -> None:
        """The store ends the session of an owner too early, and the owner reaches neither the store
        nor the tables. It is read when the lease of its reads has ended, and its session not."""
        owner, topic = self.owner(), self.topic()
        others = [each for each in self.world.open if each is not owner]
        if owner is None or not others:
            return
        self.world.request(owner, self.clients.publish(owner, topic))
        self.world.run(200)
        start = topic.highest_id
        owner.cut_from.update(("metadata", "tables"))
        self.world.expire(owner, is_heard=False)
        self.world.run(200)
        for each in others:
            self.world.request(each, self.clients.publish(each, topic))
        self.world.run(300)
        self.world.pass_time(READ_LEASE_MS + 100 + self.c % 500)
        self.world.request(owner, self.clients.read(owner, topic, start))
        self.world.run(100)
        self.heal()

    # Time.

    def wait(self) -> None:
        self.world.pass_time(WAITS_MS[self.a % len(WAITS_MS)])

    def wait_long(self) -> None:
        self.world.pass_time(LONG_WAITS_MS[self.a % len(LONG_WAITS_MS)])


async def _no() -> None:
    pass
