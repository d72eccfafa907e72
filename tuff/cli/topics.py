"""`tuff topics ls`, `show`, `create`, `set`, `rm` (protocol §2)."""

from collections.abc import Mapping

import click

from tuff.blocking.client import Client
from tuff.cli.options import WholeNumber, confirm, server_command, topic_of
from tuff.cli.output import Result, Table
from tuff.protocol.ids import TopicId
from tuff.protocol.sentences import counted
from tuff.replies import TopicInfo

_TOPIC = click.argument("topic", type=topic_of)
_TTL = click.option(
    "--ttl", type=WholeNumber(min=1), metavar="SECONDS", help="Time to live of messages."
)
_PROPERTY = click.option(
    "--property",
    "properties",
    multiple=True,
    metavar="NAME=VALUE",
    help="A property of your own; may be repeated.",
)


_PARTITIONS = click.option(
    "--partitions",
    type=WholeNumber(min=1),
    metavar="N",
    help="How many partitions take messages.",
)


@click.group()
def topics() -> None:
    """List, show, create, change and remove topics.

    TOPIC is namespace:name, or name in namespace default.
    """


@topics.command("ls")
@click.argument("namespace", required=False)
@server_command
def list_topics(client: Client, *, namespace: str | None) -> Result:
    """List the topics of NAMESPACE, or of all namespaces."""
    namespaces = client.topics.namespaces() if namespace is None else [namespace]
    found = [TopicId(one, name) for one in namespaces for name in client.topics.list(one)]
    rows = [(one.namespace, one.name) for one in found]
    return Result(
        json=[{"namespace": one.namespace, "name": one.name} for one in found],
        table=Table(("namespace", "topic"), rows, counted(len(found), "topic")),
    )


@topics.command()
@_TOPIC
@server_command
def show(client: Client, *, topic: TopicId) -> Result:
    """Show the properties of TOPIC, and the ids of its first message and its end.

    A topic with several partitions has the ids in each of them: show TOPIC:N for one.
    """
    info = client.topics.get(topic)
    shown: dict[str, object] = {}
    if _has_several(info):
        shown["partitions"] = _numbers(info.partitions)
        shown["retired"] = _numbers(info.retired)
        ids = {}
    else:
        offsets = client.offsets(topic)
        ids = {
            "earliest": None if offsets.earliest is None else offsets.earliest.hex(),
            "end": None if offsets.end is None else offsets.end.hex(),
        }
    shown |= ids
    return Result(
        json={**_form(info), **ids},
        table=_property_table(topic, {"generation": info.generation, **info.properties, **shown}),
    )


@topics.command()
@_TOPIC
@_TTL
@_PROPERTY
@_PARTITIONS
@server_command
def create(
    client: Client,
    *,
    topic: TopicId,
    ttl: int | None,
    properties: tuple[str, ...],
    partitions: int | None,
) -> Result:
    """Create TOPIC."""
    client.topics.create(topic, properties=_given(properties, ttl=ttl), partitions=partitions)
    info = client.topics.get(topic)
    return Result(json=_form(info), lines=[f"created {topic}, generation {info.generation}"])


@topics.command("set")
@_TOPIC
@_TTL
@_PROPERTY
@click.option(
    "--unset", "gone", multiple=True, metavar="NAME", help="Remove a property; may be repeated."
)
@_PARTITIONS
@server_command
def set_properties(
    client: Client,
    *,
    topic: TopicId,
    ttl: int | None,
    properties: tuple[str, ...],
    gone: tuple[str, ...],
    partitions: int | None,
) -> Result:
    """Change properties of TOPIC, and keep the others.

    --unset ttl sets the ttl that a new topic would have. With fewer --partitions, those with the
    highest numbers take no more messages, and are read until these have expired.
    """
    given = _given(properties, ttl=ttl)
    if not given and not gone and partitions is None:
        raise click.UsageError("nothing to set; give --ttl, --property, --unset or --partitions")
    if both := sorted(given.keys() & set(gone)):
        raise click.UsageError(f"{both[0]} can't be set and unset at once")
    held = {**client.topics.get(topic).properties, **given}
    kept = {name: value for name, value in held.items() if name not in gone}
    client.topics.update(topic, properties=kept, partitions=partitions)
    info = client.topics.get(topic)
    shown: dict[str, object] = {**info.properties}
    if _has_several(info):
        shown |= {"partitions": _numbers(info.partitions), "retired": _numbers(info.retired)}
    return Result(json=_form(info), table=_property_table(topic, shown))


@topics.command("rm")
@_TOPIC
@click.option("--yes", is_flag=True, help="Do not ask.")
@server_command
def remove(client: Client, *, topic: TopicId, yes: bool) -> Result:
    """Remove TOPIC and all of its messages."""
    if not yes:
        confirm(f"Remove {topic} and all of its messages?")
    client.topics.delete(topic)
    form = {"namespace": topic.namespace, "name": topic.name, "removed": True}
    return Result(json=form, lines=[f"removed {topic}"])


def _has_several(info: TopicInfo) -> bool:
    return len(info.partitions) + len(info.retired) > 1


def _numbers(numbers: tuple[int, ...]) -> str | None:
    return ",".join(map(str, numbers)) or None


def _property_table(topic: TopicId, properties: Mapping[str, object]) -> Table:
    return Table(("property", "value"), properties.items(), str(topic))


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
        "partitions": list(info.partitions),
        "retired": list(info.retired),
    }
