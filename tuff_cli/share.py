"""`tuff share ls`, `show`, `create`, `delete`: share groups (protocol §3.12)."""

import click

from tuff.blocking.client import Client
from tuff.protocol.ids import TopicId
from tuff.protocol.json_objects import to_json
from tuff.protocol.sentences import counted
from tuff.share_calls import ShareOrder
from tuff_cli.options import (
    SECONDS,
    Start,
    client_command,
    confirm,
    start_of,
    topic_of,
)
from tuff_cli.output import Result, Table, seconds

_TOPIC = click.argument("topic", type=topic_of)
_GROUP = click.argument("group")


@click.group()
def share() -> None:
    """List, show, create and delete the share groups of TOPIC, which lease single messages.

    TOPIC with several partitions has the group in each; namespace:TOPIC/3 names one of them.
    """


@share.command("ls")
@_TOPIC
@client_command
def list_share_groups(client: Client, *, topic: TopicId) -> Result:
    """List the share groups of TOPIC, with what is left to be done."""
    found = [client.share_groups.get(topic, name) for name in client.share_groups.list(topic)]
    rows = [
        (each.name, each.order, each.leased, each.waiting, seconds(each.behind_ms))
        for each in found
    ]
    title = f"{counted(len(found), 'share group')} of {topic}"
    table = Table(("group", "order", "leased", "waiting", "behind"), rows, title)
    return Result(json=found, table=table)


@share.command("show")
@_TOPIC
@_GROUP
@client_command
def show_share_group(client: Client, *, topic: TopicId, group: str) -> Result:
    """Show the messages of GROUP by their state, and how far it is behind.

    Messages that are available were read by the server so far; there may be more.
    """
    found = client.share_groups.get(topic, group)
    form = to_json(found)
    rows = [(name, form[name]) for name in _COUNTS]
    selected = "" if found.tags is None else f", tags {found.tags}"
    lease = f"lease {found.lease_s:g} s"
    title = f"share group {group} of {topic}, order {found.order}{selected}, {lease}"
    oldest = "nothing is left" if found.oldest is None else f"oldest {found.oldest.hex()}"
    return Result(
        json=form,
        table=Table(("state", "messages"), rows, title),
        lines=[f"{oldest}, {seconds(found.behind_ms)} behind"],
    )


@share.command("create")
@_TOPIC
@_GROUP
@click.option(
    "--from",
    "start",
    type=start_of,
    default="latest",
    metavar="START",
    help="The first message: as --from of tuff tail. [default: latest]",
)
@click.option(
    "--order",
    type=click.Choice(["none", "key"]),
    default="none",
    show_default=True,
    help="key: process the messages of a key one by one.",
)
@click.option("--tags", metavar="TAGS", help="Only messages with these tags, as a,b|c.")
@click.option("--lease", type=SECONDS, default=30.0, metavar="DURATION", help="[default: 30]")
@client_command
def create_share_group(
    client: Client,
    *,
    topic: TopicId,
    group: str,
    start: Start,
    order: ShareOrder,
    tags: str | None,
    lease: float,
) -> Result:
    """Create GROUP. With --order key, the messages of a key are processed one by one."""
    was_there = group in client.share_groups.list(topic)
    client.share_groups.create(topic, group, start=start, order=order, tags=tags, lease=lease)
    said = f"the share group {group} of {topic}"
    return Result(
        json=client.share_groups.get(topic, group),
        lines=[f"{said} is there already" if was_there else f"created {said}"],
    )


@share.command("delete")
@_TOPIC
@_GROUP
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_command
def delete_share_group(client: Client, *, topic: TopicId, group: str, yes: bool) -> Result:
    """Delete GROUP with what it has acknowledged."""
    if not yes:
        confirm(f"Delete the share group {group} of {topic}?")
    client.share_groups.delete(topic, group)
    return Result(
        json={"topic": topic, "name": group, "deleted": True},
        lines=[f"deleted the share group {group} of {topic}"],
    )


_COUNTS = ("available", "blocked", "leased", "waiting", "undecided", "done")
