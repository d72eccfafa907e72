"""Builds the message store and the transaction service, connects them, and starts and stops them.

Neither component imports the other (design §6). Messaging gets the transaction service's write
permits when it is opened, and the transaction service gets the message rows.
"""

import asyncio
import logging
from collections.abc import Iterator, Sized
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kernel.event_loop import Arrivals, TimedCalls
from kernel.log_events import event
from kernel.requests_and_replies import Request, Route
from messaging.engines.engine_interface import StoreError
from messaging.log.read_lease import StoreHolderCheck
from messaging.log.state_in_memory import OpenStore, StoreState
from messaging.service import MessagingService
from messaging.write.write_queue import WriteQueue
from metadata.store_interface import MetadataError
from process import backup_stream, health, scraped_metrics, session_connection
from process.access_and_tls import Security
from process.admission_and_dispatch import Admission, Dispatcher
from process.allowed_hosts import AllowedHosts
from process.audit_topic import AuditTopic
from process.clock import ClockGuard
from process.component_link import ComponentLink
from process.directory_locks import DataDirectories
from process.disk_space import DiskMonitor
from process.engine_choice import new_store_refusal, store_end_file, store_opener
from process.health import Check, Status
from process.http_connection import HttpService
from process.listener import Listener
from process.metrics import Metric, Metrics, counter, gauge
from process.routes import (
    message_routes,
    process_routes,
    routes_of_transactions,
)
from process.runtime import Runtime
from process.settings import Settings, changed, needs_extra
from tuff.protocol.errors import (
    TopicExistsError,
    TransactionsUnavailableError,
    UnavailableError,
)
from tuff.protocol.ids import TopicId
from tx.durable_state import ServiceState
from tx.service import TransactionManager
from tx.transaction_principals import principal_name

if TYPE_CHECKING:
    from messaging.read.archive import ArchiveReader
    from process.cluster_member import ClusterMember
    from process.request_spans import RequestSpans

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


class Components:
    """The message store, the transaction service, and everything that serves and reports them.

    Lives on one event loop.
    """

    def __init__(self, settings: Settings, directories: DataDirectories, runtime: Runtime) -> None:
        self._settings = settings
        self._directories = directories
        self._runtime = runtime
        self._clock = runtime.clock
        self._guard = ClockGuard(
            runtime.clock.now_ms,
            jump_ms_max=round(settings.server.max_clock_jump_s * 1000),
            is_accepted=settings.server.accept_clock,
        )
        self._security = Security(settings, runtime)
        self._audit = self._make_audit()
        self._spans = _request_spans(settings)
        self._is_open = False
        self._health_log = health.HealthLog()
        self._system_topics = settings.messaging.system_topic_ids()
        self._metrics = Metrics()
        self._arrivals = Arrivals()
        self._message_writes = self._timed_thread("store-writer")
        self._disks = self._make_disks()
        self._opens = store_opener(settings, directories, runtime=runtime)
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
        self._dispatcher = self._make_dispatcher()
        self._sessions: session_connection.Sessions | None = None  # once there is a listener
        self._open_connections: Sized = ()
        self._lags = scraped_metrics.LagReader(self.messaging)

    def _make_dispatcher(self) -> Dispatcher:
        # The audit records what the check of access refuses, and spans include both.
        watching = [each for each in (self._spans, self._audit) if each is not None]
        return Dispatcher(
            self._admission,
            self._metrics,
            elapsed_s=self._runtime.elapsed_s,
            access=self._security.access,
            watches=[each.watch for each in watching],
        )

    async def _read_metrics(self) -> list[Metric]:
        lags = await self._lags.read()
        return [
            *scraped_metrics.of_transactions(self.transactions),
            *scraped_metrics.of_messages(self.messaging, self._clock),
            *self._own_metrics(),
            *self._disks.metrics(),
            *(() if self.cluster is None else self.cluster.metrics()),
            *(() if self._audit is None else self._audit.metrics()),
            *self._security.metrics(),
            scraped_metrics.build_info(),
            *scraped_metrics.of_topics(self.messaging.topics.figures()),
            *scraped_metrics.of_lags(lags),
        ]

    def _own_metrics(self) -> Iterator[Metric]:
        is_up = self._check_storage().status is not Status.DOWN
        yield gauge("store_up", "1 while messages can be stored and read.", float(is_up))
        yield gauge(
            "requests_under_way",
            "Requests that wait for their answer, polls too.",
            self._admission.under_way,
        )
        yield gauge(
            "store_oldest_write_seconds",
            "For how long the oldest write of messages is under way; 0 when there is none.",
            self._message_writes.oldest_s(),
        )
        yield gauge(
            "log_oldest_write_seconds",
            "For how long the oldest write to the transaction log is under way; 0 when there is "
            "none.",
            self._log_writes.oldest_s(),
        )
        yield counter(
            "backups_damaged",
            "Backups that were given up for a damaged row.",
            self._backups.damaged_count,
        )
        yield gauge("connections", "Open connections.", len(self._open_connections))
        yield gauge(
            "connections_max",
            "Connections that the server takes; further ones get 429.",
            self._settings.server.max_connections,
        )

    def listener(self) -> Listener:
        """A listener that serves every route."""
        server, access = self._settings.server, self._security.access
        routes = self._routes()
        if self._audit is not None:
            self._audit.connect(routes)
        service = HttpService(
            routes,
            backup_stream.routes(self._backups),
            self._dispatcher,
            AllowedHosts((*server.allowed_hosts, *self._settings.cluster.hosts())),
            max_request_bytes=server.max_request_bytes,
            now_ms=self._clock.now_ms,
        )
        self._sessions = sessions = session_connection.Sessions(
            routes,
            self._dispatcher,
            service.connections,
            max_request_bytes=server.max_request_bytes,
            refusal=_no_refusal if access is None else access.refusal,
        )
        service.switch = sessions.begin
        self._open_connections = service.connections
        return Listener(
            service,
            connections_max=server.max_connections,
            tls=self._security.tls,
            unix_socket=server.unix_socket,
        )

    def _routes(self) -> list[Route]:
        in_thread = self._runtime.threads("snapshot-reader", 1)
        routes = [
            *message_routes(self.messaging, self._security.access),
            *routes_of_transactions(
                self.transactions,
                self._directories.snapshots,
                in_thread,
                in_thread_decode=self._runtime.threads("commit-decoder", 1),
            ),
        ]
        if self.cluster is not None:
            routes = self.cluster.routed(routes, self.transactions)
        return [
            *routes,
            *self._health_routes(),
            *process_routes(self._settings, self._metrics, self._read_metrics),
        ]

    def _health_routes(self) -> list[Route]:
        def started() -> bool:
            return self._is_open and self._guard.is_compared

        access = self._security.access
        shows_details = () if access is None else (access.may_administer,)
        return health.routes(started, self._checks, *shows_details)

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
            try:
                await self.cluster.join(url)
            except (MetadataError, StoreError) as error:
                raise CannotJoinError(str(error)) from error
        await self.messaging.open(
            self.transactions.write_permits
            if self.cluster is None
            else self.cluster.transactions.of_leader
        )
        self._compare_clock()
        if self.messaging.holder_check is not None:
            await self.messaging.holder_check.check()
            self._runtime.spawn(self.messaging.holder_check.run())
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
        self.messaging.stop_waiting()
        left_s = DRAIN_S_MAX - (self._runtime.elapsed_s() - began_s)
        await self._admission.drained(within_s=max(left_s, DRAIN_S_MIN))
        if self._audit is not None:
            await self._audit.close()

    def interrupt(self) -> None:
        """Fail calls of the message store that hang, and all later ones, at once."""
        self.messaging.store.interrupt()

    async def close(self) -> None:
        """Refuse new requests, write the changes that wait, and close the files; transactions
        first, since aborts that complete now still roll rows back."""
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
            due=self._guard.due,
            settings=settings.messaging,
            longest_transaction_s=max(settings.tx.long_timeout_s, settings.tx.max_timeout_s),
            is_shared=settings.cluster.is_member,
        )
        committer = WriteQueue(
            store, state, arrivals=self._arrivals, observe=observe, elapsed_s=runtime.elapsed_s
        )
        holder_check = None
        if settings.messaging.store == "hbase":
            in_thread = runtime.threads("store-holder", 1)
            holder_check = StoreHolderCheck(store, now_ms=now_ms, in_thread=in_thread)
        return MessagingService(
            store,
            state,
            committer,
            settings.messaging,
            observe=observe,
            groups=settings.groups,
            new_store_refusal=partial(new_store_refusal, self._settings, self._directories),
            end_file=store_end_file(self._settings, self._directories),
            space=self._disks.for_messages(),
            holder_check=holder_check,
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
            principal_of=self._principal_of,
        )

    def _principal_of(self, pointer: int) -> str | None:
        """The principal of a transaction; None where this server knows none, as one that does not
        lead transactions."""
        try:
            principal = self.transactions.write_permits.principal_of(pointer)
        except TransactionsUnavailableError:
            return None
        return None if principal is None else principal_name(principal)

    def _make_archive(self) -> "ArchiveReader | None":
        directory = self._settings.messaging.archive_directory
        if not directory:
            return None
        with needs_extra("messaging.archive_directory", "arrow"):
            from messaging.read.archive import ArchiveReader
        # A file system that hangs must not delay the end of the process.
        in_thread = self._runtime.threads("archive-reader", 1, is_joined=False)
        return ArchiveReader(Path(directory), in_thread)

    def _make_cluster(self) -> "ClusterMember":
        with needs_extra("a cluster", "hbase,cluster"):
            from process.cluster_member import make_member
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
        count = self.messaging.polls.waiting_count
        return count if self.cluster is None else count + self.cluster.peers.polls_count

    def _make_transactions(self) -> TransactionManager:
        runtime = self._runtime
        return TransactionManager(
            self._directories.snapshots,
            self._settings.tx,
            rows=self.messaging.rows if self.cluster is None else self.cluster.transactions.rows,
            max_block_s=self._settings.messaging.max_block_s,
            now_ms=self._clock.now_ms,
            may_forget=self._guard.may_delete,
            elapsed_s=runtime.elapsed_s,
            in_thread_log=self._log_writes,
            in_thread_files=runtime.threads("transaction-files", 1),
            arrivals=self._arrivals,
            spawn=runtime.spawn,
            store_id=runtime.new_store_id,
            status_changed=self._log_health,
            observe=self._metrics.observe,
            last_sweep=lambda: self.messaging.last_sweep,
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
            return
        ownership = self.cluster.ownership
        if await ownership.owner_of(topic, is_forwarded=True, creates=True) is None:
            await self.messaging.topics.create(topic, {})
            await ownership.note_change(topic)

    def _compare_clock(self) -> None:
        if not self._guard.is_compared and self.messaging.status[0] == "ok":
            self._guard.compare(self.messaging.state.recovered_clock_ms)

    def _log_health(self) -> None:
        if self._is_open and not self._admission.is_stopping:
            self._health_log.note(self._checks())

    def _checks(self) -> dict[str, Check]:
        transactions = self._check_transactions()
        storage_s, log_s = self._message_writes.oldest_s(), self._log_writes.oldest_s()
        return {
            "storage": health.check_damage(
                health.check_write(self._check_storage(), oldest_s=storage_s),
                read_count=self.messaging.polls.damaged_reads,
                last_read=self.messaging.polls.last_damage,
                backup=self._backups.damage,
            ),
            "transactions": health.check_write(transactions, oldest_s=log_s),
            "disk": self._disks.check(),
            "clock": self._guard.check(
                self._clock.offset_ms(),
                newest_ms=self.messaging.state.sequencer.last.timestamp_ms,
            ),
            **self._security.checks(),
            **({} if self._audit is None else {"audit": self._audit.check()}),
        }

    def _check_transactions(self) -> Check:
        status = self.transactions.status
        if status.state is ServiceState.RUNNING:
            detail = "; ".join(self.transactions.durable.notes) or "transactions run"
            alarm_s = self._settings.tx.prepared_alarm_s
            prepared = self.transactions.monitoring.long_prepared(alarm_s=alarm_s)
            check = health.check_prepared(Check(Status.OK, detail), prepared)
            is_lost = self.cluster is not None and self.cluster.reach.has_lost_directory
            return health.check_directory(check, is_lost=is_lost)
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
            lost = "messages can't be stored or read: " if not self.messaging.store.is_up else ""
            return Check(Status.DOWN, f"{lost}{reason}")
        holder_check = self.messaging.holder_check
        if holder_check is not None and holder_check.lapse is not None:
            return Check(Status.DOWN, f"messages can't be read: {holder_check.lapse}")
        store = self._settings.messaging.store
        end = ", and loses them when the process ends" if store == "memory" else ""
        return health.check_accepted_loss(
            Check(Status.OK, f"{store} takes and serves messages{end}"),
            accepted=self._settings.server.accept_lost_messages,
        )


def _no_refusal(_request: Request) -> None:
    """Without an access file every client may use the server."""


def _request_spans(settings: Settings) -> "RequestSpans | None":
    """Raises: SettingsError: the libraries are not installed."""
    if not settings.server.otlp_endpoint:
        return None
    with needs_extra("server.otlp_endpoint", "server,otel"):
        from process.request_spans import RequestSpans
    return RequestSpans(settings.server.otlp_endpoint)
