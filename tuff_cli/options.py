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
from functools import wraps
from pathlib import Path
from typing import Any, Literal, TypeVar

import click
from click.core import ParameterSource

from tuff.address import DEFAULT_URL
from tuff.blocking.client import Client
from tuff.protocol import ids
from tuff.protocol.errors import BadRequestError, InvalidNameError
from tuff.protocol.ids import MESSAGE_ID_SIZE, MessageId, TopicId
from tuff.protocol.pointer_list import POINTER_MAX
from tuff.tls import TlsFiles
from tuff_cli.output import Result, moment, notice, print_result

Function = TypeVar("Function", bound=Callable[..., object])

DEFAULT_NAMESPACE = "default"


@dataclass(slots=True)
class Target:
    """The server to talk to. `typed`: the options for it on the command line, with their values; of
    a token, a placeholder."""

    url: str = DEFAULT_URL
    token: str | None = None
    tls_files: TlsFiles = field(default_factory=TlsFiles)
    typed: dict[str, str] = field(default_factory=dict)
    token_file: Path | None = None

    def client(self, *, retries: int = 0) -> Client:
        """A client of the server. At a terminal, an unreachable server is to be reported at once;
        `retries` of a call are for a program that goes on for long.

        Raises: BadParameter: the address or the token is not valid."""
        name = f"tuff-cli-{socket.gethostname()}-{os.getpid()}"
        try:
            return Client(
                self.url,
                client_id=name,
                retries=retries,
                token=self.token,
                ssl_context=self.tls_files.context(),
            )
        except ValueError as error:
            raise click.BadParameter(str(error)) from None


pass_target = click.make_pass_decorator(Target)


def _set_url(context: click.Context, parameter: click.Parameter, url: str | None) -> None:
    if url is not None:
        context.ensure_object(Target).url = url
        _note_typed(context, parameter, url)


def _set_token(context: click.Context, parameter: click.Parameter, token: str | None) -> None:
    current = context.ensure_object(Target)
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
        context.ensure_object(Target).token_file = file
        _note_typed(context, parameter, str(file))


def _set_tls_file(context: click.Context, parameter: click.Parameter, file: Path | None) -> None:
    if file is not None:
        assert parameter.name is not None
        current = context.ensure_object(Target)
        name = parameter.name.removeprefix("tls_")
        current.tls_files = replace(current.tls_files, **{name: file})
        _note_typed(context, parameter, str(file))


def _is_typed(context: click.Context, parameter: click.Parameter) -> bool:
    assert parameter.name is not None
    return context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE


def _note_typed(context: click.Context, parameter: click.Parameter, shown: str) -> None:
    if _is_typed(context, parameter):
        context.ensure_object(Target).typed[parameter.opts[0]] = shown


class PathType(click.Path):
    """A path, which is not empty: Python takes an empty one for the working directory."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value == "":
            self.fail("the path is empty; is a variable not set?", param, ctx)
        return super().convert(value, param, ctx)


_FILE = PathType(exists=True, dir_okay=False, path_type=Path)
# Name, what sets it in the target, its type, and its help. Each has an environment variable.
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
    """`--url`, `--token` and others, which set the target. Before the command they have
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


def client_command(function: Callable[..., Result]) -> Callable[..., None]:
    """A command that sends requests: `function` gets a client of the server as its first argument,
    and the result that it returns is printed, as JSON with `--json`."""

    @server_options
    @output_options
    @pass_target
    @wraps(function)
    def run(target: Target, /, *, as_json: bool, **parameters: Any) -> None:
        with target.client() as client:
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


_MS_PER = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,3})?)(ms|s|m|h|d)")


def _duration_ms(text: str) -> int | None:
    """The length of a duration like 10m or 1.5h; None: the text is not a duration."""
    found = _DURATION.fullmatch(text)
    return None if found is None else round(float(found[1]) * _MS_PER[found[2]])


def duration_s(text: str) -> float:
    """The seconds of a duration like 10m or 2.5. Raises: click.BadParameter."""
    length_ms = _duration_ms(text)
    if length_ms is None:
        length_ms = _duration_ms(f"{text}s")
    if length_ms is None:
        raise click.BadParameter(f"{text!r} is not a number of seconds, or a time like 10s or 1h")
    return length_ms / 1000


def _in_seconds(value: Any) -> Any:
    """A duration like 10m as its number of seconds; any other value as it is."""
    length_ms = _duration_ms(value) if isinstance(value, str) else None
    return value if length_ms is None else f"{length_ms / 1000:.15g}"


class SecondsParameter(click.FloatRange):
    """A finite time above 0, in seconds, or with a unit, as in 10m or 1.5h."""

    name = "number of seconds, or a time like 10m, 1h or 7d"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        seconds = float(super().convert(_in_seconds(value), param, ctx))
        if not math.isfinite(seconds):
            self.fail(f"{value!r} is not a valid {self.name}.", param, ctx)
        return seconds


class WholeSecondsParameter(click.IntRange):
    """A whole number of seconds, or a time of whole seconds with a unit, as in 10m or 7d."""

    name = "whole number of seconds, or a time like 10m, 1h or 7d"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        return int(super().convert(_in_seconds(value), param, ctx))


SECONDS = SecondsParameter(min=0, min_open=True)
WHOLE_SECONDS = WholeSecondsParameter(min=1)


def topic_of(text: str) -> TopicId:
    """The topic or partition that a text names, as in programs; one without a namespace is in
    namespace default. Raises: BadParameter: it has no such form."""
    try:
        return ids.topic_of(text if ":" in text else f"{DEFAULT_NAMESPACE}:{text}")
    except InvalidNameError as error:
        raise click.BadParameter(error.detail) from None


TopicEnd = Literal["earliest", "latest"]  # the oldest message, or behind the newest one
Start = MessageId | int | TopicEnd  # an int is a publish time in ms since the epoch

MILLISECONDS_LENGTH_MIN = 12  # digits; shorter ones are a year, or seconds
# A start later than this is a wrong unit or a wrong date. It is more than clocks differ, so that a
# start that a server with a wrong clock has written can be used.
START_IN_FUTURE_MS_MAX = 24 * 3_600_000
_MILLISECONDS = re.compile(r"[0-9]{1,19}")


def start_of(text: str) -> Start:
    """The value of `--from`, relative to now. Raises: BadParameter: it has none of the forms."""
    return parse_start(text, now_ms=time.time_ns() // 1_000_000)


def parse_start(text: str, *, now_ms: int) -> Start:
    """Where to start to read: `earliest`, `latest`, a message id, `10m` (ago), or a time. 0 is the
    beginning, also that of an archive.

    Raises:
        BadParameter: the text has none of the forms, or names a time in the future.
    """
    if text == "earliest":
        return "earliest"
    if text == "latest":
        return "latest"
    start: MessageId | int
    if len(text) == 2 * MESSAGE_ID_SIZE:
        start = _message_id(text)
    elif (ago_ms := _duration_ms(text)) is not None:
        start = max(0, now_ms - ago_ms)
    elif _MILLISECONDS.fullmatch(text):
        start = 0 if int(text) == 0 else _milliseconds(text)
    else:
        start = _local_ms(
            text,
            f"can't start from {text!r}: use earliest, latest, a message id of 40 hex digits, a "
            "time ago like 10m or 2h, ms since the epoch",
        )
    start_ms = start.publish_timestamp_ms if isinstance(start, MessageId) else start
    if start_ms > now_ms + START_IN_FUTURE_MS_MAX:
        raise click.BadParameter(
            f"{text} is in the future ({moment(start_ms)}), where no message is; "
            "numbers are ms since the epoch, with 13 digits, and `latest` is the end"
        )
    return start


def _message_id(text: str) -> MessageId:
    try:
        return MessageId.from_hex(text)
    except BadRequestError as error:
        raise click.BadParameter(error.detail) from None


def _milliseconds(text: str) -> int:
    if len(text) < MILLISECONDS_LENGTH_MIN:
        raise click.BadParameter(
            f"{text} ms since the epoch was before 1974: such a number has 13 digits; or use a "
            "time like 2026-01-31T12:00:00"
        )
    return int(text)


def time_of(text: str) -> int:
    """A time in ms since the epoch, from such a number or a local time. Raises: BadParameter."""
    if _MILLISECONDS.fullmatch(text):
        return _milliseconds(text)
    return _local_ms(text, f"{text!r} is not a time: use ms since the epoch")


def _local_ms(text: str, refusal: str) -> int:
    try:
        # Without a zone it is in local time, as a wall clock shows it.
        return max(0, round(datetime.fromisoformat(text).timestamp() * 1000))
    except (ValueError, OverflowError, OSError):
        raise click.BadParameter(f"{refusal}, or a time like 2026-01-31T12:00:00") from None


def command_line(words: Iterable[object], context: click.Context | None = None) -> str:
    """A command to type next, for the server of this command."""
    typed = (context or click.get_current_context()).ensure_object(Target).typed
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
