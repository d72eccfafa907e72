"""`tuff tail`: print the messages of a topic, and follow it (protocol §3.4)."""

import logging
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import suppress
from functools import partial
from itertools import dropwhile, islice

import click

from tuff import server_outages
from tuff.blocking.client import Client
from tuff.protocol.errors import OverloadedError, UnavailableError
from tuff.protocol.ids import MessageId, Offset, TopicId
from tuff.protocol.json_objects import to_json
from tuff.protocol.requests import Isolation, Message
from tuff.read_calls import EARLIEST, LATEST, Start
from tuff.replies import Poll
from tuff_cli.options import (
    Function,
    Target,
    WholeNumber,
    command_line,
    output_options,
    pass_target,
    server_options,
    start_of,
    topic_of,
)
from tuff_cli.output import moment, notice, payload_text, print_json

POLL_COUNT_MAX = 1_000  # messages of one poll
ROWS_COUNT_MAX = 1_000  # rows of one call; as of the server
FARTHER = 4  # times as many rows, if too few of the newest ones are messages that the reader gets
STATE_LENGTH_MAX = 11  # characters of "rolled back"
REMOVED = "removed"  # the state of a message whose row was removed while it was read


def _isolation_options(function: Function) -> Function:
    """`--isolation`, and `--all` as a word for one of its values."""
    isolation = click.option(
        "--isolation",
        type=click.Choice(["all", "committed"]),
        default="committed",
        help="committed: only committed messages; all: as --all. [default: committed]",
    )
    everything = click.option(
        "--all",
        "isolation",
        flag_value="all",
        help="Also messages of transactions that are in progress or rolled back, each with its "
        "state.",
    )
    return isolation(everything(function))


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
@_isolation_options
@click.option("--follow", "-f", is_flag=True, help="Wait for more messages.")
@click.option(
    "--limit",
    "-n",
    type=WholeNumber(min=1),
    metavar="N",
    help="Print the newest N messages; with --from or --follow, stop after N.",
)
@_tags_option
@click.option("--ids", is_flag=True, help="Show message ids.")
@_partition_option
@server_options
@output_options
@pass_target
def tail(
    target: Target,
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
    with target.client() as client:
        reader = _Reader(client, topic, isolation=Isolation(isolation), tags=tags)
        if tags is not None and start is not None and start not in (EARLIEST, LATEST):
            reader.require_in_log(start)
        for number, message in reader.read(start, follow=follow, limit=limit):
            state = reader.state_of(number, message)
            shown = number if reader.has_partitions else None
            _print_message(message, state=state, partition=shown, ids=ids, as_json=as_json)


class _Reader:
    """Reads a topic, or one partition of it; and prints to standard error what it waits for."""

    def __init__(
        self, client: Client, topic: TopicId, *, isolation: Isolation, tags: str | None
    ) -> None:
        self._client = client
        self._topic = topic.base
        self._partition = topic.number
        self._isolation = isolation
        self._read = partial(
            client.merged,
            topic,
            partitions=None if topic.number is None else [topic.number],
            isolation=isolation,
            tags=tags,
            on_outage="raise",
        )
        self._numbers_read: set[int] = set()
        self._blockers: dict[int, int | None] = {}  # by partition; those that were reported
        self._states: dict[tuple[int, MessageId], str] = {}  # of what was read and is not printed

    @property
    def has_partitions(self) -> bool:
        """Whether the messages are of several partitions."""
        return self._partition is None and max(self._numbers_read, default=0) > 0

    def require_in_log(self, start: Start) -> None:
        """Refuse a start in the archive, where tags select nothing: the server would go on with the
        log, without a word. Raises: UsageError."""
        for number in self._numbers():
            partition = self._topic.partition(number)
            if self._client.poll(partition, start, limit=1, isolation=Isolation.ALL).archived:
                raise click.UsageError(
                    f"--tags selects messages of the log, and {self._topic} has older ones in its "
                    "archive at this start; --from earliest begins with the log, and without "
                    "--tags the archived ones are printed, with their tags in --json"
                )

    def state_of(self, partition: int, message: Message) -> str | None:
        """The state of a message that was just read; None if the reader gets committed ones."""
        return self._states.pop((partition, message.id), None)

    def read(
        self, start: Start | None, *, follow: bool, limit: int | None
    ) -> Iterator[tuple[int, Message]]:
        """The messages from `start` on, with their partitions."""
        if follow:
            return self._follow(LATEST if start is None else start, limit=limit)
        if start is None and limit is not None:
            return self._newest(limit)
        return self._rest(EARLIEST if start is None else start, limit=limit)

    def _rest(self, start: Start, *, limit: int | None) -> Iterator[tuple[int, Message]]:
        """The messages that there are from `start` on."""
        polled = min(limit or POLL_COUNT_MAX, POLL_COUNT_MAX)
        found = self._read(start, follow=False, batch=polled, on_poll=self._note)
        return islice(found, limit)

    def _follow(self, start: Start, *, limit: int | None) -> Iterator[tuple[int, Message]]:
        """All messages from `start` on, however long the server is away."""
        # If no server ever answered, the address is probably wrong.
        with suppress(UnavailableError, OverloadedError):
            self._client.topics.get(self._topic)
        handler = _Notices()
        log = logging.getLogger(server_outages.__name__)
        log.addHandler(handler)
        log.setLevel(logging.INFO)
        try:
            yield from islice(self._read(start, on_outage="wait", on_poll=self._note), limit)
        finally:
            log.removeHandler(handler)

    def _newest(self, count: int) -> Iterator[tuple[int, Message]]:
        """The newest messages, up to `count` of them, from the oldest of them on."""
        first = self._first_of_newest(count)
        if first is None:
            return self._rest(EARLIEST, limit=count)
        number, id = first
        # Messages of several partitions can have the same id.
        found = self._read(id, follow=False, batch=POLL_COUNT_MAX, on_poll=self._note)
        return islice(dropwhile(lambda each: (each[1].id, each[0]) < (id, number), found), count)

    def _first_of_newest(self, count: int) -> tuple[int, MessageId] | None:
        """The partition and id of the first of the newest messages; None: of the oldest one."""
        row_count = count
        while True:
            rows = {number: self._row_before(number, row_count) for number in self._numbers()}
            starts = {number: id for number, id in rows.items() if id is not None}
            found = self._read(starts, follow=False, batch=POLL_COUNT_MAX)
            newest = deque(((number, each.id) for number, each in found), maxlen=count)
            is_full = len(newest) == count
            if is_full and all(id < newest[0][1] for id in starts.values()):
                return newest[0]
            if not starts:
                return None
            row_count *= FARTHER

    def _row_before(self, partition: int, row_count: int) -> MessageId | None:
        """The row before the newest so many that the reader can receive; None: there is none."""
        topic = self._topic.partition(partition)
        page_from = self._client.offsets(topic, isolation=self._isolation).end
        left = row_count + 1
        while page_from is not None:
            limit = min(left, ROWS_COUNT_MAX)
            page = self._client.rows(topic, page_from, limit=limit, order="descending")
            left -= len(page.rows)
            if not left:
                return page.rows[-1].id
            page_from = page.next_id
        return None

    def _numbers(self) -> Collection[int]:
        if self._partition is not None:
            return [self._partition]
        info = self._client.topics.get(self._topic)
        return [*info.partitions, *info.retired]

    def _note(self, partition: int, poll: Poll) -> None:
        """Report what holds back the reader, and keep the states of uncommitted messages."""
        self._numbers_read.add(partition)
        if poll.expired:
            notice("messages between the start and the oldest existing one have expired")
        if poll.blocked_by is not None and poll.blocked_by != self._blockers.get(partition):
            notice(
                f"blocked by transaction {poll.blocked_by}, which {_state(poll)}: "
                f"{command_line(['tuff', 'tx', 'show', poll.blocked_by])}"
            )
        self._blockers[partition] = poll.blocked_by
        if poll and self._isolation is Isolation.ALL:
            self._note_states(partition, poll)

    def _note_states(self, partition: int, poll: Poll) -> None:
        rows: dict[Offset, str] = {}
        # Messages that a transaction stored first share one row, whose id is before theirs.
        start: MessageId | None = MessageId(*poll[0].id.offset)
        topic = self._topic.partition(partition)
        while start is not None and start <= poll[-1].id and not poll.archived:
            page = self._client.rows(topic, start, limit=ROWS_COUNT_MAX)
            rows |= {each.id.offset: each.state for each in page.rows}
            start = page.next_id
        unlisted = "committed" if poll.archived else REMOVED
        for message in poll:
            self._states[partition, message.id] = rows.get(message.id.offset, unlisted)


class _Notices(logging.Handler):
    """Prints a line when the reader begins to wait for the server, and when it continues."""

    def emit(self, record: logging.LogRecord) -> None:
        notice(record.getMessage())


def _state(poll: Poll) -> str:
    if poll.blocked_by_database is None:
        return "is in progress"
    return f"is prepared, and waits for the database {poll.blocked_by_database}"


def _print_message(
    message: Message, *, state: str | None, partition: int | None, ids: bool, as_json: bool
) -> None:
    if as_json:
        print_json(
            {
                **({} if partition is None else {"partition": partition}),
                "timestamp": message.timestamp_ms,
                **({} if state is None else {"state": state}),
                **to_json(message),
            }
        )
        return
    columns = [moment(message.timestamp_ms) or "", payload_text(message.payload)]
    if state is not None:
        columns.insert(1, f"{state.replace('_', ' '):<{STATE_LENGTH_MAX}}")
    if partition is not None:
        columns.insert(0, str(partition))
    if ids:
        columns.insert(0, message.id.hex())
    click.echo("  ".join(columns))
