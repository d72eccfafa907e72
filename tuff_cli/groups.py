"""`tuff groups ls`, `show`, `preferences`, `set`, `reset`, `delete` (protocol §3.11)."""

from collections.abc import Iterable
from typing import Any

import click

from tuff.blocking.client import Client
from tuff.protocol.durations import seconds_of
from tuff.protocol.group_preferences import (
    FIELDS,
    MEMBERS,
    GroupPreferences,
    GroupStart,
    RetryPolicy,
)
from tuff.protocol.ids import TopicId
from tuff.protocol.json_objects import to_json
from tuff.protocol.requests import Isolation
from tuff.protocol.sentences import counted
from tuff.replies import Group, GroupMember, GroupPartition
from tuff_cli.options import (
    Start,
    client_command,
    confirm,
    duration_s,
    start_of,
    topic_of,
)
from tuff_cli.output import Result, Table, at_least, printable, seconds

# A group is named as a topic is: in its namespace.
_GROUP = click.argument("group", type=topic_of)


@click.group()
def groups() -> None:
    """List, show, change, reset and delete consumer groups.

    GROUP is namespace:name, or name in namespace default.
    """


@groups.command("ls")
@click.argument("namespace", required=False)
@client_command
def list_groups(client: Client, *, namespace: str | None) -> Result:
    """List the groups of NAMESPACE, or of all namespaces."""
    namespaces = client.topics.namespaces() if namespace is None else [namespace]
    found = [(one, name) for one in namespaces for name in client.groups.list(one)]
    return Result(
        json=[{"namespace": one, "name": name} for one, name in found],
        table=Table(("namespace", "group"), found, counted(len(found), "group")),
    )


@groups.command("show")
@_GROUP
@client_command
def show_group(client: Client, *, group: TopicId) -> Result:
    """Show the partitions of GROUP, its members, and how far they are behind.

    The lag is the number of messages that the group has not read, and the age of the oldest.
    """
    found = client.groups.get(group.namespace, group.name)
    clients = {each.member_id: each.client for each in found.members}
    rows = [
        (
            each.partition.name,
            clients.get(each.member_id or ""),
            None if each.after is None else each.after.hex(),
            None if each.end is None else each.end.hex(),
            None if each.unread is None else at_least(each.unread, each.is_lower_bound),
            None if each.unread_age_ms is None else seconds(each.unread_age_ms),
        )
        for each in found.partitions
    ]
    title = f"group {group}, {found.state}, epoch {found.epoch}"
    return Result(
        json=_members(group, found),
        table=Table(("partition", "client", "committed", "end", "unread", "oldest"), rows, title),
        lines=[_member_line(each, found) for each in found.members],
    )


@groups.command("preferences")
@_GROUP
@client_command
def show_preferences(client: Client, *, group: TopicId) -> Result:
    """Show how the members of GROUP consume."""
    return _preferences(group, client.groups.preferences(group.namespace, group.name))


@groups.command("set")
@_GROUP
@click.option(
    "--start",
    type=click.Choice([each.value for each in GroupStart]),
    help="Where the group begins in a topic that is new to it.",
)
@click.option(
    "--isolation",
    type=click.Choice([each.value for each in Isolation]),
    help="Which messages it reads.",
)
@click.option("--tags", metavar="TAGS", help="Read messages with these tags only, as a,b|c.")
@click.option(
    "--retry",
    "delays",
    metavar="TIMES",
    help="The waits before a failed message is tried again, as 10s,1m,10m.",
)
@click.option("--in-order", is_flag=True, help="With --retry: wait in place, and keep the order.")
@click.option("--dead-letters", metavar="TOPIC", help="The topic for messages that are given up.")
@click.option(
    "--unset", multiple=True, type=click.Choice(MEMBERS), help="A preference to remove; repeatable."
)
@client_command
def set_preferences(
    client: Client,
    *,
    group: TopicId,
    delays: str | None,
    in_order: bool,
    unset: tuple[str, ...],
    **texts: str | None,
) -> Result:
    """Change how the members of GROUP consume, and create GROUP if there is none.

    What no option names stays as it is. Members follow within a heartbeat.
    """
    given: dict[str, Any] = {name: value for name, value in texts.items() if value is not None}
    if delays is not None:
        given["retry"] = RetryPolicy(delays=_delays(delays), in_order=in_order)
    elif in_order:
        raise click.UsageError("--in-order is for --retry; name the waits, as --retry 10s,1m")
    removed = {FIELDS[name]: None for name in unset}
    if twice := sorted(given.keys() & removed.keys()):
        raise click.UsageError(f"--unset removes {', '.join(twice)}, which another option sets")
    if not given and not removed:
        raise click.UsageError("name what to change, as --tags urgent, or --unset tags")
    changed = client.groups.update_preferences(group.namespace, group.name, **given, **removed)
    return _preferences(group, changed)


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
@client_command
def reset_group(
    client: Client, *, group: TopicId, topic: TopicId, start: Start, yes: bool
) -> Result:
    """Let GROUP continue at START in TOPIC, or in one partition, as namespace:TOPIC/3.

    The group may not have members that consume it. Of a group with database=, which keeps its
    positions in a database, first delete the rows of TOPIC and GROUP in tuff_positions: they
    count, and not the offsets.
    """
    if not yes:
        confirm(f"Set the offsets of {group} in {topic}?")
    starts = dict.fromkeys(_partitions(client, topic), start)
    offsets = client.groups.reset(group.namespace, group.name, starts)
    return Result(
        json={**to_json(group), "offsets": {each.name: after for each, after in offsets.items()}},
        lines=[
            f"{group} continues behind {after.hex()} in {each.name}"
            for each, after in offsets.items()
            if after is not None
        ],
    )


@groups.command("delete")
@_GROUP
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_command
def delete_group(client: Client, *, group: TopicId, yes: bool) -> Result:
    """Delete GROUP and its offsets. It may not have members."""
    if not yes:
        confirm(f"Delete {group} and its offsets?")
    client.groups.delete(group.namespace, group.name)
    return Result(json={**to_json(group), "deleted": True}, lines=[f"deleted {group}"])


def _delays(text: str) -> tuple[float, ...]:
    return tuple(duration_s(each) for each in text.split(",")) if text else ()


def _preferences(group: TopicId, found: GroupPreferences) -> Result:
    form = found.to_form()
    rows = [(name, value if isinstance(value, str) else None) for name, value in form.items()]
    if found.retry is not None:
        waits = ", ".join(f"{seconds_of(each, what='a delay'):g} s" for each in found.retry.delays)
        in_order = ", in order" if found.retry.in_order else ""
        text = f"after {waits}{in_order}" if waits else "never"
        rows = [(name, text if name == "retry" else value) for name, value in rows]
    return Result(
        json={**to_json(group), **form},
        table=Table(("preference", "value"), rows, f"group {group}"),
    )


def _partitions(client: Client, topic: TopicId) -> list[TopicId]:
    if topic.number is not None:
        return [topic]
    info = client.topics.get(topic)
    return [topic.partition(number) for number in sorted({*info.partitions, *info.retired})]


def _lag(partitions: Iterable[GroupPartition]) -> str:
    """How many messages are unread in partitions of which that is known, and the age of the
    oldest."""
    known = [each for each in partitions if each.unread is not None]
    count = sum(each.unread or 0 for each in known)
    if not known or not count:
        return ", 0 unread" if known else ""
    lower = any(each.is_lower_bound for each in known)
    age_ms = max(each.unread_age_ms or 0 for each in known)
    return f", {at_least(count, lower)} unread, the oldest for {seconds(age_ms)}"


def _member_line(member: GroupMember, group: Group) -> str:
    own = [each for each in group.partitions if each.member_id == member.member_id]
    static = "" if member.instance_id is None else f", static as {member.instance_id}"
    name = printable(member.client) or "a member"
    return f"{name} ({member.member_id}{static}) has {counted(len(own), 'partition')}{_lag(own)}"


def _members(group: TopicId, found: Group) -> dict[str, object]:
    """The group, with the number of partitions of each member and how far it is behind."""
    members = to_json(found, namespace=group.namespace)
    for member in members["members"]:
        own = [each for each in found.partitions if each.member_id == member["memberId"]]
        behind_ms = [each.behind_ms for each in own if each.behind_ms is not None]
        member |= {"partitionCount": len(own), "behindMs": max(behind_ms, default=None)}
    return {"namespace": group.namespace, **members}
