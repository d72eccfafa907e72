"""`tuff tail`: look at messages, and follow them (protocol §3.4)."""

import random
import time
from collections.abc import Callable, Iterator
from typing import TypeVar

import click

from tuff.blocking.client import Client
from tuff.cli.options import (
    Session,
    WholeNumber,
    command_line,
    output_options,
    server_options,
    session,
    topic_of,
)
from tuff.cli.output import moment, notice, payload_text, print_json
from tuff.cli.places import Latest, Place, parse_place
from tuff.client_errors import ConnectionLostError
from tuff.flows import Backoff
from tuff.protocol.errors import BadRequestError, TuffError
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.json_forms import payload_to_json
from tuff.protocol.requests import Isolation, Message
from tuff.replies import Poll
from tuff.retries import is_passing
from tuff.subscriber import AWAY_FIRST_S, AWAY_MOST_S

BATCH_COUNT_MAX = 1_000  # messages of one poll
WAIT_S = 30.0  # seconds; how long one poll of a follower waits

T = TypeVar("T")


@click.command()
@click.argument("topic", type=topic_of)
@click.option(
    "--from",
    "start",
    metavar="PLACE",
    help="earliest, latest, a message id, 10m (ago), ms, or an ISO time; "
    "earliest where it is left out, with --follow latest.",
)
@click.option(
    "--isolation",
    type=click.Choice(["all", "committed"]),
    default="all",
    help="Everything as it comes, or what a committed reader is handed.",
)
@click.option("--follow", "-f", is_flag=True, help="Wait for more.")
@click.option("--limit", "-n", type=WholeNumber(min=1), help="Stop after that many messages.")
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
        reader = _Reader(client, topic, isolation=Isolation(isolation), follow=follow)
        for message in reader.messages(place, limit=limit):
            _print_message(message, ids=ids, as_json=as_json)


class _Reader:
    """Reads on from a place, and says on standard error what it waits for.

    `tuff.subscriber` reads on, too, but in silence, and to no end. Here a person is told who
    holds messages back and that the server is away; and the reading ends where nothing is left, or
    at a number of messages, which each poll asks for.
    """

    def __init__(
        self, client: Client, topic: TopicId, *, isolation: Isolation, follow: bool
    ) -> None:
        self._client = client
        self._topic = topic
        self._isolation = isolation
        self._follow = follow
        self._told_blocker: int | None = None
        self._was_answered = False
        self._failed_count = 0  # of the tries since the last answer
        self._backoff = Backoff(AWAY_FIRST_S, AWAY_MOST_S, random.random)

    def messages(self, place: Place, *, limit: int | None) -> Iterator[Message]:
        left = limit
        start, inclusive = self._begin(place)
        wait_s = 0.0
        while left is None or left > 0:
            count = BATCH_COUNT_MAX if left is None else min(left, BATCH_COUNT_MAX)
            poll = self._poll(start, inclusive=inclusive, limit=count, wait_s=wait_s)
            yield from poll
            left = None if left is None else left - len(poll)
            self._tell(poll)
            if not self._follow and (poll.caught_up or not poll):
                return
            # The first poll of a stretch never waits, so that a blocker is named at once.
            wait_s = 0.0 if poll or self._is_news(poll) else WAIT_S
            start, inclusive = poll.next_id, False

    def _poll(
        self, start: MessageId | int | None, *, inclusive: bool, limit: int, wait_s: float
    ) -> Poll:
        return self._answer(
            lambda: self._client.poll(
                self._topic,
                start,
                inclusive=inclusive,
                limit=limit,
                isolation=self._isolation,
                wait=wait_s,
            )
        )

    def _answer(self, ask: Callable[[], T]) -> T:
        """What the server answers; a follower waits for whatever passes."""
        while True:
            try:
                answer = ask()
            except TuffError as error:
                # That nobody was ever there is more likely a wrong address than a restart.
                was_there = self._was_answered or not isinstance(error, ConnectionLostError)
                if not (self._follow and was_there and is_passing(error)):
                    raise
                self._wait_for_server(error)
            else:
                if self._failed_count:
                    notice("the server answers again")
                self._was_answered, self._failed_count = True, 0
                return answer

    def _wait_for_server(self, error: TuffError) -> None:
        # The same is asked again, so that nothing is skipped or shown twice.
        if not self._failed_count:
            notice(f"waiting for the server: {error.detail}")
        self._failed_count += 1
        at_least_s = min(error.retry_after_s, AWAY_MOST_S)
        time.sleep(self._backoff.pause(self._failed_count, at_least_s=at_least_s).seconds)

    def _begin(self, place: Place) -> tuple[MessageId | int | None, bool]:
        if not isinstance(place, Latest):
            return place, True
        isolation = self._isolation
        end = self._answer(lambda: self._client.offsets(self._topic, isolation=isolation)).end
        return end, end is None

    def _is_news(self, poll: Poll) -> bool:
        return poll.blocked_by is not None and poll.blocked_by != self._told_blocker

    def _tell(self, poll: Poll) -> None:
        if poll.expired:
            notice("messages between the start and the oldest one here have expired")
        if self._is_news(poll):
            notice(
                f"held back by transaction {poll.blocked_by}, which has not ended: "
                f"{command_line(['tuff', 'tx', 'show', poll.blocked_by])}"
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
