"""What the commands share: the server they speak to, the form of their output, a topic's name."""

import math
import os
import shlex
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import click
from click.core import ParameterSource

from tuff.address import DEFAULT_URL
from tuff.blocking.client import Client
from tuff.cli.output import notice
from tuff.protocol.errors import InvalidNameError
from tuff.protocol.ids import TopicId
from tuff.protocol.pointers import POINTER_MAX

Function = TypeVar("Function", bound=Callable[..., object])

DEFAULT_NAMESPACE = "default"


class WholeNumber(click.IntRange):
    """A whole number within a range."""

    name = "whole number"


class TransactionParameter(click.IntRange):
    """A transaction's id, or any of its pointers."""

    name = "transaction id"


TRANSACTION = TransactionParameter(min=0, max=POINTER_MAX)


class SecondsParameter(click.FloatRange):
    """A time above 0, in seconds; one that is not finite is none."""

    name = "number of seconds"

    def convert(
        self, value: float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return seconds


SECONDS = SecondsParameter(min=0, min_open=True)


@dataclass(frozen=True, slots=True)
class Session:
    """The address and the token given before the command, or None."""

    url: str | None
    token: str | None = None

    def client(self, url: str | None) -> Client:
        """A client of the address given with the command, before it, or of the default one.

        Raises:
            BadParameter: it is no address.
        """
        name = f"tuff-cli-{socket.gethostname()}-{os.getpid()}"
        try:
            # Who types a command wants to hear at once that nobody answers.
            return Client(
                url or self.url or DEFAULT_URL, client_id=name, retries=0, token=self.token
            )
        except ValueError as error:
            raise click.BadParameter(str(error)) from None

    def address(self, url: str | None) -> str:
        """The address that `client` speaks to. Raises: BadParameter."""
        with self.client(url) as client:
            return client.url


def command_line(words: Iterable[object], context: click.Context | None = None) -> str:
    """A command that a person can type next, to the server that this one spoke to."""
    context = context or click.get_current_context()
    root = context.find_root()
    url = context.params.get("url")
    if url is None and root.get_parameter_source("url") is ParameterSource.COMMANDLINE:
        url = root.params["url"]
    return shlex.join([*map(str, words), *([] if url is None else ["--url", url])])


def confirm(question: str) -> None:
    """Ask before something is gone. Raises: Abort: the answer is no, or nobody can be asked."""
    try:
        is_wanted = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)  # the line of the question is still open
        is_wanted = False
    if not is_wanted:
        notice("nothing was done; --yes does it without a question")
        raise click.Abort


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
