"""The metrics of `/metrics` (protocol §7): histograms, and values that are read at each scrape.

Components add observations to histograms with `observe(name, value)`; one table here has their
names. All other metrics are read when a scrape asks for them (process/scraped_metrics.py).
"""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple

from kernel.requests_and_replies import Reply, Request, Route, read_query
from tuff.protocol import operations

SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0)
COUNT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


class Metric(NamedTuple):
    """The values of one name at a scrape, each with the values of its labels."""

    name: str
    help: str
    samples: Sequence[tuple[Sequence[str], float]]
    labels: Sequence[str] = ()
    is_counter: bool = False


def gauge(name: str, text: str, value: float | None) -> Metric:
    """A metric without labels. `value` None: it is unknown, and has no sample."""
    return Metric(name, text, [] if value is None else [((), value)])


def counter(name: str, text: str, value: float | None) -> Metric:
    """A metric without labels that only rises. `value` None: it is unknown, and has no sample."""
    return gauge(name, text, value)._replace(is_counter=True)


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


class HistogramFamily(NamedTuple):
    """The histograms of one name, by the values of its labels."""

    name: str
    help: str
    labels: Sequence[str]
    by_labels: dict[tuple[str, ...], Histogram]


class Metrics:
    """Histograms that the hot paths feed. Lives on the event loop."""

    def __init__(self) -> None:
        self._requests = HistogramFamily(
            "request_seconds",
            "Time from a request to its answer; polls include what they wait.",
            ("operation", "outcome"),
            {},
        )
        self._observed = [
            HistogramFamily(name, text, (), {(): Histogram(bounds)})
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
        self._by_name = {each.name: each.by_labels[()] for each in self._observed}
        self._by_status: dict[tuple[str, int], Histogram] = {}

    def observe(self, name: str, value: float) -> None:
        """Add one observation to the histogram of that name."""
        self._by_name[name].observe(value)

    def observe_request(self, operation: str, status: int, seconds: float) -> None:
        found = self._by_status.get((operation, status))
        if found is None:
            labels = (operation, f"{status // 100}xx")
            found = self._requests.by_labels.setdefault(labels, Histogram(SECONDS_BUCKETS))
            self._by_status[operation, status] = found
        found.counts[bisect_left(found.bounds, seconds)] += 1
        found.sum += seconds

    def text(self, read: Iterable[Metric], *, accept: str = "") -> tuple[bytes, str]:
        """The reply of `/metrics` with its content type, for this value of `Accept`: the
        histograms, and what was `read` besides."""
        # Here, since a start needs none of what it loads (process/prometheus_text.py).
        from process.prometheus_text import exposition

        return exposition([self._requests, *self._observed], read, accept=accept)


def routes(metrics: Metrics, read: Callable[[], Awaitable[Iterable[Metric]]]) -> list[Route]:
    """The route of a scrape, which reads all metrics besides the histograms with `read`."""

    async def scrape(request: Request) -> Reply:
        read_query(request.query, parameters=())
        text, content_type = metrics.text(await read(), accept=request.accept or "")
        return Reply(200, content_type, text)

    return [Route(operations.GET_METRICS, scrape)]
