"""`tuff holds`, `tuff positions`, `tuff sinks`: what keeps messages, and how far readers and
exactly-once writers are (protocol §3.8, §3.9, §5.3)."""

from collections.abc import Mapping

import click

from tuff.blocking.client import Client
from tuff.cli.options import (
    SECONDS,
    Session,
    Start,
    TopicEnd,
    confirm,
    output_options,
    server_options,
    session,
    start_of,
    topic_of,
)
from tuff.cli.output import counted, moment, print_json, print_table
from tuff.protocol.ids import FIRST_ID, MessageId, TopicId
from tuff.replies import Hold, NamedPosition, Sink

MAX_AGE_S = 86_400.0  # of a hold without --max-age; a day, so that a forgotten hold ends soon


@click.group()
def holds() -> None:
    """List, set and remove holds, which keep messages beyond the ttl of their topic."""


@holds.command("ls")
@click.argument("topic", type=topic_of)
@server_options
@output_options
@session
def list_holds(session: Session, *, topic: TopicId, as_json: bool) -> None:
    """List the holds of TOPIC that have not expired."""
    with session.client() as client:
        found = client.topics.holds(topic)
    if as_json:
        print_json([_hold_form(each) for each in found])
    else:
        rows = [(each.name, each.first.hex(), moment(each.expires_at_ms)) for each in found]
        print_table(("name", "from", "expires"), rows, title=f"holds of {topic}")


@holds.command("set")
@click.argument("topic", type=topic_of)
@click.argument("name")
@click.option(
    "--from",
    "start",
    type=start_of,
    default="earliest",
    metavar="START",
    help="As of tuff tail. [default: earliest]",
)
@click.option(
    "--max-age",
    type=SECONDS,
    default=MAX_AGE_S,
    metavar="SECONDS",
    help="When the hold expires. [default: a day]",
)
@server_options
@output_options
@session
def set_hold(
    session: Session,
    *,
    topic: TopicId,
    name: str,
    start: Start,
    max_age: float,
    as_json: bool,
) -> None:
    """Keep the messages of TOPIC from START on under NAME; set again, renew or move the hold."""
    with session.client() as client:
        hold = client.topics.hold(topic, name, _first_kept(client, topic, start), max_age=max_age)
    if as_json:
        print_json(_hold_form(hold))
    else:
        click.echo(f"{topic} is held from {hold.first.hex()} until {moment(hold.expires_at_ms)}")


@holds.command("rm")
@click.argument("topic", type=topic_of)
@click.argument("name")
@server_options
@output_options
@session
def remove_hold(session: Session, *, topic: TopicId, name: str, as_json: bool) -> None:
    """Remove the hold NAME of TOPIC."""
    with session.client() as client:
        client.topics.release(topic, name)
    _print_removed(topic, name, as_json=as_json)


@click.group()
def positions() -> None:
    """List, set and remove the named positions that readers store."""


@positions.command("ls")
@click.argument("topic", type=topic_of)
@server_options
@output_options
@session
def list_positions(session: Session, *, topic: TopicId, as_json: bool) -> None:
    """List the positions of TOPIC, and the end of TOPIC."""
    with session.client() as client:
        found = client.topics.positions(topic)
        end = client.offsets(topic).end
    if as_json:
        print_json([_position_form(each) for each in found])
        return
    rows = [(each.name, each.position.hex(), moment(each.updated_at_ms)) for each in found]
    shown_end = "-" if end is None else end.hex()
    print_table(("name", "position", "updated"), rows, title=f"{topic} ends with {shown_end}")


@positions.command("set")
@click.argument("topic", type=topic_of)
@click.argument("name")
@click.argument("position")
@server_options
@output_options
@session
def set_position(
    session: Session, *, topic: TopicId, name: str, position: str, as_json: bool
) -> None:
    """Record that NAME has read TOPIC up to the message id POSITION."""
    with session.client() as client:
        found = client.topics.set_position(topic, name, MessageId.from_hex(position))
    if as_json:
        print_json(_position_form(found))
    else:
        click.echo(f"{name} of {topic} is at {found.position.hex()}")


@positions.command("rm")
@click.argument("topic", type=topic_of)
@click.argument("name")
@server_options
@output_options
@session
def remove_position(session: Session, *, topic: TopicId, name: str, as_json: bool) -> None:
    """Remove the position NAME of TOPIC."""
    with session.client() as client:
        client.topics.delete_position(topic, name)
    _print_removed(topic, name, as_json=as_json)


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
        print_json([_sink_form(one) for one in found])
        return
    rows = [
        (one.sink, one.epoch, one.state, one.run_id, one.transaction_id, moment(one.updated_at_ms))
        for one in found
    ]
    columns = ("sink", "epoch", "state", "run", "transaction", "since")
    print_table(columns, rows, title=counted(len(rows), "sink"))


@sinks.command("show")
@click.argument("sink")
@server_options
@output_options
@session
def show_sink(session: Session, *, sink: str, as_json: bool) -> None:
    """Show the newest epoch of SINK."""
    with session.client() as client:
        found = client.sinks.get(sink)
    if as_json:
        print_json(_sink_form(found))
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
def remove_sink(session: Session, *, sink: str, yes: bool, as_json: bool) -> None:
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


def _first_kept(client: Client, topic: TopicId, start: Start) -> MessageId | int:
    match start:
        case TopicEnd.EARLIEST:
            return FIRST_ID
        case TopicEnd.LATEST:
            return client.offsets(topic).end or FIRST_ID
        case _:
            return start


def _print_removed(topic: TopicId, name: str, *, as_json: bool) -> None:
    if as_json:
        print_json({"namespace": topic.namespace, "name": topic.name, "removed": name})
    else:
        click.echo(f"removed {name} of {topic}")


def _hold_form(hold: Hold) -> Mapping[str, object]:
    return {
        "name": hold.name,
        "from": hold.first.hex(),
        "setAt": hold.set_at_ms,
        "expiresAt": hold.expires_at_ms,
    }


def _position_form(found: NamedPosition) -> Mapping[str, object]:
    return {
        "name": found.name,
        "position": found.position.hex(),
        "generation": found.generation,
        "updatedAt": found.updated_at_ms,
    }


def _sink_form(sink: Sink) -> dict[str, object]:
    return {
        "sink": sink.sink,
        "epoch": sink.epoch,
        "runId": sink.run_id,
        "state": sink.state,
        "transactionId": str(sink.transaction_id),
        "updatedAt": sink.updated_at_ms,
    }
