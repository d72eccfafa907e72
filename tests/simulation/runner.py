"""Runs operations: each method is a kind of operation, except for the scenarios."""

import random
from contextlib import suppress

from messaging.model.visibility import Undecided
from messaging.read.poll import Poll
from tests.simulation import sink_writers
from tests.simulation.delayed import DELAYS_MS, DelayedPublish
from tests.simulation.observations import NEVER, Applied, ObservedTopic, Publish, Run, Stored, Tx
from tests.simulation.operations import CLOCK_STEPS_MS, LONG_WAITS_MS, WAITS_MS, Operation
from tests.simulation.readers import range_of
from tests.simulation.server import MESSAGES, SNAPSHOTS, Work
from tests.simulation.world import World
from tuff.protocol.errors import TuffError
from tuff.protocol.ids import MessageId, Offset
from tuff.protocol.requests import Isolation
from tuff.protocol.transaction import Transaction

KEYS = (b"k1", b"k2", b"k3")
NOTHING_SEEN = Transaction(transaction_id=0, read_pointer=0, write_pointer=0)
LIFETIMES_S = (1, 10, 100, 604_800)
HOLD_AGES_MS = (20, 5_000, 60_000, 900_000, 2_592_000_000)


class OperationRunner:
    """Runs one operation. Its numbers pick the topic and the transaction that it works on."""

    def __init__(self, world: World, operation: Operation, chance: random.Random) -> None:
        self.world = world
        self.observed = world.observed
        self.client = world.client
        self.kind, self.a, self.b, self.c, _ = operation
        self.chance = chance

    def play(self) -> None:
        getattr(self, self.kind)()

    def topic(self) -> ObservedTopic:
        topics = list(self.observed.topics.values())
        return topics[self.b % len(topics)]

    def tx(self, *, is_old: bool = False) -> Tx | None:
        """A recent transaction, in progress if there is one; with `is_old`, one that has ended."""
        every = list(self.observed.transactions.values())
        picked = [tx for tx in every if tx.is_over == is_old][-4:] or every
        return picked[self.a % len(picked)] if picked else None

    def send(self, work: Work) -> None:
        self.world.request(self.world.server.start(work))

    def start(self) -> None:
        self.send(self.client.start(is_long=False, timeout_s=None))

    def start_long(self) -> None:
        self.send(self.client.start(is_long=True, timeout_s=None))

    def start_brief(self) -> None:
        self.send(self.client.start(is_long=False, timeout_s=(0.5, 2, 4)[self.a % 3]))

    def begin_epoch(self) -> None:
        writer = self.world.writers[self.b % 2 and self.a % 3 == 0]
        epoch, run = writer.next_question(self.a, self.c)
        self.send(sink_writers.ask(self.observed, self.world.server, writer, epoch=epoch, run=run))

    def renew(self) -> None:
        if tx := self.tx():
            self.send(self.client.renew(tx))

    def checkpoint(self) -> None:
        if tx := self.tx():
            self.send(self.client.checkpoint(tx))

    def changes(self) -> frozenset[bytes]:
        return frozenset(key for bit, key in enumerate(KEYS) if self.c >> bit & 1)

    def can_commit(self) -> None:
        if tx := self.tx():
            self.send(self.client.can_commit(tx, self.changes()))

    def commit(self, entries: list[Publish] | None = None) -> None:
        if tx := self.tx():
            noted = frozenset(key for keys in tx.noted.values() for key in keys)
            changes = self.changes() | noted
            self.send(self.client.commit(tx, changes if self.c % 5 else None, entries or []))

    def commit_without_changes(self) -> None:
        """A commit that names no changes: those of the can-commits count."""
        if tx := self.tx():
            self.send(self.client.commit(tx, None, []))

    def commit_bare(self) -> None:
        if tx := self.tx():
            self.send(self.client.commit(tx, None, [], read_only=self.c % 2 == 0))

    def commit_publish(self) -> None:
        tx = self.tx()
        if tx is None:
            return
        entries = []
        for topic in (
            list(self.observed.topics.values())[: 1 + self.c % 2] if not tx.entries else []
        ):
            entries.append(publish := self.new_publish(topic, tx))
            publish.is_final = True
        self.commit(entries)

    def commit_together(self) -> None:
        """The commits of some transactions, as one read of a session brings them."""
        recent = [tx for tx in self.observed.transactions.values() if not tx.is_over][-4:]
        topics = list(self.observed.topics.values())
        commits = []
        for place, tx in enumerate(recent):
            entries = [] if tx.entries or self.b % 4 == place else [self.new_publish(topics[0], tx)]
            for publish in entries:
                publish.is_final = True
            changes = frozenset([KEYS[place % 3]]) if self.a % 3 == 0 else self.changes()
            commits.append((tx, changes if self.a % 4 else None, entries))
        self.send(self.client.commit_together(commits))

    def prepare(self) -> None:
        tx = self.tx()
        if tx is None:
            return
        entries = []
        for topic in list(self.observed.topics.values())[: self.c % 3] if not tx.entries else []:
            entries.append(publish := self.new_publish(topic, tx))
            publish.is_final = True
        self.send(self.client.prepare(tx, self.changes(), entries))

    def resolve(self) -> None:
        prepared = [tx for tx in self.observed.transactions.values() if tx.state == "prepared"]
        tx = prepared[self.a % len(prepared)] if prepared else self.tx()
        if tx is not None:
            self.send(self.client.resolve(tx, "commit" if self.b % 3 else "abort"))

    def new_publish(self, topic: ObservedTopic, tx: Tx | None) -> Publish:
        publish = Publish(
            invoked=self.observed.moment(),
            topic=topic.id.name,
            payloads=self.client.payloads(1 + self.c % 3),
            behind=topic.read_up_to,
            tx=tx,
            pointer=None if tx is None else tx.pointers[-1 if self.c % 4 else 0],
        )
        self._note(topic, publish)
        return publish

    def _note(self, topic: ObservedTopic, publish: Publish) -> None:
        topic.publishes.append(publish)
        for payload in publish.payloads:
            self.observed.publish_of[payload] = publish

    def publish(self) -> None:
        publish = self.new_publish(self.topic(), None)
        publish.ttl_s = (None, None, None, 1, 5)[self.a % 5]
        self.send(self.client.publish(publish))

    def publish_tx(self) -> None:
        if tx := self.tx():
            self.send(self.client.publish(self.new_publish(self.topic(), tx)))

    def _delayed(self, tx: Tx | None, delays: int) -> DelayedPublish:
        places = [delays % 7, delays // 7 % 7, delays // 49 % 7][: 1 + self.c % 3]
        delays_ms = tuple(DELAYS_MS[each] for each in places)
        client = self.client
        return client.delayed.new_publish(client.payloads(len(delays_ms)), delays_ms, tx)

    def delay(self) -> None:
        self.send(self.client.delayed.publish(self._delayed(None, self.a)))

    def delay_tx(self) -> None:
        if tx := self.tx():
            self.send(self.client.delayed.publish(self._delayed(tx, self.b)))

    def commit_delayed(self) -> None:
        """A commit that brings delayed messages."""
        tx = self.tx()
        if tx is not None and tx.commit_invoked == tx.prepare_invoked == NEVER:
            self._delayed(tx, self.b).is_final = True
            self.send(self._commit_delayed(tx))

    async def _commit_delayed(self, tx: Tx) -> None:
        await self.client.delayed.create()
        await self.client.commit(tx, frozenset(), [])

    def cancel_delayed(self) -> None:
        if known := self.client.delayed.publishes[-4:]:
            publish = known[self.a % len(known)]
            place = self.b % len(publish.payloads)
            self.send(self.client.delayed.cancel(publish, place))

    def store(self) -> None:
        tx, topic = self.tx(), self.topic()
        if tx is None or (pointer := tx.pointers[-1]) in topic.tainted:
            return
        payloads = self.client.payloads(1 + self.c % 3)
        stored = Stored(invoked=self.observed.moment(), pointer=pointer, payloads=payloads)
        topic.stored.setdefault(pointer, []).append(stored)
        self.send(self.client.store(topic, tx, stored))

    def reference(self) -> None:
        """Only where it is known which stored messages it publishes, so that it can be checked."""
        tx, topic = self.tx(), self.topic()
        if tx is None or (pointer := tx.pointers[-1]) in topic.tainted:
            return
        waiting = [each for each in topic.stored.get(pointer, []) if not each.taken]
        if any(each.applied is Applied.UNKNOWN for each in waiting):
            return
        brings = [each for each in waiting if each.applied is Applied.YES]
        for each in brings:
            each.taken = True
        publish = Publish(
            invoked=self.observed.moment(),
            topic=topic.id.name,
            payloads=tuple(payload for each in brings for payload in each.payloads),
            behind=topic.read_up_to,
            tx=tx,
            pointer=pointer,
            brings=brings,
        )
        self._note(topic, publish)
        topic.tainted.add(pointer)
        self.send(self._reference(topic, publish))

    async def _reference(self, topic: ObservedTopic, publish: Publish) -> None:
        await self.client.publish(publish)
        if publish.applied is Applied.YES:
            topic.tainted.discard(publish.pointer or 0)

    def run(self) -> None:
        """It is repeated only if it is known to have committed; otherwise it may run again."""
        request_id = f"r{self.a % 3}"
        run = self.observed.runs.get(request_id)
        if self.observed.may_forget or (run is not None and run.published is None):
            return
        if run is None:
            moment = self.observed.moment()
            tx = Tx(id=0, is_long=False, snapshot=NOTHING_SEEN, invoked=moment, completed=moment)
            entries = []
            for topic in list(self.observed.topics.values())[: 1 + self.c % 2]:
                entries.append(self.new_publish(topic, None))
                entries[-1].tx, entries[-1].is_final = tx, True
            run = self.observed.runs[request_id] = Run(
                request_id=request_id, tx=tx, entries=entries
            )
        self.send(self.client.run(run))

    def abort(self) -> None:
        if tx := self.tx():
            self.send(self.client.abort(tx))

    def invalidate(self) -> None:
        if tx := self.tx():
            self.send(self.client.invalidate(tx))

    def ask(self) -> None:
        if tx := self.tx(is_old=self.b % 2 == 0):
            self.send(self.client.ask(tx))

    def late_request(self) -> None:
        """A late or repeated request for a transaction that may have ended."""
        tx = self.tx(is_old=True)
        if tx is None:
            return
        match self.c % 6:
            case 0 | 1:
                self.send(self.client.commit(tx, self.changes(), []))
            case 2:
                self.send(self.client.abort(tx))
            case 3:
                self.send(self.client.invalidate(tx))
            case 4:
                self.send(self.client.publish(self.new_publish(self.topic(), tx)))
            case 5:
                self.send(self.client.can_commit(tx, self.changes()))

    def burst(self) -> None:
        """Several requests for one transaction at once."""
        self._some(
            "can_commit", "publish_tx", "prepare", "commit", "abort", "commit_publish", "resolve",
            "invalidate", "clear_invalid", "publish_tx", "tick", "poll",
        )  # fmt: skip

    def concurrent_recoveries(self) -> None:
        """Several requests that may find the service down and start its recovery."""
        self._some("start_service", "tick", "start_service", "start", "commit", "publish_tx")

    def _some(self, *kinds: str) -> None:
        for kind in kinds:
            if self.chance.random() < 0.4:
                getattr(self, kind)()

    def rollback(self) -> None:
        # Rows of a run may be seen before its reply, which alone has their pointer. Without the
        # pointer there is no rollback detail.
        published = [
            each for each in self.topic().publishes
            if each.tx is not None and each.applied is Applied.YES and each.first is not None
            and each.pointer is not None
        ]  # fmt: skip
        if not published:
            return
        # A rollback of a committed transaction is refused, so mostly others are picked.
        undone = [each for each in published if each.tx and each.tx.state != "committed"]
        published = undone if undone and self.c % 3 else published
        picked = published[self.a % len(published)]
        # A forged detail also covers rows of other transactions, which must not be touched.
        is_forged = self.c % 2 == 0
        rows = [each for each in published if is_forged and each.pointer == picked.pointer]
        self.send(self.client.rollback(rows or [picked], is_forged=is_forged))

    def poll(self) -> None:
        self._poll(0.0)

    def long_poll(self) -> None:
        self._poll((0.05, 3.0, 60.0)[self.a % 3])

    def _poll(self, wait_s: float) -> None:
        topic, rest = (
            self.topic(),
            {**range_of(self.topic(), self.a, self.b, self.c), "wait_s": wait_s},
        )
        tx = self.tx()
        match self.a % 4:
            case 0:
                poll, tx = Poll(**rest), None
            case 1 | 2:
                poll, tx = Poll(**rest, isolation=Isolation.COMMITTED), None
            case _ if tx is None:
                return
            case _:
                undecided = Undecided.SKIP if self.c % 2 else Undecided.HOLD
                how = (
                    {"tx": tx.pointers[-1]}
                    if self.b % 4 < 2
                    else {"transaction": tx.snapshot_now()}
                )
                poll = Poll(**rest, **how, undecided=undecided)
        self.send(self.client.readers.read(topic, poll, tx))

    def delete(self) -> None:
        self.send(self.client.delete(self.topic()))

    def create(self) -> None:
        self.send(self.client.create(self.topic(), LIFETIMES_S[-1 - self.a % 2]))

    def set_ttl(self) -> None:
        self.send(self.client.set_ttl(self.topic(), LIFETIMES_S[self.a % len(LIFETIMES_S)]))

    def truncate(self) -> None:
        known = [each for each in self.topic().publishes if each.first is not None]
        if known:
            place = known[self.a % len(known)].first
            assert place is not None
            self.send(self.client.truncate(self.topic(), MessageId(*place)))

    def set_hold(self) -> None:
        """Set a hold, new or replaced: from a published message, or from the beginning."""
        known = [each.first for each in self.topic().publishes if each.first is not None]
        place = known[self.c % len(known)] if known and self.c % 5 else Offset(0, 0)
        name, age_ms = f"h{self.c % 2}", HOLD_AGES_MS[self.a % len(HOLD_AGES_MS)]
        self.send(
            self.client.holds_and_positions.hold(self.topic(), name, MessageId(*place), age_ms)
        )

    def release_hold(self) -> None:
        self.send(self.client.holds_and_positions.release(self.topic(), f"h{self.c % 2}"))

    def set_position(self) -> None:
        """Set a position to a place that no other request uses."""
        place = MessageId(self.a, self.b, self.c, 0)
        self.send(self.client.holds_and_positions.move(self.topic(), f"p{self.c % 2}", place))

    def delete_position(self) -> None:
        self.send(self.client.holds_and_positions.move(self.topic(), f"p{self.c % 2}", None))

    def sweep(self) -> None:
        self.world.server.spawn(self.world.server.components.sweep())

    def snapshot(self) -> None:
        self.send(_willing(self.world.server.transactions.take_snapshot()))

    def clear_invalid(self) -> None:
        self.send(self.client.clear_invalid())

    def stop_service(self) -> None:
        self.send(_willing(self.world.server.transactions.stop_service()))

    def start_service(self) -> None:
        self.world.running_since_ms = self.world.clock.boot_ms()
        self.send(_willing(self.world.server.transactions.start_service()))

    def restart(self) -> None:
        self.world.restart(self.chance)

    def kill(self) -> None:
        self.world.crash(self.chance, cuts_power=False)

    def power_cut(self) -> None:
        self.world.crash(self.chance, cuts_power=True)

    def power_cut_soon(self) -> None:
        self.world.disk.cut_in = 1 + self.a % 12

    def tick(self) -> None:
        self.world.server.tick()

    def wait(self) -> None:
        self.world.advance(WAITS_MS[self.a % len(WAITS_MS)])

    def wait_long(self) -> None:
        self.world.advance(LONG_WAITS_MS[self.a % len(LONG_WAITS_MS)])
        self.world.server.tick()

    def set_clock(self) -> None:
        self.world.clock.set_wall(CLOCK_STEPS_MS[self.a % len(CLOCK_STEPS_MS)])

    def freeze_clock(self) -> None:
        self.world.clock.freeze() if self.a % 2 else self.world.clock.thaw()

    def _faults(self) -> list[str]:
        return [[MESSAGES], [SNAPSHOTS], [MESSAGES, SNAPSHOTS]][self.a % 3]

    def fail_sync(self) -> None:
        for directory in self._faults():
            self.world.disk.faults[directory].failing_syncs = 1 + self.b % 3

    def fail_write(self) -> None:
        for directory in self._faults():
            self.world.disk.faults[directory].failing_writes = 1 + self.b % 2

    def fail_names(self) -> None:
        """Syncs of the directories fail, so that the names of new files may be lost."""
        for directory in self._faults():
            self.world.disk.faults[directory].failing_names = 1 + self.b % 2

    def fill_disk(self) -> None:
        for directory in self._faults():
            self.world.disk.faults[directory].is_full = True

    def hang_threads(self) -> None:
        # Mostly the first pool, which writes and marks messages.
        self.world.server.threads.hang(max(0, self.a % 6 - 2))

    def hang_log(self) -> None:
        self.world.server.threads.hang_named("transaction-log")

    def heal(self) -> None:
        self.world.server.threads.resume()
        self.world.disk.heal()

    def read_all(self) -> None:
        self.world.read_everything(self.chance)


async def _willing(work: Work) -> None:
    """A request whose refusal is ignored."""
    with suppress(TuffError):
        await work
