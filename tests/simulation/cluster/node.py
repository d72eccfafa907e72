"""A simulated server of a cluster: the real components of a process, from its start to its end."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from cluster.topic_claims import TopicClaims
from cluster.transaction_rows_client import TransactionRowsClient
from kernel.requests_and_replies import Reply, Request
from messaging.service import MessagingService
from process.clock import SteadyClock
from process.cluster_member import ClusterMember
from process.components import CannotJoinError, Components
from process.directory_locks import DataDirectories
from process.runtime import Runtime
from process.settings import Settings
from tests.simulation.cluster.metadata import CutOffError, SimMetadataStore
from tests.simulation.cluster.network import Router, SimPeers
from tests.simulation.cluster.tables import SimOpener
from tests.simulation.files import SimPath
from tests.simulation.loop import Clock, Threads, VirtualLoop, below
from tuff.protocol.ids import TopicId

if TYPE_CHECKING:
    from tests.simulation.cluster.world import World

Work = Coroutine[Any, Any, Any]
MESSAGES, TRANSACTIONS = "/data/messages", "/data/transactions"
CLUSTER_ID = "00112233445566778899aabbccddeeff"


class Process:
    """One process of a server. It ends by `kill`, or by itself: then `ended_for` says why.

    `cut_from` are the systems that it can't reach: metadata, tables, peers; or replies, if requests
    between it and its peers arrive.
    """

    def __init__(self, world: "World", server_id: str, clock: Clock, settings: Settings) -> None:
        self.world = world
        self.server_id = server_id
        self.url = f"http://{server_id}:7411"
        self.clock = clock
        self.loop = VirtualLoop(clock)
        self.threads = Threads(self.loop)
        self.steady = SteadyClock(wall_ns=clock.wall_ns, boot_ns=clock.boot_ns)
        self.is_paused = False
        self.is_running = False  # some frame of it is on the stack: a callback or a job
        self.ended_for: str | None = None
        self.cut_from: set[str] = set()
        self.hears_late = False  # the end of its session is not reported to it for now
        self.metadata = SimMetadataStore(world.metadata, self)
        self.peers = SimPeers(self, world.send)
        self.opener = SimOpener(world.tables, self, now_ms=self.steady.now_ms)
        self.is_open = False
        self._ticking: dict[str, asyncio.Task[Any]] = {}
        runtime = Runtime(
            clock=self.steady,
            elapsed_s=self.loop.time,
            new_store_id=lambda: CLUSTER_ID,
            spawn=self.spawn,
            spawn_writer=self.spawn,
            threads=self.threads,
            background=lambda _name: lambda _work: None,
            die=self._die,
        )
        with world.building(self):
            directories = DataDirectories(
                SimPath(world.disk, MESSAGES),
                SimPath(world.disk, TRANSACTIONS),
                (),  # type: ignore[arg-type]  # as much of a path as is used
            )
            self.components = Components(settings, directories, runtime)
        self._router = Router(self.components._routes())
        self.spawn(self._open())

    def member(
        self,
        settings: Settings,
        runtime: Runtime,
        messaging: MessagingService,
        *,
        transaction_files: Path,
        lost_leadership: Callable[[], str | None],
        secret: str | None,
    ) -> ClusterMember:
        """What `process.cluster_member.make_member` makes of a real process."""
        assert secret is None
        return ClusterMember(
            settings,
            runtime,
            messaging,
            tables=self.opener,  # type: ignore[arg-type]  # as much of HBaseOpener as is used
            peers=self.peers,  # type: ignore[arg-type]  # as much of Peers as is used
            open_metadata=lambda: self.metadata,
            transaction_files=transaction_files,
            lost_leadership=lost_leadership,
            chance=lambda count: below(count, self.world.chance),
        )

    # Running.

    @property
    def is_alive(self) -> bool:
        return self.ended_for is None

    @property
    def can_run(self) -> bool:
        """Whether a step of it can run now."""
        if self.ended_for is not None or self.is_paused or self.is_running:
            return False
        return not (self.loop.is_idle and self.threads.is_idle)

    def step(self, chance: random.Random) -> None:
        """Run some callbacks, or one job."""
        self.is_running = True
        try:
            if not self.loop.is_idle and (self.threads.is_idle or chance.random() < 0.7):
                self.loop.run(1 + below(30, chance))
            else:
                self.threads.run_one(chance)
        except SystemExit:
            pass
        finally:
            self.is_running = False
        if self.ended_for is not None:
            self._vanish()
            self.world.note_end()

    def spawn(self, work: Work) -> "asyncio.Task[Any]":
        return self.loop.create_task(self._noted(work))

    def time_passed(self) -> None:
        if self.ended_for is None and not self.is_paused:
            self.loop.time_passed()

    def tick(self) -> None:
        """Start the periodic ticks, each unless its last one is still running."""
        if not self.is_open or self.is_paused:
            return
        ticks = {
            "messages": self.components.tick_messages,
            "transactions": self.components.tick_transactions,
        }
        for name, tick in ticks.items():
            before = self._ticking.get(name)
            if before is None or before.done():
                self._ticking[name] = self.spawn(tick())

    @property
    def ownership(self) -> TopicClaims:
        assert self.components.cluster is not None
        return self.components.cluster.ownership

    @property
    def transaction_rows(self) -> TransactionRowsClient:
        """The rows of all servers, as this one knows them while it leads."""
        assert self.components.cluster is not None
        return self.components.cluster.transactions.rows

    async def stop(self) -> None:
        """A clean stop."""
        await self.components.drain()
        await self.components.close()
        self._die("stopped")

    def settle(self) -> None:
        """The background thread puts rows into the tables."""
        store = self.opener.store
        if store is not None and self.ended_for is None and "tables" not in self.cut_from:
            store.flush()

    def kill(self, reason: str = "killed") -> None:
        assert not self.is_running
        if self.ended_for is None:
            self.ended_for = reason
            self._vanish()
            self.world.note_end()

    async def answer(self, method: str, target: str, request: Request) -> Reply:
        """The reply of this process, or of the one to which it forwards."""
        topic = _published_topic(target)
        epoch = self._epoch_of(topic)
        reply = await self._router.answer(method, target, request)
        if reply.status < 500:
            self._require_proof(f"{method} {target}")
        if topic is not None and reply.status == 200 and epoch == self._epoch_of(topic):
            headers = dict(reply.headers)
            if epoch is not None and "Tuff-Owner" not in headers:
                first = bytes.fromhex(headers["Tuff-First-Id"])
                self.world.note_ack(self, topic, epoch, first)
        return reply

    def _require_proof(self, operation: str) -> None:
        """An answer promises that no other server had taken over, which only a session proves that
        the store has confirmed in time."""
        session = self.metadata.session
        if self.ended_for is None and (session is None or not session.is_live):
            self.world.note_broken(f"{self.server_id} is suspended, and answered {operation}")

    def _epoch_of(self, topic: TopicId | None) -> int | None:
        """The epoch in which this process owns a topic; None if it doesn't."""
        return None if topic is None else self.ownership.topics().get(topic.unit)

    # What the shared systems ask (`metadata.Caller`, `tables.Caller`).

    def before_call(self, system: str) -> None:
        self.world.interleave(self)
        if not self.reaches(system):
            raise CutOffError(f"{self.server_id} can't reach the {system}")

    def loses_request(self) -> bool:
        return self.world.fails(0.01)

    def loses_reply(self) -> bool:
        return self.world.fails(0.02)

    def lag(self, most: int) -> int:
        return below(most + 1, self.world.chance) if most and self.world.fails(0.1) else 0

    def hears_changes(self) -> bool:
        return self.ended_for is None and self.reaches("metadata")

    def reaches(self, system: str) -> bool:
        is_away = system == "metadata" and self.world.metadata.is_away
        return system not in self.cut_from and not is_away

    async def _open(self) -> None:
        try:
            await self.components.open(url=self.url)
        except CannotJoinError as error:
            self._die(str(error))
        self.is_open = True

    async def _noted(self, work: Work) -> None:
        # The server would only log an uncaught error of a background task; here it is a finding.
        try:
            await work
        except Exception as error:  # noqa: BLE001 - it is looked at by the checks
            self.loop.errors.append(error)

    def _die(self, reason: str) -> None:
        self.ended_for = self.ended_for or reason
        raise SystemExit

    def _vanish(self) -> None:
        self.metadata.forget_watches()
        self.world.note_errors(self.loop)  # later ones are of futures that nobody waits for
        self.loop.discard()


def _published_topic(target: str) -> TopicId | None:
    parts = target.split("/")
    return TopicId(parts[3], unquote(parts[5])) if parts[-1] == "publish" else None
