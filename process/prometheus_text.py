"""The text of a scrape, made by the library prometheus-client.

Loaded by the first scrape: the library brings web servers along and would take a tenth of a start.
A server that is not scraped never needs it.
"""

from collections.abc import Iterable
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

from process.metrics import Histogram, HistogramFamily, Metric


class _Figures(Collector):
    def __init__(self, families: Iterable[Family]) -> None:
        self._families = list(families)

    def collect(self) -> Iterable[Family]:
        return self._families


def exposition(
    histograms: Iterable[HistogramFamily], metrics: Iterable[Metric], *, accept: str
) -> tuple[bytes, str]:
    """The reply of `/metrics` with its content type: OpenMetrics if `accept` names it, else the
    text format of Prometheus."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_Figures([*map(_histogram, histograms), *map(_family, metrics)]))
    encode, content_type = choose_encoder(accept)
    return encode(registry), content_type


def _histogram(each: HistogramFamily) -> Family:
    family = HistogramMetricFamily(f"tuff_{each.name}", each.help, labels=each.labels)
    for values, histogram in each.by_labels.items():
        family.add_metric(values, _buckets(histogram), sum_value=histogram.sum)
    return family


def _buckets(histogram: Histogram) -> list[tuple[str, float]]:
    bounds = [*map(str, map(float, histogram.bounds)), "+Inf"]
    return list(zip(bounds, accumulate(histogram.counts), strict=True))


def _family(metric: Metric) -> Family:
    kind = CounterMetricFamily if metric.is_counter else GaugeMetricFamily
    family = kind(f"tuff_{metric.name}", metric.help, labels=metric.labels)
    for values, value in metric.samples:
        family.add_metric(values, value)
    return family
