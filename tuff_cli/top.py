"""`tuff top`: what a server does now, from its metrics and its open transactions (protocol §7)."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Annotated

import click

from tuff.blocking.client import Client
from tuff.errors import ConnectionLostError
from tuff.flows_and_repeated_calls import is_passing
from tuff.protocol.errors import TuffError, UnavailableError
from tuff.protocol.values import Member
from tuff.replies import OpenTransaction
from tuff_cli.metrics import Sample, quantile, samples_in, value_of
from tuff_cli.options import SECONDS, Target, output_options, pass_target, server_options
from tuff_cli.output import notice, print_json, seconds, shown

if TYPE_CHECKING:
    from rich.console import Group as Lines

INTERVAL_S = 2.0
SHOWN_COUNT_MAX = 10  # topics, groups and transactions of each list
GROUPS_COUNT_MAX = 200  # consumer groups that are asked for their lag in one round
_PUBLISH = "POST /v1/namespaces/{ns}/topics/{t}/publish"
_COMMIT = "POST /v1/transactions/{tx}/commit"
_START = attrgetter("started_at_ms")


@dataclass(frozen=True, slots=True)
class Reading:
    """The metrics at one moment, by a monotonic clock; and what the calls said, None while the
    service is down. `groups` has the lag of each consumer group in ms."""

    at_s: float
    samples: list[Sample]
    open: tuple[OpenTransaction, ...] | None
    groups: Mapping[tuple[str, str], int | None]


@dataclass(frozen=True, slots=True)
class Latency:
    """How many times something took how long, in seconds: p50 and p99 are the upper bounds of their
    buckets; None: nothing happened, or it is above all bounds."""

    count: float
    p50: float | None
    p99: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Transactions:
    """Rates per second, and the numbers of now. The oldest ones hold back readers of the topics to
    which they have published."""

    starts: Annotated[float, Member("startsPerSecond")]
    commits: Annotated[float, Member("commitsPerSecond")]
    conflicts: Annotated[float, Member("conflictsPerSecond")]
    in_progress: float | None
    prepared: float | None
    invalid: float | None
    oldest: list[OpenTransaction]


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """A topic, and what is published to it per second."""

    namespace: str
    topic: str
    messages: Annotated[float, Member("messagesPerSecond")]
    bytes: Annotated[float, Member("bytesPerSecond")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lag:
    """A consumer group, and the age of the oldest message that it has not read."""

    namespace: str
    group: str
    unread_age_ms: Annotated[int | None, Member("unreadAgeMs")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What happened within an interval that ended at `time_s` by the server's clock; rates are per
    second."""

    time_s: Annotated[float | None, Member("timeSeconds")]
    interval_s: Annotated[float, Member("intervalSeconds")]
    messages: Annotated[float, Member("messagesPerSecond")]
    bytes: Annotated[float, Member("bytesPerSecond")]
    requests: Annotated[float, Member("requestsPerSecond")]
    polls_waiting: float | None
    latencies: Mapping[str, Latency]
    transactions: Transactions
    topics: list[Busy]
    groups: list[Lag]


@click.command()
@click.option("--interval", type=SECONDS, default=INTERVAL_S, metavar="DURATION",
              help=f"Time between two readings. [default: {INTERVAL_S:g}]")  # fmt: skip
@click.option("--once", is_flag=True, help="Print one reading and end.")
@server_options
@output_options
@pass_target
def top(target: Target, *, interval: float, once: bool, as_json: bool) -> None:
    """Show what the server does now: rates, latencies, the disk's syncs, transactions and the
    readers that they block, the busiest topics, and the lag of consumer groups.

    A reading is the change of one interval. Ctrl-C ends it. With --json each reading is one line.
    While the server can't be reached, the command says so and tries again.
    """
    with target.client() as client:
        readings = _figures(client, interval)
        if once:
            _print(_only(readings), as_json=as_json)
        elif as_json or not sys.stdout.isatty():
            _print_all(readings, as_json=as_json)
        else:
            _show(readings)


def _figures(client: Client, interval_s: float) -> Iterator[Figures | TuffError]:
    """The figures of each interval; in place of them the error, while it may pass."""
    before = _reading(client)
    while True:
        time.sleep(interval_s)
        try:
            after = _reading(client)
        except TuffError as error:
            if not is_passing(error):
                raise
            yield error
        else:
            yield figures_of(before, after)
            before = after


def _only(readings: Iterator[Figures | TuffError]) -> Figures:
    figures = next(readings)
    if isinstance(figures, TuffError):
        raise figures
    return figures


def _print_all(readings: Iterator[Figures | TuffError], *, as_json: bool) -> None:
    is_waiting = False
    for figures in readings:
        if isinstance(figures, TuffError):
            if not is_waiting:
                notice(_waiting_for(figures))
            is_waiting = True
            continue
        if is_waiting:
            notice("the server answers again")
            is_waiting = False
        _print(figures, as_json=as_json)


def _waiting_for(error: TuffError) -> str:
    return f"waiting for the server: {error.detail}"


def _reading(client: Client) -> Reading:
    samples, at_s = samples_in(client.metrics()), time.perf_counter()
    try:
        opened = client.transactions.overview().in_progress
    except UnavailableError:
        opened = None
    return Reading(at_s, samples, opened, _group_lags(client))


def _group_lags(client: Client) -> dict[tuple[str, str], int | None]:
    found: dict[tuple[str, str], int | None] = {}
    try:
        for namespace in client.topics.namespaces():
            for name in client.groups.list(namespace)[: GROUPS_COUNT_MAX - len(found)]:
                parts = client.groups.get(namespace, name).partitions
                ages = [each.unread_age_ms for each in parts if each.unread_age_ms is not None]
                found[namespace, name] = max(ages, default=None)
    except ConnectionLostError:
        raise
    except TuffError:
        return found  # the message store is down, or this principal may not see them
    return found


def figures_of(before: Reading, after: Reading) -> Figures:
    """What happened between two readings."""
    passed_s = max(after.at_s - before.at_s, 1e-9)
    change = _change(before.samples, after.samples)

    def rate(name: str) -> float:
        return round((value_of(change, name) or 0.0) / passed_s, 1)

    def gauge(name: str) -> float | None:
        return value_of(after.samples, name)

    return Figures(
        time_s=gauge("tuff_time_seconds"),
        interval_s=round(passed_s, 3),
        messages=rate("tuff_published_messages_total"),
        bytes=rate("tuff_published_bytes_total"),
        requests=rate("tuff_request_seconds_count"),
        polls_waiting=gauge("tuff_polls_waiting"),
        latencies={
            "publish": _latency(change, "tuff_request_seconds", operation=_PUBLISH),
            "commit": _latency(change, "tuff_request_seconds", operation=_COMMIT),
            "storeSync": _latency(change, "tuff_store_fsync_seconds"),
            "logSync": _latency(change, "tuff_log_fsync_seconds"),
            "blockedReader": _latency(change, "tuff_blocked_reader_seconds"),
        },
        transactions=Transactions(
            starts=rate("tuff_transactions_started_total"),
            commits=rate("tuff_transactions_committed_total"),
            conflicts=rate("tuff_transaction_conflicts_total"),
            in_progress=gauge("tuff_transactions_in_progress"),
            prepared=gauge("tuff_transactions_prepared"),
            invalid=gauge("tuff_transactions_invalid"),
            oldest=sorted(after.open or (), key=_START)[:SHOWN_COUNT_MAX],
        ),
        topics=_topics(change, passed_s),
        groups=_groups(after.groups),
    )


def _change(before: Sequence[Sample], after: Sequence[Sample]) -> list[Sample]:
    """Each sample less that of the first reading. After a restart counters begin again at 0."""
    known = {(each.name, tuple(each.labels.items())): each.value for each in before}
    found = []
    for each in after:
        earlier = known.get((each.name, tuple(each.labels.items())), 0.0)
        value = each.value - earlier if each.value >= earlier else each.value
        found.append(each._replace(value=value))
    return found


def _latency(change: Sequence[Sample], name: str, **labels: str) -> Latency:
    def within(share: float) -> float | None:
        found = quantile(change, name, share, **labels)
        return None if found is None or math.isinf(found) else found

    count = value_of(change, f"{name}_count", **labels) or 0.0
    return Latency(count=count, p50=within(0.5), p99=within(0.99))


def _topics(change: Sequence[Sample], passed_s: float) -> list[Busy]:
    busy = [each for each in change if each.name == "tuff_topic_messages_total" and each.value]
    busy.sort(key=lambda each: -each.value)
    return [
        Busy(
            namespace=each.labels["namespace"],
            topic=each.labels["topic"],
            messages=round(each.value / passed_s, 1),
            bytes=round(
                (value_of(change, "tuff_topic_bytes_total", **each.labels) or 0.0) / passed_s, 1
            ),
        )
        for each in busy[:SHOWN_COUNT_MAX]
    ]


def _groups(lags: Mapping[tuple[str, str], int | None]) -> list[Lag]:
    last = sorted(lags.items(), key=lambda each: -(each[1] or 0))
    return [
        Lag(namespace=namespace, group=name, unread_age_ms=age_ms)
        for (namespace, name), age_ms in last[:SHOWN_COUNT_MAX]
    ]


def _print(figures: Figures, *, as_json: bool) -> None:
    if as_json:
        print_json(figures)
        sys.stdout.flush()
        return
    from rich.console import Console

    Console(highlight=False).print(lines_of(figures))


def _show(readings: Iterator[Figures | TuffError]) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        for figures in readings:
            if isinstance(figures, TuffError):
                live.update(Text(_waiting_for(figures)), refresh=True)
            else:
                live.update(lines_of(figures), refresh=True)


def lines_of(figures: Figures) -> Lines:
    """The figures as tables for the terminal."""
    from rich.console import Group as Lines
    from rich.table import Table
    from rich.text import Text

    def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> Table:
        made = Table(box=None, header_style="bold", pad_edge=False, title=title,
                     title_justify="left", title_style="bold cyan",
                     min_width=len(title))  # fmt: skip
        for column in columns:
            made.add_column(column, overflow="fold")
        for row in rows:
            made.add_row(*(Text(shown(cell)) for cell in row))
        return made

    now = figures.transactions
    rates = (
        ("messages", figures.messages, "polls waiting", figures.polls_waiting),
        ("bytes", figures.bytes, "in progress", now.in_progress),
        ("requests", figures.requests, "prepared", now.prepared),
        ("commits", now.commits, "invalid", now.invalid),
        ("conflicts", now.conflicts, "", ""),
    )
    latencies = [
        (name, int(each.count), _ms(each.p50), _ms(each.p99))
        for name, each in figures.latencies.items()
    ]
    now_ms = (figures.time_s or 0.0) * 1000
    oldest = [(each.transaction_id, each.client, seconds(round(now_ms - each.started_at_ms)),
               each.topics) for each in now.oldest]  # fmt: skip
    topics = [(f"{each.namespace}:{each.topic}", each.messages, each.bytes)
              for each in figures.topics]  # fmt: skip
    groups = [(f"{each.namespace}:{each.group}",
               None if each.unread_age_ms is None else seconds(each.unread_age_ms))
              for each in figures.groups]  # fmt: skip
    return Lines(
        table("rates", ("", "per second", "", "now"), rates),
        table("latencies", ("", "count", "p50 ≤", "p99 ≤"), latencies),
        table("oldest transactions", ("id", "client", "age", "blocks readers of"), oldest),
        table("busiest topics", ("topic", "messages/s", "bytes/s"), topics),
        table("consumer groups", ("group", "oldest unread"), groups),
    )


def _ms(value_s: float | None) -> str | None:
    return None if value_s is None else f"{value_s * 1000:g} ms"
