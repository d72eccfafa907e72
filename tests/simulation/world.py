"""The simulated world: a server with its disk, its clock and its clients."""

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import cache

from messaging.read.poll import Poll
from process.settings import Settings, load
from tests.simulation import invariants
from tests.simulation.client import Client
from tests.simulation.delayed import LATE_MS_MAX
from tests.simulation.disk import Disk, Faults, PowerCut
from tests.simulation.invariants import BrokenPromiseError, require
from tests.simulation.loop import Clock
from tests.simulation.observations import Applied, Observations, ObservedTopic, TtlChange
from tests.simulation.server import MESSAGES, SNAPSHOTS, SimulatedServer, Work
from tests.simulation.sink_writers import SinkWriter, epochs_commit_once
from tuff.protocol.errors import TransactionNotInProgressError, TuffError, UnavailableError
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Isolation
from tx.durable_state import ServiceState

START_MS = 1_480_000_000_000
TOPICS = (TopicId("default", "a"), TopicId("default", "b"))
COME_BACK_TICKS = 2  # of a server whose disk is whole again
COME_BACK_MS = 2_600  # before each of them
ENDING_TIMEOUT_MS = 11_000  # longer than `tx.ending_timeout`


class World:
    """One simulation. `trace` has a line for everything that could differ between two runs."""

    def __init__(self, settings: tuple[str, ...]) -> None:
        self.settings = _settings(settings)
        self.disk = Disk(("/data", MESSAGES, SNAPSHOTS))
        self.clock = Clock(START_MS)
        self.observed = Observations(list(TOPICS))
        self.observed.prunes = self.settings.tx.prune_invalid
        self.writers = (SinkWriter("w"), SinkWriter("v"))
        self.tasks: list[asyncio.Task[object]] = []
        self.trace: list[str] = []
        self.running_since_ms = 0
        self._was_up = False  # the transaction service, at the last look
        self._stops = False  # the server is being stopped, on a disk without faults
        self.server: SimulatedServer  # since `open`; a property would cost time
        self.client = Client(self.observed, None)  # type: ignore[arg-type]  # until it is started

    def begin(self, chance: random.Random) -> None:
        """Start the server for the first time, and create the topics."""
        self.open(chance)
        ttl_s = self.settings.messaging.default_ttl
        create, topics = self.server.messaging.topics.create, self.observed.topics.values()
        for topic in topics:
            topic.ttl_changes.append(TtlChange(invoked=self.observed.moment(), ttl_s=ttl_s))
        self.server.complete_all(
            [create(topic.id, {"ttl": str(ttl_s)}) for topic in topics], chance
        )
        for topic in topics:
            topic.ttl_changes[0].end(self.observed.moment(), Applied.YES)

    def open(self, chance: random.Random) -> None:
        """Start the server on what is on the disk; after a power cut during the start, again."""
        while True:
            self._was_up = self._stops = False
            server = self.server = SimulatedServer(
                self.disk, self.clock, self.settings, before_job=self._look_at_service
            )
            self.observed.start_count += 1
            self.client.use_server(server)
            self.note_time()
            try:
                server.complete(server.components.open(), chance)
            except PowerCut:
                self._vanish(chance, cuts_power=True)
            else:
                break
        server.note_seen()
        self.running_since_ms = self.clock.boot_ms()
        self.observed.note_not_served(self.clock.boot_ms())
        self.note_time()
        self.look()

    def request(self, task: "asyncio.Task[object]") -> None:
        """Check the result of a request when it has one."""
        self.tasks.append(task)

    def run(self, chance: random.Random, step_count: int | None) -> None:
        """Run so many steps, or with None until the server is idle."""
        try:
            if step_count is None:
                self.server.settle(chance)
            else:
                self.server.run(chance, step_count)
        except PowerCut:
            self.crash(chance, cuts_power=True)
        self.look()

    def look(self) -> None:
        """Raises: the error of a check, or an uncaught one of a background task."""
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.remove(task)
            task.result()
        for error in self.server.loop.errors:
            if isinstance(error, BaseException):
                raise error
            raise BrokenPromiseError(error)
        self._look_at_service()

    def _look_at_service(self) -> None:
        state = self.server.transactions.status.state
        if state is ServiceState.RUNNING and self._was_up:
            return
        if state is not ServiceState.RUNNING:
            self.running_since_ms = self.clock.boot_ms()
            self.observed.note_not_served(self.clock.boot_ms())
        is_up = state is not ServiceState.DOWN
        if self._was_up and not is_up and not self._stops:
            # Its log failed: edits that are not in the log are lost, as in a crash (design §4).
            self.observed.crashed.append(self.observed.moment())
        self._was_up = is_up

    def crash(self, chance: random.Random, *, cuts_power: bool) -> None:
        """SIGKILL or a power cut, then a start."""
        self._vanish(chance, cuts_power=cuts_power)
        self.open(chance)

    def _vanish(self, chance: random.Random, *, cuts_power: bool) -> None:
        self.server.vanish()
        self.tasks.clear()
        self.observed.cut_off()
        if cuts_power:
            self.disk.cut(chance)

    def restart(self, chance: random.Random) -> None:
        """A clean stop, and a start."""
        try:
            self.server.threads.resume()
            self.server.messaging.polls.stop_waiting()
            self.server.settle(chance)
            # A request that waits for a broken disk is answered when its time is over.
            self.advance(ENDING_TIMEOUT_MS if any(not task.done() for task in self.tasks) else 0)
            self.server.settle(chance)
            self.look()
            for task in self.tasks:
                raise BrokenPromiseError(f"promise 9: {task} got no answer before the stop")
            # If the log fails during a stop on a broken disk, edits may be lost as in a crash.
            self._stops = self.disk.faults[SNAPSHOTS] == Faults()
            self.server.complete(self.server.components.close(), chance)
        except PowerCut:
            self.crash(chance, cuts_power=True)
            return
        self.look()
        self.server.vanish()
        self.open(chance)

    def advance(self, ms: int) -> None:
        self.server.advance(ms)
        self.note_time()

    def note_time(self) -> None:
        self.observed.note_time(self.server.now_ms())
        retention_ms = self.settings.tx.outcome_retention_s * 1000
        self.observed.may_forget |= self.observed.time_span_ms > retention_ms

    def come_back(self, chance: random.Random) -> None:
        """Without faults and without a stop by an operator, everything has to work again."""
        self.disk.heal()
        self.server.threads.resume()
        self.run(chance, None)
        for _ in range(COME_BACK_TICKS):
            if self._is_well:
                break
            self.advance(COME_BACK_MS)  # a store tries again a few seconds after failed writes
            self.server.tick()
            self.run(chance, None)
        if self.server.transactions.status.state is not ServiceState.RUNNING:
            with suppress(TuffError):
                self._complete(self.server.transactions.start_service, chance)
            self.running_since_ms = self.clock.boot_ms()
            self.run(chance, None)
        self.server.tick()
        self.run(chance, None)
        status, storage = self.server.transactions.status, self.server.messaging.status
        if status.state is not ServiceState.RUNNING:
            raise BrokenPromiseError(f"promise 8: nothing is damaged, and yet {status.reason}")
        if storage[0] != "ok":
            raise BrokenPromiseError(f"promise 8: nothing is damaged, and yet {storage[1]}")

    @property
    def _is_well(self) -> bool:
        is_running = self.server.transactions.status.state is ServiceState.RUNNING
        return is_running and self.server.messaging.status[0] == "ok"

    def _complete(self, call: Callable[[], Work], chance: random.Random) -> None:
        try:
            self.server.complete(call(), chance)
        except PowerCut:
            self.crash(chance, cuts_power=True)

    def read_everything(self, chance: random.Random) -> None:
        """Ask for every outcome, and read every topic in every way. Check each reply, and every
        earlier one again by all that is known now. After a power cut meanwhile, begin again."""
        while True:
            try:
                self._read_everything(chance)
            except PowerCut:
                self.crash(chance, cuts_power=True)
            else:
                return

    def ask_everything(self, chance: random.Random) -> None:
        """Ask for the outcome of every transaction."""
        self.come_back(chance)
        questions = [self.client.ask(tx) for tx in self.observed.transactions.values()]
        self.server.complete_all(questions, chance)

    def resolve_everything(self, chance: random.Random) -> None:
        """Let the databases decide. After that all have ended."""
        prepared = [tx for tx in self.observed.transactions.values() if tx.state == "prepared"]
        for tx in prepared:
            outcome = "commit" if tx.id % 2 else "abort"
            self.server.complete(self.client.resolve(tx, outcome), chance)

    def _read_everything(self, chance: random.Random) -> None:
        self.ask_everything(chance)
        for writer in self.writers:
            require(9, epochs_commit_once(writer))
        self.require_awake(chance)
        left = [tx for tx in self.observed.transactions.values() if not tx.is_over]
        read = self.client.readers.read
        for topic in self.observed.topics.values():
            self._read_through(topic, chance)
            in_snapshots = [read(topic, Poll(tx=tx.pointers[-1]), tx) for tx in left]
            self.server.complete_all(in_snapshots, chance)
            for each in topic.reads:
                self.client.readers.check(each)
            self.client.holds_and_positions.look(topic)
        if self.client.delayed.publishes:
            self.require_delayed(chance)
        self.look()

    def require_delayed(self, chance: random.Random) -> None:
        """Raises: BrokenPromiseError: a delayed message is lost, early, late, or there twice."""
        for _ in range(2):  # what failed before is tried again after a second
            self.advance(LATE_MS_MAX // 2)
            self.server.tick()
            self.run(chance, None)
        self.server.complete(self.client.delayed.check(), chance)

    def require_prepared_messages(self, chance: random.Random) -> None:
        """Raises: BrokenPromiseError: a message of a prepared transaction is lost."""
        self.ask_everything(chance)
        self.run(chance, None)
        self.advance(1000)
        self.run(chance, None)
        for topic in self.observed.topics.values():
            poll = Poll(isolation=Isolation.COMMITTED)
            read = self.server.complete(self.client.readers.read(topic, poll), chance)
            while read is not None and not read.caught_up and read.blocked_by is None:
                poll = replace(poll, start=MessageId.from_bytes(read.next_id), inclusive=False)
                rest = self.server.complete(self.client.readers.read(topic, poll), chance)
                if rest is None:
                    read = None
                    break
                read = replace(rest, items=[*read.items, *rest.items])
            if read is not None:
                require(4, invariants.prepared_messages_arrive(self.observed, read))

    def require_awake(self, chance: random.Random) -> None:
        """Raises: BrokenPromiseError: a poll still waits though the same poll would now get
        messages, or though its own transaction has ended."""
        for poll, (topic, reader) in list(self.client.readers.waiting.items()):
            again = replace(poll, wait_s=0.0)
            read = self.server.complete(self.client.readers.read(topic, again, reader), chance)
            if read is not None and read.items and poll in self.client.readers.waiting:
                raise BrokenPromiseError(f"promise 6: {poll} sleeps, and there is {read.items}")
            if poll in self.client.readers.waiting and self._has_ended(poll.tx, chance):
                raise BrokenPromiseError(f"promise 6: {poll} sleeps in an ended transaction")

    def _has_ended(self, pointer: int | None, chance: random.Random) -> bool:
        """Whether a reader in this transaction would be refused because it has ended."""
        if pointer is None:
            return False
        try:
            permits = self.server.transactions.write_permits
            self.server.complete(permits.snapshot_of(pointer), chance)
        except TransactionNotInProgressError:
            return True
        except UnavailableError:
            pass
        return False

    def _read_through(self, topic: ObservedTopic, chance: random.Random) -> None:
        polls = Poll(), Poll(isolation=Isolation.COMMITTED)
        reads = [self.client.readers.read(topic, poll) for poll in polls]
        _, read = self.server.complete_all(reads, chance)
        if read is not None:
            faults = invariants.blocking_is_bounded(
                self.observed,
                read,
                boot_ms=self.clock.boot_ms(),
                running_since_ms=max(self.running_since_ms, self.server.seen_since_ms()),
                max_block_ms=round(self.settings.messaging.max_block_s * 1000),
            )
            require(6, faults)
            require(6, invariants.waiting_is_explained(self.observed, read))

    def require_answers(self) -> None:
        """Once the server is idle and the time for replies is over, only long polls are left."""
        left = [task for task in self.tasks if not task.done()]
        if len(left) != self.server.messaging.polls.waiting_count:
            raise BrokenPromiseError(f"promise 9: requests have no answer: {left}")


def _settings(assignments: tuple[str, ...]) -> Settings:
    """The same as `load`, made of sections that are cached."""
    sections = ("tx", "messaging", "server")
    tx, messaging, server = (
        _loaded(tuple(each for each in assignments if each.startswith(f"{section}.")))
        for section in sections
    )
    return replace(tx, messaging=messaging.messaging, server=server.server)


@cache
def _loaded(assignments: tuple[str, ...]) -> Settings:
    # Loading settings takes as long as two starts of a simulated server.
    return load(None, assignments)
