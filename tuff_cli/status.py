"""`tuff status`: health, versions and counts of a server (protocol §7)."""

from dataclasses import dataclass

import click

from tuff.blocking.client import Client
from tuff.protocol.errors import ForbiddenError, UnavailableError
from tuff.protocol.json_objects import to_json
from tuff.protocol.sentences import counted
from tuff.replies import Health, HealthStatus, Overview
from tuff.version import __version__
from tuff_cli.options import client_command
from tuff_cli.output import EXIT_REFUSED, Result, field_table

REASON_LENGTH_MAX = 2_000  # characters; the reason of a failure is not cut off


@dataclass(frozen=True, slots=True)
class _Topics:
    """The number of topics and namespaces."""

    count: int
    namespace_count: int


@click.command()
@client_command
def status(client: Client) -> Result:
    """Show the health of the server's components, the versions, and the numbers of topics and
    transactions.

    Exit code 0: every component is ok. 1: one is degraded or down, and the reason is shown. 3: the
    server can't be reached.
    """
    health = client.health()
    topics, overview = _topics(client), _overview(client)
    return Result(
        json={
            "url": client.url,
            **to_json(health),
            "clientVersion": __version__,
            "topicCount": topics and topics.count,
            "namespaceCount": topics and topics.namespace_count,
            "openCount": overview and len(overview.in_progress),
            "committingCount": overview and overview.committing_count,
            "invalidCount": overview and overview.invalid_count,
        },
        table=field_table(
            _fields(health, topics, overview),
            title=f"{client.url} is {health.status}",
            cell_length_max=REASON_LENGTH_MAX,
        ),
        exit_code=0 if health.status is HealthStatus.OK else EXIT_REFUSED,
    )


def _topics(client: Client) -> _Topics | None:
    """None while messages are down, or without the right to list all topics."""
    try:
        namespaces = client.topics.namespaces()
        return _Topics(sum(len(client.topics.list(one)) for one in namespaces), len(namespaces))
    except (UnavailableError, ForbiddenError):
        return None


def _overview(client: Client) -> Overview | None:
    """None while transactions are down, or without the right to list them."""
    try:
        return client.transactions.overview()
    except (UnavailableError, ForbiddenError):
        return None


def _fields(health: Health, topics: _Topics | None, overview: Overview | None) -> dict[str, object]:
    checks = {name: f"{check.status}: {check.detail}" for name, check in health.checks.items()}
    fields: dict[str, object] = {"server": health.version, "client": __version__, **checks}
    fields["topics"] = (
        topics and f"{topics.count} in {counted(topics.namespace_count, 'namespace')}"
    )
    fields["open transactions"] = overview and len(overview.in_progress)
    fields["invalid transactions"] = overview and overview.invalid_count
    return fields
