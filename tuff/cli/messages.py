"""`tuff pub` and `tuff tail`: put messages in, and look at them (protocol §3)."""

import os
import sys
import time
from collections.abc import Callable, Iterator

import click

from tuff.cli.options import Session, output_options, server_options, session, topic_of
from tuff.cli.output import moment, notice, payload_text, print_json
from tuff.cli.places import Latest, Place, parse_place
from tuff.client import Client
from tuff.protocol.errors import BadRequestError, RequestTooLargeError
from tuff.protocol.forms import payload_to_json
from tuff.protocol.ids import MessageId
from tuff.protocol.names import TopicId
from tuff.protocol.requests import Message
from tuff.replies import Poll, Published

CHUNK_BYTES = 1 << 20  # bytes read from standard input at once, and about what one publish holds
LINE_BYTES_MAX = 16 << 20  # bytes; the server takes no larger request, so waiting on is in vain
BATCH_COUNT_MAX = 1_000  # messages of one publish or poll
WAIT_S = 30.0  # seconds; how long one poll of a follower waits


@click.command()
@click.argument("topic", type=topic_of)
@click.argument("messages", nargs=-1)
@click.option("--ttl", type=click.IntRange(min=1), help="Seconds that these messages live.")
@server_options
@output_options
@session
def pub(
    session: Session,
    *,
    topic: TopicId,
    messages: tuple[str, ...],
    ttl: int | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Publish MESSAGES to TOPIC, or else each line of standard input as it comes."""
    given = [message.encode("utf-8", "surrogateescape") for message in messages]
    batches = iter([given]) if given else read_batches(_read_stdin)
    done: list[Published] = []
    count = 0
    try:
        with session.client(url) as client:
            for batch in batches:
                done[1:] = [client.publish(topic, batch, ttl=ttl)]
                count += len(batch)
    finally:
        # Also on the way out of an error: who feeds a pipe must know how much of it is in.
        _tell_published(topic, count, done, as_json=as_json)


def read_batches(read: Callable[[int], bytes]) -> Iterator[list[bytes]]:
    """Lines without their ends; what one read brought goes out together, and at once.

    Raises:
        RequestTooLargeError: a line is longer than any server takes.
    """
    rest = b""
    while chunk := read(CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        for start in range(0, len(lines), BATCH_COUNT_MAX):
            yield lines[start : start + BATCH_COUNT_MAX]
        if len(rest) > LINE_BYTES_MAX:
            raise RequestTooLargeError(f"a line has more than {LINE_BYTES_MAX} bytes; cut it")
    if rest:
        yield [rest]


def _read_stdin(size: int) -> bytes:
    # What is there now, not all of that size: a line of a slow pipe goes out when it comes.
    return os.read(sys.stdin.fileno(), size)


def _tell_published(topic: TopicId, count: int, done: list[Published], *, as_json: bool) -> None:
    if as_json:
        first = done[0].first_id.hex() if done else None
        last = done[-1].last_id.hex() if done else None
        print_json({"published": count, "firstId": first, "lastId": last})
    else:
        click.echo(f"published {count} message{'' if count == 1 else 's'} to {topic}")


@click.command()
@click.argument("topic", type=topic_of)
@click.option(
    "--from",
    "start",
    metavar="PLACE",
    help="earliest, latest, a message id, 10m (ago), ms, or an ISO time; "
    "earliest where it is left out, with --follow latest.",
)
@click.option("--isolation", type=click.Choice(["all", "committed"]), default="all")
@click.option("--follow", "-f", is_flag=True, help="Wait for more.")
@click.option("--limit", "-n", type=click.IntRange(min=1), help="Stop after that many messages.")
@click.option("--ids", is_flag=True, help="Show message ids.")
@server_options
@output_options
@session
def tail(
    session: Session,
    *,
    topic: TopicId,
    start: str | None,
    isolation: str,
    follow: bool,
    limit: int | None,
    ids: bool,
    url: str | None,
    as_json: bool,
) -> None:
    """Print the messages of TOPIC. It moves nothing: no reader's place, no message."""
    said = start or ("latest" if follow else "earliest")
    try:
        place = parse_place(said, now_ms=int(time.time() * 1000))
    except BadRequestError as error:
        raise click.BadParameter(error.detail) from None
    with session.client(url) as client:
        reader = _Reader(client, topic, isolation=isolation, follow=follow)
        for message in reader.messages(place, limit=limit):
            _print_message(message, ids=ids, as_json=as_json)


class _Reader:
    """Reads on from a place, and says on standard error what it waits for."""

    def __init__(self, client: Client, topic: TopicId, *, isolation: str, follow: bool) -> None:
        self._client = client
        self._topic = topic
        self._isolation = isolation
        self._follow = follow
        self._told_blocker: int | None = None

    def messages(self, place: Place, *, limit: int | None) -> Iterator[Message]:
        left = limit
        start, inclusive = self._begin(place)
        wait_s = 0.0
        while left is None or left > 0:
            count = BATCH_COUNT_MAX if left is None else min(left, BATCH_COUNT_MAX)
            poll = self._client.poll(
                self._topic,
                start,
                inclusive=inclusive,
                limit=count,
                isolation=self._isolation,
                wait=wait_s,
            )
            yield from poll
            left = None if left is None else left - len(poll)
            self._tell(poll)
            if not self._follow and (poll.caught_up or not poll):
                return
            # The first poll of a stretch never waits, so that a blocker is named at once.
            wait_s = 0.0 if poll or self._is_news(poll) else WAIT_S
            start, inclusive = poll.next_id, False

    def _begin(self, place: Place) -> tuple[MessageId | int | None, bool]:
        if not isinstance(place, Latest):
            return place, True
        end = self._client.offsets(self._topic).end
        return end, False

    def _is_news(self, poll: Poll) -> bool:
        return poll.blocked_by is not None and poll.blocked_by != self._told_blocker

    def _tell(self, poll: Poll) -> None:
        if poll.expired:
            notice("messages between the start and the oldest one here have expired")
        if self._is_news(poll):
            notice(
                f"held back by transaction {poll.blocked_by}, which has not ended: "
                f"tuff tx show {poll.blocked_by}"
            )
        self._told_blocker = poll.blocked_by


def _print_message(message: Message, *, ids: bool, as_json: bool) -> None:
    if as_json:
        print_json(
            {
                "id": message.id.hex(),
                "timestamp": message.timestamp,
                "payload": payload_to_json(message.payload),
            }
        )
        return
    columns = [moment(message.timestamp) or "", payload_text(message.payload)]
    if ids:
        columns.insert(0, message.id.hex())
    click.echo("  ".join(columns))
