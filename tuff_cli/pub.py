"""`tuff pub`: publish messages (protocol §3.1)."""

import os
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import click

from tuff.blocking.client import Client
from tuff.protocol.errors import RequestTooLargeError
from tuff.protocol.ids import MessageId, TopicId
from tuff.protocol.requests import Ack
from tuff.protocol.sentences import counted
from tuff.replies import Published
from tuff_cli.options import (
    SECONDS,
    TRANSACTION,
    WHOLE_SECONDS,
    Function,
    Target,
    WholeNumber,
    output_options,
    pass_target,
    server_options,
    time_of,
    topic_of,
)
from tuff_cli.output import Progress, print_json

CHUNK_BYTES = 1 << 20  # bytes read from standard input at once; about the size of one publish
LINE_BYTES_MAX = 16 << 20  # bytes; no server accepts a larger request
BATCH_COUNT_MAX = 1_000  # messages of one publish without --batch
RESTART_RETRIES = 20  # 17 to 33 s; a stop takes up to 10 s, and then there is a start
GIVEN_BATCH_COUNT_MAX = 100_000  # messages of --batch in memory; the server limits their bytes

Batches = Iterator[list[bytes]]


def as_bytes(text: str) -> bytes:
    """An argument as the bytes that were typed."""
    return text.encode("utf-8", "surrogateescape")


def header_of(text: str) -> tuple[str, bytes]:
    """The value of `--header`. Raises: BadParameter: it has no equals sign."""
    name, equals, value = text.partition("=")
    if not equals:
        raise click.BadParameter(
            f"{text!r} is not a header: give its name and its value, as NAME=VALUE"
        )
    return name, as_bytes(value)


def attribute_options(function: Function) -> Function:
    """`--key`, `--tag` and `--header`, as `key`, `tags` and `headers`."""
    key = click.option("--key", type=as_bytes, metavar="KEY", help="The key of these messages.")
    tags = click.option(
        "--tag", "tags", multiple=True, metavar="TAG", help="A tag of these messages; repeatable."
    )
    headers = click.option(
        "--header",
        "headers",
        type=header_of,
        multiple=True,
        metavar="NAME=VALUE",
        help="A header of these messages; repeatable.",
    )
    return key(tags(headers(function)))


def delay_options(function: Function) -> Function:
    """`--delay` in seconds, and `--at` in ms since the epoch."""
    delay = click.option(
        "--delay", type=SECONDS, metavar="DURATION", help="Let them enter TOPIC so much later."
    )
    at = click.option(
        "--at", type=time_of, metavar="TIME", help="Let them enter TOPIC then: ISO 8601, or ms."
    )
    return delay(at(function))


@click.command()
@click.argument("topic", type=topic_of)
@click.argument("messages", nargs=-1)
@click.option(
    "--ttl", type=WHOLE_SECONDS, metavar="DURATION", help="Time to live of these messages."
)
@click.option(
    "--batch",
    type=WholeNumber(1, GIVEN_BATCH_COUNT_MAX),
    metavar="N",
    help="Collect N messages, and publish all or none of them.",
)
@click.option(
    "--tx", "transaction", type=TRANSACTION, metavar="ID", help="Publish in this transaction."
)
@attribute_options
@delay_options
@click.option(
    "--ack",
    type=click.Choice(["none", "received", "durable"]),
    default="durable",
    help="Wait until messages are durable, have their ids (received), or were accepted (none). "
    "[default: durable]",
)
@server_options
@output_options
@pass_target
def pub(
    target: Target,
    /,
    *,
    topic: TopicId,
    messages: tuple[str, ...],
    batch: int | None,
    as_json: bool,
    ack: str,
    **options: Any,
) -> None:
    """Publish MESSAGES to TOPIC; without MESSAGES, each line of standard input as it arrives."""
    publishing = _Publishing(topic=topic, ack=Ack(ack), **options)
    if publishing.transaction is not None and publishing.ack is not Ack.DURABLE:
        raise click.UsageError(f"--ack {ack} is only for messages without --tx")
    if publishing.delay is not None and publishing.at is not None:
        raise click.UsageError("give either --delay or --at, and not both")
    given = [as_bytes(message) for message in messages]
    publishing.publish_all(target, given, batch=batch, as_json=as_json)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Publishing:
    """The options of the command that every publish has."""

    topic: TopicId
    ttl: int | None
    transaction: int | None
    key: bytes | None
    tags: tuple[str, ...]
    headers: tuple[tuple[str, bytes], ...]
    delay: float | None
    at: int | None
    ack: Ack

    @property
    def is_delayed(self) -> bool:
        return self.delay is not None or self.at is not None

    def publish_all(
        self, target: Target, given: list[bytes], *, batch: int | None, as_json: bool
    ) -> None:
        """Publish the messages, or those of standard input, and print how many."""
        source = _Input()
        size_bytes = 0 if given else source.size_bytes()
        lines = iter([given]) if given else read_lines(source.read)
        done: list[Published] = []
        count = 0
        try:
            with ExitStack() as stack:
                client = stack.enter_context(target.client())
                progress = stack.enter_context(closing(Progress(size_bytes)))
                for some in split_groups(lines) if batch is None else gather(lines, count=batch):
                    done[1:] = self._publish(client, some)
                    if not count:  # the server is there: from now on a restart is waited for
                        client = stack.enter_context(target.client(retries=RESTART_RETRIES))
                    count += len(some)
                    progress.update(count, read_bytes=source.read_bytes)
        except BaseException:
            if count:  # the writer of a pipe must know how much was published
                self._print(count, done, as_json=as_json)
            raise
        self._print(count, done, as_json=as_json)

    def _publish(self, client: Client, payloads: list[bytes]) -> list[Published]:
        """Publish messages in one request; nothing is returned if it has no ids."""
        published = client.publish(
            self.topic,
            *payloads,
            key=self.key,
            tags=self.tags,
            headers=self.headers,
            ttl=self.ttl,
            delay=self.delay,
            at=self.at,
            ack=self.ack,
            transaction=self.transaction,
        )
        return [published] if published.ids or published.delayed_ids else []

    def _print(self, count: int, done: list[Published], *, as_json: bool) -> None:
        did = "delayed" if self.is_delayed else "published"
        if as_json:
            ids = [each.delayed_ids if self.is_delayed else each.ids for each in done]
            first = _hex(ids[0][0]) if done else None
            last = _hex(ids[-1][-1]) if done else None
            print_json({did: count, "firstId": first, "lastId": last})
        else:
            where = "for" if self.is_delayed else "to"
            click.echo(f"{did} {counted(count, 'message')} {where} {self.topic}")


class _Input:
    """Standard input, and how many bytes of it were read."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def read(self, size: int) -> bytes:
        # Only what is available now: a line of a slow pipe is published when it arrives.
        chunk = os.read(sys.stdin.fileno(), size)
        self.read_bytes += len(chunk)
        return chunk

    def size_bytes(self) -> int:
        """The size of a file; 0 of a pipe."""
        return os.fstat(sys.stdin.fileno()).st_size


def read_lines(read: Callable[[int], bytes]) -> Batches:
    """Lines without their ends (LF or CRLF), grouped by the read that completed them.

    Raises:
        RequestTooLargeError: a line is longer than any server accepts.
    """
    rest = b""
    while chunk := read(CHUNK_BYTES):
        *lines, rest = (rest + chunk).split(b"\n")
        if lines:
            yield [line.removesuffix(b"\r") for line in lines]
        if len(rest) > LINE_BYTES_MAX:
            raise RequestTooLargeError(f"a line has more than {LINE_BYTES_MAX} bytes; split it")
    if rest:
        yield [rest]


def split_groups(groups: Iterable[list[bytes]]) -> Batches:
    """Each group as one publish, or several if it is large."""
    for group in groups:
        for start in range(0, len(group), BATCH_COUNT_MAX):
            yield group[start : start + BATCH_COUNT_MAX]


def gather(groups: Iterable[list[bytes]], *, count: int) -> Batches:
    """`count` messages at a time, and the rest at the end."""
    held: list[bytes] = []
    for group in groups:
        held += group
        while len(held) >= count:
            yield held[:count]
            del held[:count]
    if held:
        yield held


def _hex(found: MessageId | str) -> str:
    return found if isinstance(found, str) else found.hex()
