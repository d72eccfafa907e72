"""`tuff holds`, `tuff positions`, `tuff sinks`: what keeps messages, and how far readers and
exactly-once writers are (protocol §3.8, §3.9, §5.3)."""

import click

from tuff.blocking.client import Client
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.json_objects import to_json
from tuff.protocol.sentences import counted
from tuff_cli.options import (
    SECONDS,
    Start,
    client_command,
    confirm,
    start_of,
    topic_of,
)
from tuff_cli.output import Result, Table, field_table, moment

MAX_AGE_S = 86_400.0  # of a hold without --max-age; a day, so that a forgotten hold ends soon

_TOPIC = click.argument("topic", type=topic_of)
_NAME = click.argument("name")


@click.group()
def holds() -> None:
    """List, set and remove holds, which keep messages beyond the ttl of their topic."""


@holds.command("ls")
@_TOPIC
@client_command
def list_holds(client: Client, *, topic: TopicId) -> Result:
    """List the holds of TOPIC that have not expired."""
    found = client.holds.list(topic)
    rows = [(each.name, each.first.hex(), moment(each.expires_at_ms)) for each in found]
    table = Table(("name", "from", "expires"), rows, f"holds of {topic}")
    return Result(json=found, table=table)


@holds.command("set")
@_TOPIC
@_NAME
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
    metavar="DURATION",
    help="When the hold expires. [default: a day]",
)
@client_command
def set_hold(client: Client, *, topic: TopicId, name: str, start: Start, max_age: float) -> Result:
    """Keep the messages of TOPIC from START on under NAME; set again, renew or move the hold."""
    hold = client.holds.set(topic, name, start, max_age=max_age)
    line = f"{topic} is held from {hold.first.hex()} until {moment(hold.expires_at_ms)}"
    return Result(json=hold, lines=[line])


@holds.command("rm")
@_TOPIC
@_NAME
@client_command
def remove_hold(client: Client, *, topic: TopicId, name: str) -> Result:
    """Remove the hold NAME of TOPIC."""
    client.holds.delete(topic, name)
    return _removed(topic, name)


@click.group()
def positions() -> None:
    """List, set and remove the named positions that readers store."""


@positions.command("ls")
@_TOPIC
@client_command
def list_positions(client: Client, *, topic: TopicId) -> Result:
    """List the positions of TOPIC, and the end of TOPIC."""
    found = client.positions.list(topic)
    end = client.offsets(topic).end
    rows = [(each.name, each.position.hex(), moment(each.updated_at_ms)) for each in found]
    title = f"{topic} ends with {'-' if end is None else end.hex()}"
    table = Table(("name", "position", "updated"), rows, title)
    return Result(json=found, table=table)


@positions.command("set")
@_TOPIC
@_NAME
@click.argument("position")
@client_command
def set_position(client: Client, *, topic: TopicId, name: str, position: str) -> Result:
    """Record that NAME has read TOPIC up to the message id POSITION."""
    found = client.positions.set(topic, name, MessageId.from_hex(position))
    line = f"{name} of {topic} is at {found.position.hex()}"
    return Result(json=found, lines=[line])


@positions.command("rm")
@_TOPIC
@_NAME
@client_command
def remove_position(client: Client, *, topic: TopicId, name: str) -> Result:
    """Remove the position NAME of TOPIC."""
    client.positions.delete(topic, name)
    return _removed(topic, name)


@click.group()
def sinks() -> None:
    """List, show and remove sinks: the newest epochs of exactly-once writers."""


@sinks.command("ls")
@client_command
def list_sinks(client: Client) -> Result:
    """List all sinks."""
    found = client.sinks.list()
    rows = [
        (one.sink, one.epoch, one.state, one.run_id, one.transaction_id, moment(one.updated_at_ms))
        for one in found
    ]
    columns = ("sink", "epoch", "state", "run", "transaction", "since")
    table = Table(columns, rows, counted(len(rows), "sink"))
    return Result(json=found, table=table)


@sinks.command("show")
@click.argument("sink")
@client_command
def show_sink(client: Client, *, sink: str) -> Result:
    """Show the newest epoch of SINK."""
    found = client.sinks.get(sink)
    fields = {
        "epoch": found.epoch,
        "state": found.state,
        "run": found.run_id,
        "transaction": found.transaction_id,
        "since": moment(found.updated_at_ms),
    }
    return Result(json=found, table=field_table(fields, title=f"sink {found.sink}"))


@sinks.command("rm")
@click.argument("sink")
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_command
def remove_sink(client: Client, *, sink: str, yes: bool) -> Result:
    """Remove SINK and its epochs.

    If its writer then replays a committed epoch, the epoch is written a second time.
    """
    if not yes:
        confirm(f"Remove {sink} and its record of committed epochs?")
    client.sinks.delete(sink)
    return Result(json={"sink": sink, "removed": True}, lines=[f"removed {sink}"])


def _removed(topic: TopicId, name: str) -> Result:
    return Result(json={**to_json(topic), "removed": name}, lines=[f"removed {name} of {topic}"])
