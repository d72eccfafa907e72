"""This server as one of a cluster: joins it, claims and releases topics, and takes part in the
election of the leader of transactions (decision 0042). A single server loads nothing of this.
"""

import asyncio
import logging
import math
import random
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from cluster.draining import Drain
from cluster.forwarding import (
    leader_route,
    proven_route,
    topic_route,
    topics_route,
)
from cluster.joined_cluster import JoinedCluster
from cluster.leader_election import KEY as LEADER_KEY
from cluster.leader_election import Election, FilesRecord, Tenancy
from cluster.membership import Membership
from cluster.operator_routes import live_topics
from cluster.operator_routes import routes as cluster_routes
from cluster.partitions_client import PartitionsClient
from cluster.peers import Peers
from cluster.reach import Reach, may_lead
from cluster.request_counts import RequestCounts, counted
from cluster.topic_claims import TopicClaims
from kernel.requests_and_replies import Route
from messaging.engines.engine_interface import Engine, StoreError
from messaging.engines.hbase.engine import HBaseOpener
from messaging.service import MessagingService
from messaging.topic_changes import listing_routes
from messaging.topic_handover import TopicHandover
from metadata.hbase_store import HBaseMetadataStore, create_table
from metadata.hbase_table import HBaseMetadataSettings
from metadata.member_records import ServerInfo
from metadata.store_interface import MetadataError, MetadataStore
from metadata.topic_owner_records import OwnerRecords
from metadata.topic_records import TopicRecords
from metadata.zookeeper_store import ZooKeeperStore
from process.cluster_metrics import of_cluster
from process.cluster_transactions import ClusterTransactions
from process.metrics import Metric
from process.runtime import Runtime
from process.settings import Settings, SettingsError
from process.watchdog import watch
from tuff.protocol.errors import (
    StartingError,
    TransactionsUnavailableError,
    TuffError,
    UnavailableError,
)
from tuff.protocol.ids import TopicId
from tuff.protocol.operations import WAIT_FOR_TOPICS, Server
from tx.file_headers import stored_id
from tx.service import TransactionManager

log = logging.getLogger(__name__)
T = TypeVar("T")

LOOK_S = 1.0  # seconds between two looks at the members and the leader, unless a watch calls first
RETRY_S = 10.0  # seconds until a topic that could not be claimed is tried again
# Seconds in the mean between two scans of all owner records although nothing has happened. With
# metadata in HBase, a server whose session has ended may claim a topic before it learns of that,
# and after the others have looked for its topics. If it never starts again, nothing else makes them
# look.
SCAN_S = 600.0
LEAVE_S_MAX = 4.0  # seconds in which a stop hands topics over; the rest is taken over afterwards
METADATA_THREADS = 8  # a slow call, or a fence, occupies one of them


def make_member(
    settings: Settings,
    runtime: Runtime,
    messaging: MessagingService,
    tables: Callable[[], Engine],
    *,
    transaction_files: Path,
    lost_leadership: Callable[[], str | None],
    secret: str | None,
) -> "ClusterMember":
    """The member that these settings describe. `tables` opens the tables in HBase, and
    `transaction_files` is the shared directory. `secret` proves this server to the others; None:
    there is no access control.

    Raises: SettingsError: the file of authorities is not valid.
    """
    assert isinstance(tables, HBaseOpener), "the settings require HBase"
    in_thread = runtime.threads("watchdog", 1, is_joined=False)
    in_thread(partial(watch, asyncio.get_running_loop(), runtime.die))
    return ClusterMember(
        settings,
        runtime,
        messaging,
        tables=tables,
        peers=Peers(spawn=runtime.spawn, secret=secret, tls=_tls(settings.cluster.tls_ca_file)),
        open_metadata=partial(_open_metadata, settings, runtime),
        transaction_files=transaction_files,
        lost_leadership=lost_leadership,
        chance=random.randrange,
    )


class ClusterMember:
    """Lives on the event loop; the metadata store is asked in threads.

    `tables` opens the tables in HBase. `open_metadata` opens the metadata store, in a thread.
    `transaction_files` is the shared directory. `lost_leadership` returns why this server can't
    lead transactions any more, None while it may; then the process ends at once (`runtime.die`),
    as another server may have replaced this one, and nothing may be answered any more.
    `chance(n)` is a number below n, each with the same probability.
    """

    def __init__(
        self,
        settings: Settings,
        runtime: Runtime,
        messaging: MessagingService,
        *,
        tables: HBaseOpener,
        peers: Peers,
        open_metadata: Callable[[], MetadataStore],
        transaction_files: Path,
        lost_leadership: Callable[[], str | None],
        chance: Callable[[int], int],
    ) -> None:
        self._lost_leadership = lost_leadership
        self._settings = settings.cluster
        self._runtime = runtime
        self._tables = tables
        self._messages = f"hbase {settings.hbase.prefix}"
        messaging.groups.log_changed = lambda log: self.ownership.note_change(log)
        self._handover = TopicHandover(messaging.store, messaging.state, messaging.committer)
        self.peers = peers
        messaging.groups.other_owners = PartitionsClient(self.joined, peers)
        self._open_metadata = open_metadata
        self._in_thread = runtime.threads("metadata", METADATA_THREADS)
        self.reach = _reach(runtime, messaging, transaction_files)
        self._die = runtime.die
        self._chance = chance
        self._counts = RequestCounts()
        self._changed = asyncio.Event()
        self._is_closed = False
        self._store: MetadataStore | None = None
        self._joined: JoinedCluster | None = None
        self._files_record: FilesRecord | None = None  # once this server leads
        self.transactions = ClusterTransactions(
            self.joined, peers, messaging, in_thread=self._in_thread, spawn=runtime.spawn
        )
        self._published: tuple[int, bool] | None = None
        self._published_reach = (False, False)  # of HBase and of the directory

    def joined(self) -> JoinedCluster:
        """Raises: StartingError: this server has not joined yet."""
        if self._joined is None:
            raise StartingError("the server is joining its cluster; try again soon")
        return self._joined

    @property
    def cluster_id(self) -> str:
        """The id of the cluster, which this server has joined."""
        return self.joined().identity.cluster_id

    @property
    def ownership(self) -> TopicClaims:
        """Raises: StartingError: this server has not joined yet."""
        return self.joined().ownership

    async def join(self, address: str) -> None:
        """Become a member, reached by the others at this URL. Raises: MetadataError, StoreError."""
        address = self._settings.address or address
        try:
            await self._in_thread(partial(self._join, address, asyncio.get_running_loop()))
            await self._look()
            self.transactions.begin()
        except (MetadataError, StoreError):
            await self._close_store()  # else its threads would keep the process
            raise

    def _join(self, address: str, loop: asyncio.AbstractEventLoop) -> None:
        store = self._store = self._open_metadata()
        membership = Membership(
            store,
            self._tables,
            server_id=self._settings.server_id,
            address=address,
            messages=self._messages,
            now_ms=self._runtime.clock.now_ms,
        )
        identity = membership.join(
            new_cluster_id=self._runtime.new_store_id(),
            session_s=self._settings.session_timeout_s,
            lost=lambda: _post(loop, self._lost),
        )
        self._tables.member = identity
        owners, persistence = OwnerRecords(store), TopicRecords(store)
        ownership = TopicClaims(
            identity,
            membership,
            owners,
            persistence,
            self._handover,
            in_thread=self._in_thread,
            chance=self._chance,
        )
        election = Election(store, membership.metadata_session, identity, address)
        for begin_watch in (membership.watch, partial(store.watch, LEADER_KEY)):
            begin_watch(lambda: _post(loop, self._changed.set))
        drain = Drain(ownership, spawn=self._runtime.spawn)
        self._joined = JoinedCluster(
            identity, membership, ownership, owners, persistence, election, drain
        )

    def routed(self, routes: Iterable[Route], transactions: TransactionManager) -> list[Route]:
        """The routes of this server: each is answered by the server that owns the topic or leads
        transactions; listings have the topics of all servers; and those below /v1/cluster."""
        of_cluster = [
            *listing_routes(self._live_topics),
            *cluster_routes(self.joined, self.peers, in_thread=self._in_thread),
            *(self._proven(each) for each in self.transactions.serve(transactions)),
        ]
        replaced = {each.operation for each in of_cluster}
        own = [each for each in routes if each.operation not in replaced]
        return [counted(each, self._counts) for each in (*map(self._routed, own), *of_cluster)]

    async def _live_topics(self, namespace: str | None) -> list[TopicId]:
        return await live_topics(self.joined().persistence, namespace, in_thread=self._in_thread)

    def _routed(self, route: Route) -> Route:
        match route.operation.answered_by:
            case Server.TOPIC_OWNER:
                return self._proven(topic_route(route, self.joined, self.peers))
            case Server.LEADER:
                return self._proven(leader_route(route, self.joined, self.peers))
            case Server.ANY if route.operation is WAIT_FOR_TOPICS:
                return self._proven(topics_route(route, self.joined, self.peers))
            case Server.ANY:
                return route

    def _proven(self, route: Route) -> Route:
        return proven_route(route, lambda: not self.is_suspended, self._require_leading)

    async def _require_leading(self) -> None:
        """Return if this server leads transactions, or never did. Raises:
        TransactionsUnavailableError."""
        tenancy = self.tenancy()
        if tenancy is not None:
            try:
                await self._in_thread(tenancy.require)
            except OSError as error:
                raise TransactionsUnavailableError(
                    f"{error}; nothing was done, try again"
                ) from None

    @property
    def is_suspended(self) -> bool:
        """Whether this server has joined, and can't prove now that it is still a member."""
        return self._joined is not None and not self._joined.membership.metadata_session.is_live

    def metrics(self) -> Iterable[Metric]:
        """The metrics of this server in its cluster."""
        return of_cluster(self._joined, self._counts, self.reach)

    def tenancy(self) -> Tenancy | None:
        """The proof that this server leads transactions; None if another one does, or nobody."""
        election = self.joined().election
        return election.tenancy() if election.is_mine else None

    @property
    def is_standby(self) -> bool:
        """Whether another server leads transactions."""
        if self._joined is None:
            return False
        election = self._joined.election
        return election.found is not None and not election.is_mine

    async def take_files_record(self) -> int:
        """The highest write pointer that the cluster's transaction files ever reserved; 0 before
        there were any. Call it as the leader, before the files are read. Raises: MetadataError."""
        assert self._store is not None, "the server has joined"
        record = FilesRecord(self._store)
        highest = await self._in_thread(record.take)
        self._files_record = record
        return highest

    async def record_transaction_files(self) -> None:
        """Record how many pointers the transaction files have reserved, if this server has read
        them. Raises: MetadataError: also if another server leads."""
        record, highest = self._files_record, self.transactions.rows.highest_reserved
        if record is not None and highest:
            await self._in_thread(partial(record.note, highest))

    def why_not_leading(self) -> str:
        """Why transactions are not open here, in a sentence."""
        try:
            owner = self.joined().election.leader()
        except TransactionsUnavailableError as error:
            return error.detail
        return f"{owner.server_id} at {owner.url} leads transactions" if owner else "starting"

    async def run(self) -> None:
        """Do this server's part in the cluster until `close`. An error that it raises is a bug, and
        must end the process: a member that follows nothing would keep its topics for ever."""
        await asyncio.gather(
            self._follow(),
            self._follow_reach(),
            self._end_if_replaced(),
            self.transactions.run(),
        )

    async def _follow(self) -> None:
        """Follow the members and the leader, and keep this server's share of the topics."""
        elapsed_s = self._runtime.elapsed_s
        retried_s = rebalanced_s = elapsed_s()
        scan_s = retried_s + self._until_scan_s()
        while not self._is_closed:
            self._changed.clear()
            now_s = elapsed_s()
            await self._quietly(self._look(), default=None)
            await self._quietly(self.record_transaction_files(), default=None)
            if now_s - retried_s >= RETRY_S:
                retried_s = now_s
                await self._quietly(self.ownership.retry(), default=None)
            if now_s >= scan_s:
                scan_s = now_s + self._until_scan_s()
                self.ownership.look_again()
            are_left = await self._quietly(self.ownership.adopt(), default=False)
            if now_s - rebalanced_s >= self._settings.rebalance_interval_s:
                rebalanced_s = now_s
                await self._quietly(self.ownership.rebalance(), default=None)
            if not are_left:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._changed.wait(), LOOK_S)

    async def _end_if_replaced(self) -> None:
        """End the process once another server has fenced this one, or leads. This waits for no
        answer of the metadata store: a server that alone is cut off from it would refuse its
        clients for as long."""
        while not self._is_closed:
            if self._tables.was_replaced:
                self._die("another server has fenced this one")
            if (reason := self._lost_leadership()) is not None:
                self._die(reason)
            await asyncio.sleep(LOOK_S)

    async def _follow_reach(self) -> None:
        """Tell the others what this server reaches, and end it once it can't do its work for long,
        and another one can. A task of its own: what the others do may wait for HBase."""
        count_max = math.ceil(self._settings.session_timeout_s / LOOK_S)
        while not self._is_closed:
            self.reach.look(self.cluster_id)
            others = None
            try:
                await self._publish_reach()
                # Newer than what `run` has read: the others may have lost HBase at the same time.
                others = [] if self.reach.has_all else await self._read_others()
            except MetadataError:
                pass  # `run` logs it
            leads = self.joined().election.is_mine
            reason = self.reach.why_to_end(others, leads=leads, count_max=count_max)
            if reason is not None:
                self._die(reason)
            await asyncio.sleep(LOOK_S)

    async def _publish_reach(self) -> None:
        reach = self.reach.hbase, self.reach.directory
        if reach != self._published_reach:
            membership = self.joined().membership
            publish = partial(membership.publish_reach, hbase=reach[0], directory=reach[1])
            await self._in_thread(publish)
            self._published_reach = reach

    async def _read_others(self) -> list[ServerInfo]:
        return self._others(await self._in_thread(self.joined().membership.members))

    def _others(self, members: Mapping[str, ServerInfo]) -> list[ServerInfo]:
        me = self.joined().identity.server_id
        return [each for each in members.values() if each.server_id != me]

    def _until_scan_s(self) -> float:
        """Seconds until the next scan: the servers must not scan at the same time."""
        return SCAN_S / 2 + self._chance(round(SCAN_S))

    async def leave(self) -> None:
        """Give all topics to the other servers, as far as that is possible in `LEAVE_S_MAX`."""
        if self._joined is None:
            return
        with suppress(TimeoutError):
            left = self._quietly(self.ownership.leave(), default=None)
            await asyncio.wait_for(left, LEAVE_S_MAX)

    async def close(self) -> None:
        """End the membership: the other servers take over at once what is still here."""
        self._is_closed = True
        self._changed.set()
        self.transactions.close()
        await self.peers.close()
        await self._close_store()

    async def _close_store(self) -> None:
        store, self._store = self._store, None
        if store is not None:
            await self._in_thread(store.close)

    async def _look(self) -> None:
        """Read the members, elect a leader, and publish the load."""
        ownership, election = self.joined().ownership, self.joined().election
        before = {
            (each.server_id, each.incarnation): each.address for each in ownership.members.values()
        }
        await ownership.refresh()
        now = {(each.server_id, each.incarnation) for each in ownership.members.values()}
        for gone in sorted(before.keys() - now):
            self.peers.drop(before[gone])
        epoch = election.my_epoch
        stands = may_lead(
            hbase=self.reach.hbase,
            directory=self.reach.directory,
            others=self._others(ownership.members),
        )
        election.found = await self._in_thread(election.elect if stands else election.find)
        # A later epoch of its own: another server has led meanwhile.
        if epoch is not None and election.my_epoch != epoch:
            self._die("another server leads transactions now")
        load = ownership.topics_count, ownership.is_draining
        if load != self._published:
            await ownership.publish_load()
            self._published = load
        await ownership.record_generations()

    async def _quietly(self, work: Awaitable[T], *, default: T) -> T:
        try:
            return await work
        except (MetadataError, StoreError, UnavailableError) as error:
            if not self._is_closed:
                log.warning("the cluster's metadata can't be followed now: %s", error)
        except TuffError as error:
            log.warning("a topic could not be claimed or given away: %s", error)
        return default

    def _lost(self) -> None:
        if not self._is_closed:
            self._die(
                "the session with the metadata store has ended, so other servers take this one's "
                "topics over"
            )


def _reach(runtime: Runtime, messaging: MessagingService, transaction_files: Path) -> Reach:
    """What this server reaches, by the checks of the ownership of its store (0038) and by reads of
    the shared directory."""
    ownership = messaging.holder_check
    assert ownership is not None, "the settings require HBase"
    return Reach(
        reaches_hbase=lambda: ownership.lapse is None,
        read_store_id=partial(stored_id, transaction_files),
        # The process waits for no read when it ends.
        in_thread=runtime.threads("directory-check", 1, is_joined=False),
        spawn=runtime.spawn,
        elapsed_s=runtime.elapsed_s,
    )


def _post(loop: asyncio.AbstractEventLoop, call: Callable[[], None]) -> None:
    with suppress(RuntimeError):  # the loop is closed: the process ends
        loop.call_soon_threadsafe(call)


def _tls(ca_file: str) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file or None)
    except OSError as error:  # also one of TLS
        raise SettingsError(f"cluster.tls_ca_file: {ca_file} can't be used: {error}") from None


def _open_metadata(settings: Settings, runtime: Runtime) -> MetadataStore:
    """Blocks. Raises: MetadataError."""
    zookeeper = settings.cluster.zookeeper()
    if zookeeper is not None:
        hosts, root = zookeeper
        try:
            return ZooKeeperStore(hosts, root=root, elapsed_s=runtime.elapsed_s)
        except ValueError as error:  # of the addresses, or the path
            raise MetadataError(f"cluster.metadata can't be used: {error}") from None
    hbase = settings.hbase
    place = HBaseMetadataSettings(addresses=hbase.addresses(), prefix=hbase.prefix)
    create_table(place, elapsed_s=runtime.elapsed_s)
    return HBaseMetadataStore(
        place,
        elapsed_s=runtime.elapsed_s,
        in_background=lambda work: runtime.background("metadata-session")(work),
    )
