"""`tuff delayed`: the messages that wait until they are due (protocol §3.10)."""

import click

from tuff.blocking.client import Client
from tuff.protocol.ids import TopicId
from tuff.protocol.json_objects import to_json
from tuff.replies import DelayedMessage
from tuff_cli.options import WholeNumber, client_command, topic_of
from tuff_cli.output import Result, Table, moment

LISTED_COUNT = 100  # messages, without --limit
LISTED_COUNT_MAX = 1_000  # as of the server

_TOPIC = click.argument("topic", type=topic_of)


@click.group()
def delayed() -> None:
    """List and cancel messages that wait until they are due."""


@delayed.command("ls")
@_TOPIC
@click.option(
    "--limit",
    type=WholeNumber(1, LISTED_COUNT_MAX),
    default=LISTED_COUNT,
    metavar="N",
    help=f"At most N messages. [default: {LISTED_COUNT}]",
)
@click.option("--after", metavar="ID", help="Only messages behind this one.")
@client_command
def list_delayed(client: Client, *, topic: TopicId, limit: int, after: str | None) -> Result:
    """List the messages that wait for TOPIC, in the order in which they become due."""
    payloads = click.get_current_context().params["as_json"]
    found: list[DelayedMessage] = []
    while len(found) < limit:
        # A page may be shorter: its messages have a limited size.
        left = limit - len(found)
        page = client.delayed.list(topic, after=after, limit=left, payloads=payloads)
        if not page:
            break
        found += page
        after = page[-1].id
    rows = [(each.id, moment(each.due_ms), each.size_bytes) for each in found]
    table = Table(("id", "due", "bytes"), rows, f"messages that wait for {topic}")
    # Only then there may be more: pages were read until the limit, or until one was empty.
    is_cut = len(found) == limit and bool(client.delayed.list(topic, after=after, limit=1))
    more = f"there are more: tuff delayed ls {topic} --after {after}"
    return Result(json=found, table=table, lines=[more] if is_cut else [])


@delayed.command("cancel")
@_TOPIC
@click.argument("id")
@client_command
def cancel_delayed(client: Client, *, topic: TopicId, id: str) -> Result:
    """Delete the message ID that waits for TOPIC: it never enters the topic."""
    client.delayed.delete(topic, id)
    return Result(json={**to_json(topic), "cancelled": id}, lines=[f"cancelled {id} of {topic}"])
