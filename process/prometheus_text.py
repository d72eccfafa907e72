"""The text of a scrape, made by the library prometheus-client.

Loaded by the first scrape: the library brings web servers along and would take a tenth of a start.
A server that is not scraped never needs it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from messaging.groups.consumer_coordinator import GroupLags
from messaging.groups.share_coordinator import ShareGroupLag
from messaging.read.counts import RECORDS_COUNT_MAX
from messaging.read.lost_messages import TOTALS_COUNT_MAX, GroupKind, LossKey
from messaging.retention.holds_and_positions import PositionLag
from process.metrics import (
    GROUP_PARTITIONS_SHOWN_MAX,
    POSITIONS_SHOWN_MAX,
    SHARE_GROUPS_SHOWN_MAX,
    TOPICS_COUNTED_MAX,
    TOPICS_SHOWN_MAX,
    Gauge,
    Histogram,
    HistogramFamily,
    Lags,
    TopicCount,
    TopicFigures,
)


class _Figures(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposition(
    histograms: Iterable[HistogramFamily],
    gauges: Iterable[Gauge],
    topics: Iterable[TopicFigures],
    lags: Lags,
    *,
    accept: str,
) -> tuple[bytes, str]:
    """The reply of `/metrics` with its content type: OpenMetrics if `accept` names it, else the
    text format of Prometheus."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    figures = [*map(_histogram, histograms), *_gauges(gauges), *_of_topics(list(topics))]
    of_readers = [
        *_of_positions(lags.positions, now_ms=lags.now_ms),
        *_of_groups(lags.groups, now_ms=lags.now_ms),
        _of_share_groups(lags.share_groups),
        *_of_losses(lags.lost),
        _of_counts(lags.topics),
    ]
    registry.register(_Figures([*figures, *of_readers]))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _histogram(each: HistogramFamily) -> Metric:
    family = HistogramMetricFamily(f"tuff_{each.name}", each.help, labels=each.labels)
    for values, histogram in each.by_labels.items():
        family.add_metric(values, _buckets(histogram), sum_value=histogram.sum)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(str, map(float, histogram.bounds)), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))


def _gauges(gauges: Iterable[Gauge]) -> Iterable[Metric]:
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for gauge in gauges:
        names, values = [name for name, _ in gauge.labels], [value for _, value in gauge.labels]
        if gauge.name not in families:
            kind = CounterMetricFamily if gauge.is_counter else GaugeMetricFamily
            families[gauge.name] = kind(f"tuff_{gauge.name}", gauge.help, labels=names)
        read = gauge.read()
        if read is not None:
            families[gauge.name].add_metric(values, read)
    return families.values()


def _of_topics(topics: Sequence[TopicFigures]) -> Iterator[Metric]:
    labels = ["namespace", "topic"]
    shown = f"since the start, of the first {TOPICS_SHOWN_MAX} topics by name"
    messages = CounterMetricFamily(
        "tuff_topic_messages", f"Messages published to a topic {shown}.", labels=labels
    )
    payload_bytes = CounterMetricFamily(
        "tuff_topic_bytes", f"Payload bytes published to a topic {shown}.", labels=labels
    )
    for topic, message_count, size_bytes in sorted(topics)[:TOPICS_SHOWN_MAX]:
        messages.add_metric([topic.namespace, topic.name], message_count)
        payload_bytes.add_metric([topic.namespace, topic.name], size_bytes)
    yield messages
    yield payload_bytes
    yield CounterMetricFamily(
        "tuff_published_messages",
        "Messages published to all topics since the start.",
        value=sum(message_count for _, message_count, _ in topics),
    )
    yield CounterMetricFamily(
        "tuff_published_bytes",
        "Payload bytes published to all topics since the start.",
        value=sum(size_bytes for _, _, size_bytes in topics),
    )


def _of_counts(topics: Iterable[TopicCount]) -> Metric:
    stored = GaugeMetricFamily(
        "tuff_topic_stored_messages",
        "Messages of a topic that a reader can receive, a lower bound of large topics, of the "
        f"first {TOPICS_COUNTED_MAX} by name.",
        labels=["namespace", "topic"],
    )
    for topic, count in topics:
        stored.add_metric([topic.namespace, topic.name], count.count)
    return stored


def _of_positions(positions: Iterable[PositionLag], *, now_ms: int) -> Iterator[Metric]:
    labels = ["namespace", "topic", "position"]
    shown = f"of the first {POSITIONS_SHOWN_MAX} by topic and name"
    behind = GaugeMetricFamily(
        "tuff_position_behind_seconds",
        f"Publish time of a topic's newest message less that of a named position, {shown}.",
        labels=labels,
    )
    updated = GaugeMetricFamily(
        "tuff_position_updated_timestamp_seconds",
        f"When a named position was recorded, as Unix time, {shown}.",
        labels=labels,
    )
    unread, age = _unread_families("position", f"behind a named position, {shown}", labels)
    for lag in positions:
        values = [lag.topic.namespace, lag.topic.name, lag.name]
        behind.add_metric(values, lag.behind_ms / 1000)
        updated.add_metric(values, lag.updated_at_ms / 1000)
        unread.add_metric(values, lag.unread.count)
        age.add_metric(values, lag.unread.age_ms(now_ms=now_ms) / 1000)
    yield behind
    yield updated
    yield unread
    yield age


def _unread_families(
    kind: str, what: str, labels: Sequence[str]
) -> tuple[GaugeMetricFamily, GaugeMetricFamily]:
    """The number of messages that a kind of reader has not read, and the age of the oldest."""
    return (
        GaugeMetricFamily(
            f"tuff_{kind}_unread_messages",
            f"Messages {what}; a lower bound from {RECORDS_COUNT_MAX} on.",
            labels=labels,
        ),
        GaugeMetricFamily(
            f"tuff_{kind}_oldest_unread_seconds",
            f"Age of the oldest message {what}; 0 without any.",
            labels=labels,
        ),
    )


def _of_groups(groups: Iterable[GroupLags], *, now_ms: int) -> Iterator[Metric]:
    members = GaugeMetricFamily(
        "tuff_group_members", "Live members of a consumer group.", labels=["namespace", "group"]
    )
    behind = GaugeMetricFamily(
        "tuff_group_behind_seconds",
        "Publish time of a partition's newest message less that of the group's committed offset, "
        f"of {GROUP_PARTITIONS_SHOWN_MAX} partitions at most.",
        labels=["namespace", "group", "partition"],
    )
    unread, age = _unread_families(
        "group",
        f"that a consumer group has not read, of {GROUP_PARTITIONS_SHOWN_MAX} partitions at most",
        ["namespace", "group", "partition"],
    )
    for group in groups:
        values = [group.namespace, group.name]
        members.add_metric(values, group.members_count)
        for partition, lag in group.lags.items():
            behind.add_metric([*values, partition], lag.behind_ms / 1000)
            unread.add_metric([*values, partition], lag.unread.count)
            age.add_metric([*values, partition], lag.unread.age_ms(now_ms=now_ms) / 1000)
    yield members
    yield behind
    yield unread
    yield age


def _of_share_groups(groups: Iterable[ShareGroupLag]) -> Metric:
    behind = GaugeMetricFamily(
        "tuff_share_group_behind_seconds",
        "Publish time of a topic's newest message less that of the oldest that is not done in a "
        f"share group, of the first {SHARE_GROUPS_SHOWN_MAX} by topic and name.",
        labels=["namespace", "topic", "group"],
    )
    for each in groups:
        values = [each.topic.namespace, each.topic.name, each.name]
        behind.add_metric(values, each.behind_ms / 1000)
    return behind


def _of_losses(lost: Mapping[LossKey, int]) -> Iterable[Metric]:
    families = {}
    for kind, name in ((GroupKind.CONSUMER, "group"), (GroupKind.SHARE, "share_group")):
        families[kind] = CounterMetricFamily(
            f"tuff_{name}_lost_messages",
            f"Messages that a {kind} group had not read when they expired or were truncated, since "
            f"the start, at least, of {TOTALS_COUNT_MAX} groups and topics at most.",
            labels=["namespace", "group", "topic", "cause"],
        )
    for key, count in lost.items():
        is_here = key.topic.namespace == key.group.namespace
        topic = key.topic.name if is_here else str(key.topic)
        values = [key.group.namespace, key.group.name, topic, key.cause.value]
        families[key.group.kind].add_metric(values, count)
    return families.values()
