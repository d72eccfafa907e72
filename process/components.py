"""Builds the message store and the transaction service, connects them, and starts and stops them.

Neither component imports the other (design §6). Messaging gets the transaction service's write
permits when it is opened, and the transaction service gets the message rows. `ComponentLink`
recovers transactions once the message store is open, and lets each store record which files of the
other belong to it.
"""

import asyncio
import json
import logging
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from console import files as console_files
from messaging import topic_changes
from messaging.groups import routes as group_routes
from messaging.groups import share_routes
from messaging.read import explain, inspection, offsets_and_splits, partition_waits, poll
from messaging.retention import holds_and_positions
from messaging.service import MessagingService
from messaging.storage.engine import Store
from messaging.storage.leveldb import LevelDbOpener
from messaging.storage.memory import MemoryStore
from messaging.storage.packed_rows import PackedRowStore, first_whole
from messaging.storage.rows import StoreMetadata
from messaging.storage.store_ownership import StoreOwnership, owned
from messaging.storage.store_state import OpenStore, StoreState
from messaging.write import delayed, publish
from messaging.write.group_commit import GroupCommitter
from metadata.store import MetadataError
from process import backup_stream, health, metrics, session, settings_reply
from process.allowed_hosts import AllowedHosts
from process.audit_topic import AuditTopic
from process.clock import ClockGuard, SteadyClock
from process.directory_locks import DataDirectories
from process.disk_space import DiskMonitor
from process.dispatch import Admission, Dispatcher
from process.health import Check, Status
from process.http_connection import HttpService, RequireAccess, require_nothing
from process.listener import Listener
from process.security import Security, Threads
from process.settings import Settings, SettingsError, changed
from process.streamed_replies import StreamRoute
from tuff.disk.event_loop import Arrivals, TimedCalls
from tuff.leveldb.opening import holds_database
from tuff.log_events import event
from tuff.protocol.errors import (
    StorageUnavailableError,
    TopicExistsError,
    TransactionsUnavailableError,
    UnavailableError,
)
from tuff.protocol.exchange import Reply, Request, Route, read_query
from tuff.protocol.ids import TopicId
from tx import inspection as transaction_inspection
from tx import routes as transaction_routes
from tx.durable_state import ServiceState
from tx.files import has_files
from tx.invalid_list import SweepMark
from tx.manager import TransactionManager
from tx.mixed_backups import StoreMark

if TYPE_CHECKING:
    from messaging.read.archive import ArchiveReader
    from process.cluster_member import ClusterMember
    from process.request_spans import RequestSpans
    from workers.processes import Workers

log = logging.getLogger(__name__)

READ_THREADS = 4  # a slow read occupies one of them, and never the event loop
# Seconds in which a stop hands topics over and finishes what is under way; the latter gets so many
# at least.
DRAIN_S_MAX, DRAIN_S_MIN = 5.0, 1.0
# Seconds in which a server of a cluster still answers after a stop. Many clients send within them.
FAREWELL_S = 0.3
# Seconds that closing waits for a store that hangs. With draining before it, the process ends
# within ten seconds.
STORE_HANGS_S_MAX = 3.0
SPANS_WITHIN_S = 1.0  # seconds that closing waits for the collector


class CannotJoinError(Exception):
    """The server can't become a member of its cluster; the message is one sentence."""


Background = Callable[[Callable[[], None]], object]
Work = Coroutine[object, object, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What the process provides: clocks, tasks, threads, and ids.

    `elapsed_s` is a monotonic clock. `spawn` starts background work, and `spawn_writer` work whose
    failure ends the process. `background` makes a thread for work that no caller waits for. `die`
    ends the process at once, with a reason.
    """

    clock: SteadyClock
    elapsed_s: Callable[[], float]
    new_store_id: Callable[[], str]
    spawn: Callable[[Work], None]
    spawn_writer: Callable[[Work], None]
    threads: Threads
    background: Callable[[str], Background]
    die: Callable[[str], None]


class Components:
    """The message store, the transaction service, and everything that serves and reports them.

    Lives on one event loop.
    """

    def __init__(self, settings: Settings, directories: DataDirectories, runtime: Runtime) -> None:
        self._settings = settings
        self._directories = directories
        self._runtime = runtime
        self._clock = runtime.clock
        self._guard = _clock_guard(settings, runtime.clock)
        self._security = Security(settings, threads=runtime.threads, now_s=runtime.elapsed_s)
        self._audit = self._make_audit()
        self._spans = _request_spans(settings)
        self._is_open = False
        self._health_log = health.HealthLog()
        self._system_topics = settings.messaging.system_topic_ids()
        self._metrics = metrics.Metrics()
        self._arrivals = Arrivals()
        self._message_writes = self._timed_thread("store-writer")
        self._disks = self._make_disks()
        refusal = self._new_store_refusal
        self._opens = _engine(
            settings, directories.messages, runtime=runtime, new_store_refusal=refusal
        )
        self.messaging = self._make_messaging()
        self.cluster = self._make_cluster() if settings.cluster.is_member else None
        self._log_writes = self._timed_thread("transaction-log")
        self.transactions = self._make_transactions()
        self._link = ComponentLink(
            self.messaging,
            self.transactions,
            keeps_messages=settings.messaging.store != "memory",
            new_store_id=runtime.new_store_id,
            cluster=self.cluster,
        )
        self._backups = backup_stream.Backups(
            self.messaging,
            self.transactions,
            has_transactions=settings.tx.enabled,
            now_ms=self._clock.now_ms,
            in_thread=runtime.threads("backup", 1),
        )
        self._admission = Admission(
            pending_max=settings.server.max_pending_requests,
            waiting=self._waiting_count,
            arrivals=self._arrivals,
        )
        self._dispatcher = Dispatcher(self._admission, self._metrics, elapsed_s=runtime.elapsed_s)
        self._sessions: session.Sessions | None = None  # once there is a listener
        self._workers: Workers | None = None  # likewise
        self._register_gauges()

    def _register_gauges(self) -> None:
        metrics.register_gauges(
            self._metrics,
            self.messaging,
            self.transactions,
            self._clock,
            is_store_up=lambda: self._check_storage().status is not Status.DOWN,
            under_way=lambda: self._admission.under_way,
            oldest_message_write_s=self._message_writes.oldest_s,
            oldest_log_write_s=self._log_writes.oldest_s,
            disks=self._disks.by_store,
            of_cluster=() if self.cluster is None else self.cluster.gauges(),
        )
        if self._audit is not None:
            self._metrics.watch_more(self._audit.gauges())

    def listener(self) -> "Listener | Workers":
        """A listener that serves every route."""
        server = self._settings.server
        routes, streams = self._routes(), backup_stream.routes(self._backups)
        routes.append(session.route())
        access = self._security.access
        require_access: RequireAccess = require_nothing
        if self._audit is not None:
            self._audit.connect(routes)
        if access is not None:
            routes = [access.guarded(each) for each in routes]
            streams = [access.guarded_stream(each) for each in streams]
            require_access = access.require_head
        if self._audit is not None:
            routes = [self._audit.recorded(each) for each in routes]
            streams = [self._audit.recorded_stream(each) for each in streams]
            require_access = self._audit.recorded_heads(require_access)
        if self._spans is not None:
            routes = [self._spans.traced(each) for each in routes]
        service = HttpService(
            routes,
            streams,
            self._dispatcher,
            AllowedHosts((*server.allowed_hosts, *self._settings.cluster.hosts())),
            max_request_bytes=server.max_request_bytes,
            now_ms=self._clock.now_ms,
            require_access=require_access,
        )
        self._sessions = sessions = session.Sessions(
            routes,
            self._dispatcher,
            service.connections,
            max_request_bytes=server.max_request_bytes,
            refusal=_no_refusal if access is None else access.refusal,
        )
        service.switch = sessions.begin
        listener = Listener(
            service,
            connections_max=server.max_connections,
            tls=self._security.tls,
            unix_socket=server.unix_socket,
        )
        if not server.workers:
            return listener
        self._workers = workers = self._make_workers(
            listener, routes, streams, sessions, require_access
        )
        self._metrics.watch_more(workers.gauges())
        return workers

    def _make_workers(
        self,
        local: Listener,
        routes: list[Route],
        streams: list[StreamRoute],
        sessions: session.Sessions,
        require_access: RequireAccess,
    ) -> "Workers":
        from workers.answering import Answering
        from workers.processes import Workers

        answering = Answering(routes, streams, self._dispatcher, require_access=require_access)
        return Workers(
            self._settings,
            answering,
            local,
            spawn=self._runtime.spawn,
            now_ms=self._clock.now_ms,
            begin_session=sessions.begin,
        )

    def _routes(self) -> list[Route]:
        messaging = self.messaging
        messages = [
            *publish.routes(messaging.publisher),
            *poll.routes(messaging.polls),
            *partition_waits.routes(messaging.partition_waits),
            *offsets_and_splits.routes(messaging.offsets),
            *self._explain_routes(),
            *inspection.routes(messaging.inspection),
            *topic_changes.routes(messaging.topics),
            *holds_and_positions.routes(messaging.holds_and_positions),
            *delayed.routes(messaging.delayed),
            *group_routes.routes(messaging.groups),
            *share_routes.routes(messaging.share_groups),
        ]
        if self.messaging.ownership is not None:
            messages = [owned(each, self.messaging.ownership) for each in messages]
        in_thread = self._runtime.threads("snapshot-reader", 1)
        files = transaction_inspection.SnapshotFiles(
            self._directories.snapshots, in_thread=in_thread
        )
        shared = [
            *messages,
            *transaction_routes.routes(self.transactions),
            *transaction_inspection.routes(self.transactions, files),
        ]
        if self.cluster is not None:
            shared = self.cluster.routed(shared, self.transactions)
        return [
            *shared,
            *self._health_routes(),
            *metrics.routes(self._metrics),
            *settings_reply.routes(self._settings),
            *console_files.routes(),
            _openapi_route(),
        ]

    def _explain_routes(self) -> list[Route]:
        if self._security.access is None:
            return explain.routes(self.messaging.explainer)
        return explain.routes(self.messaging.explainer, self._security.access.may_read)

    def _health_routes(self) -> list[Route]:
        def started() -> bool:
            return self._is_open and self._guard.is_compared

        if self._security.access is None:
            return health.routes(started, self._checks)
        return health.routes(started, self._checks, self._security.access.may_administer)

    async def open(self, *, url: str = "") -> None:
        """Recover both components, start their writers, and admit requests. A component that can't
        be opened is down, and `tick` tries again; the other one serves meanwhile. `url` is that of
        the listener, which only a member of a cluster needs.

        Raises:
            DirectoryLockedError: another process has the message store open.
            CannotJoinError: the server can't become a member of its cluster.
        """
        await self._disks.query_first()
        if self.cluster is not None:
            await self.cluster.join(url)
        await self.messaging.open(
            self.transactions.write_permits
            if self.cluster is None
            else self.cluster.transactions.of_leader
        )
        self._compare_clock()
        if self.messaging.ownership is not None:
            await self.messaging.ownership.check()
            self._runtime.spawn(self.messaging.ownership.run())
        self._runtime.spawn_writer(self.messaging.committer.run())
        self._runtime.spawn_writer(self.messaging.delayed.run())
        self._runtime.spawn_writer(self.transactions.durable.run())
        if self.cluster is not None:
            self._runtime.spawn_writer(self.cluster.run())
        await self._link.tick()
        await self._create_system_topics()
        self._is_open = True
        if self._audit is not None:
            self._audit.note_start(changed(self._settings))
        self._admission.open()
        self._log_health()

    async def tick(self) -> None:
        """Run both ticks, one after the other."""
        await self.tick_messages()
        await self.tick_transactions()

    async def tick_messages(self) -> None:
        """The periodic work of the message store; call it several times a second."""
        self._disks.query()
        await self.messaging.tick()
        self._compare_clock()
        await self._create_system_topics()
        if self._audit is not None:
            self._audit.tick()
        self._log_health()

    async def tick_transactions(self) -> None:
        """The periodic work of the transaction service; call it several times a second,
        independently of `tick_messages`: behind a disk that hangs no transaction would ever time
        out."""
        await self.transactions.tick()
        await self._link.tick()
        self._log_health()

    async def refresh_files(self) -> None:
        """Read the access file and the TLS files again, if there are any and they have changed."""
        if await self._security.refresh() and self._sessions is not None:
            self._sessions.check_tokens()
        if self._audit is not None:
            self._audit.note_access_file()
        self._log_health()

    async def sweep(self) -> None:
        """One pass of retention."""
        try:
            await self.messaging.cleaner.run_pass()
        except UnavailableError as error:
            log.warning("no retention pass: %s", error, extra=event("retention_failed"))

    async def drain(self) -> None:
        """Refuse new requests, and wait for those in flight."""
        began_s = self._runtime.elapsed_s()
        if self.cluster is not None:
            await self.cluster.leave()  # while this server still forwards requests
            # Each reply ends its connection, so clients send to other servers from now on.
            await asyncio.sleep(max(0.0, FAREWELL_S - (self._runtime.elapsed_s() - began_s)))
        self._admission.stop()
        self._backups.stop()
        self.messaging.polls.stop_waiting()
        left_s = DRAIN_S_MAX - (self._runtime.elapsed_s() - began_s)
        await self._admission.drained(within_s=max(left_s, DRAIN_S_MIN))
        if self._audit is not None:
            await self._audit.close()

    def interrupt(self) -> None:
        """Fail calls of the message store that hang, and all later ones, at once."""
        self.messaging.store.interrupt()

    async def close(self) -> None:
        """Refuse new requests, write the changes that wait, and close the files; transactions
        first, since aborts that complete now still mark rows."""
        self._admission.stop()
        giving_up = asyncio.get_running_loop().call_later(STORE_HANGS_S_MAX, self.interrupt)
        await self.transactions.close()
        await self.messaging.close()
        if self.cluster is not None:
            await self.cluster.close()
        giving_up.cancel()
        if self._spans is not None:
            in_thread = self._runtime.threads("spans", 1, is_joined=False)
            with suppress(TimeoutError):
                await asyncio.wait_for(in_thread(self._spans.shutdown), SPANS_WITHIN_S)

    def _timed_thread(self, name: str) -> TimedCalls:
        return TimedCalls(self._runtime.threads(name, 1), elapsed_s=self._runtime.elapsed_s)

    def _make_messaging(self) -> MessagingService:
        settings, runtime = self._settings, self._runtime
        now_ms, observe = self._clock.now_ms, self._metrics.observe
        store = OpenStore(
            self._opens,
            in_thread_write=self._message_writes,
            in_thread_read=runtime.threads("store-reader", READ_THREADS),
        )
        state = StoreState(
            now_ms=now_ms,
            may_delete=self._guard.may_delete,
            tail_bytes_max=settings.messaging.tail_bytes_max,
            longest_transaction_s=max(settings.tx.long_timeout_s, settings.tx.max_timeout_s),
            is_shared=settings.cluster.is_member,
        )
        committer = GroupCommitter(
            store, state, arrivals=self._arrivals, observe=observe, elapsed_s=runtime.elapsed_s
        )
        ownership = None
        if settings.messaging.store == "hbase":
            in_thread = runtime.threads("store-owner", 1)
            ownership = StoreOwnership(store, now_ms=now_ms, in_thread=in_thread)
        return MessagingService(
            store,
            state,
            committer,
            settings.messaging,
            observe=observe,
            groups=settings.groups,
            new_store_refusal=self._new_store_refusal,
            lack_of_space=self._disks.lack_of_space,
            ownership=ownership,
            archive=self._make_archive(),
        )

    def _make_audit(self) -> AuditTopic | None:
        server, access = self._settings.server, self._security.access
        topic = server.audit_topic_id()
        if topic is None or access is None:
            return None
        return AuditTopic(
            topic,
            access,
            ttl_s=server.audit_ttl,
            server=self._settings.cluster.server_id,
            now_ms=self._clock.now_ms,
            spawn=self._runtime.spawn,
            owner_of=self._owner_of,
        )

    def _owner_of(self, pointer: int) -> str | None:
        """The principal of a transaction; None where this server knows none, as one that does not
        lead transactions."""
        try:
            return self.transactions.write_permits.owner_of(pointer)
        except TransactionsUnavailableError:
            return None

    def _make_archive(self) -> "ArchiveReader | None":
        directory = self._settings.messaging.archive_directory
        if not directory:
            return None
        try:
            from messaging.read.archive import ArchiveReader
        except ModuleNotFoundError as error:
            raise SettingsError(
                f"messaging.archive_directory needs {error.name}, which is not installed; "
                "pip install 'tuff-messaging[arrow]'"
            ) from None
        # A file system that hangs must not delay the end of the process.
        in_thread = self._runtime.threads("archive-reader", 1, is_joined=False)
        return ArchiveReader(Path(directory), in_thread)

    def _make_cluster(self) -> "ClusterMember":
        try:
            from process.cluster_wiring import make_member
        except ModuleNotFoundError as error:
            raise SettingsError(
                f"a cluster needs {error.name}, which is not installed; "
                "pip install 'tuff-messaging[hbase,cluster]'"
            ) from None
        return make_member(
            self._settings,
            self._runtime,
            self.messaging,
            self._opens,
            transaction_files=self._directories.snapshots,
            lost_leadership=lambda: self.transactions.durable.lost_leadership,
            secret=self._security.cluster_secret,
        )

    def _waiting_count(self) -> int:
        count = self.messaging.waiting_count
        return count if self.cluster is None else count + self.cluster.peers.polls_count

    def _new_store_refusal(self) -> str | None:
        """Why no empty message store may be created, in a sentence; None if it may. Blocks."""
        settings, snapshots = self._settings, self._directories.snapshots
        if settings.messaging.store == "memory" or settings.server.accept_lost_messages:
            return None
        try:
            if not has_files(snapshots):
                return None
        except OSError as error:
            return f"whether there were messages is not known: {snapshots} can't be read: {error}"
        is_here = settings.messaging.store == "leveldb"
        where = str(self._directories.messages) if is_here else f"HBase ({settings.hbase.prefix}*)"
        return (
            f"{where} holds no message store, and the transaction files in {snapshots} belong to "
            "one: put it back (is its volume mounted?), and the server continues; if it is lost, "
            "start once with server.accept_lost_messages=true"
        )

    def _make_transactions(self) -> TransactionManager:
        runtime = self._runtime
        return TransactionManager(
            self._directories.snapshots,
            self._settings.tx,
            rows=self.messaging.rows if self.cluster is None else self.cluster.transactions.rows,
            max_block_s=self._settings.messaging.max_block_s,
            now_ms=self._clock.now_ms,
            elapsed_s=runtime.elapsed_s,
            in_thread_log=self._log_writes,
            in_thread_files=runtime.threads("transaction-files", 1),
            arrivals=self._arrivals,
            spawn=runtime.spawn,
            store_id=runtime.new_store_id,
            status_changed=self._log_health,
            observe=self._metrics.observe,
            last_sweep=self._last_sweep,
        )

    def _make_disks(self) -> DiskMonitor:
        is_here = self._settings.messaging.store == "leveldb"
        threads = self._runtime.threads
        return DiskMonitor(
            self._directories.messages if is_here else None,
            self._directories.snapshots,
            threads=lambda name: threads(name, 1, is_joined=False),  # no other work waits for them
            elapsed_s=self._runtime.elapsed_s,
            spawn=self._runtime.spawn,
        )

    async def _create_system_topics(self) -> None:
        while self._system_topics and self.messaging.status[0] == "ok":
            try:
                await self._create_topic(self._system_topics[0])
            except TopicExistsError:
                pass
            except UnavailableError as error:
                log.warning("system topics are not created yet: %s", error)
                return
            del self._system_topics[0]

    async def _create_topic(self, topic: TopicId) -> None:
        if self.cluster is None:
            await self.messaging.topics.create(topic, {})
        elif await self.cluster.owner_of(topic, is_forwarded=True, creates=True) is None:
            await self.messaging.topics.create(topic, {})
            await self.cluster.note_change(topic)

    def _compare_clock(self) -> None:
        if not self._guard.is_compared and self.messaging.status[0] == "ok":
            self._guard.compare(self.messaging.state.recovered_clock_ms)

    def _last_sweep(self) -> SweepMark | None:
        swept = self.messaging.last_sweep
        return None if swept is None else SweepMark(*swept)

    def _log_health(self) -> None:
        if self._is_open and not self._admission.is_stopping:
            self._health_log.note(self._checks())

    def _checks(self) -> dict[str, Check]:
        transactions = self._check_transactions()
        storage_s, log_s = self._message_writes.oldest_s(), self._log_writes.oldest_s()
        return {
            "storage": health.check_write(self._check_storage(), oldest_s=storage_s),
            "transactions": health.check_write(transactions, oldest_s=log_s),
            "disk": self._disks.check(),
            "clock": self._guard.check(self._clock.offset_ms()),
            **self._security.checks(),
            **({} if self._audit is None else {"audit": self._audit.check()}),
            **({} if self._workers is None else {"workers": self._workers.check()}),
        }

    def _check_transactions(self) -> Check:
        status = self.transactions.status
        if status.state is ServiceState.RUNNING:
            detail = "; ".join(self.transactions.durable.notes) or "transactions run"
            alarm_s = self._settings.tx.prepared_alarm_s
            prepared = self.transactions.monitoring.long_prepared(alarm_s=alarm_s)
            return health.check_prepared(Check(Status.OK, detail), prepared)
        if self.cluster is not None and self.cluster.is_standby:
            return Check(Status.OK, status.reason)
        return Check(Status.DEGRADED, f"{status.state.value}: {status.reason}")

    def _check_storage(self) -> Check:
        if self._admission.is_stopping:
            return Check(Status.DOWN, "the server is stopping")
        if not self._is_open:
            return Check(Status.DOWN, "the server is starting")
        if self.cluster is not None and self.cluster.is_suspended:
            return Check(Status.DOWN, "suspended: the metadata store does not confirm the session")
        state, reason = self.messaging.status
        if state != "ok":
            return Check(Status.DOWN, f"messages can't be stored or read: {reason}")
        if self.messaging.ownership is not None and self.messaging.ownership.lapse is not None:
            return Check(Status.DOWN, f"messages can't be read: {self.messaging.ownership.lapse}")
        store = self._settings.messaging.store
        end = ", and loses them when the process ends" if store == "memory" else ""
        return Check(Status.OK, f"{store} takes and serves messages{end}")


class ComponentLink:
    """Opens transactions after messages, and keeps the record of which files belong together. Lives
    on the event loop."""

    def __init__(
        self,
        messaging: MessagingService,
        transactions: TransactionManager,
        *,
        keeps_messages: bool,
        new_store_id: Callable[[], str],
        cluster: "ClusterMember | None",
    ) -> None:
        """`keeps_messages`: the store is durable."""
        self._cluster = cluster
        self._messaging = messaging
        self._transactions = transactions
        self._keeps_messages = keeps_messages
        self._new_store_id = new_store_id
        self._is_open = False
        self._recorded_store_id: str | None = None

    async def tick(self) -> None:
        """Open transactions that could not be opened yet, and record which files belong
        together."""
        await self._open_transactions()
        if self._transactions.status.state is ServiceState.RUNNING:
            await self._record_mark()

    async def _open_transactions(self) -> None:
        # Only with the message store can missing transaction files be distinguished from a first
        # start. Opened without it, a new and empty state would make every row visible.
        if self._is_open:
            return
        state, reason = self._messaging.status
        if state != "ok":
            waits = "transactions are recovered once the message store is open, which it is not"
            self._transactions.put_off(f"{waits}: {reason}")
            return
        if self._keeps_messages and not await self._has_store_id():
            return
        if self._cluster is not None:
            await self._open_leading(self._cluster)
            return
        self._is_open = True
        await self._transactions.open(self._store_mark() if self._keeps_messages else None)

    async def _open_leading(self, cluster: "ClusterMember") -> None:
        leadership = cluster.tenancy()
        if leadership is None:
            self._transactions.put_off(cluster.why_not_leading())
            return
        if not cluster.transactions.may_open(leadership.epoch):
            self._transactions.put_off("the other servers have to acknowledge the new leader first")
            return
        try:
            had_files = await cluster.had_transaction_files()
        except MetadataError as error:
            self._transactions.put_off(f"it is not known whether there were transactions: {error}")
            return
        self._is_open = True
        # Each server knows of the files only what they were while it led, and that there were some.
        mark = StoreMark(cluster.cluster_id, highest_reserved=int(had_files))
        await self._transactions.open(mark, leadership=leadership)

    async def _has_store_id(self) -> bool:
        """Whether the message store has a durable id. It gets one before the first transaction
        file is written. So such a file beside an empty store proves that messages are lost."""
        try:
            metadata = self._messaging.recorded_metadata()
            if metadata is not None and metadata.store_id is not None:
                return True
            if self._cluster is not None:
                # Without a look at the files: a standby serves while the shared directory hangs.
                found: str | None = self._cluster.cluster_id
            else:
                # They have one already where the loss of the messages was accepted.
                found = await self._transactions.durable.stored_id()
            await self._messaging.record_store_id(found or self._new_store_id())
        except UnavailableError as error:
            self._transactions.put_off(f"the message store can't record its id: {error}")
            return False
        return True

    def _store_mark(self) -> StoreMark:
        metadata = self._messaging.recorded_metadata() or StoreMetadata()
        return StoreMark(
            metadata.store_id or "",
            metadata.highest_pointer,
            self._messaging.recorded_lsn(),
            self._messaging.recorded_last(),
            frozenset(self._messaging.rows.indexed_pointers()),
        )

    async def _record_mark(self) -> None:
        store_id = self._transactions.durable.store_id
        if self._recorded_store_id == store_id:
            return  # later pointer blocks are recorded with the batches of messages
        try:
            if self._cluster is not None:
                await self._cluster.record_transaction_files()
            # This records the durable pointer blocks too. A block that is still being reserved must
            # not be among them: if it is lost with the log, the files seem older than the messages.
            await self._messaging.record_store_id(store_id)
        except (StorageUnavailableError, MetadataError) as error:
            log.warning("which transaction files belong to the store is not recorded: %s", error)
        else:
            self._recorded_store_id = store_id


def _no_refusal(_request: Request) -> None:
    """Without an access file every client may use the server."""


def _clock_guard(settings: Settings, clock: SteadyClock) -> ClockGuard:
    return ClockGuard(
        clock.now_ms,
        jump_ms_max=round(settings.server.max_clock_jump_s * 1000),
        is_accepted=settings.server.accept_clock,
    )


def _request_spans(settings: Settings) -> "RequestSpans | None":
    """Raises: SettingsError: the libraries are not installed."""
    if not settings.server.otlp_endpoint:
        return None
    try:
        from process.request_spans import RequestSpans
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"server.otlp_endpoint needs {error.name}, which is not installed; "
            "pip install 'tuff-messaging[server,otel]'"
        ) from None
    return RequestSpans(settings.server.otlp_endpoint)


def _engine(
    settings: Settings,
    directory: Path,
    *,
    runtime: Runtime,
    new_store_refusal: Callable[[], str | None],
) -> Callable[[], Store]:
    """A function that opens the configured store. `new_store_refusal`: why no empty store may be
    created, in a sentence.

    Raises:
        SettingsError: its library is not installed; or it is in memory, and there are messages.
    """
    match settings.messaging.store:
        case "leveldb":
            stores = LevelDbOpener(
                directory, first_whole=first_whole, new_store_refusal=new_store_refusal
            )
            return lambda: PackedRowStore(stores())
        case "memory":
            _require_no_messages(directory)
            log.warning("messaging.store is memory: every message is lost when the process ends")
            # Opened again after a failure, it still holds what was written, as a disk would.
            rows: dict[bytes, bytes] = {}
            return lambda: PackedRowStore(MemoryStore(rows))
        case _:
            return _hbase(settings, runtime)


def _require_no_messages(directory: Path) -> None:
    """A commit with messages in memory would be in the transaction files, and not in that store."""
    try:
        has_messages = holds_database(directory)
    except OSError as error:
        raise SettingsError(f"{directory} can't be read: {error.strerror}") from None
    if has_messages:
        raise SettingsError(
            f"messaging.store is memory, and {directory} holds messages: name another --data, or "
            "set messaging.store=leveldb"
        )


def _hbase(settings: Settings, runtime: Runtime) -> Callable[[], Store]:
    try:
        from messaging.storage.hbase.store import HBaseOpener
    except ModuleNotFoundError as error:
        raise SettingsError(
            f"messaging.store=hbase needs {error.name}, which is not installed; "
            "pip install 'tuff-messaging[hbase]'"
        ) from None
    return HBaseOpener(
        settings.hbase,
        rows_live_s=settings.rows_live_s(),
        now_ms=runtime.clock.now_ms,
        elapsed_s=runtime.elapsed_s,
        in_background=runtime.background("store-settler"),
    )


def _openapi_route() -> Route:
    @cache  # made at the first request: a start does not need it, and does not load it
    def document() -> Reply:
        from process import openapi

        return Reply(200, "application/json", json.dumps(openapi.document()).encode("utf-8"))

    async def show(request: Request) -> Reply:
        read_query(request.query, parameters=())
        return document()

    return Route("GET", "/openapi.json", show)
