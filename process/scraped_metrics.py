"""What a scrape reads of the message store, the transaction service and the clock, and the lags of
named positions, consumer groups and share groups."""

import asyncio
import platform
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Generic, NamedTuple, TypeVar

from kernel.event_loop import FutureTask
from messaging.groups.consumer_coordinator import GroupLags
from messaging.groups.share_coordinator import ShareGroupView
from messaging.read.counts import RECORDS_COUNT_MAX, MessageCount
from messaging.read.lost_messages import TOTALS_COUNT_MAX, GroupKind, LossKey
from messaging.retention.holds_and_positions import PositionLag
from messaging.service import MessagingService
from process.clock import SteadyClock
from process.metrics import Metric, counter, gauge
from tuff.protocol.errors import TuffError
from tuff.protocol.ids import TopicId
from tuff.version import __version__
from tx.durable_state import ServiceState
from tx.service import TransactionManager

T = TypeVar("T")

LAGS_WITHIN_S = 1.0  # seconds; a disk that hangs must not hide the metrics that report this
# Series of their own have so many of each, so that a scrape stays below some 5,000 of them.
POSITIONS_SHOWN_MAX = 1_000  # named positions, over all topics
TOPICS_COUNTED_MAX = 100  # topics; a scrape counts their messages
TOPICS_SHOWN_MAX = 1_000
GROUP_PARTITIONS_SHOWN_MAX = 1_000  # partitions of consumer groups, over all groups
SHARE_GROUPS_SHOWN_MAX = 1_000  # over all topics


class Lags(NamedTuple):
    """How far readers are behind at a time of the server: named positions, consumer groups, and
    share groups; how many messages topics have, and groups have lost."""

    positions: Sequence[PositionLag] = ()
    groups: Sequence[GroupLags] = ()
    share_groups: Sequence[tuple[TopicId, ShareGroupView]] = ()
    topics: Sequence[tuple[TopicId, MessageCount]] = ()
    lost: Mapping[LossKey, int] = MappingProxyType({})  # messages, in total
    now_ms: int = 0


def of_transactions(transactions: TransactionManager) -> Iterator[Metric]:
    """The metrics of the transaction service."""
    counters, figures = transactions.counters, transactions.monitoring.figures()
    is_up = transactions.status.state is ServiceState.RUNNING
    yield counter("transactions_started", "Transactions started.", counters.starts)
    yield counter("transactions_committed", "Transactions committed.", counters.commits)
    yield counter("transactions_aborted", "Transactions aborted.", counters.aborts)
    yield counter(
        "transaction_conflicts", "Transactions refused for a conflict.", counters.conflicts
    )
    yield counter(
        "transactions_invalidated",
        "Transactions that became invalid, time-outs included.",
        counters.invalidations,
    )
    yield counter("transaction_timeouts", "Transactions that timed out.", counters.timeouts)
    yield counter(
        "leases_expired", "Long transactions that were not renewed in time.", counters.lapses
    )
    yield counter("epochs_fenced", "Transactions of sinks that another run ended.", counters.fences)
    yield counter("snapshots_written", "Snapshot files written.", counters.snapshots)
    yield gauge("transactions_up", "1 while the transaction service runs.", float(is_up))
    yield gauge(
        "transactions_in_progress",
        "Transactions in progress; 0 while the service is down.",
        figures.open_count,
    )
    yield gauge("leases_open", "Transactions in progress that have a lease.", figures.leased_count)
    yield gauge("transactions_invalid", "Pointers on the invalid list.", figures.invalid_count)
    yield gauge(
        "oldest_transaction_seconds",
        "Age of the oldest transaction in progress; 0 when there is none.",
        figures.oldest_ms / 1000,
    )
    yield gauge(
        "transactions_prepared",
        "Prepared transactions, whose database has not decided yet.",
        figures.prepared_count,
    )
    yield gauge(
        "oldest_prepared_seconds",
        "Time since the oldest prepared transaction was prepared; 0 when there is none.",
        figures.oldest_prepared_ms / 1000,
    )


def of_messages(messaging: MessagingService, clock: SteadyClock) -> Iterator[Metric]:
    """The metrics of the message store, and of the clock that it goes by."""
    next_ms, offset_ms = messaging.delayed.next_due_ms(), clock.offset_ms()
    position_count = messaging.holds_and_positions.position_count()
    yield gauge("polls_waiting", "Long polls that wait.", messaging.polls.waiting_count)
    yield counter(
        "delayed_entered",
        "Delayed messages that entered their topics.",
        messaging.delayed.entered_count,
    )
    yield gauge(
        "delayed_next_due_timestamp_seconds",
        "When the next delayed message is due, since the epoch; no sample if none waits.",
        None if next_ms is None else next_ms / 1000,
    )
    yield gauge("positions", "Named positions of all topics.", position_count)
    yield gauge(
        "time_seconds",
        "The time that the server goes by, since the epoch.",
        clock.now_ms() / 1000,
    )
    yield gauge(
        "clock_offset_seconds",
        "How far the wall clock is ahead of the time that the server goes by.",
        offset_ms / 1000,
    )
    yield counter("clock_regressions", "Times the wall clock was set back.", clock.regressions)
    yield counter(
        "unacknowledged_publishes_failed",
        "Publishes that were answered before they were durable, and were not written then.",
        messaging.committer.lost_count,
    )
    damaged_reads = messaging.polls.damaged_reads
    yield counter("corrupt_records", "Reads refused for a damaged record.", damaged_reads)


def build_info() -> Metric:
    """The versions of the server and of Python, as labels."""
    versions = (__version__, platform.python_version())
    return Metric(
        "build_info", "The version that runs; always 1.", [(versions, 1.0)], ("version", "python")
    )


def of_topics(figures: Iterable[tuple[TopicId, int, int]]) -> Iterator[Metric]:
    """What was published since the start. `figures`: of each topic the messages, and the bytes of
    their payloads."""
    topics = sorted(figures)
    labels = ("namespace", "topic")
    shown = [((topic.namespace, topic.name), each) for topic, *each in topics[:TOPICS_SHOWN_MAX]]
    which = f"since the start, of the first {TOPICS_SHOWN_MAX} topics by name"
    for index, (name, what) in enumerate((("messages", "Messages"), ("bytes", "Payload bytes"))):
        yield Metric(
            f"topic_{name}",
            f"{what} published to a topic {which}.",
            [(topic, each[index]) for topic, each in shown],
            labels,
            is_counter=True,
        )
    yield counter(
        "published_messages",
        "Messages published to all topics since the start.",
        sum(message_count for _, message_count, _ in topics),
    )
    yield counter(
        "published_bytes",
        "Payload bytes published to all topics since the start.",
        sum(size_bytes for _, _, size_bytes in topics),
    )


def of_lags(lags: Lags) -> Iterator[Metric]:
    """How far readers are behind, what they have lost, and how many messages topics have."""
    yield from _of_positions(lags.positions, now_ms=lags.now_ms)
    yield from _of_groups(lags.groups, now_ms=lags.now_ms)
    yield Metric(
        "share_group_behind_seconds",
        "Publish time of a topic's newest message less that of the oldest that is not done in a "
        f"share group, of the first {SHARE_GROUPS_SHOWN_MAX} by topic and name.",
        [
            ((topic.namespace, topic.name, each.name), each.behind_ms / 1000)
            for topic, each in lags.share_groups
        ],
        ("namespace", "topic", "group"),
    )
    yield from map(partial(_of_losses, lags.lost), GroupKind)
    yield Metric(
        "topic_stored_messages",
        "Messages of a topic that a reader can receive, a lower bound of large topics, of the "
        f"first {TOPICS_COUNTED_MAX} by name.",
        [((topic.namespace, topic.name), count.count) for topic, count in lags.topics],
        ("namespace", "topic"),
    )


def _of_positions(lags: Iterable[PositionLag], *, now_ms: int) -> Iterator[Metric]:
    labels = ("namespace", "topic", "position")
    positions = [((each.topic.namespace, each.topic.name, each.name), each) for each in lags]
    which = f"of the first {POSITIONS_SHOWN_MAX} by topic and name"
    yield Metric(
        "position_behind_seconds",
        f"Publish time of a topic's newest message less that of a named position, {which}.",
        [(values, each.lag.behind_ms / 1000) for values, each in positions],
        labels,
    )
    yield Metric(
        "position_updated_timestamp_seconds",
        f"When a named position was recorded, as Unix time, {which}.",
        [(values, each.updated_at_ms / 1000) for values, each in positions],
        labels,
    )
    unread = [(values, each.lag.unread) for values, each in positions]
    yield from _of_unread(
        "position", f"behind a named position, {which}", unread, labels, now_ms=now_ms
    )


def _of_groups(groups: Sequence[GroupLags], *, now_ms: int) -> Iterator[Metric]:
    labels = ("namespace", "group", "partition")
    partitions = [
        ((each.group.namespace, each.group.name, partition), lag)
        for each in groups
        for partition, lag in each.lags.items()
    ]
    which = f"of {GROUP_PARTITIONS_SHOWN_MAX} partitions at most"
    yield Metric(
        "group_members",
        "Live members of a consumer group.",
        [((each.group.namespace, each.group.name), each.members_count) for each in groups],
        ("namespace", "group"),
    )
    yield Metric(
        "group_behind_seconds",
        "Publish time of a partition's newest message less that of the group's committed offset, "
        f"{which}.",
        [(values, lag.behind_ms / 1000) for values, lag in partitions],
        labels,
    )
    unread = [(values, lag.unread) for values, lag in partitions]
    what = f"that a consumer group has not read, {which}"
    yield from _of_unread("group", what, unread, labels, now_ms=now_ms)


def _of_unread(
    kind: str,
    what: str,
    unread: Sequence[tuple[Sequence[str], MessageCount]],
    labels: Sequence[str],
    *,
    now_ms: int,
) -> Iterator[Metric]:
    """The number of messages that a kind of reader has not read, and the age of the oldest."""
    yield Metric(
        f"{kind}_unread_messages",
        f"Messages {what}; a lower bound from {RECORDS_COUNT_MAX} on.",
        [(values, each.count) for values, each in unread],
        labels,
    )
    yield Metric(
        f"{kind}_oldest_unread_seconds",
        f"Age of the oldest message {what}; 0 without any.",
        [(values, each.age_ms(now_ms=now_ms) / 1000) for values, each in unread],
        labels,
    )


def _of_losses(lost: Mapping[LossKey, int], kind: GroupKind) -> Metric:
    samples = []
    for key, count in lost.items():
        if key.group.kind is kind:
            is_here = key.topic.namespace == key.group.namespace
            topic = key.topic.name if is_here else str(key.topic)
            values = (key.group.namespace, key.group.name, topic, key.cause.value)
            samples.append((values, count))
    return Metric(
        "group_lost_messages" if kind is GroupKind.CONSUMER else "share_group_lost_messages",
        f"Messages that a {kind} group had not read when they expired or were truncated, since the "
        f"start, at least, of {TOTALS_COUNT_MAX} groups and topics at most.",
        samples,
        ("namespace", "group", "topic", "cause"),
        is_counter=True,
    )


class LagReader:
    """Reads the lags of named positions, consumer groups and share groups for scrapes. Lives on the
    event loop."""

    def __init__(self, messaging: MessagingService) -> None:
        positions = messaging.holds_and_positions.position_lags
        self._positions = _Reading(partial(positions, count_max=POSITIONS_SHOWN_MAX))
        groups = messaging.groups.all_lags
        self._groups = _Reading(partial(groups, count_max=GROUP_PARTITIONS_SHOWN_MAX))
        share_groups = messaging.share_groups.all_views
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
