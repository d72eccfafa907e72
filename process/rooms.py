"""The two rooms, wired together, with everything that a server needs to run and to show them."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Protocol

from aiohttp import web

from messaging import job_routes
from messaging import routes as message_routes
from messaging.service import MessagingService
from process import backup_routes, health, metrics
from process.application import application, openapi_route
from process.bridge import Bridge, LateTransactions
from process.clock import ClockGuard, ClockTrust, SteadyClock, jump
from process.disks import Disks
from process.engines import Background, engine
from process.figures import watch
from process.front import Admission, Front
from process.health import Check, Status
from process.hosts import Hosts
from process.http import Listener
from process.places import Places
from process.settings import Settings
from process.workers import Watched
from tuff.disk.group import Arrivals, InThread
from tuff.protocol.errors import TopicExistsError, UnavailableError
from tuff.protocol.exchange import Route
from tx import routes as transaction_routes
from tx.files import has_files
from tx.inquiries import SweepMark
from tx.ledger import ServiceState
from tx.manager import TransactionManager

log = logging.getLogger(__name__)

READ_THREADS = 4  # a slow read holds one of them, and never the event loop
# Seconds that closing waits for a store that hangs; with what is drained before, the process ends
# within its ten.
STORE_HANGS_S_MAX = 3.0

Work = Coroutine[object, object, None]


class Threads(Protocol):
    """Makes worker threads, and gives the way to run something on one of them."""

    def __call__(self, name: str, count: int, /, *, is_joined: bool = True) -> InThread:
        """`is_joined`: the process ends when they are done, and not before."""


class Rooms:
    """Lives on one event loop. `spawn` starts background work, `spawn_writer` work without which
    nothing can go on; `elapsed_s` is a clock that only goes forward."""

    def __init__(
        self,
        settings: Settings,
        places: Places,
        *,
        clock: SteadyClock,
        elapsed_s: Callable[[], float],
        store_id: Callable[[], str],
        spawn: Callable[[Work], None],
        spawn_writer: Callable[[Work], None],
        threads: Threads,
        background: Callable[[str], Background],
    ) -> None:
        self._settings = settings
        self._places = places
        self._clock = clock
        self._spawn = spawn
        self._spawn_writer = spawn_writer
        self._guard: ClockGuard | None = None
        self._is_open = False
        self._changes = health.Changes()
        self._is_watched = False  # from when it is open until it is stopped
        self._system_topics = settings.messaging.system_topic_ids()
        self._metrics = metrics.Metrics()
        self._arrivals = Arrivals()
        self._message_writes = Watched(threads("store-writer", 1), elapsed_s=elapsed_s)
        self._disks = self._make_disks(threads, elapsed_s=elapsed_s)
        transactions = LateTransactions()
        self.messaging = self._open_messaging(
            transactions, threads, background, elapsed_s=elapsed_s
        )
        self._log_writes = Watched(threads("transaction-log", 1), elapsed_s=elapsed_s)
        self.transactions = self._open_transactions(
            threads, elapsed_s=elapsed_s, spawn=spawn, store_id=store_id
        )
        transactions.connect(self.transactions)
        self._bridge = self._make_bridge(store_id)
        self._backups = self._make_backups(threads)
        self._admission = Admission(
            pending_max=settings.server.max_pending_requests,
            waiting=self.messaging.waiting_count,
            arrivals=self._arrivals,
        )
        self._front = Front(self._admission, self._metrics, elapsed_s=elapsed_s)
        self._hosts = Hosts(settings.server.allowed_hosts)
        self._watch()

    def application(self) -> web.Application:
        """Every route, as the HTTP library has it."""
        limit = self._settings.server.max_request_bytes
        streams = backup_routes.routes(self._backups)
        return application(
            self._routes(), self._front, self._hosts, max_request_bytes=limit, streams=streams
        )

    def listener(self) -> Listener:
        """What serves every route on a socket."""
        server = self._settings.server
        return Listener(
            self.application(),
            self._routes(),
            self._front,
            self._hosts,
            connections_max=server.max_connections,
            max_request_bytes=server.max_request_bytes,
            now_ms=self._clock.now_ms,
        )

    def _routes(self) -> list[Route]:
        messages = [*message_routes.routes(self.messaging), *job_routes.routes(self.messaging)]
        if self.messaging.ownership is not None:
            messages = [message_routes.owned(each, self.messaging.ownership) for each in messages]
        return [
            *messages,
            *transaction_routes.routes(self.transactions),
            *health.routes(lambda: self._is_open and self._guard is not None, self._checks),
            *metrics.routes(self._metrics),
            openapi_route(),
        ]

    async def open(self) -> None:
        """Recover both rooms, start their writers, and let requests in. What can't be opened is
        down, and tried again by `tick`; the other room goes on.

        Raises:
            DirectoryLockedError: another process has the message store open.
        """
        await self._disks.ask_first()
        await self.messaging.open()
        self._judge_clock()
        if self.messaging.ownership is not None:
            await self.messaging.ownership.check()
            self._spawn(self.messaging.ownership.run())
        self._spawn_writer(self.messaging.run())
        self._spawn_writer(self.transactions.run())
        await self._bridge.tick()
        await self._create_system_topics()
        self._is_open = True
        self._admission.open()
        self._is_watched = True
        self._note_changes()

    async def tick(self) -> None:
        """What is due in both rooms, one after the other."""
        await self.tick_messages()
        await self.tick_transactions()

    async def tick_messages(self) -> None:
        """What is due of messages; to be called several times a second."""
        self._disks.ask()
        await self.messaging.tick()
        self._judge_clock()
        await self._create_system_topics()
        self._note_changes()

    async def tick_transactions(self) -> None:
        """What is due of transactions; to be called several times a second, and for itself: behind
        messages whose disk stands still, nobody's time would ever be over."""
        await self.transactions.tick()
        await self._bridge.tick()
        self._note_changes()

    async def sweep(self) -> None:
        """One pass of retention."""
        try:
            await self.messaging.sweep()
        except UnavailableError as error:
            log.warning("no sweep: %s", error)

    async def drain(self) -> None:
        """Refuse new work, and let what is under way end."""
        self._is_watched = False
        self._admission.stop()
        self._backups.stop()
        self.messaging.stop_waiting()
        await self._admission.drained()

    def interrupt(self) -> None:
        """Let calls of the message store that hang fail at once, and all later ones."""
        self.messaging.interrupt()

    async def close(self) -> None:
        """Write what waits, and let go of the files; transactions first, since their last endings
        still mark rows."""
        self._is_watched = False
        loop = asyncio.get_running_loop()
        giving_up = loop.call_later(STORE_HANGS_S_MAX, self.interrupt)
        await self.transactions.close()
        await self.messaging.close()
        giving_up.cancel()

    def _open_messaging(
        self,
        transactions: LateTransactions,
        threads: Threads,
        background: Callable[[str], Background],
        *,
        elapsed_s: Callable[[], float],
    ) -> MessagingService:
        settings, now_ms = self._settings, self._clock.now_ms
        has_owner = settings.messaging.store == "hbase"
        opens = engine(
            settings,
            self._places.messages,
            why_not_begin=self._why_not_begin,
            now_ms=now_ms,
            elapsed_s=elapsed_s,
            background=background,
        )
        return MessagingService(
            opens,
            settings.messaging,
            transactions=transactions,
            now_ms=now_ms,
            elapsed_s=elapsed_s,
            in_thread_write=self._message_writes,
            in_thread_read=threads("store-reader", READ_THREADS),
            arrivals=self._arrivals,
            longest_transaction_s=max(settings.tx.long_timeout_s, settings.tx.max_timeout_s),
            may_delete=self._may_delete,
            observe=self._metrics.observe,
            why_not_begin=self._why_not_begin,
            lack_of_space=self._disks.lack_of_space,
            in_thread_prove=threads("store-owner", 1) if has_owner else None,
        )

    def _why_not_begin(self) -> str | None:
        """Why an empty message store must not be taken for a beginning, in a sentence; None where
        it may. Blocks."""
        settings, snapshots = self._settings, self._places.snapshots
        if settings.messaging.store == "memory" or settings.server.accept_lost_messages:
            return None
        try:
            if not has_files(snapshots):
                return None
        except OSError as error:
            return f"whether there were messages is not known: {snapshots} can't be read: {error}"
        is_here = settings.messaging.store == "leveldb"
        place = str(self._places.messages) if is_here else f"HBase ({settings.hbase.prefix}*)"
        return (
            f"{place} holds no message store, and the transaction files in {snapshots} belong to "
            "one: put it back (is its volume mounted?), and the server goes on; if it is lost, "
            "start once with server.accept_lost_messages=true"
        )

    def _open_transactions(
        self,
        threads: Threads,
        *,
        elapsed_s: Callable[[], float],
        spawn: Callable[[Work], None],
        store_id: Callable[[], str],
    ) -> TransactionManager:
        return TransactionManager(
            self._places.snapshots,
            self._settings.tx,
            rows=self.messaging,
            now_ms=self._clock.now_ms,
            elapsed_s=elapsed_s,
            in_thread_log=self._log_writes,
            in_thread_files=threads("transaction-files", 1),
            arrivals=self._arrivals,
            spawn=spawn,
            store_id=store_id,
            status_changed=self._note_changes,
            observe=self._metrics.observe,
            last_sweep=self._last_sweep,
        )

    def _watch(self) -> None:
        watch(
            self._metrics,
            self.messaging,
            self.transactions,
            self._clock,
            is_store_up=lambda: self._check_storage().status is not Status.DOWN,
            under_way=lambda: self._admission.under_way,
            oldest_message_write_s=self._message_writes.oldest_s,
            oldest_log_write_s=self._log_writes.oldest_s,
            disks=self._disks.by_store,
        )

    def _make_disks(self, threads: Threads, *, elapsed_s: Callable[[], float]) -> Disks:
        is_here = self._settings.messaging.store == "leveldb"
        return Disks(
            self._places.messages if is_here else None,
            self._places.snapshots,
            threads=lambda name: threads(name, 1, is_joined=False),  # nothing depends on them
            elapsed_s=elapsed_s,
            spawn=self._spawn,
        )

    def _make_bridge(self, store_id: Callable[[], str]) -> Bridge:
        return Bridge(
            self.messaging,
            self.transactions,
            max_block_s=self._settings.messaging.max_block_s,
            keeps_messages=self._settings.messaging.store != "memory",
            store_id=store_id,
            now_ms=self._clock.now_ms,
        )

    def _make_backups(self, threads: Threads) -> backup_routes.Backups:
        return backup_routes.Backups(
            self.messaging,
            self.transactions,
            has_transactions=self._settings.tx.enabled,
            now_ms=self._clock.now_ms,
            in_thread=threads("backup", 1),
        )

    async def _create_system_topics(self) -> None:
        while self._system_topics and self.messaging.status[0] == "ok":
            try:
                await self.messaging.create_topic(self._system_topics[0], {})
            except TopicExistsError:
                pass
            except UnavailableError as error:
                log.warning("system topics are not created yet: %s", error)
                return
            del self._system_topics[0]

    def _judge_clock(self) -> None:
        if self._guard is not None or self.messaging.status[0] != "ok":
            return
        server = self._settings.server
        self._guard = ClockGuard(
            mark_ms=self.messaging.recovered_mark_ms,
            start_ms=self._clock.now_ms(),
            jump_ms_max=round(server.max_clock_jump_s * 1000),
            accepted=server.accept_clock,
        )

    def _may_delete(self) -> bool:
        return self._guard is not None and self._guard.may_delete(self._clock.now_ms())

    def _last_sweep(self) -> SweepMark | None:
        swept = self.messaging.last_sweep
        return None if swept is None else SweepMark(*swept)

    def _note_changes(self) -> None:
        if self._is_watched:
            self._changes.note(self._checks())

    def _checks(self) -> dict[str, Check]:
        status = self.transactions.status
        transactions = (
            Check(Status.OK, "; ".join(self.transactions.notes) or "transactions run")
            if status.state is ServiceState.RUNNING
            else Check(Status.DEGRADED, f"{status.state.value}: {status.reason}")
        )
        storage_s, log_s = self._message_writes.oldest_s(), self._log_writes.oldest_s()
        return {
            "storage": health.check_write(self._check_storage(), oldest_s=storage_s),
            "transactions": health.check_write(transactions, oldest_s=log_s),
            "disk": self._disks.check(),
            "clock": self._check_clock(),
        }

    def _check_storage(self) -> Check:
        if self._admission.is_stopping:
            return Check(Status.DOWN, "the server is stopping")
        if not self._is_open:
            return Check(Status.DOWN, "the server is starting")
        state, reason = self.messaging.status
        if state != "ok":
            return Check(Status.DOWN, f"messages can't be stored or read: {reason}")
        if self.messaging.ownership is not None and self.messaging.ownership.lapse is not None:
            return Check(Status.DOWN, f"messages can't be read: {self.messaging.ownership.lapse}")
        store = self._settings.messaging.store
        end = ", and loses them when the process ends" if store == "memory" else ""
        return Check(Status.OK, f"{store} takes and serves messages{end}")

    def _check_clock(self) -> Check:
        now_ms = self._clock.now_ms()
        if self._guard is None:
            return Check(Status.DEGRADED, "the clock was not compared with the store yet")
        trust = self._guard.trust(now_ms)
        if trust is not ClockTrust.TRUSTED:
            return Check(Status.DEGRADED, self._guard.detail(now_ms), trust.value)
        offset_ms = self._clock.offset_ms()
        if (jumped := jump(offset_ms)) is not None:
            return Check(Status.DEGRADED, jumped, "set ahead" if offset_ms > 0 else "set back")
        return Check(Status.OK, self._guard.detail(now_ms))
