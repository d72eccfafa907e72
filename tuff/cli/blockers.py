"""`tuff tx blockers`: who holds the readers of a topic back, and how to free them (protocol §6)."""

import time
from dataclasses import dataclass

import click

from tuff.blocking.client import Client
from tuff.cli.options import (
    Session,
    command_line,
    output_options,
    server_options,
    session,
    topic_of,
)
from tuff.cli.output import moment, print_json, print_table, seconds
from tuff.cli.transactions import lease_text, transaction_form
from tuff.protocol.ids import MessageId, TopicId
from tuff.replies import OpenTransaction

WAITING_COUNT_MAX = 10_000  # messages; more are not counted, since each has to be read for it
POLL_COUNT = 1_000  # messages of one poll


@dataclass(frozen=True, slots=True)
class _Waiting:
    """How many messages wait; `is_cut`: there are more."""

    count: int
    is_cut: bool


@click.command()
@click.argument("topic", type=topic_of)
@server_options
@output_options
@session
def blockers(session: Session, *, topic: TopicId, url: str | None, as_json: bool) -> None:
    """Show who holds committed readers of TOPIC back, and what to type to free them."""
    with session.client(url) as client:
        offsets = client.offsets(topic, isolation="committed")
        is_free = offsets.blocked_by is None
        waiting = _Waiting(0, is_cut=False) if is_free else _waiting(client, topic, offsets.end)
        found = [] if is_free else _publishers(client, topic, first=offsets.blocked_by)
    if as_json:
        print_json(
            {
                "topic": str(topic),
                "blockedBy": None if is_free else str(offsets.blocked_by),
                "waitingCount": waiting.count,
                "isCountCut": waiting.is_cut,
                "transactions": [transaction_form(one) for one in found],
            }
        )
    elif offsets.blocked_by is None:
        click.echo(f"nobody holds the readers of {topic} back")
    else:
        _print_blockers(topic, found, blocked_by=offsets.blocked_by, waiting=waiting)


def _waiting(client: Client, topic: TopicId, end: MessageId | None) -> _Waiting:
    """How many messages a committed reader is not handed yet, up to a bound."""
    count, start = 0, end
    while count < WAITING_COUNT_MAX:
        poll = client.poll(topic, start, inclusive=start is None, limit=POLL_COUNT, isolation="all")
        count += len(poll)
        if poll.caught_up or not poll:
            return _Waiting(count, is_cut=False)
        start = poll.next_id
    return _Waiting(count, is_cut=True)


def _publishers(client: Client, topic: TopicId, *, first: int | None) -> list[OpenTransaction]:
    """The transactions in progress that published to a topic, the one that holds it up first."""
    named = [one for one in client.transactions.overview().in_progress if str(topic) in one.topics]
    return sorted(named, key=lambda one: (one.transaction_id != first, one.started_at_ms))


def _print_blockers(
    topic: TopicId, found: list[OpenTransaction], *, blocked_by: int, waiting: _Waiting
) -> None:
    now_ms = int(time.time() * 1000)
    rows = [
        (
            one.transaction_id,
            one.client,
            moment(one.started_at_ms),
            seconds(now_ms - one.started_at_ms),
            seconds(one.expires_at_ms - now_ms),
            lease_text(one, now_ms=now_ms),
            "now" if one.transaction_id == blocked_by else "next",
        )
        for one in found
    ]
    columns = ("transaction", "client", "since", "age", "expires in", "lease", "holds back")
    print_table(columns, rows, title=f"transactions that published to {topic}")
    if waiting.is_cut:
        many = f"{waiting.count:,} or more messages wait"
    else:
        many = f"{waiting.count:,} {'message waits' if waiting.count == 1 else 'messages wait'}"
    click.echo(f"{many}, its own included; to free readers without it:")
    click.echo(f"  {command_line(['tuff', 'tx', 'invalidate', blocked_by])}")
