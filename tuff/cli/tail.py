"""`tuff tail`: print the messages of a topic, and follow it (protocol §3.4)."""

import random
import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import TypeVar

import click

from tuff.blocking.client import Client
from tuff.cli.options import (
    Session,
    Start,
    TopicEnd,
    WholeNumber,
    command_line,
    output_options,
    server_options,
    session,
    start_of,
    topic_of,
)
from tuff.cli.output import moment, notice, payload_text, print_json
from tuff.client_errors import ConnectionLostError
from tuff.flows import Backoff
from tuff.merged_reads import IDLE_S, Merge
from tuff.protocol.attributes import Attributes
from tuff.protocol.errors import PartitionRequiredError, TopicNotFoundError, TuffError
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.json_forms import attributes_to_json, payload_to_json
from tuff.protocol.requests import Isolation, Message
from tuff.replies import Poll
from tuff.retries import is_passing
from tuff.subscriber_flows import RECONNECT_FIRST_S, RECONNECT_S_MAX

BATCH_COUNT_MAX = 1_000  # messages of one poll
WAIT_S = 30.0  # seconds; how long one poll of a follower waits

T = TypeVar("T")


_tags_option = click.option(
    "--tags",
    metavar="EXPR",
    help="Only messages with these tags: a,b|c means both a and b, or c.",
)
_partition_option = click.option(
    "--partition",
    type=WholeNumber(min=0),
    metavar="N",
    help="Read this partition. [default: all, in one order]",
)


@click.command()
@click.argument("topic", type=topic_of)
@click.option(
    "--from",
    "start",
    type=start_of,
    metavar="START",
    help="earliest, latest, a message id, 10m (ago), ms since the epoch, or an ISO time. "
    "[default: earliest; with --follow: latest]",
)
@click.option(
    "--isolation",
    type=click.Choice(["all", "committed"]),
    default="all",
    help="all: also messages of open and aborted transactions; committed: only committed ones. "
    "[default: all]",
)
@click.option("--follow", "-f", is_flag=True, help="Wait for more messages.")
@click.option("--limit", "-n", type=WholeNumber(min=1), help="Stop after so many messages.")
@_tags_option
@click.option("--ids", is_flag=True, help="Show message ids.")
@_partition_option
@server_options
@output_options
@session
def tail(
    session: Session,
    *,
    topic: TopicId,
    start: Start | None,
    isolation: str,
    follow: bool,
    limit: int | None,
    tags: str | None,
    ids: bool,
    partition: int | None,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC. No position changes, and no message is removed."""
    if partition is not None:
        topic = topic.partition(partition)
    if start is None:
        start = TopicEnd.LATEST if follow else TopicEnd.EARLIEST
    with session.client() as client:
        reader = _Reader(client, topic, isolation=Isolation(isolation), tags=tags, follow=follow)
        for number, message in reader.read(start, limit=limit):
            _print_message(message, number, ids=ids, as_json=as_json)


class _Reader:
    """Reads a topic from a start position, and prints to standard error what it waits for.

    A subscriber reads without end, and reports neither the transaction that blocks it nor that the
    server can't be reached. This reader ends after a number of messages, or when all are read.
    """

    def __init__(
        self,
        client: Client,
        topic: TopicId,
        *,
        isolation: Isolation,
        tags: str | None,
        follow: bool,
    ) -> None:
        self._client = client
        self._topic = topic
        self._isolation = isolation
        self._tags = tags
        self._follow = follow
        self._reported_blocker: int | None = None
        self._count = 0  # messages that were read while the topic had one partition
        self._read_to: MessageId | None = None  # up to here
        self._was_answered = False
        self._failed_count = 0  # attempts since the last answer
        self._backoff = Backoff(RECONNECT_FIRST_S, RECONNECT_S_MAX, random.random)

    def read(self, start: Start, *, limit: int | None) -> Iterator[tuple[int | None, Message]]:
        """The messages, with their partitions if the topic has several."""
        try:
            for message in self._messages(start, limit=limit):
                yield None, message
        except PartitionRequiredError:
            yield from self._merged(start, limit=limit)

    def _messages(self, start: Start, *, limit: int | None) -> Iterator[Message]:
        left = limit
        at, inclusive = self._first_position(self._topic, start)
        wait_s = 0.0
        while left is None or left > 0:
            count = BATCH_COUNT_MAX if left is None else min(left, BATCH_COUNT_MAX)
            poll = self._poll(self._topic, at, inclusive=inclusive, limit=count, wait_s=wait_s)
            yield from poll
            self._count += len(poll)
            self._read_to = poll.next_id
            left = None if left is None else left - len(poll)
            self._report(poll)
            # A selection by tags may pass over many messages: then a poll ends before all are read.
            has_moved = bool(poll) or poll.next_id != at
            if not self._follow and (poll.caught_up or not has_moved):
                return
            # The next poll does not wait, so that a blocking transaction is reported at once.
            is_idle = self._follow and not (poll or self._is_new_blocker(poll))
            wait_s = WAIT_S if is_idle else 0.0
            at, inclusive = poll.next_id, False

    def _merged(self, start: Start, *, limit: int | None) -> Iterator[tuple[int, Message]]:
        """The messages of all partitions in one order, each with the number of its partition."""
        merge = Merge()
        places: dict[int, tuple[MessageId | int | None, bool]] = {}
        if self._read_to is not None:
            places[0] = self._read_to, False  # the other partitions were added since
        merge.set_partitions(self._partitions())
        left = None if limit is None else limit - self._count
        while left is None or left > 0:
            before = dict(places)
            self._read_behind(merge, places, TopicEnd.EARLIEST if places else start)
            while merge.set_partitions(self._partitions()):
                self._read_behind(merge, places, TopicEnd.EARLIEST)
            count = 0
            for each in islice(merge.ready(), left):
                count += 1
                yield each
            left = None if left is None else left - count
            # A poll that brought nothing may have passed over messages, as above.
            is_over = merge.is_caught_up or places == before
            if not count and self._follow:
                time.sleep(IDLE_S)
            elif not count and is_over:
                return

    def _partitions(self) -> list[int]:
        info = self._retried(lambda: self._client.topics.get(self._topic))
        return sorted((*info.partitions, *info.retired))

    def _read_behind(
        self,
        merge: Merge,
        places: dict[int, tuple[MessageId | int | None, bool]],
        start: Start,
    ) -> None:
        for number in merge.behind():
            topic = self._topic.partition(number)
            try:
                if number not in places:
                    places[number] = self._first_position(topic, start)
                at, inclusive = places[number]
                poll = self._poll(topic, at, inclusive=inclusive, limit=BATCH_COUNT_MAX, wait_s=0.0)
            except TopicNotFoundError:
                if number in self._partitions():
                    raise
                continue  # it was retired, and its messages have expired
            self._report(poll)
            merge.add(number, poll)
            places[number] = poll.next_id, False

    def _poll(
        self,
        topic: TopicId,
        at: MessageId | int | None,
        *,
        inclusive: bool,
        limit: int,
        wait_s: float,
    ) -> Poll:
        return self._retried(
            lambda: self._client.poll(
                topic,
                at,
                inclusive=inclusive,
                limit=limit,
                isolation=self._isolation,
                wait=wait_s,
                tags=self._tags,
            )
        )

    def _retried(self, ask: Callable[[], T]) -> T:
        """Ask the server; with --follow, again until a temporary failure is over."""
        while True:
            try:
                answer = ask()
            except TuffError as error:
                # If no server ever answered, the address is probably wrong.
                is_server_known = self._was_answered or not isinstance(error, ConnectionLostError)
                if not (self._follow and is_server_known and is_passing(error)):
                    raise
                self._wait_for_server(error)
            else:
                if self._failed_count:
                    notice("the server answers again")
                self._was_answered, self._failed_count = True, 0
                return answer

    def _wait_for_server(self, error: TuffError) -> None:
        # The same request is sent again, so that no message is skipped or shown twice.
        if not self._failed_count:
            notice(f"waiting for the server: {error.detail}")
        self._failed_count += 1
        at_least_s = min(error.retry_after_s, RECONNECT_S_MAX)
        time.sleep(self._backoff.pause(self._failed_count, at_least_s=at_least_s).seconds)

    def _first_position(self, topic: TopicId, start: Start) -> tuple[MessageId | int | None, bool]:
        """The position of the first poll, and whether a message at it counts."""
        if start is TopicEnd.EARLIEST:
            return None, True
        if not isinstance(start, TopicEnd):
            return start, True
        isolation = self._isolation
        end = self._retried(lambda: self._client.offsets(topic, isolation=isolation)).end
        return end, end is None

    def _is_new_blocker(self, poll: Poll) -> bool:
        return poll.blocked_by is not None and poll.blocked_by != self._reported_blocker

    def _report(self, poll: Poll) -> None:
        if poll.expired:
            notice("messages between the start and the oldest existing one have expired")
        if self._is_new_blocker(poll):
            notice(
                f"blocked by transaction {poll.blocked_by}, which {_state(poll)}: "
                f"{command_line(['tuff', 'tx', 'show', poll.blocked_by])}"
            )
        self._reported_blocker = poll.blocked_by


def _state(poll: Poll) -> str:
    if poll.blocked_by_database is None:
        return "is in progress"
    return f"is prepared, and waits for the database {poll.blocked_by_database}"


def _print_message(
    message: Message, partition: int | None = None, *, ids: bool, as_json: bool
) -> None:
    """`partition` is that of a topic with several."""
    if as_json:
        print_json(
            {
                **({} if partition is None else {"partition": partition}),
                "id": message.id.hex(),
                "timestamp": message.timestamp,
                "payload": payload_to_json(message.payload),
                **attributes_to_json(Attributes(message.key, message.tags, message.headers)),
            }
        )
        return
    columns = [moment(message.timestamp) or "", payload_text(message.payload)]
    if partition is not None:
        columns.insert(0, str(partition))
    if ids:
        columns.insert(0, message.id.hex())
    click.echo("  ".join(columns))
