"""Servers of a cluster in one process, as an operator sees them: real ownership of topics over one
metadata store, real routes and sockets. The messages are a model: a set of loaded topics."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from cluster.draining import Drain
from cluster.forwarding import topic_route
from cluster.joined_cluster import JoinedCluster
from cluster.leader_election import Election
from cluster.membership import Membership
from cluster.operator_routes import live_topics, routes
from cluster.peers import Peers
from cluster.reach import Reach
from cluster.request_counts import RequestCounts, counted
from cluster.topic_claims import TopicClaims
from kernel.event_loop import Arrivals
from kernel.owner_floor import NO_FLOOR, Floor
from kernel.requests_and_replies import Reply, Request, Route, json_reply
from messaging.topic_changes import listing_routes
from metadata.store_interface import MetadataStore
from metadata.topic_owner_records import OwnerRecords
from metadata.topic_records import TopicRecords
from process.admission_and_dispatch import Admission, Dispatcher
from process.allowed_hosts import AllowedHosts
from process.cluster_metrics import of_cluster
from process.http_connection import HttpService
from process.listener import Listener
from process.metrics import Metric, Metrics
from process.metrics import routes as metric_routes
from tests.cluster.nodes import Spawned
from tuff.protocol.errors import StorageUnavailableError
from tuff.protocol.ids import TopicId
from tuff.protocol.operations import GET_TOPIC

CLUSTER_ID = "c" * 32
STARTED_MS = 1_700_000_000_000


class Loaded:
    """The topics that one server serves. `stuck` ones can't be given away."""

    def __init__(self) -> None:
        self.topics: set[TopicId] = set()
        self.stuck: set[TopicId] = set()

    async def take(self, topics: Iterable[TopicId], _floor: Floor) -> None:
        self.topics.update(topics)

    async def give(self, topic: TopicId) -> Floor:
        if topic in self.stuck:
            raise StorageUnavailableError("the tables do not answer")
        self.topics.remove(topic)
        return NO_FLOOR

    def generation(self, topic: TopicId) -> int:
        return 1 if topic in self.topics else 0


class Tables:
    """Tables in which nothing needs to be fenced."""

    def adopt(self, cluster_id: str) -> None:
        pass

    def fence(self, server_id: str, incarnation: int) -> Floor:
        return NO_FLOOR


@dataclass
class Server:
    """One server. `answered` has the names of the topics that its own handler showed."""

    joined: JoinedCluster
    loaded: Loaded
    listener: Listener
    peers: Peers
    port: int = 0
    answered: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def claim(self, *names: str) -> None:
        """Create these topics of the namespace `shop` here."""
        for name in names:
            topic = TopicId("shop", name)
            await self.joined.ownership.owner_of(topic, is_forwarded=True, creates=True)
        await self.look()

    async def look(self) -> None:
        """What a server does each second."""
        await self.joined.ownership.publish_load()
        await self.joined.ownership.refresh()
        self.joined.election.found = await asyncio.to_thread(self.joined.election.elect)


@asynccontextmanager
async def operated(store: MetadataStore, *names: str) -> AsyncIterator[list[Server]]:
    """Servers of these ids, which know each other. The first one leads transactions."""
    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(_server(store, name)) for name in names]
        for each in servers:
            await each.look()
        yield servers


@asynccontextmanager
async def _server(store: MetadataStore, server_id: str) -> AsyncIterator[Server]:
    spawned = Spawned()
    peers = Peers(spawn=spawned)
    made: list[Server] = []

    def joined() -> JoinedCluster:
        return made[0].joined

    listener = Listener(_service(joined, made, peers), connections_max=100)
    port = await listener.listen("127.0.0.1", 0)
    loaded = Loaded()
    joining = await asyncio.to_thread(
        _joined, store, server_id, f"http://127.0.0.1:{port}", loaded, spawned
    )
    made.append(Server(joining, loaded, listener, peers, port))
    try:
        yield made[0]
    finally:
        joining.ownership.is_draining = False
        for task in spawned.tasks:
            task.cancel()
        await peers.close()
        await listener.close(within_s=0)
        await asyncio.gather(*spawned.tasks, return_exceptions=True)


def _joined(
    store: MetadataStore, server_id: str, url: str, loaded: Loaded, spawned: Spawned
) -> JoinedCluster:
    membership = Membership(
        store,
        Tables(),
        server_id=server_id,
        address=url,
        messages="model",
        now_ms=lambda: STARTED_MS,
    )
    identity = membership.join(new_cluster_id=CLUSTER_ID, session_s=60.0, lost=lambda: None)
    owners, persistence = OwnerRecords(store), TopicRecords(store)
    ownership = TopicClaims(
        identity,
        membership,
        owners,
        persistence,
        loaded,
        in_thread=asyncio.to_thread,
        chance=lambda _count: 0,
    )
    election = Election(store, membership.metadata_session, identity, url)
    drain = Drain(ownership, spawn=spawned)
    return JoinedCluster(identity, membership, ownership, owners, persistence, election, drain)


def _service(joined, made: list[Server], peers: Peers) -> HttpService:
    metrics, counts = Metrics(), RequestCounts()
    admission = Admission(pending_max=100, waiting=lambda: 0, arrivals=Arrivals())
    admission.open()

    async def show(request: Request) -> Reply:
        made[0].answered.append(request.parameters["t"])
        return json_reply({"name": request.parameters["t"]})

    async def live(namespace: str | None) -> list[TopicId]:
        return await live_topics(joined().persistence, namespace, in_thread=asyncio.to_thread)

    reach = Reach(
        reaches_hbase=lambda: False,
        read_store_id=lambda: None,
        in_thread=asyncio.to_thread,
        spawn=lambda work: work.close(),
        elapsed_s=lambda: 0.0,
    )

    async def read_metrics() -> Iterable[Metric]:
        return of_cluster(made[0].joined if made else None, counts, reach)

    all_routes = [
        topic_route(Route(GET_TOPIC, show), joined, peers),
        *listing_routes(live),
        *routes(joined, peers, in_thread=asyncio.to_thread),
        *metric_routes(metrics, read_metrics),
    ]
    return HttpService(
        [counted(each, counts) for each in all_routes],
        (),
        Dispatcher(admission, metrics, elapsed_s=lambda: 0.0),
        AllowedHosts(),
        max_request_bytes=1_000,
        now_ms=lambda: STARTED_MS,
    )
