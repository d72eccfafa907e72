"""`tuff dlq ls`, `replay`: the messages that consumers gave up (docs/howto/poison-messages.md)."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import click

from tuff.blocking.client import Client
from tuff.blocking.context import TransactionContext
from tuff.blocking.groups import Consumer
from tuff.consumer_options import Batch
from tuff.dead_letters import (
    DeadLetter,
    dead_letter_topic_of,
    read_dead_letter,
    retry_topic_of,
)
from tuff.errors import NotADeadLetterError, WrongStateError
from tuff.protocol.errors import GroupNotFoundError, TopicNotFoundError
from tuff.protocol.ids import FIRST_ID, MessageId, TopicId
from tuff.protocol.json_objects import to_json
from tuff.protocol.requests import Message
from tuff.protocol.sentences import counted
from tuff.publish_calls import NewMessage
from tuff_cli.options import WholeNumber, client_command, topic_of
from tuff_cli.output import Result, Table, moment, printable

GROUP = "dlq-replay"  # the consumer group whose offset tells what was replayed
LISTED_COUNT = 100  # dead letters, without --limit
BATCH_COUNT = 100  # dead letters of one transaction
REASON_LENGTH = 60  # characters of a line
HELD_S_MAX = 60.0  # seconds; longer than the session of a replay that was killed

_TOPIC = click.argument("topic", type=topic_of)


@dataclass(frozen=True, slots=True)
class _Found:
    """A message of a dead-letter topic; `letter` None: it has another form."""

    message: Message
    letter: DeadLetter | None


@click.group()
def dlq() -> None:
    """List and replay the messages of TOPIC that consumers gave up: those in TOPIC.dlq."""


@dlq.command("ls")
@_TOPIC
@click.option(
    "--limit",
    type=WholeNumber(1, 1_000_000),
    default=LISTED_COUNT,
    metavar="N",
    help=f"At most N dead letters. [default: {LISTED_COUNT}]",
)
@click.option("--all", "with_replayed", is_flag=True, help="Also those that were replayed.")
@client_command
def list_letters(client: Client, *, topic: TopicId, limit: int, with_replayed: bool) -> Result:
    """List the dead letters of TOPIC that were not replayed, the oldest of each partition first."""
    partitions = _partitions(client, topic)
    replayed = {} if with_replayed or not partitions else _replayed(client, topic)
    letters = (
        each
        for partition in partitions
        for each in _letters(client, partition, replayed.get(partition))
    )
    found = list(islice(letters, limit))
    rows = [_row(each) for each in found]
    title = f"dead letters of {topic}"
    table = Table(("id", "given up", "group", "attempts", "reason"), rows, title)
    return Result(json=[_members(each) for each in found], table=table)


@dlq.command("replay")
@_TOPIC
@click.option("--limit", type=WholeNumber(1, 1_000_000), metavar="N", help="At most N of them.")
@click.option("--to", type=topic_of, metavar="TOPIC", help="Publish the messages to this topic.")
@click.option(
    "--group",
    "heir",
    metavar="NAME",
    help="Give this group the messages of groups that do not exist any more.",
)
@client_command
def replay(
    client: Client, *, topic: TopicId, limit: int | None, to: TopicId | None, heir: str | None
) -> Result:
    """Let the dead letters of TOPIC be processed again, the oldest first.

    The message of a consumer group goes to that group alone, with all its attempts; any other
    message, also one of a share group, and one that was too large for its dead letter, is published
    to its topic. Each is replayed once, also if this command is interrupted and called again.

    If a group was renamed or deleted, no member would get its messages: then this command stops
    before them, and --group or --to says where they shall go.
    """
    if to is not None and heir is not None:
        raise click.UsageError("give --to or --group, not both: --to publishes for all groups")
    dead = dead_letter_topic_of(topic)
    run = _Replay(client, to, heir)
    if heir is not None:
        run.require_group(topic, heir)
    batch_count = BATCH_COUNT if limit is None else 1
    if not _partitions(client, topic):
        return _replayed_result(topic, run)
    with client.consumer(dead, group=GROUP, mode="exactly_once", batch=batch_count) as consumer:
        for batch in _batches(client, consumer, topic):
            with consumer.transaction(batch) as tx:
                for message in batch:
                    run.replay(message, tx)
            if run.done_count == limit:
                break
    return _replayed_result(topic, run)


def _group_of(topic: TopicId, name: str) -> tuple[str, str]:
    """The namespace and the name of a group that is named as in a dead letter of this topic."""
    namespace, _, own = name.rpartition("/")
    return namespace or topic.namespace, own


class _Replay:
    """Publishes the messages of dead letters; `to`: all to this topic; `heir`: the group that gets
    those of groups that do not exist any more."""

    def __init__(self, client: Client, to: TopicId | None, heir: str | None) -> None:
        self._client = client
        self._to = to
        self._heir = heir
        self._groups: dict[tuple[str, str], bool] = {}  # whether each exists
        self.done_count = 0
        self.passed: list[MessageId] = []

    def replay(self, message: Message, tx: TransactionContext) -> None:
        letter = self._whole(message)
        if letter is None:
            self.passed.append(message.id)
            return
        if self._to is None and letter.has_retry_topic:
            again = replace(letter, attempts=0, group=self._group_of(letter))
            tx.publish(retry_topic_of(letter.topic), again.publishable())
        else:
            failed = letter.message
            copy = NewMessage(
                failed.payload, key=failed.key, tags=failed.tags, headers=failed.headers
            )
            tx.publish(self._to or letter.topic.base, copy)
        self.done_count += 1

    def _group_of(self, letter: DeadLetter) -> str:
        """The group that gets the message. Raises: GroupNotFoundError."""
        assert letter.group is not None
        if self._heir is not None and not self._exists(letter.topic, letter.group):
            return self._heir
        self.require_group(letter.topic, letter.group)
        return letter.group

    def require_group(self, topic: TopicId, group: str) -> None:
        """Raises: GroupNotFoundError: no member would get its messages."""
        if not self._exists(topic, group):
            raise GroupNotFoundError(
                f"there is no group {':'.join(_group_of(topic, group))}: it was deleted, or "
                "renamed, and no member would get its dead letters; name the group that shall get "
                "them by --group, or a topic by --to"
            )

    def _exists(self, topic: TopicId, group: str) -> bool:
        key = _group_of(topic, group)
        if key not in self._groups:
            try:
                self._client.groups.get(*key)
            except GroupNotFoundError:
                self._groups[key] = False
            else:
                self._groups[key] = True
        return self._groups[key]

    def _whole(self, message: Message) -> DeadLetter | None:
        """The dead letter with its payload; None: there is none any more."""
        try:
            letter = read_dead_letter(message)
        except NotADeadLetterError:
            return None
        if letter.size_bytes is None:
            return letter
        try:
            found = self._client.poll(letter.topic, letter.message.id, limit=1)
        except TopicNotFoundError:
            return None
        if not found or found[0].id != letter.message.id:
            return None
        # It is too large for a dead letter, so its group can't get it alone.
        return replace(letter, message=found[0], group=None, size_bytes=None)


def _replayed_result(topic: TopicId, run: _Replay) -> Result:
    lines = [f"replayed {counted(run.done_count, 'dead letter')} of {topic}"]
    lines += [
        f"passed over {each.hex()}, which can't be replayed; see tuff dlq ls --all"
        for each in run.passed
    ]
    members = {"replayed": run.done_count, "passedOver": run.passed}
    return Result(json={**to_json(topic), **members}, lines=lines)


def _batches(client: Client, consumer: Consumer, topic: TopicId) -> Iterator[Batch]:
    """Raises: WrongStateError: another replay, or its transaction, holds dead letters back."""
    until_s = time.monotonic() + HELD_S_MAX
    while True:
        batch = consumer.poll(0.5)
        if batch is not None:
            yield batch
            until_s = time.monotonic() + HELD_S_MAX
        elif _is_done(client, topic):
            return
        elif time.monotonic() > until_s:
            raise WrongStateError(
                f"another replay of {topic} is in progress, or was killed a moment ago; "
                f"`tuff groups show {topic.namespace}:{GROUP}` shows who has its partitions"
            )


def _is_done(client: Client, topic: TopicId) -> bool:
    """Whether everything that a reader can receive now was replayed or passed over."""
    replayed = _replayed(client, topic)
    for partition in _partitions(client, topic):
        end = client.offsets(partition, isolation="committed").end
        if end is not None and replayed.get(partition, FIRST_ID) < end:
            return False
    return True


def _partitions(client: Client, topic: TopicId) -> list[TopicId]:
    """The partitions of the dead-letter topic; none if no message of the topic was given up yet.

    Raises: TopicNotFoundError: there is no such topic either.
    """
    dead = dead_letter_topic_of(topic)
    try:
        info = client.topics.get(dead)
    except TopicNotFoundError:
        client.topics.get(topic)
        return []
    return [dead.partition(number) for number in sorted({*info.partitions, *info.retired})]


def _replayed(client: Client, topic: TopicId) -> dict[TopicId, MessageId]:
    """The ids through which the dead letters of partitions were replayed."""
    try:
        group = client.groups.get(topic.namespace, GROUP)
    except GroupNotFoundError:
        return {}
    return {each.partition: each.after for each in group.partitions if each.after is not None}


def _letters(client: Client, partition: TopicId, after: MessageId | None) -> Iterator[_Found]:
    while True:
        poll = client.poll(partition, after, inclusive=after is None, isolation="committed")
        for message in poll:
            try:
                yield _Found(message, read_dead_letter(message))
            except NotADeadLetterError:
                yield _Found(message, None)
        if poll.caught_up or poll.next_id is None:
            return
        after = poll.next_id


def _row(found: _Found) -> tuple[object, ...]:
    message, letter = found.message, found.letter
    given_up = moment(message.timestamp_ms)
    if letter is None:
        return message.id.hex(), given_up, None, None, "not a dead letter"
    reason = printable(letter.reason)
    shown = reason if len(reason) <= REASON_LENGTH else f"{reason[: REASON_LENGTH - 1]}…"
    return message.id.hex(), given_up, letter.group, letter.attempts, shown


def _members(found: _Found) -> dict[str, object]:
    message, letter = found.message, found.letter
    members = {"id": message.id, "givenUp": message.timestamp_ms}
    return members if letter is None else {**members, **to_json(letter)}
