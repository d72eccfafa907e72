"""`tuff holds` and `tuff positions`: what readers leave with a topic (protocol §3.8, §3.9)."""

import time
from collections.abc import Mapping

import click

from tuff.blocking.client import Client
from tuff.cli.options import SECONDS, Session, output_options, server_options, session, topic_of
from tuff.cli.output import moment, print_json, print_table
from tuff.cli.places import Latest, parse_place
from tuff.protocol.ids import FIRST_ID, MessageId, TopicId
from tuff.replies import Hold, NamedPosition

MAX_AGE_S = 86_400.0  # of a hold whose age nobody names; a day is noticed before it is over


@click.group()
def holds() -> None:
    """Holds keep messages from a topic's ttl: ls, set, rm."""


@holds.command("ls")
@click.argument("topic", type=topic_of)
@server_options
@output_options
@session
def list_holds(session: Session, *, topic: TopicId, url: str | None, as_json: bool) -> None:
    """List the holds of TOPIC that are not over."""
    with session.client(url) as client:
        found = client.topics.holds(topic)
    if as_json:
        print_json([_hold_form(each) for each in found])
    else:
        rows = [(each.name, each.first.hex(), moment(each.expires_at_ms)) for each in found]
        print_table(("name", "from", "expires"), rows, title=f"holds of {topic}")


@holds.command("set")
@click.argument("topic", type=topic_of)
@click.argument("name")
@click.option("--from", "start", default="earliest", help="As of tuff tail. [default: earliest]")
@click.option("--max-age", type=SECONDS, default=MAX_AGE_S, help="Seconds. [default: a day]")
@server_options
@output_options
@session
def set_hold(
    session: Session,
    *,
    topic: TopicId,
    name: str,
    start: str,
    max_age: float,
    url: str | None,
    as_json: bool,
) -> None:
    """Keep what TOPIC holds from a place on under NAME, or renew it, or move it."""
    with session.client(url) as client:
        hold = client.topics.hold(topic, name, _place(client, topic, start), max_age=max_age)
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
def remove_hold(
    session: Session, *, topic: TopicId, name: str, url: str | None, as_json: bool
) -> None:
    """End the hold NAME of TOPIC."""
    with session.client(url) as client:
        client.topics.release(topic, name)
    _say_removed(topic, name, as_json=as_json)


@click.group()
def positions() -> None:
    """Named positions: how far readers say to have read: ls, set, rm."""


@positions.command("ls")
@click.argument("topic", type=topic_of)
@server_options
@output_options
@session
def list_positions(session: Session, *, topic: TopicId, url: str | None, as_json: bool) -> None:
    """List the positions of TOPIC, and its end."""
    with session.client(url) as client:
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
    session: Session, *, topic: TopicId, name: str, position: str, url: str | None, as_json: bool
) -> None:
    """Record that NAME has read TOPIC up to the message id POSITION."""
    with session.client(url) as client:
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
def remove_position(
    session: Session, *, topic: TopicId, name: str, url: str | None, as_json: bool
) -> None:
    """Forget the position NAME of TOPIC."""
    with session.client(url) as client:
        client.topics.delete_position(topic, name)
    _say_removed(topic, name, as_json=as_json)


def _place(client: Client, topic: TopicId, text: str) -> MessageId | int:
    match parse_place(text, now_ms=time.time_ns() // 1_000_000):
        case None:
            return FIRST_ID
        case Latest():
            return client.offsets(topic).end or FIRST_ID
        case place:
            return place


def _say_removed(topic: TopicId, name: str, *, as_json: bool) -> None:
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
