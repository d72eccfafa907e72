"""`tuff top`: what a server does now, from its metrics and its open transactions (protocol §7)."""

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import TYPE_CHECKING

import click

from tuff.blocking.client import Client
from tuff.cli.metrics import Sample, quantile, samples_in, value_of
from tuff.cli.options import SECONDS, Session, output_options, server_options, session
from tuff.cli.output import notice, print_json, printable, seconds
from tuff.client_errors import ConnectionLostError
from tuff.protocol.errors import TuffError, UnavailableError
from tuff.protocol.json_forms import pointer_to_json
from tuff.replies import OpenTransaction
from tuff.retries import is_passing

if TYPE_CHECKING:
    from rich.console import Group as Lines

INTERVAL_S = 2.0
SHOWN_COUNT_MAX = 10  # topics, groups and transactions of each list
GROUPS_COUNT_MAX = 200  # consumer groups that are asked for their lag in one round
_PUBLISH = "POST /v1/namespaces/{ns}/topics/{t}/publish"
_COMMIT = "POST /v1/transactions/{tx}/commit"

Form = dict[str, object]


@dataclass(frozen=True, slots=True)
class Reading:
    """The metrics at one moment, by a monotonic clock; and what the calls said, None while the
    service is down. `groups` has the lag of each consumer group in ms."""

    at_s: float
    samples: list[Sample]
    open: tuple[OpenTransaction, ...] | None
    groups: Mapping[tuple[str, str], int | None]


@click.command()
@click.option("--interval", type=SECONDS, default=INTERVAL_S, metavar="SECONDS",
              help=f"Time between two readings. [default: {INTERVAL_S:g}]")  # fmt: skip
@click.option("--once", is_flag=True, help="Print one reading and end.")
@server_options
@output_options
@session
def top(session: Session, *, interval: float, once: bool, as_json: bool) -> None:
    """Show what the server does now: rates, latencies, the disk's syncs, transactions and whom they
    block, the busiest topics, and the lag of consumer groups.

    A reading is the change of one interval. Ctrl-C ends it. With --json each reading is one line.
    While the server can't be reached, the command says so and tries again.
    """
    with session.client() as client:
        readings = _figures(client, interval)
        if once:
            _print(_only(readings), as_json=as_json)
        elif as_json or not sys.stdout.isatty():
            _print_all(readings, as_json=as_json)
        else:
            _show(readings)


def _figures(client: Client, interval_s: float) -> Iterator[Form | TuffError]:
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


def _only(readings: Iterator[Form | TuffError]) -> Form:
    figures = next(readings)
    if isinstance(figures, TuffError):
        raise figures
    return figures


def _print_all(readings: Iterator[Form | TuffError], *, as_json: bool) -> None:
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
                parts = client.groups.show(namespace, name).partitions
                lags = [each.behind_ms for each in parts if each.behind_ms is not None]
                found[namespace, name] = max(lags, default=None)
    except ConnectionLostError:
        raise
    except TuffError:
        return found  # the message store is down, or this principal may not see them
    return found


def figures_of(before: Reading, after: Reading) -> Form:
    """What happened between two readings. Rates are per second, times in seconds. A latency is the
    upper bound of its bucket; None: nothing happened, or it is above all bounds."""
    passed_s = max(after.at_s - before.at_s, 1e-9)
    change = _change(before.samples, after.samples)

    def rate(name: str) -> float:
        return round((value_of(change, name) or 0.0) / passed_s, 1)

    def gauge(name: str) -> float | None:
        return value_of(after.samples, name)

    return {
        "intervalSeconds": round(passed_s, 3),
        "messagesPerSecond": rate("tuff_topic_messages_total"),
        "bytesPerSecond": rate("tuff_topic_bytes_total"),
        "requestsPerSecond": rate("tuff_request_seconds_count"),
        "pollsWaiting": gauge("tuff_polls_waiting"),
        "latencies": {
            "publish": _latency(change, "tuff_request_seconds", operation=_PUBLISH),
            "commit": _latency(change, "tuff_request_seconds", operation=_COMMIT),
            "storeSync": _latency(change, "tuff_store_fsync_seconds"),
            "logSync": _latency(change, "tuff_log_fsync_seconds"),
            "blockedReader": _latency(change, "tuff_blocked_reader_seconds"),
        },
        "transactions": {
            "startsPerSecond": rate("tuff_transactions_started_total"),
            "commitsPerSecond": rate("tuff_transactions_committed_total"),
            "conflictsPerSecond": rate("tuff_transaction_conflicts_total"),
            "inProgress": gauge("tuff_transactions_in_progress"),
            "prepared": gauge("tuff_transactions_prepared"),
            "invalid": gauge("tuff_transactions_invalid"),
            "oldest": _oldest(after),
        },
        "topics": _topics(change, passed_s),
        "groups": _groups(after.groups),
    }


def _change(before: Sequence[Sample], after: Sequence[Sample]) -> list[Sample]:
    """Each sample less that of the first reading. After a restart counters begin again at 0."""
    known = {(each.name, tuple(each.labels.items())): each.value for each in before}
    found = []
    for each in after:
        earlier = known.get((each.name, tuple(each.labels.items())), 0.0)
        value = each.value - earlier if each.value >= earlier else each.value
        found.append(each._replace(value=value))
    return found


def _latency(change: Sequence[Sample], name: str, **labels: str) -> Form:
    found = {f"p{share * 100:g}": quantile(change, name, share, **labels) for share in (0.5, 0.99)}
    count = value_of(change, f"{name}_count", **labels)
    finite = {
        percentile: None if value is None or math.isinf(value) else value
        for percentile, value in found.items()
    }
    return {"count": count or 0.0, **finite}


def _oldest(reading: Reading) -> list[Form]:
    """The oldest transactions. They hold back readers of the topics to which they have written."""
    now_s = value_of(reading.samples, "tuff_time_seconds")
    oldest = sorted(reading.open or (), key=lambda each: each.started_at_ms)
    return [
        {
            "transactionId": pointer_to_json(each.transaction_id),
            "client": each.client,
            "database": each.database,
            "ageSeconds": None if now_s is None else round(now_s - each.started_at_ms / 1000, 1),
            "blocks": list(each.topics),
        }
        for each in oldest[:SHOWN_COUNT_MAX]
    ]


def _topics(change: Sequence[Sample], passed_s: float) -> list[Form]:
    busy = [each for each in change if each.name == "tuff_topic_messages_total" and each.value]
    busy.sort(key=lambda each: -each.value)
    return [
        {
            **each.labels,
            "messagesPerSecond": round(each.value / passed_s, 1),
            "bytesPerSecond": round(
                (value_of(change, "tuff_topic_bytes_total", **each.labels) or 0.0) / passed_s, 1
            ),
        }
        for each in busy[:SHOWN_COUNT_MAX]
    ]


def _groups(lags: Mapping[tuple[str, str], int | None]) -> list[Form]:
    last = sorted(lags.items(), key=lambda each: -(each[1] or 0))
    return [
        {"namespace": namespace, "group": name, "behindMs": behind_ms}
        for (namespace, name), behind_ms in last[:SHOWN_COUNT_MAX]
    ]


def _print(figures: Form, *, as_json: bool) -> None:
    if as_json:
        print_json(figures)
        sys.stdout.flush()
        return
    from rich.console import Console

    Console(highlight=False).print(lines_of(figures))


def _show(readings: Iterator[Form | TuffError]) -> None:
    from rich.live import Live
    from rich.text import Text

    with Live(screen=True, auto_refresh=False) as live:
        for figures in readings:
            if isinstance(figures, TuffError):
                live.update(Text(_waiting_for(figures)), refresh=True)
            else:
                live.update(lines_of(figures), refresh=True)


def lines_of(figures: Form) -> "Lines":
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
            made.add_row(*(Text("-" if cell is None else printable(str(cell))) for cell in row))
        return made

    rates, transactions = _rates(figures)
    oldest, topics, groups = _lists(figures, transactions)
    return Lines(
        table("rates", ("", "per second", "", "now"), rates),
        table("latencies", ("", "count", "p50 ≤", "p99 ≤"), _latency_rows(figures)),
        table("oldest transactions", ("id", "client", "age", "blocks readers of"), oldest),
        table("busiest topics", ("topic", "messages/s", "bytes/s"), topics),
        table("consumer groups", ("group", "behind"), groups),
    )


def _rates(figures: Form) -> tuple[list[list[object]], Form]:
    transactions = figures["transactions"]
    assert isinstance(transactions, dict)
    rows: list[list[object]] = [
        ["messages", figures["messagesPerSecond"], "polls waiting", figures["pollsWaiting"]],
        ["bytes", figures["bytesPerSecond"], "in progress", transactions["inProgress"]],
        ["requests", figures["requestsPerSecond"], "prepared", transactions["prepared"]],
        ["commits", transactions["commitsPerSecond"], "invalid", transactions["invalid"]],
        ["conflicts", transactions["conflictsPerSecond"], "", ""],
    ]
    return rows, transactions


def _latency_rows(figures: Form) -> list[list[object]]:
    latencies = figures["latencies"]
    assert isinstance(latencies, dict)
    return [
        [name, int(each["count"]), *(_ms(each[share]) for share in ("p50", "p99"))]
        for name, each in latencies.items()
    ]


def _ms(value_s: float | None) -> str | None:
    return None if value_s is None else f"{value_s * 1000:g} ms"


def _lists(figures: Form, transactions: Form) -> list[list[list[object]]]:
    oldest, topics, groups = transactions["oldest"], figures["topics"], figures["groups"]
    assert isinstance(oldest, list)
    assert isinstance(topics, list)
    assert isinstance(groups, list)
    in_topics = itemgetter("namespace", "topic", "messagesPerSecond", "bytesPerSecond")
    return [
        [
            [each["transactionId"], each["client"], f"{each['ageSeconds']} s",
             ", ".join(each["blocks"]) or None]
            for each in oldest
        ],
        [
            [f"{namespace}:{topic}", messages, size]
            for namespace, topic, messages, size in map(in_topics, topics)
        ],
        [
            [f"{each['namespace']}:{each['group']}",
             None if each["behindMs"] is None else seconds(each["behindMs"])]
            for each in groups
        ],
    ]  # fmt: skip
