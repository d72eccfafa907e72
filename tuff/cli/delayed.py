"""`tuff delayed`: the messages that wait until they are due (protocol §3.10)."""

import click

from tuff.blocking.client import Client
from tuff.cli.options import WholeNumber, server_command, topic_of
from tuff.cli.output import Result, Table, moment
from tuff.protocol.attributes import Attributes
from tuff.protocol.ids import TopicId
from tuff.protocol.json_forms import attributes_to_json, payload_to_json
from tuff.replies import DelayedMessage

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
@server_command
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
    rows = [(each.id, moment(each.due_ms), each.size) for each in found]
    table = Table(("id", "due", "bytes"), rows, f"messages that wait for {topic}")
    return Result(json=[_form(each) for each in found], table=table)


@delayed.command("cancel")
@_TOPIC
@click.argument("id")
@server_command
def cancel_delayed(client: Client, *, topic: TopicId, id: str) -> Result:
    """Delete the message ID that waits for TOPIC: it never enters the topic."""
    client.delayed.cancel(topic, id)
    form = {"namespace": topic.namespace, "name": topic.name, "cancelled": id}
    return Result(json=form, lines=[f"cancelled {id} of {topic}"])


def _form(found: DelayedMessage) -> dict[str, object]:
    return {
        "id": found.id,
        "due": found.due_ms,
        "size": found.size,
        "ttl": found.ttl_s,
        "payload": None if found.payload is None else payload_to_json(found.payload),
        **attributes_to_json(Attributes(found.key, found.tags, found.headers)),
    }
