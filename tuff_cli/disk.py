"""`tuff disk show`, `reclaim` (protocol §7)."""

import click

from tuff.blocking.client import Client
from tuff.replies import DiskSpace, DiskUse, SpaceOfTopic, TopicSpace
from tuff_cli.options import client_command
from tuff_cli.output import Result, Table, mib


@click.group()
def disk() -> None:
    """Show what the disks of the server have and what takes it, and free the space of deleted
    messages."""


@disk.command()
@client_command
def show(client: Client) -> Result:
    """Show the free space of each disk, the reserve that the server keeps free, its spare file, and
    what the message store takes by table and by topic.

    Sizes are estimates for files: recent messages need not count.
    """
    use = client.disk_use()
    return Result(json=use, table=Table(("what", "size"), _rows(use), "disks"))


@disk.command()
@client_command
def reclaim(client: Client) -> Result:
    """Delete what has expired, and free the space of all that was deleted, up to about 1 GiB.

    The server does this by itself for 8 MiB of a topic or more. A compaction writes before it
    deletes: it needs some free space, and stops where there is too little.
    """
    done = client.reclaim_space()
    rest = "" if done.is_complete else "; there is more to free: repeat it, or free space before"
    return Result(
        json=done,
        lines=[f"freed {mib(done.freed_bytes)}{rest}"],
    )


def space_text(space: TopicSpace | SpaceOfTopic) -> str:
    """The space of a topic, in words."""
    return f"{mib(space.live_bytes)} live, {mib(space.disk_bytes)} in files"


def _rows(use: DiskUse) -> list[tuple[str, str]]:
    rows = [(f"disk of {each.name}, {each.directory}", _disk_text(each)) for each in use.disks]
    rows += [(each.name, mib(each.disk_bytes)) for each in use.tables]
    rows += [(str(each.topic), space_text(each)) for each in use.topics]
    if (more := use.topic_count - len(use.topics)) > 0:
        rows.append((f"{more} more topics", "less each"))
    return rows


def _disk_text(disk: DiskSpace) -> str:
    if disk.free_bytes is None:
        return "unknown: the disk does not answer"
    return (
        f"{mib(disk.free_bytes)} of {mib(disk.size_bytes or 0)} free, "
        f"reserve {mib(disk.reserve_bytes or 0)}, spare file {mib(disk.spare_bytes or 0)}"
    )
