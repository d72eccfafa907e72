"""`tuff sinks`: the epochs that exactly-once writers have committed (protocol §5.3)."""

import click

from tuff.cli.options import Session, confirm, output_options, server_options, session
from tuff.cli.output import counted, moment, print_json, print_table
from tuff.replies import Sink


@click.group()
def sinks() -> None:
    """List, show and remove sinks: the newest epochs of exactly-once writers."""


@sinks.command("ls")
@server_options
@output_options
@session
def list_sinks(session: Session, *, as_json: bool) -> None:
    """List all sinks."""
    with session.client() as client:
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
def show(session: Session, *, sink: str, as_json: bool) -> None:
    """Show the newest epoch of SINK."""
    with session.client() as client:
        found = client.sinks.get(sink)
    if as_json:
        print_json(_form(found))
        return
    fields = {
        "epoch": found.epoch,
        "state": found.state,
        "run": found.run_id,
        "transaction": found.transaction_id,
        "since": moment(found.updated_at_ms),
    }
    print_table(("field", "value"), fields.items(), title=f"sink {found.sink}")


@sinks.command("rm")
@click.argument("sink")
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_options
@output_options
@session
def remove(session: Session, *, sink: str, yes: bool, as_json: bool) -> None:
    """Remove SINK and its epochs.

    If its writer then replays a committed epoch, the epoch is written a second time.
    """
    if not yes:
        confirm(f"Remove {sink} and its record of committed epochs?")
    with session.client() as client:
        client.sinks.delete(sink)
    if as_json:
        print_json({"sink": sink, "removed": True})
    else:
        click.echo(f"removed {sink}")


def _form(sink: Sink) -> dict[str, object]:
    return {
        "sink": sink.sink,
        "epoch": sink.epoch,
        "runId": sink.run_id,
        "state": sink.state,
        "transactionId": str(sink.transaction_id),
        "updatedAt": sink.updated_at_ms,
    }
