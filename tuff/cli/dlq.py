"""`tuff dlq ls`, `replay`: the messages that consumers gave up (docs/howto/poison-messages.md)."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import islice

import click

from tuff.blocking.client import Client
from tuff.blocking.context import TransactionContext
from tuff.blocking.groups import Consumer
from tuff.cli.options import WholeNumber, server_command, topic_of
from tuff.cli.output import Result, Table, moment, printable
from tuff.client_errors import WrongStateError
from tuff.consumer_plan import Batch
from tuff.dead_letters import (
    DeadLetter,
    NotADeadLetterError,
    dead_letter_topic_of,
    read_dead_letter,
    retry_topic_of,
)
from tuff.new_messages import NewMessage
from tuff.protocol.errors import GroupNotFoundError, TopicNotFoundError
from tuff.protocol.ids import FIRST_ID, MessageId, TopicId
from tuff.protocol.json_forms import payload_to_json
from tuff.protocol.requests import Message
from tuff.protocol.sentences import counted

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
@server_command
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
    return Result(json=[_form(each) for each in found], table=table)


@dlq.command("replay")
@_TOPIC
@click.option("--limit", type=WholeNumber(1, 1_000_000), metavar="N", help="At most N of them.")
@click.option("--to", type=topic_of, metavar="TOPIC", help="Publish the messages to this topic.")
@server_command
def replay(client: Client, *, topic: TopicId, limit: int | None, to: TopicId | None) -> Result:
    """Let the dead letters of TOPIC be processed again, the oldest first.

    The message of a consumer group goes to that group alone, with all its attempts; any other
    message, also one of a share group, and one that was too large for its dead letter, is published
    to its topic. Each is replayed once, also if this command is interrupted and called again.
    """
    dead = dead_letter_topic_of(topic)
    run = _Replay(client, to)
    batch_count = BATCH_COUNT if limit is None else 1
    if not _partitions(client, topic):
        return _replayed_result(topic, run)
    with client.consumer(GROUP, dead, mode="exactly_once", batch=batch_count) as consumer:
        for batch in _batches(client, consumer, topic):
            with consumer.transaction(batch) as tx:
                for message in batch:
                    run.replay(message, tx)
            if run.done_count == limit:
                break
    return _replayed_result(topic, run)


class _Replay:
    """Publishes the messages of dead letters; `to`: all to this topic."""

    def __init__(self, client: Client, to: TopicId | None) -> None:
        self._client = client
        self._to = to
        self.done_count = 0
        self.passed: list[MessageId] = []

    def replay(self, message: Message, tx: TransactionContext) -> None:
        letter = self._whole(message)
        if letter is None:
            self.passed.append(message.id)
            return
        if self._to is None and letter.has_retry_topic:
            tx.publish(retry_topic_of(letter.topic), replace(letter, attempts=0).publishable())
        else:
            failed = letter.message
            again = NewMessage(
                failed.payload, key=failed.key, tags=failed.tags, headers=failed.headers
            )
            tx.publish(self._to or letter.topic.base, again)
        self.done_count += 1

    def _whole(self, message: Message) -> DeadLetter | None:
        """The dead letter with its payload; None: there is none any more."""
        try:
            letter = read_dead_letter(message)
        except NotADeadLetterError:
            return None
        if letter.size is None:
            return letter
        try:
            found = self._client.poll(letter.topic, letter.message.id, limit=1)
        except TopicNotFoundError:
            return None
        if not found or found[0].id != letter.message.id:
            return None
        # It is too large for a dead letter, so its group can't get it alone.
        return replace(letter, message=found[0], group=None, size=None)


def _replayed_result(topic: TopicId, run: _Replay) -> Result:
    passed = [each.hex() for each in run.passed]
    lines = [f"replayed {counted(run.done_count, 'dead letter')} of {topic}"]
    lines += [
        f"passed over {each}, which can't be replayed; see tuff dlq ls --all" for each in passed
    ]
    form = {"namespace": topic.namespace, "name": topic.name}
    return Result(json={**form, "replayed": run.done_count, "passedOver": passed}, lines=lines)


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
    """Those of the dead-letter topic; none if no message of the topic was given up yet. Raises:
    TopicNotFoundError: there is no such topic either."""
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
        group = client.groups.show(topic.namespace, GROUP)
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
    given_up = moment(message.timestamp)
    if letter is None:
        return message.id.hex(), given_up, None, None, "not a dead letter"
    reason = printable(letter.reason)
    shown = reason if len(reason) <= REASON_LENGTH else f"{reason[: REASON_LENGTH - 1]}…"
    return message.id.hex(), given_up, letter.group, letter.attempts, shown


def _form(found: _Found) -> dict[str, object]:
    message, letter = found.message, found.letter
    form: dict[str, object] = {"id": message.id.hex(), "givenUp": message.timestamp}
    if letter is None:
        return form
    failed = letter.message
    return {
        **form,
        "topic": str(letter.topic),
        "messageId": failed.id.hex(),
        "group": letter.group,
        "attempts": letter.attempts,
        "reason": letter.reason,
        "key": None if failed.key is None else payload_to_json(failed.key),
        "tags": list(failed.tags),
        "headers": [[name, payload_to_json(value)] for name, value in failed.headers],
        "payload": None if letter.size is not None else payload_to_json(failed.payload),
        "size": len(failed.payload) if letter.size is None else letter.size,
    }
