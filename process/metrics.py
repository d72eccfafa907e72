"""The figures of the running server, for `/metrics` (protocol §7).

The rooms count by themselves, or call `observe(name, value)`; the names of what they observe stand
here, in one table. Figures that the rooms hold anyway are read when somebody asks.
"""

from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from tuff.protocol.exchange import Reply, Request, Route
from tuff.protocol.media import read_query

SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 60.0)
POSITIONS_SHOWN_MAX = 1_000  # named positions with series of their own, over all topics
COUNT_BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096, 16384)


@dataclass(frozen=True, slots=True)
class Gauge:
    """One figure that is read when it is asked for: its name, its help, how to read it, which gives
    None while it is unknown. Those of one name differ in the values of their labels."""

    name: str
    help: str
    read: Callable[[], float | None]
    counts_up: bool = False
    labels: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """What was published to one topic since the start."""

    namespace: str
    topic: str
    messages: int
    payload_bytes: int


@dataclass(frozen=True, slots=True)
class PositionFigures:
    """How far one named position is behind its topic, and when it was recorded, as Unix time."""

    namespace: str
    topic: str
    name: str
    behind_s: float
    updated_at_s: float


async def _no_positions() -> tuple[()]:
    return ()


class Distribution:
    """How many observations fell into each bucket, and their sum; the bounds belong to the bucket
    below them."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value


class Distributions:
    """Distributions of one name, by the values of its labels."""

    def __init__(
        self, name: str, text: str, bounds: tuple[float, ...], *, labels: tuple[str, ...] = ()
    ) -> None:
        self.name = name
        self.help = text
        self.labels = labels
        self.by_labels: dict[tuple[str, ...], Distribution] = {}
        self._bounds = bounds
        if not labels:
            self.of(())

    def of(self, values: tuple[str, ...]) -> Distribution:
        """The distribution with these values of the labels."""
        found = self.by_labels.get(values)
        if found is None:
            found = self.by_labels[values] = Distribution(self._bounds)
        return found


class Metrics:
    """Distributions that the hot paths feed, and figures that are read at a scrape. Lives on the
    event loop."""

    def __init__(self) -> None:
        self._requests = Distributions(
            "request_seconds",
            "Time from a request to its answer; polls include what they wait.",
            SECONDS_BUCKETS,
            labels=("operation", "outcome"),
        )
        self._observed = [
            Distributions(name, text, bounds)
            for name, text, bounds in (
                ("log_fsync_seconds", "Time to write and sync one log batch.", SECONDS_BUCKETS),
                ("log_batch_edits", "Edits in one batch of the transaction log.", COUNT_BUCKETS),
                ("store_fsync_seconds", "Time of one durable store batch.", SECONDS_BUCKETS),
                ("store_batch_requests", "Requests in one store batch.", COUNT_BUCKETS),
                ("blocked_reader_seconds", "Time a reader was held back.", SECONDS_BUCKETS),
            )
        ]
        self._by_name = {each.name: each.of(()) for each in self._observed}
        self._by_status: dict[tuple[str, int], Distribution] = {}
        self._gauges: tuple[Gauge, ...] = ()
        self._topics: Callable[[], Iterable[TopicFigures]] = tuple
        self._positions: Callable[[], Awaitable[Iterable[PositionFigures]]] = _no_positions

    def observe(self, name: str, value: float) -> None:
        """Add one observation to the distribution of that name."""
        self._by_name[name].observe(value)

    def observe_request(self, operation: str, status: int, seconds: float) -> None:
        found = self._by_status.get((operation, status))
        if found is None:
            found = self._requests.of((operation, f"{status // 100}xx"))
            self._by_status[operation, status] = found
        found.observe(seconds)

    def watch(
        self,
        gauges: Iterable[Gauge],
        topics: Callable[[], Iterable[TopicFigures]],
        positions: Callable[[], Awaitable[Iterable[PositionFigures]]],
    ) -> None:
        """Read these figures at every scrape."""
        self._gauges = tuple(gauges)
        self._topics = topics
        self._positions = positions

    async def text(self) -> bytes:
        """What `/metrics` answers."""
        # Here, since a start needs none of what it loads (process/exposition.py).
        from process.exposition import exposition

        positions = await self._positions()
        distributions = [self._requests, *self._observed]
        return exposition(distributions, self._gauges, self._topics(), positions)


def routes(metrics: Metrics) -> list[Route]:
    async def scrape(request: Request) -> Reply:
        read_query(request.query, parameters=())
        return Reply(200, "text/plain; version=0.0.4; charset=utf-8", await metrics.text())

    return [Route("GET", "/metrics", scrape)]
