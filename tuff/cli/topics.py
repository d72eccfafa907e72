"""`tuff topics ls`, `show`, `create`, `set`, `rm` (protocol §2)."""

import click

from tuff.cli.options import (
    Session,
    WholeNumber,
    confirm,
    output_options,
    server_options,
    session,
    topic_of,
)
from tuff.cli.output import counted, print_json, print_table
from tuff.protocol.ids import TopicId
from tuff.replies import TopicInfo

_PROPERTY = click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="A property of your own; may be repeated.",
)


@click.group()
def topics() -> None:
    """List, show, create, change and remove topics.

    TOPIC is namespace:name, or name in namespace default.
    """


@topics.command("ls")
@click.argument("namespace", required=False)
@server_options
@output_options
@session
def list_topics(session: Session, *, namespace: str | None, as_json: bool) -> None:
    """List the topics of NAMESPACE, or of all namespaces."""
    with session.client() as client:
        namespaces = client.topics.namespaces() if namespace is None else [namespace]
        found = [TopicId(one, name) for one in namespaces for name in client.topics.list(one)]
    if as_json:
        print_json([{"namespace": one.namespace, "name": one.name} for one in found])
    else:
        rows = [(one.namespace, one.name) for one in found]
        print_table(("namespace", "topic"), rows, title=counted(len(found), "topic"))


@topics.command()
@click.argument("topic", type=topic_of)
@server_options
@output_options
@session
def show(session: Session, *, topic: TopicId, as_json: bool) -> None:
    """Show the properties of TOPIC, and the ids of its first message and its end."""
    with session.client() as client:
        info = client.topics.get(topic)
        offsets = client.offsets(topic)
    ids = {
        "earliest": None if offsets.earliest is None else offsets.earliest.hex(),
        "end": None if offsets.end is None else offsets.end.hex(),
    }
    if as_json:
        print_json({**_form(info), **ids})
    else:
        rows = {"generation": info.generation, **info.properties, **ids}
        print_table(("property", "value"), rows.items(), title=str(topic))


@topics.command()
@click.argument("topic", type=topic_of)
@click.option("--ttl", type=WholeNumber(min=1), metavar="SECONDS", help="Time to live of messages.")
@_PROPERTY
@server_options
@output_options
@session
def create(
    session: Session,
    *,
    topic: TopicId,
    ttl: int | None,
    properties: tuple[str, ...],
    as_json: bool,
) -> None:
    """Create TOPIC."""
    with session.client() as client:
        client.topics.create(topic, properties=_given(properties, ttl=ttl))
        info = client.topics.get(topic)
    if as_json:
        print_json(_form(info))
    else:
        click.echo(f"created {topic}, generation {info.generation}")


@topics.command("set")
@click.argument("topic", type=topic_of)
@click.option("--ttl", type=WholeNumber(min=1), metavar="SECONDS", help="Time to live of messages.")
@_PROPERTY
@click.option(
    "--unset", "gone", multiple=True, metavar="NAME", help="Remove a property; may be repeated."
)
@server_options
@output_options
@session
def set_properties(
    session: Session,
    *,
    topic: TopicId,
    ttl: int | None,
    properties: tuple[str, ...],
    gone: tuple[str, ...],
    as_json: bool,
) -> None:
    """Change properties of TOPIC, and keep the others.

    --unset ttl sets the ttl that a new topic would have.
    """
    given = _given(properties, ttl=ttl)
    if not given and not gone:
        raise click.UsageError("nothing to set; give --ttl, --property or --unset")
    if both := sorted(given.keys() & set(gone)):
        raise click.UsageError(f"{both[0]} can't be set and unset at once")
    with session.client() as client:
        held = {**client.topics.get(topic).properties, **given}
        kept = {name: value for name, value in held.items() if name not in gone}
        client.topics.update(topic, properties=kept)
        info = client.topics.get(topic)
    if as_json:
        print_json(_form(info))
    else:
        print_table(("property", "value"), info.properties.items(), title=str(topic))


@topics.command("rm")
@click.argument("topic", type=topic_of)
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_options
@output_options
@session
def remove(session: Session, *, topic: TopicId, yes: bool, as_json: bool) -> None:
    """Remove TOPIC and all of its messages."""
    if not yes:
        confirm(f"Remove {topic} and all of its messages?")
    with session.client() as client:
        client.topics.delete(topic)
    if as_json:
        print_json({"namespace": topic.namespace, "name": topic.name, "removed": True})
    else:
        click.echo(f"removed {topic}")


def _given(properties: tuple[str, ...], *, ttl: int | None) -> dict[str, str]:
    """The properties on the command line. Raises: UsageError: one is given twice."""
    pairs = [_pair(one) for one in properties]
    if ttl is not None:
        pairs.append(("ttl", str(ttl)))
    given = dict(pairs)
    if len(given) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise click.UsageError(f"{twice} is given twice")
    return given


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise click.BadParameter(f"{text!r} is not NAME=VALUE")
    return name, value


def _form(info: TopicInfo) -> dict[str, object]:
    return {
        "namespace": info.topic.namespace,
        "name": info.topic.name,
        "generation": info.generation,
        "properties": dict(info.properties),
    }
