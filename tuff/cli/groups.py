"""`tuff groups ls`, `show`, `reset`, `delete` (protocol §3.11)."""

from collections import Counter
from collections.abc import Iterable

import click

from tuff.blocking.client import Client
from tuff.cli.options import (
    DEFAULT_NAMESPACE,
    Start,
    TopicEnd,
    confirm,
    server_command,
    start_of,
    topic_of,
)
from tuff.cli.output import Result, Table, printable, seconds
from tuff.protocol.ids import FIRST_ID, MessageId, TopicId
from tuff.protocol.sentences import counted
from tuff.replies import Group, GroupMember, GroupPartition

# A group is named as a topic is: in its namespace.
_GROUP = click.argument("group", type=topic_of)


@click.group()
def groups() -> None:
    """List, show, reset and delete consumer groups.

    GROUP is namespace:name, or name in namespace default.
    """


@groups.command("ls")
@click.argument("namespace", default=DEFAULT_NAMESPACE)
@server_command
def list_groups(client: Client, *, namespace: str) -> Result:
    """List the groups of NAMESPACE. [default: default]"""
    found = client.groups.list(namespace)
    rows = [(namespace, name) for name in found]
    return Result(
        json=[{"namespace": namespace, "name": name} for name in found],
        table=Table(("namespace", "group"), rows, counted(len(found), "group")),
    )


@groups.command("show")
@_GROUP
@server_command
def show_group(client: Client, *, group: TopicId) -> Result:
    """Show the partitions of GROUP, its members, and how far they are behind.

    The lag is the time between the newest message and the committed offset.
    """
    found = client.groups.show(group.namespace, group.name)
    clients = {each.member_id: each.client for each in found.members}
    rows = [
        (
            each.partition.name,
            clients.get(each.member_id or ""),
            None if each.after is None else each.after.hex(),
            None if each.end is None else each.end.hex(),
            _lag([each]),
        )
        for each in found.partitions
    ]
    title = f"group {group}, {found.state}, epoch {found.epoch}"
    return Result(
        json=_group_form(group, found),
        table=Table(("partition", "client", "committed", "end", "behind"), rows, title),
        lines=[_member_line(each, found) for each in found.members],
    )


@groups.command("reset")
@_GROUP
@click.argument("topic", type=topic_of)
@click.option(
    "--to",
    "start",
    type=start_of,
    required=True,
    metavar="START",
    help="The first message to read: as --from of tuff tail.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_command
def reset_group(
    client: Client, *, group: TopicId, topic: TopicId, start: Start, yes: bool
) -> Result:
    """Let GROUP continue at START in TOPIC, or in one partition, as namespace:TOPIC:3.

    The group may not have members that consume it.
    """
    if not yes:
        confirm(f"Set the offsets of {group} in {topic}?")
    offsets = {each: _after(client, each, start) for each in _partitions(client, topic)}
    client.groups.reset(group.namespace, group.name, offsets)
    form = {each.name: after.hex() for each, after in offsets.items()}
    return Result(
        json={"namespace": group.namespace, "name": group.name, "offsets": form},
        lines=[f"{group} continues behind {after} in {name}" for name, after in form.items()],
    )


@groups.command("delete")
@_GROUP
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_command
def delete_group(client: Client, *, group: TopicId, yes: bool) -> Result:
    """Delete GROUP and its offsets. It may not have members."""
    if not yes:
        confirm(f"Delete {group} and its offsets?")
    client.groups.delete(group.namespace, group.name)
    form = {"namespace": group.namespace, "name": group.name, "deleted": True}
    return Result(json=form, lines=[f"deleted {group}"])


def _partitions(client: Client, topic: TopicId) -> list[TopicId]:
    if topic.number is not None:
        return [topic]
    info = client.topics.get(topic)
    return [topic.partition(number) for number in sorted({*info.partitions, *info.retired})]


def _after(client: Client, partition: TopicId, start: Start) -> MessageId:
    """The offset behind which the first message is that of `start`."""
    match start:
        case TopicEnd.EARLIEST:
            return FIRST_ID
        case TopicEnd.LATEST:
            return client.offsets(partition).end or FIRST_ID
        case MessageId():
            first = start
        case _:
            first = MessageId(start, 0)
    return MessageId.from_int(max(0, first.to_int() - 1))


def _lag(partitions: Iterable[GroupPartition]) -> str | None:
    """The longest known lag."""
    known = [each.behind_ms for each in partitions if each.behind_ms is not None]
    return seconds(max(known)) if known else None


def _member_line(member: GroupMember, group: Group) -> str:
    own = [each for each in group.partitions if each.member_id == member.member_id]
    behind = _lag(own)
    static = "" if member.instance_id is None else f", static as {member.instance_id}"
    lag = "" if behind is None else f", {behind} behind"
    name = printable(member.client) or "a member"
    return f"{name} ({member.member_id}{static}) has {counted(len(own), 'partition')}{lag}"


def _group_form(group: TopicId, found: Group) -> dict[str, object]:
    count_of = Counter(each.member_id for each in found.partitions)
    return {
        "namespace": group.namespace,
        "name": found.name,
        "state": found.state,
        "epoch": found.epoch,
        "assignor": found.assignor,
        "members": [
            {
                "memberId": each.member_id,
                "memberEpoch": each.epoch,
                "instanceId": each.instance_id,
                "client": each.client,
                "topics": each.topics,
                "partitionCount": count_of[each.member_id],
                "behindMs": max(
                    (
                        one.behind_ms
                        for one in found.partitions
                        if one.member_id == each.member_id and one.behind_ms is not None
                    ),
                    default=None,
                ),
            }
            for each in found.members
        ],
        "partitions": [
            {
                "partition": each.partition.name,
                "memberId": each.member_id,
                "after": None if each.after is None else each.after.hex(),
                "end": None if each.end is None else each.end.hex(),
                "behindMs": each.behind_ms,
            }
            for each in found.partitions
        ],
    }
