"""`tuff tx ls`, `show`, `blockers`, `start`, `renew`, `commit`, `abort`, `invalidate`: what is in
progress, and what blocks readers (protocol §5.2)."""

import dataclasses
import time
from dataclasses import dataclass

import click

from tuff.blocking.client import Client
from tuff.cli.options import (
    SECONDS,
    TRANSACTION,
    Session,
    command_line,
    output_options,
    server_options,
    session,
    topic_of,
)
from tuff.cli.output import counted, moment, print_json, print_table, seconds
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.transaction import TransactionType
from tuff.replies import OpenTransaction, Outcome, Overview

WAITING_COUNT_MAX = 10_000  # messages; no more are counted, since counting reads each of them
POLL_COUNT = 1_000  # messages of one poll


@dataclass(frozen=True, slots=True)
class _Waiting:
    """How many messages wait for a transaction; `is_cut`: or more."""

    count: int
    is_cut: bool


@click.group()
def tx() -> None:
    """List, show, start and end transactions."""


@tx.command("ls")
@server_options
@output_options
@session
def list_transactions(session: Session, *, as_json: bool) -> None:
    """List the transactions in progress."""
    with session.client() as client:
        overview = client.transactions.overview()
    if as_json:
        print_json(_overview_form(overview))
        return
    now_ms = int(time.time() * 1000)
    rows = [
        (
            one.transaction_id,
            one.type,
            one.client,
            seconds(now_ms - one.started_at_ms),
            seconds(one.expires_at_ms - now_ms),
            lease_text(one, now_ms=now_ms),
            one.topics,
        )
        for one in overview.in_progress
    ]
    columns = ("transaction", "type", "client", "age", "expires in", "lease", "published to")
    print_table(columns, rows, title=f"{counted(len(rows), 'transaction')} in progress")
    click.echo(
        f"{overview.committing_count} committing, {overview.invalid_count} invalid; "
        f"read pointer {overview.read_pointer}, write pointer {overview.write_pointer}"
    )


@tx.command()
@click.argument("transaction", type=TRANSACTION)
@server_options
@output_options
@session
def show(session: Session, *, transaction: int, as_json: bool) -> None:
    """Show the state or outcome of TRANSACTION: an id, or any of its write pointers."""
    with session.client() as client:
        outcome = client.transactions.outcome(transaction)
    if as_json:
        print_json(transaction_form(outcome))
        return
    fields = {
        "state": outcome.state,
        "reason": outcome.reason,
        "type": outcome.type,
        "client": outcome.client,
        "started": moment(outcome.started_at_ms),
        "expires": moment(outcome.expires_at_ms),
        "lease": lease_text(outcome, now_ms=int(time.time() * 1000)),
        "published to": outcome.topics,
    }
    title = f"transaction {outcome.transaction_id}"
    print_table(("field", "value"), fields.items(), title=title)


@tx.command()
@click.option(
    "--type",
    "kind",
    type=click.Choice(["short", "long"]),
    default="short",
    help="short: for seconds, checked for conflicts; long: for hours, never checked. "
    "[default: short]",
)
@click.option("--timeout", type=SECONDS, metavar="SECONDS", help="Time until it times out.")
@click.option(
    "--lease",
    type=SECONDS,
    metavar="SECONDS",
    help="Of a long one: time until it ends unless renewed.",
)
@click.option("--client", "name", metavar="NAME", help="The name that tx ls shows.")
@server_options
@output_options
@session
def start(
    session: Session,
    *,
    kind: str,
    timeout: float | None,
    lease: float | None,
    name: str | None,
    as_json: bool,
) -> None:
    """Start a transaction, and print its id: for `tuff pub --tx`."""
    with session.client() as client:
        started = client.transactions.start(
            TransactionType(kind), timeout=timeout, client=name, lease=lease
        )
    if as_json:
        print_json(_state_form(started.transaction_id, "in_progress"))
    else:
        click.echo(started.transaction_id)


@tx.command()
@click.argument("transaction", type=TRANSACTION)
@server_options
@output_options
@session
def renew(session: Session, *, transaction: int, as_json: bool) -> None:
    """Restart the lease of TRANSACTION."""
    with session.client() as client:
        renewed = client.transactions.renew(transaction)
    if as_json:
        times = {
            "leaseExpiresAt": renewed.lease_expires_at_ms,
            "expiresAt": renewed.expires_at_ms,
        }
        print_json({"transactionId": str(transaction), **times})
    else:
        click.echo(f"the lease ends at {moment(renewed.lease_expires_at_ms)}")


@tx.command()
@click.argument("transaction", type=TRANSACTION)
@server_options
@output_options
@session
def commit(session: Session, *, transaction: int, as_json: bool) -> None:
    """Commit TRANSACTION, and make visible what it published."""
    with session.client() as client:
        client.transactions.commit(transaction)
    _print_state(transaction, "committed", as_json=as_json)


@tx.command()
@click.argument("transaction", type=TRANSACTION)
@server_options
@output_options
@session
def abort(session: Session, *, transaction: int, as_json: bool) -> None:
    """Roll TRANSACTION back, with what it published.

    You confirm that all its other writes, for example to a database, were undone. If you do not
    know that, use invalidate.
    """
    with session.client() as client:
        state = client.transactions.abort(transaction)
    _print_state(transaction, state, as_json=as_json)


@tx.command()
@click.argument("transaction", type=TRANSACTION)
@server_options
@output_options
@session
def invalidate(session: Session, *, transaction: int, as_json: bool) -> None:
    """Roll TRANSACTION back; its writes elsewhere stay invisible to all transactions."""
    with session.client() as client:
        client.transactions.invalidate(transaction)
    _print_state(transaction, "invalid", as_json=as_json)


@tx.command()
@click.argument("topic", type=topic_of)
@server_options
@output_options
@session
def blockers(session: Session, *, topic: TopicId, as_json: bool) -> None:
    """Show the transactions that block committed readers of TOPIC, and how to end them."""
    with session.client() as client:
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
        click.echo(f"no transaction blocks the readers of {topic}")
    else:
        _print_blockers(topic, found, blocked_by=offsets.blocked_by, waiting=waiting)


def _waiting(client: Client, topic: TopicId, end: MessageId | None) -> _Waiting:
    """Count the messages that a committed reader does not receive yet, up to a bound."""
    count, start = 0, end
    while count < WAITING_COUNT_MAX:
        poll = client.poll(topic, start, inclusive=start is None, limit=POLL_COUNT, isolation="all")
        count += len(poll)
        if poll.caught_up or not poll:
            return _Waiting(count, is_cut=False)
        start = poll.next_id
    return _Waiting(count, is_cut=True)


def _publishers(client: Client, topic: TopicId, *, first: int | None) -> list[OpenTransaction]:
    """The transactions in progress that published to a topic; the one that blocks it is first."""
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
            "now" if one.transaction_id == blocked_by else "later",
        )
        for one in found
    ]
    columns = ("transaction", "client", "since", "age", "expires in", "lease", "blocks readers")
    print_table(columns, rows, title=f"transactions that published to {topic}")
    if waiting.is_cut:
        many = f"{waiting.count:,} or more messages wait"
    else:
        many = f"{waiting.count:,} {'message waits' if waiting.count == 1 else 'messages wait'}"
    click.echo(f"{many}, including its own; to end it without its messages:")
    click.echo(f"  {command_line(['tuff', 'tx', 'invalidate', blocked_by])}")


def _print_state(transaction: int, state: str, *, as_json: bool) -> None:
    if as_json:
        print_json(_state_form(transaction, state))
    else:
        click.echo(f"transaction {transaction} is {state}")


def _state_form(transaction: int, state: str) -> dict[str, object]:
    return {"transactionId": str(transaction), "state": state}


# JSON has the member names of the protocol, and pointers as strings.
_MEMBERS = {
    "transaction_id": "transactionId",
    "started_at_ms": "startedAt",
    "expires_at_ms": "expiresAt",
    "lease_s": "lease",
    "lease_expires_at_ms": "leaseExpiresAt",
}


def lease_text(value: OpenTransaction | Outcome, *, now_ms: int) -> str | None:
    """The length of the lease, and the time left; None without a lease."""
    if value.lease_s is None or value.lease_expires_at_ms is None:
        return None
    left = seconds(value.lease_expires_at_ms - now_ms)
    return f"{value.lease_s:g} s, {left} left"


def transaction_form(value: OpenTransaction | Outcome) -> dict[str, object]:
    """The JSON of a transaction, as in the protocol."""
    fields = dataclasses.asdict(value)
    fields["transaction_id"] = str(value.transaction_id)
    return {_MEMBERS.get(name, name): member for name, member in fields.items()}


def _overview_form(overview: Overview) -> dict[str, object]:
    oldest = overview.oldest_in_progress
    return {
        "readPointer": str(overview.read_pointer),
        "writePointer": str(overview.write_pointer),
        "inProgress": [transaction_form(one) for one in overview.in_progress],
        "visibilityUpperBound": str(overview.visibility_upper_bound),
        "invalidCount": overview.invalid_count,
        "committingCount": overview.committing_count,
        "oldestInProgress": None if oldest is None else str(oldest),
    }
