"""The bars: which figure has to stand in which ratio to which other one. Pure.

A bar compares the best round of one row with the best round of another, or with a fixed limit where
that is what a user feels. Nothing here knows how a figure came about.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from benchmarks.results import Results

Take = Callable[[str, str], float | None]  # a row and a figure to a number


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """`row`'s figure over `other`'s, or alone, is at least or at most so much."""

    what: str
    row: str
    figure: str
    at_least: float | None = None
    at_most: float | None = None
    other: str | None = None
    other_figure: str | None = None  # where it is not the same figure
    scale: float = 1.0  # multiplies the figure, say to turn microseconds into milliseconds
    unit: str = "x"

    def value(self, take: Take) -> float | None:
        """None where a row is missing."""
        ours = take(self.row, self.figure)
        if ours is None or self.other is None:
            return None if ours is None else ours * self.scale
        theirs = take(self.other, self.other_figure or self.figure)
        return None if theirs is None else ours / theirs * self.scale

    @property
    def target(self) -> str:
        if self.at_least is not None:
            return f">= {self.at_least:g} {self.unit}"
        return f"<= {self.at_most:g} {self.unit}"

    def is_met(self, value: float) -> bool:
        if self.at_least is not None:
            return value >= self.at_least
        assert self.at_most is not None, self
        return value <= self.at_most


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """A bar with what was found; both None where something was left out."""

    bar: Bar
    best: float | None
    median: float | None

    @property
    def verdict(self) -> str:
        if self.best is None:
            return "not measured"
        return "met" if self.bar.is_met(self.best) else "not met"


def judged(bars: Sequence[Bar], results: Results) -> list[Judged]:
    return [
        Judged(bar=bar, best=bar.value(results.best), median=bar.value(results.median))
        for bar in bars
    ]


def _rate(what: str, row: str, other: str, at_least: float, *, scale: float = 1.0) -> Bar:
    return Bar(what=what, row=row, other=other, figure="per_s", at_least=at_least, scale=scale)


def _publishing() -> list[Bar]:
    bars = []
    for count in (64, 128):
        row = f"tuff publish c{count}"
        one = f"publish, {count} connections"
        bars += [
            _rate(f"{one}, to the bare handler", row, f"bare c{count}", 0.9),
            _rate(f"{one}, to CDAP over HTTP", row, f"cdap publish c{count}", 1.8),
            _rate(f"{one}, to PostgreSQL's insert", row, f"postgres insert c{count}", 1.0),
            _rate(f"{one}, to Redis, always synced", row, f"redis xadd c{count}", 0.85),
        ]
    p99 = Bar(
        what="publish, 64 connections: p99", row="tuff publish c64", figure="p99_us",
        scale=1e-3, unit="ms", at_most=10,
    )  # fmt: skip
    hundred = "publish, 100 messages a request"
    return [
        *bars,
        p99,
        _rate(f"{hundred}, to CDAP", "tuff publish-100 c64", "cdap publish-100 c64", 1.25),
        Bar(
            what=f"{hundred}, to synced batches of plyvel", row="tuff publish-100 c64",
            figure="messages_per_s", other="plyvel batch 100", at_least=0.4,
        ),
    ]  # fmt: skip


def _transactions() -> list[Bar]:
    whole, alone = "tuff transaction c64", "tuff commit-10 c64"
    outbox, kafka = "postgres outbox c64", "kafka shipped transaction"
    return [
        _rate("whole transaction, to Tephra and CDAP", whole, "cdap+tephra transaction c64", 1.5),
        _rate("whole transaction, to PostgreSQL's outbox", whole, outbox, 1.0),
        Bar(
            what="whole transaction: p99, to PostgreSQL's outbox", row=whole, other=outbox,
            figure="p99_us", at_most=2,
        ),
        _rate("whole transaction, to Kafka with 8 producers", whole, f"{kafka} c8", 10),
        _rate("whole transaction, to Kafka with 64 producers", whole, f"{kafka} c64", 10),
        _rate("start and commit, to Tephra, forced", alone, "tephra forced c64", 1.5),
        _rate(
            "start and commit, to half of the bare handler's rate", alone, "bare c64", 0.8, scale=2
        ),
    ]  # fmt: skip


def _reading() -> list[Bar]:
    per_message = "server_cpu_us_per_message"
    return [
        Bar(
            what="poll of 1,000, cold, to CDAP", row="tuff poll cold", other="cdap poll cold",
            figure="messages_per_s", at_least=1.0,
        ),
        Bar(
            what="poll of 1,000 at the tail: CDAP's processor time to ours", row="cdap poll tail",
            other="tuff poll tail", figure=per_message, at_least=2.0,
        ),
        Bar(
            what="publish to visible, 1,000 a second: p50", row="tuff tail", figure="p50_us",
            scale=1e-3, unit="ms", at_most=2,
        ),
        Bar(
            what="publish to visible, 1,000 a second: p99", row="tuff tail", figure="p99_us",
            scale=1e-3, unit="ms", at_most=15,
        ),
        Bar(
            what="publish to visible: p50, to Redis, always synced", row="tuff tail",
            other="redis tail", figure="p50_us", at_most=1.0,
        ),
        Bar(
            what="a delivered message's processor time, 100 readers to 1", row="tuff tail of 100",
            other="tuff tail of 1", figure=per_message, at_most=1.5,
        ),
        Bar(
            what="start to the first acknowledged publish, empty", row="tuff start",
            figure="first_ack_s", unit="s", at_most=0.5,
        ),
        Bar(
            what="resident memory, idle", row="tuff start", figure="resident_mib", unit="MiB",
            at_most=60,
        ),
    ]  # fmt: skip


FULL = [*_publishing(), *_transactions(), *_reading()]

SCALE = [
    Bar(
        what="start to the first acknowledged publish, 10^7 messages", row="messages 10000000",
        figure="first_ack_s", unit="s", at_most=1.5,
    ),
    Bar(
        what="resident memory after 10^6 messages", row="messages 1000000",
        figure="resident_mib", unit="MiB", at_most=150,
    ),
    Bar(
        what="start with 10,000 open transactions, to none", row="open 10000", other="open 0",
        figure="server_cpu_us_per_call", at_most=1.5,
    ),
    Bar(
        what="start with 100,000 invalid transactions, to none", row="invalid 100000",
        other="invalid 0", figure="server_cpu_us_per_call", at_most=1.5,
    ),
    Bar(
        what="snapshot with 100,000 invalid transactions", row="invalid 100000",
        figure="snapshot_ms", unit="ms", at_most=100,
    ),
    Bar(
        what="longest commit while that snapshot is written", row="invalid 100000",
        figure="commit_during_snapshot_ms", unit="ms", at_most=100,
    ),
]  # fmt: skip

SPARK = [
    _rate(
        "source, published messages, to rows in memory", "tuff read published", "memory read", 0.5
    ),
    _rate("source, written messages, to rows in memory", "tuff read written", "memory read", 0.5),
    _rate("source, published messages, to Kafka's", "tuff read published", "kafka read", 1.0),
    _rate("source, written messages, to Kafka's", "tuff read written", "kafka read", 1.0),
    Bar(
        what="sink, all of it durable", row="tuff write", figure="per_s", at_least=100_000,
        unit="rows/s",
    ),
]  # fmt: skip
