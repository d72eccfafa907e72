"""The text of a scrape in Prometheus' format, made by the library prometheus-client.

Loaded by the first scrape: the library brings web servers along and would take a tenth of a start.
A server that is not scraped never needs it.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from process.metrics import (
    POSITIONS_SHOWN_MAX,
    Distribution,
    Distributions,
    Gauge,
    PositionFigures,
    TopicFigures,
)


class _Figures(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposition(
    distributions: Iterable[Distributions],
    gauges: Iterable[Gauge],
    topics: Iterable[TopicFigures],
    positions: Iterable[PositionFigures],
) -> bytes:
    """What `/metrics` answers."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    figures = [*map(_histogram, distributions), *_gauges(gauges)]
    registry.register(_Figures([*figures, *_of_topics(topics), *_of_positions(positions)]))
    return generate_latest(registry)


def _histogram(each: Distributions) -> Metric:
    family = HistogramMetricFamily(f"tuff_{each.name}", each.help, labels=each.labels)
    for values, distribution in each.by_labels.items():
        family.add_metric(values, _buckets(distribution), sum_value=distribution.sum)
    return family


def _buckets(distribution: Distribution) -> list[tuple[str, float]]:
    bounds = [*map(str, map(float, distribution.bounds)), "+Inf"]
    return list(zip(bounds, accumulate(distribution.counts), strict=True))


def _gauges(gauges: Iterable[Gauge]) -> Iterable[Metric]:
    families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    for gauge in gauges:
        names, values = [name for name, _ in gauge.labels], [value for _, value in gauge.labels]
        if gauge.name not in families:
            kind = CounterMetricFamily if gauge.counts_up else GaugeMetricFamily
            families[gauge.name] = kind(f"tuff_{gauge.name}", gauge.help, labels=names)
        read = gauge.read()
        if read is not None:
            families[gauge.name].add_metric(values, read)
    return families.values()


def _of_topics(topics: Iterable[TopicFigures]) -> Iterator[Metric]:
    labels = ["namespace", "topic"]
    messages = CounterMetricFamily(
        "tuff_topic_messages", "Messages published to a topic since the start.", labels=labels
    )
    payload_bytes = CounterMetricFamily(
        "tuff_topic_bytes", "Payload bytes published to a topic since the start.", labels=labels
    )
    for figures in topics:
        messages.add_metric([figures.namespace, figures.topic], figures.messages)
        payload_bytes.add_metric([figures.namespace, figures.topic], figures.payload_bytes)
    yield messages
    yield payload_bytes


def _of_positions(positions: Iterable[PositionFigures]) -> Iterator[Metric]:
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
    for figures in positions:
        values = [figures.namespace, figures.topic, figures.name]
        behind.add_metric(values, figures.behind_s)
        updated.add_metric(values, figures.updated_at_s)
    yield behind
    yield updated
