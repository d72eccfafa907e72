"""What `/metrics` reads from the rooms when somebody asks (protocol §7)."""

import platform
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

from messaging.service import MessagingService
from process.clock import SteadyClock
from process.disks import Disk, Space
from process.metrics import POSITIONS_SHOWN_MAX, Gauge, Metrics, PositionFigures, TopicFigures
from tuff.disk.steps import Patience, Promised
from tuff.protocol.errors import StorageUnavailableError, TuffError
from tuff.version import __version__
from tx.counters import TransactionCounters
from tx.ledger import ServiceState
from tx.manager import TransactionManager

T = TypeVar("T")

POSITIONS_WITHIN_S = 1.0  # seconds; a disk that hangs must not keep the figures that tell of it


def watch(
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
) -> None:
    """Have all that is here read at every scrape."""
    on_the_way = [
        Gauge("store_up", "1 while messages can be stored and read.", lambda: float(is_store_up())),
        Gauge("requests_under_way", "Requests that wait for their answer, polls too.", under_way),
        Gauge(
            "store_oldest_write_seconds",
            "For how long the oldest write of messages is on its way; 0 when there is none.",
            oldest_message_write_s,
        ),
        Gauge(
            "log_oldest_write_seconds",
            "For how long the oldest write to the transaction log is on its way; 0 when there is "
            "none.",
            oldest_log_write_s,
        ),
    ]
    of_disks = [gauge for store, disk in disks.items() for gauge in _of_disk(store, disk)]
    metrics.watch(
        [*gauges(messaging, transactions, clock), *on_the_way, *of_disks, _build_info()],
        partial(topic_figures, messaging),
        partial(position_figures, messaging),
    )


def gauges(
    messaging: MessagingService, transactions: TransactionManager, clock: SteadyClock
) -> list[Gauge]:
    """The figures of both rooms and of the clock."""

    def clock_regressions() -> float:
        clock.offset_ms()
        return clock.regressions

    return [
        *_counted(transactions.counters),
        *_held(transactions),
        Gauge("polls_waiting", "Long polls that wait.", messaging.waiting_count),
        Gauge("positions", "Named positions of all topics.", messaging.position_count),
        Gauge(
            "clock_offset_seconds",
            "How far the wall clock is ahead of the time that the server goes by.",
            lambda: clock.offset_ms() / 1000,
        ),
        _counter("clock_regressions", "Times the wall clock was set back.", clock_regressions),
        _counter(
            "corrupt_records",
            "Reads refused for a damaged record.",
            lambda: messaging.damaged_reads,
        ),
    ]


def _of_disk(store: str, disk: Disk) -> list[Gauge]:
    def of_space(read: Callable[[Space], int]) -> Callable[[], float | None]:
        return lambda: None if disk.space is None else read(disk.space)

    labels = (("store", store),)
    return [
        Gauge(
            "disk_free_bytes",
            "Room that is left on the disk of a store; no sample while that is unknown.",
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
            "Room that the disk of a store keeps free; with less, no messages are taken.",
            of_space(lambda space: space.reserve_bytes),
            labels=labels,
        ),
        Gauge(
            "disk_unanswered_seconds",
            "For how long the disk of a store owes an answer about its room; 0 when it owes none.",
            lambda: disk.unanswered_s,
            labels=labels,
        ),
    ]


def _build_info() -> Gauge:
    version = (("version", __version__), ("python", platform.python_version()))
    return Gauge("build_info", "The version that runs; always 1.", lambda: 1.0, labels=version)


def _counter(name: str, text: str, read: Callable[[], float]) -> Gauge:
    return Gauge(name, text, read, counts_up=True)


def _counted(counters: TransactionCounters) -> list[Gauge]:
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
            "Long transactions that nobody renewed in time.",
            lambda: counters.lapses,
        ),
        _counter(
            "epochs_fenced",
            "Transactions of sinks that another run ended.",
            lambda: counters.fences,
        ),
        _counter("snapshots_written", "Snapshot files written.", lambda: counters.snapshots),
    ]


def _held(transactions: TransactionManager) -> list[Gauge]:
    return [
        Gauge(
            "transactions_up",
            "1 while the transaction service runs.",
            lambda: float(transactions.status.state is ServiceState.RUNNING),
        ),
        Gauge(
            "transactions_in_progress",
            "Transactions in progress; 0 while the service is down.",
            lambda: float(transactions.figures().open_count),
        ),
        Gauge(
            "leases_open",
            "Transactions in progress that have a lease.",
            lambda: float(transactions.figures().leased_count),
        ),
        Gauge(
            "transactions_invalid",
            "Pointers on the invalid list.",
            lambda: float(transactions.figures().invalid_count),
        ),
        Gauge(
            "oldest_transaction_seconds",
            "Age of the oldest transaction in progress; 0 when there is none.",
            lambda: transactions.figures().oldest_ms / 1000,
        ),
    ]


def topic_figures(messaging: MessagingService) -> Iterator[TopicFigures]:
    """What was published to each topic since the start."""
    for topic, messages, payload_bytes in messaging.topic_figures():
        yield TopicFigures(topic.namespace, topic.name, messages, payload_bytes)


async def position_figures(messaging: MessagingService) -> Sequence[PositionFigures]:
    """How far named positions are behind; none while the message store is down or hangs."""
    try:
        lags = await _soon(messaging.position_lags(count_max=POSITIONS_SHOWN_MAX))
    except (StorageUnavailableError, TimeoutError):
        return ()
    return [
        PositionFigures(
            lag.topic.namespace,
            lag.topic.name,
            lag.name,
            behind_s=lag.behind_ms / 1000,
            updated_at_s=lag.updated_at_ms / 1000,
        )
        for lag in lags
    ]


async def _soon(work: Coroutine[Any, Any, T]) -> T:
    """What the work returns. There need be no task around it, which `asyncio.timeout` asks for."""
    promised = Promised(work, refusals=TuffError)
    promised.go_on()
    Patience(POSITIONS_WITHIN_S, too_late=TimeoutError).watch(promised.done)
    try:
        return await promised.done
    finally:
        promised.give_up()
