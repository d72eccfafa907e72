"""`/metrics`: the Prometheus text of everything an operator asks about (protocol §7).

The rooms count by themselves, or call `observe(name, value)`; the names of what they observe stand
here, in one table. Figures that the rooms hold anyway are read when somebody asks.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from aiohttp import web
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0)
COUNT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


@dataclass(frozen=True, slots=True)
class Gauge:
    """One figure that is read when it is asked for: its name, its help, how to read it."""

    name: str
    help: str
    read: Callable[[], float]
    counts_up: bool = False


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """What was published to one topic since the start."""

    namespace: str
    topic: str
    messages: int
    payload_bytes: int


class Metrics:
    """Histograms that the hot paths feed, and figures that are read at a scrape."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = Histogram(
            "tuff_request_seconds",
            "Time from a request's head to its answer; polls include what they wait.",
            ["operation", "outcome"],
            buckets=SECONDS_BUCKETS,
            registry=self._registry,
        )
        self._histograms: Mapping[str, Histogram] = {
            name: Histogram(f"tuff_{name}", text, buckets=buckets, registry=self._registry)
            for name, text, buckets in (
                ("log_fsync_seconds", "Time to write and sync one log batch.", SECONDS_BUCKETS),
                ("log_batch_edits", "Edits in one batch of the transaction log.", COUNT_BUCKETS),
                ("store_fsync_seconds", "Time of one durable store batch.", SECONDS_BUCKETS),
                ("store_batch_requests", "Requests in one store batch.", COUNT_BUCKETS),
                ("blocked_reader_seconds", "Time a reader was held back.", SECONDS_BUCKETS),
            )
        }

    def observe(self, name: str, value: float) -> None:
        """Add one observation to the histogram of that name."""
        self._histograms[name].observe(value)

    def observe_request(self, operation: str, status: int, seconds: float) -> None:
        self._requests.labels(operation, f"{status // 100}xx").observe(seconds)

    def watch(self, gauges: Iterable[Gauge], topics: Callable[[], Iterable[TopicFigures]]) -> None:
        """Read these figures at every scrape."""
        self._registry.register(_Figures(tuple(gauges), topics))

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _Figures(Collector):
    def __init__(
        self, gauges: tuple[Gauge, ...], topics: Callable[[], Iterable[TopicFigures]]
    ) -> None:
        self._gauges = gauges
        self._topics = topics

    def collect(self) -> Iterable[Metric]:
        for gauge in self._gauges:
            family = CounterMetricFamily if gauge.counts_up else GaugeMetricFamily
            yield family(f"tuff_{gauge.name}", gauge.help, value=gauge.read())
        labels = ["namespace", "topic"]
        messages = CounterMetricFamily(
            "tuff_topic_messages", "Messages published to a topic since the start.", labels=labels
        )
        payload_bytes = CounterMetricFamily(
            "tuff_topic_bytes", "Payload bytes published to a topic since the start.", labels=labels
        )
        for figures in self._topics():
            messages.add_metric([figures.namespace, figures.topic], figures.messages)
            payload_bytes.add_metric([figures.namespace, figures.topic], figures.payload_bytes)
        yield messages
        yield payload_bytes


def routes(metrics: Metrics) -> list[web.RouteDef]:
    async def scrape(_request: web.Request) -> web.Response:
        return web.Response(
            body=metrics.text(),
            headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"},
        )

    return [web.get("/metrics", scrape)]
