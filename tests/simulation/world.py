"""A simulated server with its disk, its clock and its clients, and what can be done to them."""

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
from tests.simulation.disk import Disk, Faults, PowerCut
from tests.simulation.invariants import BrokenPromiseError, require
from tests.simulation.loop import Clock
from tests.simulation.observations import Facts, Fate, Lifetime, TopicFacts
from tests.simulation.server import MESSAGES, SNAPSHOTS, Life, Work
from tests.simulation.sink_writers import Writer, epochs_commit_once
from tuff.protocol.errors import TransactionNotInProgressError, TuffError, UnavailableError
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import Isolation
from tx.durable_state import ServiceState

START_MS = 1_480_000_000_000
TOPICS = (TopicId("default", "a"), TopicId("default", "b"))
COME_BACK_TICKS = 2  # of a server whose disk is whole again
ENDING_TIMEOUT_MS = 11_000  # longer than `tx.ending_timeout`


class World:
    """One simulation. `trace` gets a line for everything that could differ between two runs."""

    def __init__(self, settings: tuple[str, ...]) -> None:
        self.settings = _settings(settings)
        self.disk = Disk(("/data", MESSAGES, SNAPSHOTS))
        self.clock = Clock(START_MS)
        self.facts = Facts(list(TOPICS))
        self.facts.prunes = self.settings.tx.prune_invalid
        self.writers = (Writer("w"), Writer("v"))
        self.tasks: list[asyncio.Task[object]] = []
        self.trace: list[str] = []
        self.running_since_ms = 0
        self._was_up = False  # the transaction service, when it was last looked at
        self._stops = False  # the server is being stopped, on a disk that is whole
        self.life: Life  # since `open`; asked for so often that a property shows in the time
        self.client = Client(self.facts, None)  # type: ignore[arg-type]  # until it is started

    def begin(self, chance: random.Random) -> None:
        """Start the server for the first time, and make the topics."""
        self.open(chance)
        ttl_s = self.settings.messaging.default_ttl
        create, topics = self.life.messaging.topics.create, self.facts.topics.values()
        for topic in topics:
            topic.lifetimes.append(Lifetime(asked=self.facts.moment(), ttl_s=ttl_s))
        self.life.complete_all([create(topic.id, {"ttl": str(ttl_s)}) for topic in topics], chance)
        for topic in topics:
            topic.lifetimes[0].end(self.facts.moment(), Fate.DONE)

    def open(self, chance: random.Random) -> None:
        """Start the server on what is on the disk; should the power go meanwhile, once more."""
        while True:
            self._was_up = self._stops = False
            life = self.life = Life(
                self.disk, self.clock, self.settings, before_job=self._look_at_service
            )
            self.facts.life += 1
            self.client.lives_on(life)
            self.note_time()
            try:
                life.complete(life.rooms.open(), chance)
            except PowerCut:
                self._vanish(chance, cuts_power=True)
            else:
                break
        life.note_seen()
        self.running_since_ms = self.clock.boot_ms()
        self.facts.note_not_served(self.clock.boot_ms())
        self.note_time()
        self.look()

    def request(self, task: "asyncio.Task[object]") -> None:
        """Look at its result once there is one."""
        self.tasks.append(task)

    def run(self, chance: random.Random, step_count: int | None) -> None:
        """Go on for so many steps, or until nothing is left to do."""
        try:
            if step_count is None:
                self.life.settle(chance)
            else:
                self.life.run(chance, step_count)
        except PowerCut:
            self.crash(chance, cuts_power=True)
        self.look()

    def look(self) -> None:
        """Raises: BrokenPromiseError: what a check, or a bug that nobody caught, says."""
        for task in [task for task in self.tasks if task.done()]:
            self.tasks.remove(task)
            task.result()
        for error in self.life.loop.errors:
            if isinstance(error, BaseException):
                raise error
            raise BrokenPromiseError(error)
        self._look_at_service()

    def _look_at_service(self) -> None:
        state = self.life.transactions.status.state
        if state is ServiceState.RUNNING and self._was_up:
            return
        if state is not ServiceState.RUNNING:
            self.running_since_ms = self.clock.boot_ms()
            self.facts.note_not_served(self.clock.boot_ms())
        is_up = state is not ServiceState.DOWN
        if self._was_up and not is_up and not self._stops:
            # Its log failed: what the log does not hold is lost, as in a crash (design §4).
            self.facts.crashed.append(self.facts.moment())
        self._was_up = is_up

    def crash(self, chance: random.Random, *, cuts_power: bool) -> None:
        """The server vanishes, and is started again."""
        self._vanish(chance, cuts_power=cuts_power)
        self.open(chance)

    def _vanish(self, chance: random.Random, *, cuts_power: bool) -> None:
        self.life.vanish()
        self.tasks.clear()
        self.facts.cut_off()
        if cuts_power:
            self.disk.cut(chance)

    def restart(self, chance: random.Random) -> None:
        """A clean stop, and a start."""
        try:
            self.life.threads.release()
            self.life.messaging.polls.stop_waiting()
            self.life.settle(chance)
            # What waits for a disk that does not come back is answered when its time is over.
            self.advance(ENDING_TIMEOUT_MS if any(not task.done() for task in self.tasks) else 0)
            self.life.settle(chance)
            self.look()
            for task in self.tasks:
                raise BrokenPromiseError(f"promise 9: {task} got no answer before the stop")
            # Should the log fail now, nobody can tell a later start that it lost nothing.
            self._stops = self.disk.faults[SNAPSHOTS] == Faults()
            self.life.complete(self.life.rooms.close(), chance)
        except PowerCut:
            self.crash(chance, cuts_power=True)
            return
        self.look()
        self.life.vanish()
        self.open(chance)

    def advance(self, ms: int) -> None:
        self.life.advance(ms)
        self.note_time()

    def note_time(self) -> None:
        self.facts.note_time(self.life.now_ms())
        retention_ms = self.settings.tx.outcome_retention_s * 1000
        self.facts.may_forget |= self.facts.time_span_ms > retention_ms

    def come_back(self, chance: random.Random) -> None:
        """With a disk that is whole, and nobody who stops it, everything works again."""
        self.disk.heal()
        self.life.threads.release()
        self.run(chance, None)
        for _ in range(COME_BACK_TICKS):
            if self._is_well:
                break
            self.life.tick()
            self.run(chance, None)
        if self.life.transactions.status.state is not ServiceState.RUNNING:
            with suppress(TuffError):
                self._complete(self.life.transactions.start_service, chance)
            self.running_since_ms = self.clock.boot_ms()
            self.run(chance, None)
        self.life.tick()
        self.run(chance, None)
        status, storage = self.life.transactions.status, self.life.messaging.status
        if status.state is not ServiceState.RUNNING:
            raise BrokenPromiseError(f"promise 8: nothing is damaged, and yet {status.reason}")
        if storage[0] != "ok":
            raise BrokenPromiseError(f"promise 8: nothing is damaged, and yet {storage[1]}")

    @property
    def _is_well(self) -> bool:
        is_running = self.life.transactions.status.state is ServiceState.RUNNING
        return is_running and self.life.messaging.status[0] == "ok"

    def _complete(self, call: Callable[[], Work], chance: random.Random) -> None:
        try:
            self.life.complete(call(), chance)
        except PowerCut:
            self.crash(chance, cuts_power=True)

    def read_everything(self, chance: random.Random) -> None:
        """Ask how every transaction ended, and read every topic in every way; look at each answer
        and, with all that is known now, at every earlier one again. Should the power go meanwhile,
        once more from the beginning."""
        while True:
            try:
                self._read_everything(chance)
            except PowerCut:
                self.crash(chance, cuts_power=True)
            else:
                return

    def ask_everything(self, chance: random.Random) -> None:
        """Ask how every transaction ended."""
        self.come_back(chance)
        asked = [self.client.ask(tx) for tx in self.facts.transactions.values()]
        self.life.complete_all(asked, chance)

    def _read_everything(self, chance: random.Random) -> None:
        self.ask_everything(chance)
        for writer in self.writers:
            require(9, epochs_commit_once(writer))
        self.require_awake(chance)
        left = [tx for tx in self.facts.transactions.values() if not tx.is_over]
        read = self.client.readers.read
        for topic in self.facts.topics.values():
            self._read_through(topic, chance)
            in_snapshots = [read(topic, Poll(tx=tx.pointers[-1]), tx) for tx in left]
            self.life.complete_all(in_snapshots, chance)
            for each in topic.reads:
                self.client.readers.check(each)
            self.client.bookmarks.look(topic)
        self.look()

    def require_awake(self, chance: random.Random) -> None:
        """Raises: BrokenPromiseError: a poll still waits, and another one like it would not, or its
        own transaction has ended."""
        for poll, (topic, reader) in list(self.client.readers.waiting.items()):
            again = replace(poll, wait_s=0.0)
            read = self.life.complete(self.client.readers.read(topic, again, reader), chance)
            if read is not None and read.items and poll in self.client.readers.waiting:
                raise BrokenPromiseError(f"promise 6: {poll} sleeps, and there is {read.items}")
            if poll in self.client.readers.waiting and self._has_ended(poll.tx):
                raise BrokenPromiseError(f"promise 6: {poll} sleeps in what has ended")

    def _has_ended(self, pointer: int | None) -> bool:
        """Whether a reader in this transaction is told that it is over."""
        if pointer is None:
            return False
        try:
            self.life.transactions.write_permits.snapshot_of(pointer)
        except TransactionNotInProgressError:
            return True
        except UnavailableError:
            pass
        return False

    def _read_through(self, topic: TopicFacts, chance: random.Random) -> None:
        polls = Poll(), Poll(isolation=Isolation.COMMITTED)
        reads = [self.client.readers.read(topic, poll) for poll in polls]
        _, read = self.life.complete_all(reads, chance)
        if read is not None:
            faults = invariants.blocking_is_bounded(
                self.facts,
                read,
                boot_ms=self.clock.boot_ms(),
                running_since_ms=max(self.running_since_ms, self.life.seen_since_ms()),
                max_block_ms=round(self.settings.messaging.max_block_s * 1000),
            )
            require(6, faults)
            require(6, invariants.waiting_is_explained(self.facts, read))

    def require_answers(self) -> None:
        """Once all is quiet and the time for answers is over, only polls that wait are left."""
        left = [task for task in self.tasks if not task.done()]
        if len(left) != self.life.messaging.polls.waiting_count:
            raise BrokenPromiseError(f"promise 9: requests have no answer: {left}")


def _settings(assignments: tuple[str, ...]) -> Settings:
    """What `load` gives, put together from sections that were read before."""
    sections = ("tx", "messaging", "server")
    tx, messaging, server = (
        _loaded(tuple(each for each in assignments if each.startswith(f"{section}.")))
        for section in sections
    )
    return replace(tx, messaging=messaging.messaging, server=server.server)


@cache
def _loaded(assignments: tuple[str, ...]) -> Settings:
    # Reading them takes as long as two lives of a server.
    return load(None, assignments)
