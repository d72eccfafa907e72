"""What `/metrics` reads from the rooms when somebody asks (protocol §7)."""

from collections.abc import Callable, Iterator

from messaging.service import MessagingService
from process.clock import SteadyClock
from process.metrics import Gauge, TopicFigures
from tx.ledger import ServiceState
from tx.manager import TransactionManager


def gauges(
    messaging: MessagingService, transactions: TransactionManager, clock: SteadyClock
) -> list[Gauge]:
    """The figures of both rooms and of the clock."""
    counters = transactions.counters

    def counter(name: str, text: str, read: Callable[[], float]) -> Gauge:
        return Gauge(name, text, read, counts_up=True)

    def clock_regressions() -> float:
        clock.offset_ms()
        return clock.regressions

    return [
        counter("transactions_started", "Transactions started.", lambda: counters.starts),
        counter("transactions_committed", "Transactions committed.", lambda: counters.commits),
        counter("transactions_aborted", "Transactions aborted.", lambda: counters.aborts),
        counter("transaction_conflicts", "Refusals for a conflict.", lambda: counters.conflicts),
        counter(
            "transactions_invalidated",
            "Transactions that became invalid, time-outs included.",
            lambda: counters.invalidations,
        ),
        counter("transaction_timeouts", "Transactions that timed out.", lambda: counters.timeouts),
        counter("snapshots_written", "Snapshot files written.", lambda: counters.snapshots),
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
            "transactions_invalid",
            "Pointers on the invalid list.",
            lambda: float(transactions.figures().invalid_count),
        ),
        Gauge(
            "oldest_transaction_seconds",
            "Age of the oldest transaction in progress; 0 when there is none.",
            lambda: transactions.figures().oldest_ms / 1000,
        ),
        Gauge("polls_waiting", "Long polls that wait.", messaging.waiting_count),
        counter("clock_regressions", "Times the wall clock was set back.", clock_regressions),
        counter(
            "corrupt_records",
            "Reads refused for a damaged record.",
            lambda: messaging.damaged_reads,
        ),
    ]


def topic_figures(messaging: MessagingService) -> Iterator[TopicFigures]:
    """What was published to each topic since the start."""
    for topic, messages, payload_bytes in messaging.topic_figures():
        yield TopicFigures(topic.namespace, topic.name, messages, payload_bytes)
