"""The text of a scrape, in Prometheus' format, made by Prometheus' own library.

Loaded by the first scrape: with the web servers that it brings along the library would be a tenth
of a start, and a server that nobody scrapes never needs it.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from process.metrics import Distribution, Distributions, Gauge, TopicFigures


class _Figures(Collector):
    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Metric]:
        return self._families


def exposition(
    distributions: Iterable[Distributions],
    gauges: Iterable[Gauge],
    topics: Iterable[TopicFigures],
) -> bytes:
    """What `/metrics` answers."""
    registry = CollectorRegistry()
    families = [*map(_histogram, distributions), *map(_gauge, gauges), *_of_topics(topics)]
    registry.register(_Figures(families))
    return generate_latest(registry)


def _histogram(each: Distributions) -> Metric:
    family = HistogramMetricFamily(f"tuff_{each.name}", each.help, labels=each.labels)
    for values, distribution in each.by_labels.items():
        family.add_metric(values, _buckets(distribution), sum_value=distribution.sum)
    return family


def _buckets(distribution: Distribution) -> list[tuple[str, float]]:
    bounds = [*map(str, map(float, distribution.bounds)), "+Inf"]
    return list(zip(bounds, accumulate(distribution.counts), strict=True))


def _gauge(gauge: Gauge) -> Metric:
    family = CounterMetricFamily if gauge.counts_up else GaugeMetricFamily
    made: Metric = family(f"tuff_{gauge.name}", gauge.help, value=gauge.read())
    return made


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
