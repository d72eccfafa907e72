"""`tuff sinks`: how far writers are, and how to give one up (protocol §5.3)."""

import click

from tuff.cli.options import Session, confirm, output_options, server_options, session
from tuff.cli.output import counted, moment, print_json, print_table
from tuff.replies import Sink


@click.group()
def sinks() -> None:
    """Sinks, the newest epochs of writers: ls, show, rm."""


@sinks.command("ls")
@server_options
@output_options
@session
def list_sinks(session: Session, *, url: str | None, as_json: bool) -> None:
    """List all sinks."""
    with session.client(url) as client:
        found = client.sinks.list()
    if as_json:
        print_json([_form(one) for one in found])
        return
    rows = [
        (one.sink, one.epoch, one.state, one.run_id, one.transaction_id, moment(one.updated_at_ms))
        for one in found
    ]
    columns = ("sink", "epoch", "state", "run", "transaction", "since")
    print_table(columns, rows, title=counted(len(rows), "sink"))


@sinks.command()
@click.argument("sink")
@server_options
@output_options
@session
def show(session: Session, *, sink: str, url: str | None, as_json: bool) -> None:
    """Show the newest epoch of SINK."""
    with session.client(url) as client:
        found = client.sinks.get(sink)
    if as_json:
        print_json(_form(found))
        return
    facts = {
        "epoch": found.epoch,
        "state": found.state,
        "run": found.run_id,
        "transaction": found.transaction_id,
        "since": moment(found.updated_at_ms),
    }
    print_table(("fact", "value"), facts.items(), title=f"sink {found.sink}")


@sinks.command("rm")
@click.argument("sink")
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_options
@output_options
@session
def remove(session: Session, *, sink: str, yes: bool, url: str | None, as_json: bool) -> None:
    """Forget SINK and its epochs.

    A writer that replays an epoch which it has committed then writes it once more.
    """
    if not yes:
        confirm(f"Forget {sink} and which epochs it committed?")
    with session.client(url) as client:
        client.sinks.delete(sink)
    if as_json:
        print_json({"sink": sink, "removed": True})
    else:
        click.echo(f"forgot {sink}")


def _form(sink: Sink) -> dict[str, object]:
    return {
        "sink": sink.sink,
        "epoch": sink.epoch,
        "runId": sink.run_id,
        "state": sink.state,
        "transactionId": str(sink.transaction_id),
        "updatedAt": sink.updated_at_ms,
    }
