"""The metrics of `/metrics` (protocol §7): histograms, gauges, and figures of topics and readers.

Components add observations to histograms with `observe(name, value)`; one table here has their
names. A scrape reads the gauges, the counts of each topic and the lags of named positions,
consumer groups and share groups from the components.
"""

from __future__ import annotations

import asyncio
import platform
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from kernel.event_loop import FutureTask
from kernel.requests_and_replies import Reply, Request, Route, read_query
from messaging.groups.consumer_coordinator import GroupLags
from messaging.groups.share_coordinator import ShareGroupLag
from messaging.read.counts import MessageCount
from messaging.read.lost_messages import LossKey
from messaging.retention.holds_and_positions import PositionLag
from messaging.service import MessagingService
from process.clock import SteadyClock
from process.disk_space import Disk, Space
from tuff.protocol import operations
from tuff.protocol.errors import TuffError
from tuff.protocol.ids import TopicId
from tuff.version import __version__
from tx.counters import TransactionCounters
from tx.durable_state import ServiceState
from tx.service import TransactionManager

T = TypeVar("T")

LAGS_WITHIN_S = 1.0  # seconds; a disk that hangs must not hide the metrics that report this
SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0)
# Series of their own have so many of each, so that a scrape stays below some 5,000 of them.
POSITIONS_SHOWN_MAX = 1_000  # named positions, over all topics
TOPICS_COUNTED_MAX = 100  # topics; a scrape counts their messages
TOPICS_SHOWN_MAX = 1_000
GROUP_PARTITIONS_SHOWN_MAX = 1_000  # partitions of consumer groups, over all groups
SHARE_GROUPS_SHOWN_MAX = 1_000  # over all topics
COUNT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


@dataclass(frozen=True, slots=True)
class Gauge:
    """One value that is read at each scrape: its name, its help, and how to read it. `read` returns
    None while the value is unknown. Gauges of one name differ in the values of their labels."""

    name: str
    help: str
    read: Callable[[], float | None]
    is_counter: bool = False
    labels: tuple[tuple[str, str], ...] = ()


# A topic, the messages that were published to it since the start, and the bytes of their payloads.
TopicFigures = tuple[TopicId, int, int]


TopicCount = tuple[TopicId, MessageCount]


class Lags(NamedTuple):
    """How far readers are behind at a time of the server: named positions, consumer groups, and
    share groups; how many messages topics have, and groups have lost."""

    positions: Sequence[PositionLag] = ()
    groups: Sequence[GroupLags] = ()
    share_groups: Sequence[ShareGroupLag] = ()
    topics: Sequence[TopicCount] = ()
    lost: Mapping[LossKey, int] = MappingProxyType({})  # messages, in total
    now_ms: int = 0


class Histogram:
    """How many observations fell into each bucket, and their sum. A bound belongs to the bucket
    below it."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class HistogramFamily:
    """The histograms of one name, by the values of its labels."""

    def __init__(
        self, name: str, text: str, bounds: tuple[float, ...], *, labels: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.help = text
        self.labels = labels
        self.by_labels: dict[tuple[str, ...], Histogram] = {}
        self._bounds = bounds
        if not labels:
            self.of(())

    def of(self, values: tuple[str, ...]) -> Histogram:
        """The histogram with these values of the labels."""
        found = self.by_labels.get(values)
        if found is None:
            found = self.by_labels[values] = Histogram(self._bounds)
        return found


class Metrics:
    """Histograms that the hot paths feed, and gauges that are read at a scrape. Lives on the event
    loop."""

    def __init__(self) -> None:
        self._requests = HistogramFamily(
            "request_seconds",
            "Time from a request to its answer; polls include what they wait.",
            SECONDS_BUCKETS,
            labels=("operation", "outcome"),
        )
        self._observed = [
            HistogramFamily(name, text, bounds)
            for name, text, bounds in (
                ("log_fsync_seconds", "Time to write and sync one log batch.", SECONDS_BUCKETS),
                ("log_batch_edits", "Edits in one batch of the transaction log.", COUNT_BUCKETS),
                ("store_fsync_seconds", "Time of one durable store batch.", SECONDS_BUCKETS),
                ("store_batch_requests", "Requests in one store batch.", COUNT_BUCKETS),
                ("blocked_reader_seconds", "Time a reader was blocked.", SECONDS_BUCKETS),
                (
                    "delayed_lateness_seconds",
                    "Time from the due time of a delayed message until it was in its topic.",
                    SECONDS_BUCKETS,
                ),
            )
        ]
        self._by_name = {each.name: each.of(()) for each in self._observed}
        self._by_status: dict[tuple[str, int], Histogram] = {}
        self._gauges: tuple[Gauge, ...] = ()
        self._topics: Callable[[], Iterable[TopicFigures]] = tuple
        self._lags: Callable[[], Awaitable[Lags]] = no_lags

    def observe(self, name: str, value: float) -> None:
        """Add one observation to the histogram of that name."""
        self._by_name[name].observe(value)

    def observe_request(self, operation: str, status: int, seconds: float) -> None:
        found = self._by_status.get((operation, status))
        if found is None:
            found = self._requests.of((operation, f"{status // 100}xx"))
            self._by_status[operation, status] = found
        found.counts[bisect_left(found.bounds, seconds)] += 1
        found.sum += seconds

    def watch(
        self,
        gauges: Iterable[Gauge],
        topics: Callable[[], Iterable[TopicFigures]],
        lags: Callable[[], Awaitable[Lags]],
    ) -> None:
        """Read these figures at every scrape."""
        self._gauges = tuple(gauges)
        self._topics = topics
        self._lags = lags

    async def text(self, accept: str = "") -> tuple[bytes, str]:
        """The reply of `/metrics` with its content type, for this value of `Accept`."""
        # Here, since a start needs none of what it loads (process/prometheus_text.py).
        from process.prometheus_text import exposition

        lags = await self._lags()
        histograms = [self._requests, *self._observed]
        return exposition(histograms, self._gauges, self._topics(), lags, accept=accept)


def routes(metrics: Metrics) -> list[Route]:
    async def scrape(request: Request) -> Reply:
        read_query(request.query, parameters=())
        text, content_type = await metrics.text(request.accept or "")
        return Reply(200, content_type, text)

    return [Route(operations.GET_METRICS, scrape)]


def register_gauges(
    metrics: Metrics,
    messaging: MessagingService,
    transactions: TransactionManager,
    clock: SteadyClock,
    *,
    is_store_up: Callable[[], bool],
    under_way: Callable[[], float],
    oldest_message_write_s: Callable[[], float],
    oldest_log_write_s: Callable[[], float],
    disks: Mapping[str, Disk],
    more: Iterable[Gauge],
) -> None:
    """Let each scrape read all gauges of the server; `more` has those of the cluster and of the
    audit topic."""
    of_process = [
        Gauge("store_up", "1 while messages can be stored and read.", lambda: float(is_store_up())),
        Gauge("requests_under_way", "Requests that wait for their answer, polls too.", under_way),
        Gauge(
            "store_oldest_write_seconds",
            "For how long the oldest write of messages is under way; 0 when there is none.",
            oldest_message_write_s,
        ),
        Gauge(
            "log_oldest_write_seconds",
            "For how long the oldest write to the transaction log is under way; 0 when there is "
            "none.",
            oldest_log_write_s,
        ),
    ]
    of_disks = [gauge for store, disk in disks.items() for gauge in _of_disk(store, disk)]
    metrics.watch(
        [
            *_of_components(messaging, transactions, clock),
            *of_process,
            *of_disks,
            *more,
            _build_info(),
        ],
        messaging.topics.figures,
        LagReader(messaging).read,
    )


def _of_components(
    messaging: MessagingService, transactions: TransactionManager, clock: SteadyClock
) -> list[Gauge]:
    def next_due_s() -> float | None:
        next_ms = messaging.delayed.next_due_ms()
        return None if next_ms is None else next_ms / 1000

    return [
        *_transaction_counters(transactions.counters),
        *_transaction_gauges(transactions),
        Gauge("polls_waiting", "Long polls that wait.", lambda: messaging.polls.waiting_count),
        _counter(
            "delayed_entered",
            "Delayed messages that entered their topics.",
            lambda: messaging.delayed.entered_count,
        ),
        Gauge(
            "delayed_next_due_timestamp_seconds",
            "When the next delayed message is due, since the epoch; no sample if none waits.",
            next_due_s,
        ),
        Gauge(
            "positions",
            "Named positions of all topics.",
            messaging.holds_and_positions.position_count,
        ),
        *_of_clock(clock),
        _counter(
            "unacknowledged_publishes_failed",
            "Publishes that were answered before they were durable, and were not written then.",
            lambda: messaging.committer.lost_count,
        ),
        _counter(
            "corrupt_records",
            "Reads refused for a damaged record.",
            lambda: messaging.polls.damaged_reads,
        ),
    ]


def _of_clock(clock: SteadyClock) -> list[Gauge]:
    def clock_regressions() -> float:
        clock.offset_ms()
        return clock.regressions

    return [
        Gauge(
            "time_seconds",
            "The time that the server goes by, since the epoch.",
            lambda: clock.now_ms() / 1000,
        ),
        Gauge(
            "clock_offset_seconds",
            "How far the wall clock is ahead of the time that the server goes by.",
            lambda: clock.offset_ms() / 1000,
        ),
        _counter("clock_regressions", "Times the wall clock was set back.", clock_regressions),
    ]


def _of_disk(store: str, disk: Disk) -> list[Gauge]:
    def of_space(read: Callable[[Space], int]) -> Callable[[], float | None]:
        return lambda: None if disk.space is None else read(disk.space)

    labels = (("store", store),)
    return [
        Gauge(
            "disk_free_bytes",
            "Free space on the disk of a store; no sample while that is unknown.",
            of_space(lambda space: space.free_bytes),
            labels=labels,
        ),
        Gauge(
            "disk_size_bytes",
            "Size of the file system of a store; no sample while that is unknown.",
            of_space(lambda space: space.size_bytes),
            labels=labels,
        ),
        Gauge(
            "disk_reserve_bytes",
            "Space that is kept free on the disk of a store; with less, no messages are taken.",
            of_space(lambda space: space.reserve_bytes),
            labels=labels,
        ),
        Gauge(
            "disk_unanswered_seconds",
            "For how long a query of the free space has no answer; 0 when there is none.",
            lambda: disk.unanswered_s,
            labels=labels,
        ),
    ]


def _build_info() -> Gauge:
    version = (("version", __version__), ("python", platform.python_version()))
    return Gauge("build_info", "The version that runs; always 1.", lambda: 1.0, labels=version)


def _counter(name: str, text: str, read: Callable[[], float]) -> Gauge:
    return Gauge(name, text, read, is_counter=True)


def _transaction_counters(counters: TransactionCounters) -> list[Gauge]:
    return [
        _counter("transactions_started", "Transactions started.", lambda: counters.starts),
        _counter("transactions_committed", "Transactions committed.", lambda: counters.commits),
        _counter("transactions_aborted", "Transactions aborted.", lambda: counters.aborts),
        _counter(
            "transaction_conflicts",
            "Transactions refused for a conflict.",
            lambda: counters.conflicts,
        ),
        _counter(
            "transactions_invalidated",
            "Transactions that became invalid, time-outs included.",
            lambda: counters.invalidations,
        ),
        _counter("transaction_timeouts", "Transactions that timed out.", lambda: counters.timeouts),
        _counter(
            "leases_expired",
            "Long transactions that were not renewed in time.",
            lambda: counters.lapses,
        ),
        _counter(
            "epochs_fenced",
            "Transactions of sinks that another run ended.",
            lambda: counters.fences,
        ),
        _counter("snapshots_written", "Snapshot files written.", lambda: counters.snapshots),
    ]


def _transaction_gauges(transactions: TransactionManager) -> list[Gauge]:
    return [
        Gauge(
            "transactions_up",
            "1 while the transaction service runs.",
            lambda: float(transactions.status.state is ServiceState.RUNNING),
        ),
        Gauge(
            "transactions_in_progress",
            "Transactions in progress; 0 while the service is down.",
            lambda: float(transactions.monitoring.figures().open_count),
        ),
        Gauge(
            "leases_open",
            "Transactions in progress that have a lease.",
            lambda: float(transactions.monitoring.figures().leased_count),
        ),
        Gauge(
            "transactions_invalid",
            "Pointers on the invalid list.",
            lambda: float(transactions.monitoring.figures().invalid_count),
        ),
        Gauge(
            "oldest_transaction_seconds",
            "Age of the oldest transaction in progress; 0 when there is none.",
            lambda: transactions.monitoring.figures().oldest_ms / 1000,
        ),
        Gauge(
            "transactions_prepared",
            "Prepared transactions, whose database has not decided yet.",
            lambda: float(transactions.monitoring.figures().prepared_count),
        ),
        Gauge(
            "oldest_prepared_seconds",
            "Time since the oldest prepared transaction was prepared; 0 when there is none.",
            lambda: transactions.monitoring.figures().oldest_prepared_ms / 1000,
        ),
    ]


class LagReader:
    """Reads the lags of named positions, consumer groups and share groups for scrapes. Lives on the
    event loop."""

    def __init__(self, messaging: MessagingService) -> None:
        positions = messaging.holds_and_positions.position_lags
        self._positions = _Reading(partial(positions, count_max=POSITIONS_SHOWN_MAX))
        groups = messaging.groups.all_lags
        self._groups = _Reading(partial(groups, count_max=GROUP_PARTITIONS_SHOWN_MAX))
        share_groups = messaging.share_groups.all_lags
        self._share_groups = _Reading(partial(share_groups, count_max=SHARE_GROUPS_SHOWN_MAX))
        topics = messaging.inspection.counts
        self._topics = _Reading(partial(topics, count_max=TOPICS_COUNTED_MAX))
        self._now_ms = messaging.groups.now_ms
        self._lost = messaging.lost_messages.totals

    async def read(self) -> Lags:
        """The lags of each kind; none while the message store is down, or takes too long for
        them."""
        readings = (self._positions, self._groups, self._share_groups, self._topics)
        await asyncio.wait([each.under_way() for each in readings], timeout=LAGS_WITHIN_S)
        return Lags(
            self._positions.result(),
            self._groups.result(),
            self._share_groups.result(),
            self._topics.result(),
            self._lost,
            self._now_ms(),
        )


class _Reading(Generic[T]):
    """A read that goes on if it takes too long for a scrape, for it may have the turn of a group.
    The next scrape gets what it found, so reads do not pile up while a disk hangs."""

    def __init__(self, read: Callable[[], Awaitable[Sequence[T]]]) -> None:
        self._read = read
        self._done: asyncio.Future[Sequence[T]] | None = None
        self._is_shown = False

    def under_way(self) -> asyncio.Future[Sequence[T]]:
        """The read whose result no scrape has shown yet, or a new one."""
        if self._done is None or self._is_shown:
            self._is_shown = False
            task = FutureTask(self._none_if_down(), refusals=TuffError)
            self._done = task.done
            task.go_on()
        return self._done

    def result(self) -> Sequence[T]:
        """What was read; nothing while it is not done."""
        if self._done is None or not self._done.done():
            return ()
        self._is_shown = True
        return self._done.result()

    async def _none_if_down(self) -> Sequence[T]:
        try:
            return await self._read()
        except TuffError:
            return ()


async def no_lags() -> Lags:
    """For a server without a message store."""
    return Lags()
