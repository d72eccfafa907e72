"""`tuff cluster status`, `topics`, `move`, `drain` and `undrain` (protocol §7.1)."""

import time
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Concatenate, ParamSpec

import click

from tuff.blocking.client import Client
from tuff.protocol.errors import NotFoundError, ServerNotFoundError
from tuff.protocol.ids import TopicId
from tuff.protocol.sentences import counted
from tuff.replies import ClusterState, Drain, TopicOwner
from tuff_cli.options import SecondsParameter, client_command, topic_of
from tuff_cli.output import EXIT_REFUSED, Result, Table, moment

P = ParamSpec("P")

PAGE_COUNT_MAX = 10_000  # owners in one reply
WAIT_S = 60.0  # seconds; a drain of some thousand topics
CALL_WAIT_S_MAX = 60.0  # of one call; a longer wait takes several

_SERVER = click.argument("server_id", metavar="SERVER")


@click.group()
def cluster() -> None:
    """Show a cluster, move topics, and drain a server before it is stopped."""


def _cluster_command(
    function: Callable[Concatenate[Client, P], Result],
) -> Callable[..., None]:
    """A command for a server of a cluster."""

    @wraps(function)
    def run(client: Client, /, *given: P.args, **parameters: P.kwargs) -> Result:
        try:
            return function(client, *given, **parameters)
        except NotFoundError as error:
            if error.code != NotFoundError.code:
                raise
            raise NotFoundError(
                f"the server at {client.url} is not part of a cluster", code="not_in_cluster"
            ) from None

    return client_command(run)


@cluster.command()
@_cluster_command
def status(client: Client) -> Result:
    """Show the live servers, and which of them leads transactions."""
    found = client.cluster.get()
    return Result(json=found, table=_servers_table(found))


@cluster.command()
@click.option("--server", "server_id", metavar="SERVER", help="Only the topics of this server.")
@_cluster_command
def topics(client: Client, *, server_id: str | None) -> Result:
    """Show the owner of each topic, and the epoch of its ownership.

    Deleted topics are shown, too: they keep an owner.
    """
    owners = list(_owners(client, server_id))
    if not owners and server_id is not None:
        servers = client.cluster.get().servers
        if server_id not in {each.server_id for each in servers}:
            raise ServerNotFoundError(f"no live server has the id {server_id}, which owns no topic")
    rows = [
        (each.topic, each.server_id, each.incarnation, each.epoch, each.is_alive) for each in owners
    ]
    return Result(
        json=owners,
        table=Table(
            ("topic", "server", "incarnation", "epoch", "alive"),
            rows,
            counted(len(rows), "topic"),
        ),
    )


@cluster.command()
@click.argument("topic", type=topic_of)
@click.option("--to", "server_id", required=True, metavar="SERVER", help="The new owner.")
@_cluster_command
def move(client: Client, *, topic: TopicId, server_id: str) -> Result:
    """Move TOPIC to another server.

    TOPIC is namespace:name, or name in namespace default.
    """
    client.cluster.move(topic, server_id)
    moved = {"topic": topic, "server": server_id}
    return Result(json=moved, lines=[f"moved {topic} to {server_id}"])


@cluster.command()
@_SERVER
@click.option(
    "--wait",
    "wait_s",
    type=SecondsParameter(min=0),
    default=WAIT_S,
    show_default=True,
    metavar="DURATION",
    help="How long to wait until no topic is left.",
)
@_cluster_command
def drain(client: Client, *, server_id: str, wait_s: float) -> Result:
    """Let SERVER give its topics to the others, and take no more.

    It takes topics again after `tuff cluster undrain`, or when it is started again. Exit code 1:
    topics are left after the wait; the server goes on to give them away.
    """
    found = _drained(client, server_id, until_s=time.monotonic() + wait_s)
    left = counted(found.topics, "topic")
    return Result(
        json=found,
        lines=[
            f"{server_id} owns no topics, and can be stopped"
            if not found.topics
            else f"{server_id} still owns {left}, and goes on; repeat the command to wait"
        ],
        exit_code=EXIT_REFUSED if found.topics else 0,
    )


@cluster.command()
@_SERVER
@_cluster_command
def undrain(client: Client, *, server_id: str) -> Result:
    """Let SERVER take topics again. It gets its share at the next rebalancing."""
    found = client.cluster.undrain(server_id)
    return Result(json=found, lines=[f"{server_id} takes topics again"])


def _drained(client: Client, server_id: str, *, until_s: float) -> Drain:
    while True:
        left_s = max(0.0, until_s - time.monotonic())
        found = client.cluster.drain(server_id, wait=min(left_s, CALL_WAIT_S_MAX))
        if not found.topics or time.monotonic() >= until_s:
            return found


def _owners(client: Client, server_id: str | None) -> Iterator[TopicOwner]:
    page = client.cluster.topics(server_id, limit=PAGE_COUNT_MAX)
    yield from page.owners
    while page.next_topic is not None:
        page = client.cluster.topics(server_id, limit=PAGE_COUNT_MAX, after=page.next_topic)
        yield from page.owners


def _servers_table(found: ClusterState) -> Table:
    leader = None if found.leader is None else found.leader.server_id
    rows = [
        (
            each.server_id,
            each.url,
            each.incarnation,
            moment(each.started_at_ms),
            each.topics,
            each.is_draining,
            each.server_id == leader,
        )
        for each in found.servers
    ]
    epoch = "no leader" if found.leader is None else f"leader's epoch {found.leader.epoch}"
    return Table(
        ("server", "url", "incarnation", "started", "topics", "draining", "leads"),
        rows,
        f"cluster {found.cluster_id}, {counted(len(rows), 'server')}, {epoch}",
    )
