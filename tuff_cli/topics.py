"""`tuff topics ls`, `show`, `create`, `set`, `truncate`, `rm` (protocol §2)."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import click

from tuff.blocking.client import Client
from tuff.protocol.errors import TopicExistsError
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.json_objects import to_json
from tuff.protocol.sentences import counted
from tuff.replies import ExpiringMessages, TopicInfo, TopicUpdate
from tuff_cli.disk import space_text
from tuff_cli.options import (
    WHOLE_SECONDS,
    Start,
    WholeNumber,
    client_command,
    confirm,
    start_of,
    topic_of,
)
from tuff_cli.output import Result, Table, at_least, moment, notice

_TOPIC = click.argument("topic", type=topic_of)
_TTL = click.option(
    "--ttl", type=WHOLE_SECONDS, metavar="DURATION", help="Time to live of messages."
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
    """List, show, create, change, truncate and remove topics.

    TOPIC is namespace:name, or name in namespace default.
    """


@topics.command("ls")
@click.argument("namespace", required=False)
@click.option("--count", "counts", is_flag=True, help="Count the messages of each topic.")
@client_command
def list_topics(client: Client, *, namespace: str | None, counts: bool) -> Result:
    """List the topics of NAMESPACE, or of all namespaces."""
    namespaces = client.topics.namespaces() if namespace is None else [namespace]
    found = [TopicId(one, name) for one in namespaces for name in client.topics.list(one)]
    title = counted(len(found), "topic")
    if not counts:
        rows = [(one.namespace, one.name) for one in found]
        return Result(
            json=[to_json(one) for one in found],
            table=Table(("namespace", "topic"), rows, title),
        )
    counted_topics = [(one, client.topics.count(one)) for one in found]
    return Result(
        json=[{**to_json(one), **to_json(count)} for one, count in counted_topics],
        table=Table(
            ("namespace", "topic", "messages"),
            [
                (one.namespace, one.name, at_least(count.count, count.is_lower_bound))
                for one, count in counted_topics
            ],
            title,
        ),
    )


@topics.command()
@_TOPIC
@client_command
def show(client: Client, *, topic: TopicId) -> Result:
    """Show the properties of TOPIC, how many messages it has, what is live and what its files still
    hold, and the ids of its first message and its end.

    A topic with several partitions has the ids in each of them: show TOPIC:N for one.
    """
    info = client.topics.get(topic)
    count = client.topics.count(topic)
    space = client.topics.space(topic)
    shown: dict[str, object] = {
        "messages": at_least(count.count, count.is_lower_bound),
        "space": space_text(space),
    }
    if _has_several(info):
        shown["partitions"] = _numbers(info.partitions)
        shown["retired"] = _numbers(info.retired)
        ids = {}
    else:
        found = to_json(client.offsets(topic))
        ids = {name: found[name] for name in ("earliest", "end")}
    shown |= ids
    return Result(
        json={**to_json(info), **to_json(count), **to_json(space), **ids},
        table=_property_table(topic, {"generation": info.generation, **info.properties, **shown}),
    )


@topics.command()
@_TOPIC
@_TTL
@_PROPERTY
@_PARTITIONS
@click.option(
    "--if-not-exists", is_flag=True, help="Leave a topic that exists as it is, without an error."
)
@client_command
def create(
    client: Client,
    *,
    topic: TopicId,
    ttl: int | None,
    properties: tuple[str, ...],
    partitions: int | None,
    if_not_exists: bool,
) -> Result:
    """Create TOPIC."""
    did = f"created {topic}"
    try:
        client.topics.create(topic, properties=_given(properties, ttl=ttl), partitions=partitions)
    except TopicExistsError:
        if not if_not_exists:
            raise
        did = f"{topic} is there already, and was not changed"
    info = client.topics.get(topic)
    return Result(json=info, lines=[f"{did}, generation {info.generation}"])


@topics.command("set")
@_TOPIC
@_TTL
@_PROPERTY
@click.option(
    "--unset", "gone", multiple=True, metavar="NAME", help="Remove a property; may be repeated."
)
@_PARTITIONS
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be.")
@click.option("--yes", is_flag=True, help="Do not ask if messages expire by it.")
@client_command
def set_properties(
    client: Client,
    *,
    topic: TopicId,
    ttl: int | None,
    properties: tuple[str, ...],
    gone: tuple[str, ...],
    partitions: int | None,
    dry_run: bool,
    yes: bool,
) -> Result:
    """Change properties of TOPIC, and keep the others.

    It asks before a shorter --ttl lets messages expire. --unset ttl sets the ttl that a new topic
    would have. With fewer --partitions, those with the highest numbers take no more messages, and
    are read until these have expired.
    """
    given = _given(properties, ttl=ttl)
    if not given and not gone and partitions is None:
        raise click.UsageError("nothing to set; give --ttl, --property, --unset or --partitions")
    if both := sorted(given.keys() & set(gone)):
        raise click.UsageError(f"{both[0]} can't be set and unset at once")
    named = {**given, **dict.fromkeys(gone)}
    update = partial(client.topics.update, topic, properties=named, partitions=partitions)
    change = update(dry_run=True)
    if not dry_run:
        if change.expiring is not None and not yes:
            confirm(f"{_expiry(change.expiring)} Change {topic}?")
        change = update()
    return _updated(client.topics.get(topic), change)


@topics.command()
@_TOPIC
@click.option(
    "--before",
    type=start_of,
    required=True,
    metavar="START",
    help="The first message to keep: as --from of tuff tail. latest: remove all.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_command
def truncate(client: Client, *, topic: TopicId, before: Start, yes: bool) -> Result:
    """Remove the messages of TOPIC before START, for every reader and for good.

    A topic is truncated with all its partitions.
    """
    if before == "earliest":
        raise click.UsageError("there is nothing before the earliest message")
    if not yes:
        confirm(f"Remove the messages of {topic} before {_position_text(before)}?")
    earliest = client.topics.truncate(topic, before)
    left = "it has no messages" if earliest is None else f"its oldest message is {earliest.hex()}"
    return Result(
        json={**to_json(topic), "earliest": earliest}, lines=[f"truncated {topic}; {left}"]
    )


def _position_text(start: Start) -> str | None:
    match start:
        case int():
            return moment(start)
        case MessageId():
            return start.hex()
        case _:
            return "its end"


@topics.command("rm")
@_TOPIC
@click.option("--yes", is_flag=True, help="Do not ask.")
@client_command
def remove(client: Client, *, topic: TopicId, yes: bool) -> Result:
    """Remove TOPIC and all of its messages."""
    if not yes:
        confirm(f"Remove {topic} and all of its messages?")
    client.topics.delete(topic)
    return Result(json={**to_json(topic), "removed": True}, lines=[f"removed {topic}"])


def _updated(info: TopicInfo, change: TopicUpdate) -> Result:
    info = replace(
        info, properties=change.properties, partitions=change.partitions, retired=change.retired
    )
    shown: dict[str, object] = {**info.properties}
    if _has_several(info):
        shown |= {"partitions": _numbers(info.partitions), "retired": _numbers(info.retired)}
    if change.expiring is not None:
        notice(_expiry(change.expiring))
    return Result(
        json={**to_json(info), "expires": change.expiring},
        table=_property_table(info.topic, shown),
    )


def _expiry(expiring: ExpiringMessages) -> str:
    most = "at least " if expiring.is_lower_bound else ""
    oldest, kept = moment(expiring.oldest_ms), moment(expiring.kept_from_ms)
    return (
        f"{most}{counted(expiring.count, 'message')}, published from {oldest} to before {kept}, "
        f"{'expires' if expiring.count == 1 else 'expire'} at once."
    )


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
