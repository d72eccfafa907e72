"""Options and parameter types that several commands share, and the client that they configure."""

import math
import os
import re
import shlex
import socket
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import Enum
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click
from click.core import ParameterSource

from tuff.address import DEFAULT_URL
from tuff.blocking.client import Client
from tuff.cli.output import Result, notice, print_result
from tuff.protocol.errors import BadRequestError, InvalidNameError
from tuff.protocol.ids import MESSAGE_ID_SIZE, MessageId, TopicId
from tuff.protocol.pointer_list import POINTER_MAX
from tuff.tls import TlsFiles

Function = TypeVar("Function", bound=Callable[..., object])

DEFAULT_NAMESPACE = "default"


@dataclass(slots=True)
class Session:
    """The server to talk to. `typed`: the options for it on the command line, with their values; of
    a token, a placeholder."""

    url: str = DEFAULT_URL
    token: str | None = None
    tls_files: TlsFiles = field(default_factory=TlsFiles)
    typed: dict[str, str] = field(default_factory=dict)
    token_file: Path | None = None

    def client(self) -> Client:
        """A client of the server. Raises: BadParameter: the address or the token is not valid."""
        name = f"tuff-cli-{socket.gethostname()}-{os.getpid()}"
        try:
            # No retries: at a terminal, an unreachable server is reported at once.
            return Client(
                self.url,
                client_id=name,
                retries=0,
                token=self.token,
                ssl_context=self.tls_files.context(),
            )
        except ValueError as error:
            raise click.BadParameter(str(error)) from None


session = click.make_pass_decorator(Session)


def _set_url(context: click.Context, parameter: click.Parameter, url: str | None) -> None:
    if url is not None:
        context.ensure_object(Session).url = url
        _note_typed(context, parameter, url)


def _set_token(context: click.Context, parameter: click.Parameter, token: str | None) -> None:
    current = context.ensure_object(Session)
    if token is not None and (_is_typed(context, parameter) or current.token is None):
        current.token = token
        _note_typed(context, parameter, "TOKEN")


def _set_token_file(context: click.Context, parameter: click.Parameter, file: Path | None) -> None:
    if file is not None:
        try:
            token = file.read_text("utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise click.BadParameter(f"{file} can't be read: {error}") from None
        if not token:
            raise click.BadParameter(f"{file} has no token: it is empty")
        if len(token.split()) > 1:
            raise click.BadParameter(f"{file} has more than one word; it contains one token alone")
        _set_token(context, parameter, token)
        context.ensure_object(Session).token_file = file
        _note_typed(context, parameter, str(file))


def _set_tls_file(context: click.Context, parameter: click.Parameter, file: Path | None) -> None:
    if file is not None:
        assert parameter.name is not None
        current = context.ensure_object(Session)
        name = parameter.name.removeprefix("tls_")
        current.tls_files = replace(current.tls_files, **{name: file})
        _note_typed(context, parameter, str(file))


def _is_typed(context: click.Context, parameter: click.Parameter) -> bool:
    assert parameter.name is not None
    return context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE


def _note_typed(context: click.Context, parameter: click.Parameter, shown: str) -> None:
    if _is_typed(context, parameter):
        context.ensure_object(Session).typed[parameter.opts[0]] = shown


_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)
# Name, what sets it in the session, its type, and its help. Each has an environment variable.
_SERVER_OPTIONS = (
    (
        "--url",
        _set_url,
        None,
        "The server's address, or several of a cluster, separated by commas.",
    ),
    ("--token-file", _set_token_file, _FILE, "A file with the bearer token to send."),
    (
        "--token",
        _set_token,
        None,
        "The bearer token to send. Users of this machine can see it in the list of processes; "
        "a file or the variable does not show it.",
    ),
    ("--tls-ca-file", _set_tls_file, _FILE, "The authorities of the server's certificate, in PEM."),
    ("--tls-certificate-file", _set_tls_file, _FILE, "The client's certificate, in PEM."),
    ("--tls-key-file", _set_tls_file, _FILE, "Its key, if it is in another file."),
)


def server_options(function: Function, *, reads_environment: bool = False) -> Function:
    """`--url`, `--token` and others, which set the session. Before the command they have
    environment variables, which must not override an option that was typed there."""
    for name, sets, kind, text in reversed(_SERVER_OPTIONS):
        variable = "TUFF_" + name.removeprefix("--").replace("-", "_").upper()
        option = click.option(
            name,
            envvar=variable if reads_environment else None,
            expose_value=False,
            callback=sets,
            type=kind,
            help=f"{text} ({variable})",
        )
        function = option(function)
    return function


def output_options(function: Function) -> Function:
    """`--json`, as `as_json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables.")(
        function
    )


def server_command(function: Callable[..., Result]) -> Callable[..., None]:
    """A command that sends requests: `function` gets a client of the server as its first argument,
    and the result that it returns is printed, as JSON with `--json`."""

    @server_options
    @output_options
    @session
    @wraps(function)
    def run(session: Session, /, *, as_json: bool, **parameters: Any) -> None:
        with session.client() as client:
            result = function(client, **parameters)
        print_result(result, as_json=as_json)

    return run


class WholeNumber(click.IntRange):
    """A whole number within a range."""

    name = "whole number"


class TransactionParameter(click.IntRange):
    """A transaction's id, or any of its pointers."""

    name = "transaction id"


TRANSACTION = TransactionParameter(min=0, max=POINTER_MAX)


class SecondsParameter(click.FloatRange):
    """A finite time above 0, in seconds."""

    name = "number of seconds"

    def convert(
        self, value: float, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = float(super().convert(value, param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return seconds


SECONDS = SecondsParameter(min=0, min_open=True)


def topic_of(text: str) -> TopicId:
    """`namespace:name`, or `name` in namespace default. Raises: BadParameter: not a legal name."""
    namespace, colon, name = text.partition(":")
    try:
        return TopicId(namespace, name) if colon else TopicId(DEFAULT_NAMESPACE, namespace)
    except InvalidNameError as error:
        raise click.BadParameter(error.detail) from None


class TopicEnd(Enum):
    """The oldest message of a topic, or the position behind its newest one."""

    EARLIEST = "earliest"
    LATEST = "latest"


# Where to start to read; an int is a publish time in ms since the epoch.
Start = MessageId | int | TopicEnd

_MS_PER = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d)")
MILLISECONDS_LENGTH_MIN = 12  # digits; shorter ones are a year, or seconds
_MILLISECONDS = re.compile(r"[0-9]{1,19}")


def start_of(text: str) -> Start:
    """The value of `--from`, relative to now. Raises: BadParameter: it has none of the forms."""
    return parse_start(text, now_ms=time.time_ns() // 1_000_000)


def parse_start(text: str, *, now_ms: int) -> Start:
    """Where to start to read: `earliest`, `latest`, a message id, `10m` (ago), or a time.

    Raises:
        BadParameter: the text has none of the forms.
    """
    if text in {"earliest", "latest"}:
        return TopicEnd(text)
    if len(text) == 2 * MESSAGE_ID_SIZE:
        return _message_id(text)
    if (ago := _AGO.fullmatch(text)) is not None:
        return max(0, now_ms - round(float(ago[1]) * _MS_PER[ago[2]]))
    if _MILLISECONDS.fullmatch(text):
        return int(text)
    return _time_ms(text)


def _message_id(text: str) -> MessageId:
    try:
        return MessageId.from_hex(text)
    except BadRequestError as error:
        raise click.BadParameter(error.detail) from None


def time_of(text: str) -> int:
    """A time in ms since the epoch, from such a number or a local time. Raises: BadParameter."""
    if _MILLISECONDS.fullmatch(text):
        if len(text) < MILLISECONDS_LENGTH_MIN:
            raise click.BadParameter(
                f"{text} ms since the epoch was before 1974: such a number has 13 digits; or use a "
                "time like 2026-01-31T12:00:00"
            )
        return int(text)
    try:
        return _local_ms(text)
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"{text!r} is no time: use ms since the epoch, or a time like 2026-01-31T12:00:00"
        ) from None


def _time_ms(text: str) -> int:
    try:
        return _local_ms(text)
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(
            f"can't start from {text!r}: use earliest, latest, a message id of 40 hex digits, a "
            "time ago like 10m or 2h, ms since the epoch, or a time like 2026-01-31T12:00:00"
        ) from None


def _local_ms(text: str) -> int:
    # Without a zone it is in local time, as a wall clock shows it.
    return max(0, round(datetime.fromisoformat(text).timestamp() * 1000))


def command_line(words: Iterable[object], context: click.Context | None = None) -> str:
    """A command to type next, for the server of this command."""
    typed = (context or click.get_current_context()).ensure_object(Session).typed
    return shlex.join([*map(str, words), *(word for option in typed.items() for word in option)])


def confirm(question: str) -> None:
    """Ask before something is removed. Raises: Abort: the answer is no, or there is no answer."""
    try:
        is_wanted = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)  # ends the line of the question
        is_wanted = False
    if not is_wanted:
        notice("nothing was done; --yes does it without a question")
        raise click.Abort
