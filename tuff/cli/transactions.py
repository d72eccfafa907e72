"""`tuff tx`: what is in progress, what became of it, and how to end it (protocol §5.2)."""

import dataclasses
import time

import click

from tuff.cli.options import SECONDS, TRANSACTION, Session, output_options, server_options, session
from tuff.cli.output import counted, moment, print_json, print_table, seconds
from tuff.protocol.transaction import TransactionType
from tuff.replies import OpenTransaction, Outcome, Overview


@click.group()
def tx() -> None:
    """Transactions: ls, show, blockers, start, renew, commit, abort, invalidate."""


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
def show(session: Session, *, transaction: int, url: str | None, as_json: bool) -> None:
    """Show what became of TRANSACTION: its id, or any of its pointers."""
    with session.client(url) as client:
        outcome = client.transactions.outcome(transaction)
    if as_json:
        print_json(transaction_form(outcome))
        return
    facts = {
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
    print_table(("fact", "value"), facts.items(), title=title)


@tx.command()
@click.option(
    "--type",
    "kind",
    type=click.Choice(["short", "long"]),
    default="short",
    help="Seconds to live and checked for conflicts, or hours and never checked.",
)
@click.option("--timeout", type=SECONDS, metavar="SECONDS", help="Until it ends by itself.")
@click.option("--lease", type=SECONDS, metavar="SECONDS", help="Ends a long one nobody renews.")
@click.option("--client", "name", help="The name that others see.")
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
    url: str | None,
    as_json: bool,
) -> None:
    """Start a transaction, and print its id: for `tuff pub --tx`."""
    with session.client(url) as client:
        started = client.transactions.start(
            TransactionType(kind), timeout=timeout, client=name, lease=lease
        )
    if as_json:
        print_json(_ended_form(started.transaction_id, "in_progress"))
    else:
        click.echo(started.transaction_id)


@tx.command()
@click.argument("transaction", type=TRANSACTION)
@server_options
@output_options
@session
def renew(session: Session, *, transaction: int, url: str | None, as_json: bool) -> None:
    """Let the lease of TRANSACTION begin anew."""
    with session.client(url) as client:
        renewed = client.transactions.renew(transaction)
    if as_json:
        times = {
            "leaseExpiresAt": renewed.lease_expires_at_ms,
            "expiresAt": renewed.expires_at_ms,
        }
        print_json({"transactionId": str(transaction), **times})
    else:
        click.echo(f"leased until {moment(renewed.lease_expires_at_ms)}")


@tx.command()
@click.argument("transaction", type=TRANSACTION)
@server_options
@output_options
@session
def commit(session: Session, *, transaction: int, url: str | None, as_json: bool) -> None:
    """Commit TRANSACTION, with what was published in it."""
    with session.client(url) as client:
        client.transactions.commit(transaction)
    _tell_ended(transaction, "committed", as_json=as_json)


@tx.command()
@click.argument("transaction", type=TRANSACTION)
@server_options
@output_options
@session
def abort(session: Session, *, transaction: int, url: str | None, as_json: bool) -> None:
    """End TRANSACTION, and take back what was published in it.

    It says that every other write of it, to a database for instance, was undone. If you do not
    know that, use invalidate.
    """
    with session.client(url) as client:
        state = client.transactions.abort(transaction)
    _tell_ended(transaction, state, as_json=as_json)


@tx.command()
@click.argument("transaction", type=TRANSACTION)
@server_options
@output_options
@session
def invalidate(session: Session, *, transaction: int, url: str | None, as_json: bool) -> None:
    """End TRANSACTION whatever it wrote elsewhere: nobody will ever see any of it."""
    with session.client(url) as client:
        client.transactions.invalidate(transaction)
    _tell_ended(transaction, "invalid", as_json=as_json)


def _tell_ended(transaction: int, state: str, *, as_json: bool) -> None:
    if as_json:
        print_json(_ended_form(transaction, state))
    else:
        click.echo(f"transaction {transaction} is {state}")


def _ended_form(transaction: int, state: str) -> dict[str, object]:
    return {"transactionId": str(transaction), "state": state}


# JSON for programs has the protocol's own member names, and its pointers as strings.
_MEMBERS = {
    "transaction_id": "transactionId",
    "started_at_ms": "startedAt",
    "expires_at_ms": "expiresAt",
    "lease_s": "lease",
    "lease_expires_at_ms": "leaseExpiresAt",
}


def lease_text(value: OpenTransaction | Outcome, *, now_ms: int) -> str | None:
    """How long the lease is, and what is left of it; None without one."""
    if value.lease_s is None or value.lease_expires_at_ms is None:
        return None
    left = seconds(value.lease_expires_at_ms - now_ms)
    return f"{value.lease_s:g} s, {left} left"


def transaction_form(value: OpenTransaction | Outcome) -> dict[str, object]:
    """Its JSON, as the protocol has it."""
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
