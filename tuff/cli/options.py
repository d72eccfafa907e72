"""What the commands share: the server they speak to, the form of their output, a topic's name."""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import click

from tuff.client import DEFAULT_URL, Client, connect
from tuff.protocol.errors import BadRequestError, InvalidNameError
from tuff.protocol.names import TopicId

Function = TypeVar("Function", bound=Callable[..., object])

DEFAULT_NAMESPACE = "default"


class TransactionParameter(click.IntRange):
    """A transaction's id, or any of its pointers."""

    name = "transaction id"


TRANSACTION = TransactionParameter(min=0)


@dataclass(frozen=True, slots=True)
class Session:
    """The address given before the command, or None."""

    url: str | None

    def client(self, url: str | None) -> Client:
        """A client of the address given with the command, before it, or of the default one.

        Raises:
            BadParameter: it is no address.
        """
        name = f"tuff-cli-{socket.gethostname()}-{os.getpid()}"
        try:
            # Who types a command wants to hear at once that nobody answers.
            return connect(url or self.url or DEFAULT_URL, client=name, retries=0)
        except BadRequestError as error:
            raise click.BadParameter(error.detail) from None

    def address(self, url: str | None) -> str:
        """The address that `client` speaks to. Raises: BadParameter."""
        with self.client(url) as client:
            return client.url


def topic_of(text: str) -> TopicId:
    """`namespace:name`, or `name` in namespace default. Raises: BadParameter: no legal name."""
    namespace, colon, name = text.partition(":")
    try:
        return TopicId(namespace, name) if colon else TopicId(DEFAULT_NAMESPACE, namespace)
    except InvalidNameError as error:
        raise click.BadParameter(error.detail) from None


session = click.make_pass_decorator(Session)


def server_options(function: Function) -> Function:
    """`--url`, as it stands behind the command."""
    return click.option("--url", help="The server's address (TUFF_URL).")(function)


def output_options(function: Function) -> Function:
    """`--json`, as `as_json`."""
    return click.option(
        "--json", "as_json", is_flag=True, help="JSON for programs instead of tables for people."
    )(function)
