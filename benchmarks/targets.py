"""The targets of the benchmarks: ratios of two figures of one run, and limits of single figures.

A target compares the best round of one row with the best round of another, or with a fixed limit
where users notice the figure itself.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from benchmarks.results import Results

# The value of a figure of a row; None if no round has it.
Lookup = Callable[[str, str], float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A lower or an upper limit for the figure of `row`, divided by that of `other` if given."""

    what: str
    row: str
    figure: str
    at_least: float | None = None
    at_most: float | None = None
    other: str | None = None
    scale: float = 1.0  # multiplies the figure, for example for milliseconds from microseconds
    unit: str = "x"

    def value(self, lookup: Lookup) -> float | None:
        """The value that is compared with the limit; None if a row is missing."""
        ours = lookup(self.row, self.figure)
        theirs = 1.0 if self.other is None else lookup(self.other, self.figure)
        return None if ours is None or theirs is None else ours / theirs * self.scale

    @property
    def limit(self) -> str:
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
    """A target and what was measured; both values None if a row is missing."""

    target: Target
    best: float | None
    median: float | None

    @property
    def verdict(self) -> str:
        if self.best is None:
            return "not measured"
        return "met" if self.target.is_met(self.best) else "not met"


def judged(targets: Iterable[Target], results: Results) -> list[Judged]:
    return [
        Judged(target=each, best=each.value(results.best), median=each.value(results.median))
        for each in targets
    ]


def _rate(what: str, row: str, other: str, at_least: float, *, scale: float = 1.0) -> Target:
    return Target(what=what, row=row, other=other, figure="per_s", at_least=at_least, scale=scale)


def _to_bare(row: str, figure: str, at_most: float) -> Target:
    what = f"{row}: {figure}, to the bare handler's"
    return Target(what=what, row=row, other="bare", figure=figure, at_most=at_most)


def _to_floor(what: str, row: str, other: str) -> Target:
    return Target(what=what, row=row, other=other, figure="server_cpu_us_per_call", at_most=2.5)


# Each limit is some 40 % worse than what was measured on two cores that many others used: a change
# that costs a tenth goes unnoticed, one that costs twice as much does not.
QUICK = [
    _rate("publish: calls per second, to the bare handler's", "publish", "bare", 0.45),
    _to_bare("publish", "server_cpu_us_per_call", 1.1),
    _to_bare("publish-100", "server_cpu_us_per_message", 0.065),
    _to_bare("poll-cold", "server_cpu_us_per_message", 0.022),
    _to_bare("poll-tail", "server_cpu_us_per_message", 0.0045),
    _to_bare("start", "server_cpu_us_per_call", 1.1),
    _to_bare("commit", "server_cpu_us_per_call", 2.3),
    _to_bare("transaction", "server_cpu_us_per_call", 3.8),
    _to_bare("run", "server_cpu_us_per_call", 5.5),
]
# The aim of decision 0058. A quick run shows whether it is met, and does not fail.
QUICK_FLOOR = [
    _to_floor(f"{row}: server_cpu_us_per_call, to the floor's", row, f"floor {row}")
    for row in ("session-transaction-32", "session-transaction", "session-transaction-128")
]


def _publishing() -> list[Target]:
    targets = []
    for count, share_of_bare in ((64, 1.0), (128, 0.9)):
        row = f"tuff publish c{count}"
        one = f"publish, {count} connections"
        targets += [
            _rate(f"{one}, to the bare handler", row, f"bare c{count}", share_of_bare),
            _rate(f"{one}, to CDAP over HTTP", row, f"cdap publish c{count}", 1.8),
            _rate(f"{one}, to PostgreSQL's insert", row, f"postgres insert c{count}", 1.0),
            _rate(f"{one}, to Redis, always synced", row, f"redis xadd c{count}", 0.85),
        ]
    p99 = Target(
        what="publish, 64 connections: p99", row="tuff publish c64", figure="p99_us",
        scale=1e-3, unit="ms", at_most=10,
    )  # fmt: skip
    hundred = "publish, 100 messages a request"
    return [
        *targets,
        p99,
        _rate(f"{hundred}, to CDAP", "tuff publish-100 c64", "cdap publish-100 c64", 1.25),
        Target(
            what=f"{hundred}, to synced batches of plyvel", row="tuff publish-100 c64",
            figure="messages_per_s", other="plyvel batch 100", at_least=0.4,
        ),
    ]  # fmt: skip


def _transactions() -> list[Target]:
    whole, alone = "tuff transaction c64", "tuff commit-10 c64"
    outbox, kafka = "postgres outbox c64", "kafka shipped transaction"
    return [
        _rate("whole transaction, to Tephra and CDAP", whole, "cdap+tephra transaction c64", 1.5),
        _rate("whole transaction, to PostgreSQL's outbox", whole, outbox, 1.0),
        Target(
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


def _over_sessions() -> list[Target]:
    """Sessions and their peers that keep a connection with many calls under way, too."""
    publish, one = "tuff session-publish c256", "tuff session-publish c1"
    transaction, outbox = "session-transaction", "postgres outbox c64"
    whole, alone = f"tuff {transaction} c64", "tuff session-commit-10"
    return [
        *(
            _to_floor(
                f"session: whole transaction, {count} under way: processor time, to the floor",
                f"tuff {transaction} c{count}", f"floor {transaction} c{count}",
            )
            for count in (32, 64, 128)
        ),
        _rate("session: publish, to the same over HTTP", publish, "tuff publish c256", 2.0),
        _rate("session: publish, to Redis, always synced", publish, "redis xadd c128", 0.6),
        _rate("session: publish, to NATS, not synced", publish, "nats shipped c64", 1.0),
        _rate("session: one publish at a time, to NATS, synced", one, "nats always c1", 0.8),
        _rate(
            "session: one transaction at a time, to PostgreSQL's outbox", f"tuff {transaction} c1",
            "postgres outbox c1", 0.8,
        ),
        _rate("session: whole transaction, to PostgreSQL's outbox", whole, outbox, 1.5),
        _rate(
            "session: whole transaction, to the outbox in one statement", whole,
            "postgres outbox-one-statement c64", 1.0,
        ),
        _rate(
            "session: whole transaction, to Tephra and CDAP", whole,
            "cdap+tephra transaction c64", 2.0,
        ),
        Target(
            what="session: whole transaction: p99, to PostgreSQL's outbox", row=whole,
            other=outbox, figure="p99_us", at_most=1,
        ),
        _rate(
            "session: start and commit, to Tephra, forced", f"{alone} c64", "tephra forced c64",
            3.0,
        ),
        _rate(
            "session: start and commit, 1,000 at once, to the bare handler", f"{alone} c1000",
            "bare c64", 1.0,
        ),
    ]  # fmt: skip


def _reading() -> list[Target]:
    return [
        Target(
            what="poll of 1,000, cold, to CDAP", row="tuff poll cold", other="cdap poll cold",
            figure="messages_per_s", at_least=1.5,
        ),
        Target(
            what="poll of 1,000 at the tail, to CDAP", row="tuff poll tail",
            other="cdap poll tail", figure="messages_per_s", at_least=4.0,
        ),
        Target(
            what="publish to visible, 1,000 a second: p50", row="tuff tail", figure="p50_us",
            scale=1e-3, unit="ms", at_most=2,
        ),
        Target(
            what="publish to visible, 1,000 a second: p99", row="tuff tail", figure="p99_us",
            scale=1e-3, unit="ms", at_most=15,
        ),
        Target(
            what="publish to visible: p50, to Redis, always synced", row="tuff tail",
            other="redis tail", figure="p50_us", at_most=1.5,
        ),
        Target(
            what="a delivered message's processor time, 100 readers to 1", row="tuff tail of 100",
            other="tuff tail of 1", figure="server_cpu_us_per_message", at_most=1.5,
        ),
        Target(
            what="start to the first acknowledged publish, empty", row="tuff start",
            figure="first_ack_s", unit="s", at_most=0.5,
        ),
        # What version 52995ff3 took, before the redesign of decision 0058.
        Target(
            what="start: processor time, to the bare handler's start", row="tuff start",
            other="bare start", figure="start_cpu_ms", at_most=1.25,
        ),
        Target(
            what="resident memory, idle, to the bare handler's", row="tuff start",
            other="bare start", figure="resident_mib", at_most=1.1,
        ),
    ]  # fmt: skip


FULL = [*_publishing(), *_transactions(), *_over_sessions(), *_reading()]

# Programs in Python (`python -m benchmarks.clients`).
CLIENTS = [
    _rate("64 tasks, to psycopg's state and outbox", "tasks", "tasks-psycopg", 2.0),
    _rate("8 threads, to psycopg's state and outbox", "threads", "threads-psycopg", 1.0),
]

SCALE = [
    Target(
        what="start to the first acknowledged publish, 10^7 messages", row="messages 10000000",
        figure="first_ack_s", unit="s", at_most=1.5,
    ),
    Target(
        what="resident memory after 10^6 messages", row="messages 1000000",
        figure="resident_mib", unit="MiB", at_most=150,
    ),
    Target(
        what="start with 10,000 open transactions, to none", row="open 10000", other="open 0",
        figure="server_cpu_us_per_call", at_most=1.5,
    ),
    Target(
        what="start with 100,000 invalid transactions, to none", row="invalid 100000",
        other="invalid 0", figure="server_cpu_us_per_call", at_most=1.5,
    ),
    Target(
        what="snapshot with 100,000 invalid transactions", row="invalid 100000",
        figure="snapshot_ms", unit="ms", at_most=100,
    ),
    Target(
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
    Target(
        what="sink, all of it durable", row="tuff write", figure="per_s", at_least=100_000,
        unit="rows/s",
    ),
]  # fmt: skip
