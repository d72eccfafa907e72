"""`tuff status`: health, versions and counts of a server (protocol §7)."""

from dataclasses import dataclass

import click

from tuff.blocking.client import Client
from tuff.cli.options import Session, output_options, server_options, session
from tuff.cli.output import EXIT_REFUSED, counted, print_json, print_table
from tuff.protocol.errors import UnavailableError
from tuff.replies import Health, Overview
from tuff.version import __version__

OK = "ok"
REASON_LENGTH_MAX = 2_000  # characters; the reason of a failure is not cut off


@dataclass(frozen=True, slots=True)
class _Topics:
    """The number of topics and namespaces."""

    count: int
    namespace_count: int


@click.command()
@server_options
@output_options
@session
@click.pass_context
def status(context: click.Context, session: Session, *, as_json: bool) -> None:
    """Show the health of the server's components, the versions, and the numbers of topics and
    transactions.

    Exit code 0: every component is ok. 1: one is degraded or down, and the reason is shown. 3: the
    server can't be reached.
    """
    with session.client() as client:
        health = client.health()
        topics, overview = _topics(client), _overview(client)
        address = client.url
    if as_json:
        print_json(_form(address, health, topics, overview))
    else:
        fields = _fields(health, topics, overview)
        title = f"{address} is {health.status}"
        print_table(
            ("field", "value"), fields.items(), title=title, cell_length_max=REASON_LENGTH_MAX
        )
    if health.status != OK:
        context.exit(EXIT_REFUSED)


def _topics(client: Client) -> _Topics | None:
    """None while messages are down."""
    try:
        namespaces = client.topics.namespaces()
        return _Topics(sum(len(client.topics.list(one)) for one in namespaces), len(namespaces))
    except UnavailableError:
        return None


def _overview(client: Client) -> Overview | None:
    """None while transactions are down."""
    try:
        return client.transactions.overview()
    except UnavailableError:
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


def _form(
    url: str, health: Health, topics: _Topics | None, overview: Overview | None
) -> dict[str, object]:
    return {
        "url": url,
        "status": health.status,
        "serverVersion": health.version,
        "clientVersion": __version__,
        "checks": {
            name: {"status": check.status, "detail": check.detail}
            for name, check in health.checks.items()
        },
        "topicCount": topics and topics.count,
        "namespaceCount": topics and topics.namespace_count,
        "openCount": overview and len(overview.in_progress),
        "committingCount": overview and overview.committing_count,
        "invalidCount": overview and overview.invalid_count,
    }
