"""`tuff pub`: put messages in (protocol §3.1)."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing

import click

from tuff.cli.options import (
    TRANSACTION,
    Session,
    WholeNumber,
    output_options,
    server_options,
    session,
    topic_of,
)
from tuff.cli.output import counted, print_json
from tuff.cli.progress import Progress
from tuff.protocol.errors import RequestTooLargeError
from tuff.protocol.ids import TopicId
from tuff.replies import Published

CHUNK_BYTES = 1 << 20  # bytes read from standard input at once, and about what one publish holds
LINE_BYTES_MAX = 16 << 20  # bytes; the server takes no larger request, so waiting on is in vain
BATCH_COUNT_MAX = 1_000  # messages of one publish, where nobody says how many
GIVEN_BATCH_COUNT_MAX = 100_000  # messages held for one publish; the server bounds their bytes

Batches = Iterator[list[bytes]]


@click.command()
@click.argument("topic", type=topic_of)
@click.argument("messages", nargs=-1)
@click.option("--ttl", type=WholeNumber(min=1), help="Seconds that these messages live.")
@click.option(
    "--batch",
    type=WholeNumber(1, GIVEN_BATCH_COUNT_MAX),
    metavar="N",
    help="Publish N messages at a time, all or none of them; wait for that many.",
)
@click.option(
    "--tx", "transaction", type=TRANSACTION, metavar="ID", help="Publish in this transaction."
)
@server_options
@output_options
@session
def pub(
    session: Session,
    *,
    topic: TopicId,
    messages: tuple[str, ...],
    ttl: int | None,
    batch: int | None,
    transaction: int | None,
    url: str | None,
    as_json: bool,
) -> None:
    """Publish MESSAGES to TOPIC, or else each line of standard input as it comes."""
    given = [message.encode("utf-8", "surrogateescape") for message in messages]
    source = _Input()
    size_bytes = 0 if given else source.size_bytes()
    lines = iter([given]) if given else read_lines(source.read)
    done: list[Published] = []
    count = 0
    try:
        with session.client(url) as client, closing(Progress(size_bytes)) as progress:
            for some in cut(lines) if batch is None else gather(lines, count=batch):
                done[1:] = [client.publish(topic, *some, transaction=transaction, ttl=ttl)]
                count += len(some)
                progress.tell(count, read_bytes=source.read_bytes)
    except BaseException:
        if count:  # what feeds a pipe must know how much of it is in
            _tell_published(topic, count, done, as_json=as_json)
        raise
    _tell_published(topic, count, done, as_json=as_json)


class _Input:
    """Standard input, and how much of it was read."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def read(self, size: int) -> bytes:
        # What is there now, not all of that size: a line of a slow pipe goes out when it comes.
        chunk = os.read(sys.stdin.fileno(), size)
        self.read_bytes += len(chunk)
        return chunk

    def size_bytes(self) -> int:
        """How long a file is; 0 where that can't be known."""
        return os.fstat(sys.stdin.fileno()).st_size


def read_lines(read: Callable[[int], bytes]) -> Batches:
    """Lines without their ends, those together that one read brought.

    Raises:
        RequestTooLargeError: a line is longer than any server takes.
    """
    rest = b""
    while chunk := read(CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield lines
        if len(rest) > LINE_BYTES_MAX:
            raise RequestTooLargeError(f"a line has more than {LINE_BYTES_MAX} bytes; cut it")
    if rest:
        yield [rest]


def cut(groups: Iterable[list[bytes]]) -> Batches:
    """Each group at once, in as many publishes as it takes."""
    for group in groups:
        for start in range(0, len(group), BATCH_COUNT_MAX):
            yield group[start : start + BATCH_COUNT_MAX]


def gather(groups: Iterable[list[bytes]], *, count: int) -> Batches:
    """So many messages at a time, whatever came together; last what is left."""
    held: list[bytes] = []
    for group in groups:
        held += group
        while len(held) >= count:
            yield held[:count]
            del held[:count]
    if held:
        yield held


def _tell_published(topic: TopicId, count: int, done: list[Published], *, as_json: bool) -> None:
    if as_json:
        first = done[0].first_id.hex() if done else None
        last = done[-1].last_id.hex() if done else None
        print_json({"published": count, "firstId": first, "lastId": last})
    else:
        click.echo(f"published {counted(count, 'message')} to {topic}")
