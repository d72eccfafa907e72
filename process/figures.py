"""What `/metrics` reads from the rooms when somebody asks (protocol §7)."""

from collections.abc import Callable, Iterator

from messaging.service import MessagingService
from process.clock import SteadyClock
from process.metrics import Gauge, TopicFigures
from tx.counters import TransactionCounters
from tx.ledger import ServiceState
from tx.manager import TransactionManager


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
        _counter("clock_regressions", "Times the wall clock was set back.", clock_regressions),
        _counter(
            "corrupt_records",
            "Reads refused for a damaged record.",
            lambda: messaging.damaged_reads,
        ),
    ]


def _counter(name: str, text: str, read: Callable[[], float]) -> Gauge:
    return Gauge(name, text, read, counts_up=True)


def _counted(counters: TransactionCounters) -> list[Gauge]:
    return [
        _counter("transactions_started", "Transactions started.", lambda: counters.starts),
        _counter("transactions_committed", "Transactions committed.", lambda: counters.commits),
        _counter("transactions_aborted", "Transactions aborted.", lambda: counters.aborts),
        _counter("transaction_conflicts", "Refusals for a conflict.", lambda: counters.conflicts),
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
