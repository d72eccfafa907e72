"""Servers of a cluster in one process, with real message stores over shared tables, a real
transaction service on each, and a network, owners and leaders that a test controls."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

from cluster.calls import Calls
from cluster.peers import Owner, PeerRefusedError, PeerUnansweredError
from cluster.transaction_rows_client import TransactionRowsClient
from cluster.transaction_rows_service import TransactionRowsService
from cluster.transactions_client import TransactionsClient
from cluster.transactions_service import TransactionsService
from kernel.event_loop import Arrivals
from kernel.owner_floor import NO_FLOOR, Floor, Identity
from kernel.requests_and_replies import Caller, Request
from messaging.log.delayed_due_times import Due
from messaging.log.loading import load_index
from messaging.log.state_in_memory import OpenStore, StoreState
from messaging.read.poll import Poll
from messaging.service import MessagingService
from messaging.settings import MessagingSettings
from messaging.topic_handover import TopicHandover
from messaging.write.write_queue import WriteQueue
from metadata.member_records import ServerInfo
from tests.cluster.shared_store import SharedTables
from tuff.protocol.errors import (
    OwnershipMovingError,
    TransactionsUnavailableError,
    TuffError,
    from_problem,
)
from tuff.protocol.ids import TopicId
from tuff.protocol.requests import Delay, Isolation, PublishRequest
from tx.calls import StartRequest
from tx.leadership import NotLeaderError
from tx.outcomes import OpenTransaction
from tx.service import TransactionManager
from tx.settings import TransactionSettings

T = TypeVar("T")
NOON_MS = 1_480_000_000_000
STORE_ID = "00112233445566778899aabbccddeeff"
RETRY_S = 0.001
WITHIN_S = 60.0  # seconds; what a test waits for comes much earlier


async def in_thread(function: Callable[[], T]) -> T:
    await asyncio.sleep(0)
    return function()


async def turns(count: int = 50) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@dataclass(frozen=True)
class Sent:
    """A call on its way."""

    source: str
    target: str
    name: str
    body: Mapping[str, Any]
    within_s: float = 1.0


class Network:
    """`loses_request` and `loses_reply` say which calls are lost; `before` and `after` are awaited
    around the execution of each call. What is lost was sent, so its outcome is unknown."""

    def __init__(self) -> None:
        self.servers: dict[str, Server] = {}
        self.loses_request: Callable[[Sent], bool] = lambda _sent: False
        self.loses_reply: Callable[[Sent], bool] = lambda _sent: False
        self.doubles: Callable[[Sent], bool] = lambda _sent: False
        self.before: Callable[[Sent], Awaitable[None]] = _nothing
        self.after: Callable[[Sent], Awaitable[None]] = _nothing
        self.calls: list[Sent] = []

    async def carry(self, source: "Server", sent: Sent) -> object:
        self.calls.append(sent)
        if source.is_dead:
            await asyncio.Event().wait()
        target = self.servers.get(sent.target)
        if target is None or target.is_dead:
            raise PeerUnansweredError(f"{sent.target} is not there", was_sent=False)
        await asyncio.sleep(0)
        await self.before(sent)
        if self.loses_request(sent):
            raise PeerUnansweredError(f"{sent.name} was lost", was_sent=True)
        if self.doubles(sent):
            target.spawn(self._quietly(target, sent))
        task = target.spawn(self._execute(target, sent))
        await asyncio.wait([task])
        if task.cancelled() or target.is_dead:
            raise PeerUnansweredError(f"{sent.target} died", was_sent=True)
        await self.after(sent)
        if self.loses_reply(sent):
            raise PeerUnansweredError(f"the reply of {sent.name} was lost", was_sent=True)
        return task.result()

    async def refusal(self, target: "Server", sent: Sent) -> TuffError:
        """The refusal of a call that arrives now."""
        result = await self._execute(target, sent)
        assert isinstance(result, PeerRefusedError)
        return result.error

    async def _execute(self, target: "Server", sent: Sent) -> object:
        body = json.dumps(sent.body).encode()
        request = Request({}, (), "application/json", None, body)
        try:
            reply = await target.handlers[f"/v1/cluster/{sent.name}"](request)
        except TuffError as error:
            return PeerRefusedError(from_problem(error.problem(), status=error.status))
        return json.loads(reply.body)

    async def _quietly(self, target: "Server", sent: Sent) -> None:
        await self._execute(target, sent)


async def _nothing(_sent: Sent) -> None:
    return


class _Line:
    """The connections of one server (`cluster.calls.Asks`)."""

    def __init__(self, network: Network, source: "Server") -> None:
        self._network, self._source = network, source

    async def ask(
        self, base_url: str, method: str, path: str, body: Any = None, *, within_s: float
    ) -> object:
        assert method == "POST"
        name = path.removeprefix("/v1/cluster/")
        sent = Sent(
            self._source.id, base_url.removeprefix("http://"), name, json.loads(body), within_s
        )
        result = await self._network.carry(self._source, sent)
        if isinstance(result, PeerRefusedError):
            raise result
        return result


class Cluster:
    """What the metadata store would hold: who is alive, who owns, who leads."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tables = SharedTables()
        self.tables.adopt("c")
        self.network = Network()
        self.now_ms = NOON_MS
        self.servers: dict[str, Server] = {}
        self.incarnations: dict[str, int] = {}
        self.owners: dict[TopicId, str] = {}
        self.floors: dict[TopicId, Floor] = {}
        self.moving: dict[TopicId, asyncio.Lock] = {}
        self.epoch = 0
        self.leader: Server | None = None
        self.lives: list[Server] = []

    async def start(self, *names: str, topics: Mapping[TopicId, str]) -> None:
        """Servers with topics; the first one leads."""
        for name in names:
            await self.join(name)
        for topic, name in topics.items():
            await self.servers[name].handover.take([topic], NO_FLOOR)
            self.owners[topic] = name
            await self.servers[name].messaging.topics.create(topic, {})
        await self.elect(names[0])

    async def join(self, name: str) -> "Server":
        self.incarnations[name] = self.incarnations.get(name, 0) + 1
        server = Server(self, name, self.incarnations[name])
        self.lives.append(server)
        await server.open()
        self.servers[name] = self.network.servers[name] = server
        return server

    async def elect(self, name: str) -> "Server":
        """Make this server the leader, and wait until it is."""
        server = self.servers[name]
        self.epoch += 1
        self.leader = server
        await asyncio.wait_for(server.lead(self.epoch), WITHIN_S)
        assert server.manager.status.state.value == "running", server.manager.status
        return server

    async def move(self, topic: TopicId, name: str) -> None:
        async with self.lock(topic):
            floor = await self.servers[self.owners[topic]].handover.give(topic)
            self.floors[topic] = self.floors.get(topic, NO_FLOOR).raised_to(floor)
            await self._take(topic, self.servers[name])

    async def _take(self, topic: TopicId, server: "Server") -> None:
        await server.handover.take([topic], self.floors.get(topic, NO_FLOOR))
        self.owners[topic] = server.id

    def lock(self, topic: TopicId) -> asyncio.Lock:
        return self.moving.setdefault(topic, asyncio.Lock())

    async def owner(self, topic: TopicId) -> "Server":
        """The server that owns the topic; if that has ended, another one claims it."""
        found = await next(iter(self.servers.values())).view.read_or_claim(topic)
        name = self.owners[topic] if found is None else found.server_id
        if name not in self.servers:
            raise OwnershipMovingError(f"{name} has just ended")
        return self.servers[name]

    async def claim(self, topic: TopicId, server: "Server") -> None:
        """Take a topic whose owner has ended."""
        for life in self.lives:
            if life.id == self.owners[topic] and life.is_dead:
                floor = self.fence(life.id, life.incarnation)
                self.floors[topic] = self.floors.get(topic, NO_FLOOR).raised_to(floor)
        await self._take(topic, server)

    def is_owner_alive(self, topic: TopicId) -> bool:
        owner = self.servers.get(self.owners[topic])
        return owner is not None and topic in owner.handover.topics()

    def fence(self, server_id: str, incarnation: int) -> Floor:
        return self.tables.fence(server_id, incarnation, now_ms=lambda: self.now_ms)

    def fence_ended(self) -> None:
        for name, newest in self.incarnations.items():
            alive = self.servers.get(name)
            for each in range(1, newest + 1):
                if alive is None or alive.incarnation != each:
                    self.fence(name, each)

    def is_alive(self, server_id: str, incarnation: int) -> bool:
        found = self.servers.get(server_id)
        return found is not None and found.incarnation == incarnation

    def members(self) -> dict[str, ServerInfo]:
        return {
            name: ServerInfo(
                server_id=name,
                address=f"http://{name}",
                incarnation=each.incarnation,
                started_ms=0,
                topics=0,
                is_draining=False,
                reaches_hbase=False,
                reaches_directory=False,
            )
            for name, each in self.servers.items()
        }

    async def kill(self, name: str) -> None:
        """The process ends at once, and so does its session."""
        server = self.servers.pop(name)
        await server.kill()
        if self.leader is server:
            self.leader = None

    async def tick(self, ms: int = 1000) -> None:
        """Let time pass, and everything that follows."""
        self.now_ms += ms
        for server in list(self.servers.values()):
            await server.tick()
        await turns()

    async def until(self, is_true: Callable[[], bool]) -> None:
        async with asyncio.timeout(WITHIN_S):
            while not is_true():
                await self.tick(1)

    async def close(self) -> None:
        for server in self.lives:
            await server.kill()


class _View:
    """Owners and the leader, as one server sees them."""

    def __init__(self, cluster: Cluster, server: "Server") -> None:
        self._cluster, self._server = cluster, server
        self.stale_leader: Owner | None = None  # if the server has not noticed the newest
        self._remembered: dict[TopicId, Owner] = {}

    def forget(self, topic: TopicId) -> None:
        self._remembered.pop(topic, None)

    async def owner_of(self, topic: TopicId, *, is_forwarded: bool, creates: bool) -> Owner | None:
        found = None if is_forwarded else self._remembered.get(topic)
        if found is None or found.server_id not in self._cluster.servers:
            found = await self.read_or_claim(topic)
            if found is not None:
                self._remembered[topic] = found
        return found

    async def read_or_claim(self, topic: TopicId) -> Owner | None:
        cluster = self._cluster
        await asyncio.sleep(0)
        async with cluster.lock(topic):
            if topic not in cluster.owners:
                raise OwnershipMovingError(f"{topic} is moving")
            if not cluster.is_owner_alive(topic):
                claiming = self._server.spawn(cluster.claim(topic, self._server))
                await asyncio.wait([claiming])
                if claiming.cancelled():
                    raise OwnershipMovingError(f"{self._server.id} ended during a claim")
                claiming.result()
            name = cluster.owners[topic]
        return None if name == self._server.id else Owner(name, f"http://{name}")

    async def note_change(self, topic: TopicId) -> None:
        return

    def leader(self) -> Owner | None:
        if self.stale_leader is not None:
            return self.stale_leader
        leader = self._cluster.leader
        if leader is None:
            raise TransactionsUnavailableError("no server leads transactions")
        return None if leader is self._server else Owner(leader.id, f"http://{leader.id}")


class _Tenancy:
    def __init__(self, cluster: Cluster, server: "Server", epoch: int) -> None:
        self._cluster, self._server, self.epoch = cluster, server, epoch

    def require(self) -> None:
        if self._cluster.epoch != self.epoch or self._server.is_dead:
            raise NotLeaderError("another server leads transactions")


class Server:
    """One life of a server."""

    def __init__(self, cluster: Cluster, server_id: str, incarnation: int) -> None:
        self.cluster, self.id, self.incarnation = cluster, server_id, incarnation
        self.is_dead = False
        self.tasks: set[asyncio.Task[Any]] = set()
        self.opener = cluster.tables.opener(server_id, incarnation, now_ms=lambda: cluster.now_ms)
        self.writes, self.log = asyncio.Event(), asyncio.Event()
        self.writes.set()
        self.log.set()
        self.messaging = self._make_messaging()
        self.committer = self.messaging.committer
        self.handover = TopicHandover(
            self.messaging.store, self.messaging.state, self.messaging.committer
        )
        self.view = _View(cluster, self)
        joined = SimpleNamespace(
            identity=Identity("c", server_id, incarnation),
            ownership=self.view,
            election=self.view,
            membership=cluster,
        )
        calls = Calls(_Line(cluster.network, self))
        self.transactions = TransactionsClient(lambda: joined, calls, spawn=self.spawn)
        self.transactions.begin(cluster.epoch)
        self.owned = TransactionRowsService(
            lambda: joined, self.transactions, self.messaging.rows, spawn=self.spawn
        )
        self.rows = TransactionRowsClient(
            lambda: joined,
            calls,
            self.messaging.rows,
            self.owned,
            shared_index=lambda: self.messaging.store.read(load_index),
            in_thread=in_thread,
            spawn=self.spawn,
            retry_s=RETRY_S,
        )
        self.manager = self._make_manager()
        self.leading = TransactionsService(self.manager, self.rows, self.owned, spawn=self.spawn)
        calls.serve({**self.owned.handlers(), **self.leading.handlers()})
        self.handlers = {route.operation.path: route.handler for route in calls.routes()}

    def _make_messaging(self) -> MessagingService:
        store = OpenStore(self.opener, in_thread_write=self.write_thread, in_thread_read=in_thread)
        state = StoreState(
            now_ms=lambda: self.cluster.now_ms,
            may_delete=lambda: True,
            due=lambda: Due(self.cluster.now_ms),
            settings=MessagingSettings(tail_bytes_max=1 << 20),
            longest_transaction_s=100.0,
            is_shared=True,
        )
        committer = WriteQueue(
            store, state, arrivals=Arrivals(), observe=_unobserved, elapsed_s=lambda: 0.0
        )
        return MessagingService(store, state, committer, MessagingSettings(), observe=_unobserved)

    def _make_manager(self) -> TransactionManager:
        return TransactionManager(
            self.cluster.directory,
            TransactionSettings(),
            rows=self.rows,
            max_block_s=30,
            now_ms=lambda: self.cluster.now_ms,
            elapsed_s=lambda: 0.0,
            in_thread_log=self.log_thread,
            in_thread_files=in_thread,
            arrivals=Arrivals(),
            spawn=self.spawn,
            store_id=lambda: STORE_ID,
        )

    async def write_thread(self, function: Callable[[], T]) -> T:
        await self.writes.wait()
        return await in_thread(function)

    async def log_thread(self, function: Callable[[], T]) -> T:
        await self.log.wait()
        return await in_thread(function)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        if self.is_dead:
            task.cancel()
        return task

    async def open(self) -> None:
        await self.messaging.open(self.transactions)
        assert self.messaging.store.is_up, self.messaging.store.reason
        self.spawn(self.committer.run())
        self.spawn(self.messaging.delayed.run())
        self.spawn(self.manager.durable.run())

    async def lead(self, epoch: int) -> None:
        await self.rows.prepare(epoch)
        await self.manager.open(None, leadership=_Tenancy(self.cluster, self, epoch))

    async def tick(self) -> None:
        if self.rows.epoch == self.cluster.epoch:
            await self.manager.tick()
        await self.messaging.tick()
        await self.leading.tick()

    async def kill(self) -> None:
        self.is_dead = True
        tasks = list(self.tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # What a client asks.

    async def begin(self, caller: Caller | None = None) -> OpenTransaction:
        return await self.manager.runner.start(
            StartRequest(timeout_s=300, client="c", caller=caller)
        )

    async def publish(self, topic: TopicId, *payloads: bytes, pointer: int | None = None) -> None:
        request = PublishRequest(pointer=pointer, payloads=payloads)
        await self.messaging.publisher.publish(topic, request)

    async def publish_later(
        self, topic: TopicId, *payloads: bytes, delay_ms: int, pointer: int | None = None
    ) -> None:
        delays = [Delay(delay_ms, is_time=False)] * len(payloads)
        request = PublishRequest(pointer=pointer, payloads=payloads, delays=delays)
        await self.messaging.publisher.publish(topic, request)

    async def committed(self, topic: TopicId) -> list[bytes]:
        """What a reader in a new snapshot gets."""
        poll = Poll(isolation=Isolation.COMMITTED)
        return [each for _, each in (await self.messaging.polls.poll(topic, poll)).items]

    async def everything(self, topic: TopicId) -> list[bytes]:
        return [each for _, each in (await self.messaging.polls.poll(topic, Poll())).items]


def _unobserved(_name: str, _figure: float) -> None:
    return
