"""`tuff tx`: what is in progress, and what became of a transaction (protocol §5.2)."""

import dataclasses
import time

import click

from tuff.cli.options import Session, output_options, server_options, session
from tuff.cli.output import moment, print_json, print_table, seconds
from tuff.replies import OpenTransaction, Outcome, Overview


@click.group()
def tx() -> None:
    """Transactions: ls, show."""


@tx.command("ls")
@server_options
@output_options
@session
def list_transactions(session: Session, *, url: str | None, as_json: bool) -> None:
    """List the transactions in progress."""
    with session.client(url) as client:
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
            one.topics,
        )
        for one in overview.in_progress
    ]
    columns = ("transaction", "type", "client", "age", "expires in", "published to")
    print_table(columns, rows, title=f"{len(rows)} transactions in progress")
    click.echo(
        f"{overview.committing_count} committing, {overview.invalid_count} invalid; "
        f"read pointer {overview.read_pointer}, write pointer {overview.write_pointer}"
    )


@tx.command()
@click.argument("transaction", type=click.IntRange(min=0))
@server_options
@output_options
@session
def show(session: Session, *, transaction: int, url: str | None, as_json: bool) -> None:
    """Show what became of TRANSACTION: its id, or any of its pointers."""
    with session.client(url) as client:
        outcome = client.transactions.outcome(transaction)
    if as_json:
        print_json(_form(outcome))
        return
    facts = {
        "state": outcome.state,
        "reason": outcome.reason,
        "type": outcome.type,
        "client": outcome.client,
        "started": moment(outcome.started_at_ms),
        "expires": moment(outcome.expires_at_ms),
        "published to": outcome.topics,
    }
    title = f"transaction {outcome.transaction_id}"
    print_table(("fact", "value"), facts.items(), title=title)


# JSON for programs has the protocol's own member names, and its pointers as strings.
_MEMBERS = {
    "transaction_id": "transactionId",
    "started_at_ms": "startedAt",
    "expires_at_ms": "expiresAt",
}


def _form(value: OpenTransaction | Outcome) -> dict[str, object]:
    fields = dataclasses.asdict(value)
    fields["transaction_id"] = str(value.transaction_id)
    return {_MEMBERS.get(name, name): member for name, member in fields.items()}


def _overview_form(overview: Overview) -> dict[str, object]:
    oldest = overview.oldest_in_progress
    return {
        "readPointer": str(overview.read_pointer),
        "writePointer": str(overview.write_pointer),
        "inProgress": [_form(one) for one in overview.in_progress],
        "visibilityUpperBound": str(overview.visibility_upper_bound),
        "invalidCount": overview.invalid_count,
        "committingCount": overview.committing_count,
        "oldestInProgress": None if oldest is None else str(oldest),
    }
