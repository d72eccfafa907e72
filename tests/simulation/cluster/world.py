"""The simulated world of a cluster: servers, their network, and the systems that they share."""

import json
import random
import warnings
from asyncio import events
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kernel.requests_and_replies import Reply
from messaging.engines.engine_interface import Engine
from messaging.log.read_lease import READ_LEASE_MS
from metadata.store_interface import MetadataError
from process import cluster_member, components
from process.settings import Settings, load
from tests.cluster.shared_store import SharedTables
from tests.simulation.cluster.clients import Clients
from tests.simulation.cluster.metadata import SimMetadata
from tests.simulation.cluster.network import Exchange
from tests.simulation.cluster.node import MESSAGES, TRANSACTIONS, Process, Work
from tests.simulation.cluster.observations import Ack, ObservedTopic, ObservedTransactions
from tests.simulation.disk import Disk
from tests.simulation.invariants import BrokenPromiseError
from tests.simulation.loop import Clock, VirtualLoop, below
from tests.simulation.server import StuckError
from tuff.protocol.errors import TuffError
from tuff.protocol.ids import TopicId

START_MS = 1_480_000_000_000
SLICE_MS = 1_000  # a longer time passes in such slices, with ticks
SLICE_STEPS = 60  # steps within each
SETTLE_STEPS_MAX = 20_000
MAX_BLOCK_MS = 30_000  # as long as readers wait for a transaction
AVAILABLE_MS_MAX = 30_000  # from the end of all faults
ADOPTED_MS_MAX = 30_000  # likewise: a session ends, and what failed is tried again
DEPTH_MAX = 2  # of calls within which other servers run
LONG_STOP_MS = 7_000  # longer than a session lives without its holder
LATE_SHARE, LATE_MS_MAX = 0.01, 12_000  # of requests that arrive after their senders gave up
LOST_SHARE = 0.01  # of replies
LONG_STOP_SHARE = 0.06  # of the interleaved calls
# Whether it may be deleted. Of the topic c, one of two partitions is used.
TOPICS = {"a": False, "b": False, "c:1": False, "d": True}


class Slot:
    """A server: an id with a clock, and the process that runs now."""

    def __init__(self, server_id: str, skew_ms: int) -> None:
        self.server_id = server_id
        self.clock = Clock(START_MS + skew_ms)
        self.process: Process | None = None


class World:
    """One simulation. `trace` has a line for everything that could differ between two runs."""

    def __init__(self, settings: tuple[str, ...], *, chance: random.Random) -> None:
        given = dict(each.split("=", 1) for each in settings)
        skews = [int(each) for each in given["skews"].split(",")]
        self.chance = chance
        self._rate = float(given["rate"])
        self._has_faults = given["faults"] == "1"
        self.is_quiet = True  # no faults but those of operations, and no interleaving
        self.metadata = SimMetadata(self.now_ms)
        self.tables = SharedTables()
        self.disk = Disk(("/data", MESSAGES, TRANSACTIONS))
        self.slots = [Slot(f"s{n + 1}", skews[n]) for n in range(int(given["servers"]))]
        self.transactions = ObservedTransactions()
        self.topics = [
            ObservedTopic(TopicId("default", name), deleted, self.transactions.committed_ms)
            for name, deleted in TOPICS.items()
        ]
        self.clients = Clients(self)
        self.trace: list[str] = []
        self.ended: dict[str, int] = {}  # why processes ended, for the statistics
        self._errors: list[BaseException | str] = []
        self._moment = 0
        self._depth = 0
        self._network: list[Exchange] = []
        self._waiting: list[Exchange] = []  # received, and not answered yet
        self.late_calls: dict[str, list[int]] = {}  # by path: how many ms the next ones are late
        self._late: list[tuple[int, Exchange]] = []  # given up by their senders; when they arrive
        self._building: Process | None = None
        self._processes: list[Process] = []  # all that ever ran

    # Time and chance.

    def moment(self) -> int:
        self._moment += 1
        return self._moment

    def now_ms(self) -> int:
        """The virtual time since boot, which no server's clock shows."""
        return self.slots[0].clock.boot_ms()

    def fails(self, share: float) -> bool:
        return self._has_faults and not self.is_quiet and self.chance.random() < share

    # Servers.

    @property
    def running(self) -> list[Process]:
        """The processes that are alive, also those that are paused."""
        found = (slot.process for slot in self.slots)
        return [each for each in found if each is not None and each.is_alive]

    @property
    def open(self) -> list[Process]:
        return [each for each in self.running if each.is_open]

    def start(self, slot: Slot) -> None:
        if slot.process is None or not slot.process.is_alive:
            self._note_end(slot.process)
            slot.process = Process(self, slot.server_id, slot.clock, _settings(slot.server_id))
            self._processes.append(slot.process)

    @contextmanager
    def building(self, process: Process) -> Iterator[None]:
        """Components that are made now belong to this process."""
        self._building = process
        yield
        self._building = None

    @contextmanager
    def mounted(self) -> Iterator[None]:
        """Components use the simulated tables and metadata, and not those that the settings
        name."""

        def opener(*_: object, **__: object) -> Callable[[], Engine]:
            assert self._building is not None
            return self._building.opener

        def member(
            settings: Settings, runtime: Any, messaging: Any, _: object, **given: Any
        ) -> Any:
            assert self._building is not None
            return self._building.member(settings, runtime, messaging, **given)

        with (
            patch.object(components, "store_opener", opener),
            patch.object(cluster_member, "make_member", member),
        ):
            yield

    def begin(self) -> None:
        """Start all servers, create the topics, and wait for the leader of transactions."""
        for slot in self.slots:
            self.start(slot)
        self.settle()
        for _ in range(10):
            if len(self.open) == len(self.slots):
                break
            self.pass_time(SLICE_MS)
            self.settle()
        for topic in self.topics:
            self.require_done(partial(self.clients.create, topic=topic))
        self.require_done(self.clients.start)  # until the other servers acknowledged a leader
        self.is_quiet = False

    # Running.

    def run(self, step_count: int) -> None:
        """Run so many steps, or until everything waits for time."""
        for _ in range(step_count):
            ready = [each for each in self.running if each.can_run]
            count = len(ready) + bool(self._network)
            if not count:
                break
            picked = below(count, self.chance)
            if picked < len(ready):
                ready[picked].step(self.chance)
            else:
                self._deliver()
        self.look()

    def settle(self) -> None:
        """Run until everything waits for time. Raises: StuckError."""
        self.run(SETTLE_STEPS_MAX)
        if any(each.can_run for each in self.running) or self._network:
            raise StuckError("the cluster does not become idle")

    def look(self) -> None:
        """Raises: an uncaught error of a task."""
        for each in self.running:
            self.note_errors(each.loop)
        for error in self._errors:
            raise error if isinstance(error, BaseException) else BrokenPromiseError(error)

    def note_errors(self, loop: VirtualLoop) -> None:
        """Keep the uncaught errors of the tasks of a process."""
        self._errors += [each for each in loop.errors if not isinstance(each, SystemExit)]
        loop.errors.clear()

    def pass_time(self, ms: int) -> None:
        """Let time pass, with everything that happens meanwhile."""
        while True:
            part_ms = min(ms, SLICE_MS)
            for slot in self.slots:
                slot.clock.advance(part_ms)
            self._end_sessions()
            self._deliver_late()
            for each in self.running:
                each.time_passed()
                if part_ms == SLICE_MS:
                    each.tick()
                    self._maybe_settle(each)
            self._time_out()
            ms -= part_ms
            if not ms:
                return
            self.run(SLICE_STEPS)

    def _maybe_settle(self, process: Process) -> None:
        if self.chance.random() < 0.5:
            process.settle()

    def _time_out(self) -> None:
        for exchange in (*self._network, *self._waiting):
            if exchange.until_ms <= self.now_ms():
                exchange.fail("it did not answer in time", was_sent=True)

    def interleave(self, caller: Process) -> None:
        """A call of this process is under way, and others run meanwhile."""
        if self.is_quiet or self._depth >= DEPTH_MAX or events._get_running_loop() is not None:
            return
        if self.chance.random() >= self._rate:
            return
        self._depth += 1
        try:
            if self.chance.random() < LONG_STOP_SHARE:
                self.pass_time(LONG_STOP_MS)
            self.run(1 + below(80, self.chance))
        finally:
            self._depth -= 1

    def request(self, process: Process, work: Work) -> None:
        """Send a request to a process; one that has ended refuses it."""
        if process.is_alive:
            process.spawn(work)
            return
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # it never began
            work.close()

    def send(self, exchange: Exchange) -> None:
        self._network.append(exchange)

    # Ends of sessions.

    def expire(self, process: Process, *, is_heard: bool) -> None:
        """The store ends the session of a server that runs."""
        session = process.metadata.session
        if session is not None and session.ended_at is None:
            self.metadata.end(session)
            process.hears_late = not is_heard

    def _end_sessions(self) -> None:
        for each in self._processes:
            session = each.metadata.session
            if session is None:
                continue
            is_heard = (
                each.is_alive
                and not each.is_paused
                and not each.is_running
                and each.reaches("metadata")
            )
            if session.pass_time(is_heard=is_heard, learns=not each.hears_late):
                each.hears_late = self.chance.random() < 0.3

    # The network.

    def _deliver(self) -> None:
        exchange = self._network.pop(below(len(self._network), self.chance))
        if exchange.reply is None:
            lates = self.late_calls.get(exchange.target)
            late_ms = lates.pop(0) if lates else None
            if late_ms is None and self.fails(LATE_SHARE):
                late_ms = below(LATE_MS_MAX, self.chance)
            if late_ms is not None:
                exchange.fail("the connection was lost", was_sent=True)
                self._late.append((self.now_ms() + late_ms, exchange))
            else:
                self._receive(exchange)
        elif exchange.done.done() or not exchange.source.is_alive:
            return
        elif self._is_cut(exchange, "peers", "replies") or self.fails(LOST_SHARE):
            exchange.fail("the connection was lost", was_sent=True)
        else:
            exchange.done.set_result(exchange.reply)

    def _deliver_late(self) -> None:
        """The requests whose time has come arrive, though their senders gave up or ended."""
        now_ms = self.now_ms()
        self._network += [exchange for due_ms, exchange in self._late if due_ms <= now_ms]
        self._late = [each for each in self._late if each[0] > now_ms]

    def _receive(self, exchange: Exchange) -> None:
        server = next((each for each in self.open if each.url == exchange.url), None)
        exchange.server = server
        if server is None or self._is_cut(exchange, "peers"):
            exchange.fail("it can't be reached", was_sent=False)
            return
        self._waiting.append(exchange)
        server.spawn(self._serve(server, exchange))

    async def _serve(self, server: Process, exchange: Exchange) -> None:
        exchange.reply = await server.answer(exchange.method, exchange.target, exchange.request)
        self._waiting.remove(exchange)
        self._network.append(exchange)

    def _is_cut(self, exchange: Exchange, *systems: str) -> bool:
        ends = (exchange.source, exchange.server)
        return any(each is not None and not each.cut_from.isdisjoint(systems) for each in ends)

    def note_end(self) -> None:
        """Processes may have ended: their connections break."""
        for exchange in list(self._waiting):
            assert exchange.server is not None
            if not exchange.server.is_alive:
                self._waiting.remove(exchange)
                exchange.fail("the connection was lost", was_sent=True)

    def _note_end(self, process: Process | None) -> None:
        if process is not None and process.ended_for is not None:
            reason = process.ended_for.split(":")[0].split(" /")[0]
            self.ended[reason] = self.ended.get(reason, 0) + 1

    def note_broken(self, sentence: str) -> None:
        """A process broke a promise."""
        self._errors.append(sentence)

    def note_ack(self, process: Process, topic: TopicId, epoch: int, message_id: bytes) -> None:
        """A server acknowledged a message, and owned the topic in this epoch."""
        cluster = process.components.cluster
        assert cluster is not None
        identity = cluster.joined().identity
        owner = identity.server_id, identity.incarnation
        found = next(each for each in self.topics if each.id == topic)
        found.acks.append(Ack(epoch, owner, message_id))

    # The end of a history.

    def heal(self) -> None:
        """End all faults, and start every server that does not run."""
        self.metadata.is_away = False
        for each in self.running:
            each.cut_from.clear()
            each.hears_late = False
            each.is_paused = False
            each.threads.resume()
        for slot in self.slots:
            self.start(slot)

    def end(self) -> None:
        """After the faults, everything is available again, and nothing is lost."""
        self.is_quiet = True
        self.late_calls.clear()
        self.heal()
        self._end_transactions()
        self._check_adopted()
        self._move_all()
        self._check_adopted()
        self._become_available()
        self._end_after_moves()
        self._set_aside()
        self.pass_time(READ_LEASE_MS)  # from here on, no read may be old
        self.settle()
        for topic in self.topics:
            self._read_through(topic)
            topic.check_prepared()
            topic.check_epochs()
        for tx in list(self.transactions.by_id.values()):
            self.require_done(partial(self.clients.ask, tx=tx))
        self.transactions.check_snapshots()
        self._check_generations()

    def require_done(
        self,
        work: Callable[[Process], Work],
        *,
        until_ms: int | None = None,
        through: Slot | None = None,
    ) -> None:
        """Send a request to this server, or to any, until its result is true, or a reply with
        success. Raises: BrokenPromiseError: that takes too long."""
        until_ms = self.now_ms() + AVAILABLE_MS_MAX if until_ms is None else until_ms
        while not self._succeeds(work, through):
            if self.now_ms() >= until_ms:
                raise BrokenPromiseError(
                    f"available: {_name(work)} without success {AVAILABLE_MS_MAX} ms after faults "
                    f"through {through and through.server_id}: {self.clients.refusals}"
                )
            self.pass_time(SLICE_MS)
            self.heal()
            self.settle()

    def _succeeds(self, work: Callable[[Process], Work], through: Slot | None) -> bool:
        found = [each for each in self.open if through is None or each is through.process]
        if not found:
            return False
        process = found[below(len(found), self.chance)]
        task = process.loop.create_task(work(process))
        self._settle_or_wait(lambda: task.done() or not process.is_alive)
        if not task.done() or task.cancelled():
            return False
        result = task.result()
        return bool(result) and not (isinstance(result, Reply) and result.status >= 300)

    def _settle_or_wait(self, is_done: Callable[[], bool]) -> None:
        self.settle()
        for _ in range(10):
            if is_done():
                return
            self.pass_time(SLICE_MS)
            self.settle()

    def _check_adopted(self) -> None:
        """Every topic gets an owner, although nobody asks for it. Raises: BrokenPromiseError."""
        until_ms = self.now_ms() + ADOPTED_MS_MAX
        while missing := self._topics_without_an_owner():
            if self.now_ms() >= until_ms:
                raise BrokenPromiseError(
                    f"adopted: nobody serves {missing} after {ADOPTED_MS_MAX} ms without faults"
                )
            self.pass_time(SLICE_MS)
            self.heal()
            self.settle()

    def _topics_without_an_owner(self) -> list[TopicId]:
        served = {topic for each in self.open for topic in each.ownership.topics()}
        claimed = (each.id.unit for each in self.topics if self._was_claimed(each.id.unit))
        return [topic for topic in claimed if topic not in served]

    def _was_claimed(self, topic: TopicId) -> bool:
        return self.metadata.now(("persistence", topic.namespace, topic.name)) is not None

    def _become_available(self) -> None:
        until_ms = self.now_ms() + AVAILABLE_MS_MAX
        for topic in self.topics:
            if topic.may_be_deleted:
                self.require_done(partial(self._create_again, topic), until_ms=until_ms)

            for slot in self.slots:

                async def publish(process: Process, topic: ObservedTopic = topic) -> bool:
                    return (await self.clients.publish(process, topic)).id is not None

                self.require_done(publish, until_ms=until_ms, through=slot)
        for slot in self.slots:
            self.require_done(self.clients.start, until_ms=until_ms, through=slot)

    def _end_transactions(self) -> None:
        """Every commit and abort returns, also a repeated one, and the rows of all transactions are
        settled or marked, though no client asks for their topics. Raises: BrokenPromiseError."""
        until_ms = self.now_ms() + AVAILABLE_MS_MAX
        for tx in list(self.transactions.by_id.values()):
            self.require_done(partial(self.clients.end, tx=tx), until_ms=until_ms)
        self.require_done(self._have_ended, until_ms=until_ms)

    def _end_after_moves(self) -> None:
        """A transaction ends though all of its topics have just moved, and no client asks for them
        afterwards. Raises: BrokenPromiseError."""
        self.require_done(self.clients.start)
        tx = self.transactions.open[-1]
        for topic in self.topics:
            for slot in self.slots:  # each server remembers the owner then
                publish = partial(self.clients.publish, topic=topic, tx=tx)
                self.require_done(publish, through=slot)
        self._move_all()
        self.require_done(partial(self.clients.abort, tx=tx))

    def _set_aside(self) -> None:
        """A prepared transaction holds readers back no longer than `max_block`, and its messages
        arrive if it commits, whichever servers end and whichever topics move meanwhile. Raises:
        BrokenPromiseError."""
        self.require_done(self.clients.start)
        tx = self.transactions.open[-1]
        self.require_done(partial(self.clients.prepare, tx=tx, topics=self.topics))
        for topic in self.topics:

            async def publish(process: Process, topic: ObservedTopic = topic) -> bool:
                return (await self.clients.publish(process, topic)).id is not None

            self.require_done(publish)
        self.pass_time(MAX_BLOCK_MS + 2 * SLICE_MS)
        for topic in self.topics:
            self.require_done(partial(self._read_to_the_end, topic, is_committed=True))
        match below(4, self.chance):
            case 0:
                self.running[0].kill()
            case 1:
                self._move_all()
        self.require_done(partial(self.clients.end, tx=tx))
        self.require_done(self._have_ended)

    def _move_all(self) -> None:
        for process in self.open:
            others = [each for each in self.open if each is not process]
            for topic_id in process.ownership.topics() if others else ():
                to = others[below(len(others), self.chance)]
                self.request(process, willing(process.ownership.move(topic_id, to.server_id)))
        self.settle()

    async def _have_ended(self, _: Process) -> bool:
        leading = [each.transaction_rows for each in self.open if each.transaction_rows.epoch]
        return not any(each.indexed_pointers() for each in leading)

    async def _create_again(self, topic: ObservedTopic, process: Process) -> bool:
        reply = await self.clients.create(process, topic)
        return reply.status < 300 or b"topic_already_exists" in reply.body

    def _read_through(self, topic: ObservedTopic) -> None:
        for slot in self.slots:
            for is_committed in (False, True):
                read = partial(self._read_to_the_end, topic, is_committed=is_committed)
                self.require_done(read, through=slot)

    async def _read_to_the_end(
        self, topic: ObservedTopic, process: Process, *, is_committed: bool
    ) -> bool:
        start, end = None, b""
        while start != end:  # a reply may have a part
            read = await self.clients.read(process, topic, end, is_committed=is_committed)
            if read is None or read.is_caught_up:
                return read is not None
            start, end = end, read.next_id
        return False

    def _check_generations(self) -> None:
        """The recorded generation of each topic, by which servers list it, is that of its owner.
        Raises: BrokenPromiseError."""
        self.pass_time(2 * SLICE_MS)
        self.settle()
        for topic in self.topics:
            value = self.metadata.now(("persistence", topic.id.namespace, topic.id.unit.name))
            assert value is not None
            recorded = json.loads(value)["generation"]
            for each in self.open:
                if topic.id.unit in each.ownership.topics():
                    generation = each.ownership._handover.generation(topic.id.unit)
                    if recorded != generation:
                        raise BrokenPromiseError(
                            f"generation: {topic.id} has {generation}, and {recorded} is recorded"
                        )


async def willing(work: Work) -> None:
    """A request whose refusal is ignored."""
    with suppress(TuffError, MetadataError):
        await work


def _name(work: Callable[[Process], Work]) -> str:
    return str(getattr(getattr(work, "func", work), "__name__", ""))


@cache
def _settings(server_id: str) -> Settings:
    return load(
        None,
        (
            "messaging.store=hbase",
            "server.max_request_bytes=1000000",
            f"cluster.server_id={server_id}",
            "cluster.metadata=hbase",
            f"cluster.transactions_directory={Path(TRANSACTIONS)}",
        ),
    )
