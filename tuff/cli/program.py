"""The command line as a whole, and how an error of any part of it is told."""

import os
import sys
from collections.abc import Sequence
from functools import partial, wraps
from typing import NoReturn

import click

from tuff.cli.blockers import blockers
from tuff.cli.bookmarks import holds, positions
from tuff.cli.completion import VARIABLE, complete, completion
from tuff.cli.ending import EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, run_to_end
from tuff.cli.files import log, snapshot, table
from tuff.cli.hbase import hbase
from tuff.cli.options import Session, command_line
from tuff.cli.publishing import pub
from tuff.cli.repair import backup, fsck, restore, salvage
from tuff.cli.serving import serve
from tuff.cli.sinks import sinks
from tuff.cli.status import status
from tuff.cli.tailing import tail
from tuff.cli.topics import topics
from tuff.cli.transactions import tx
from tuff.client_errors import ConnectionLostError, ServerNotTrustedError
from tuff.launch import LaunchError
from tuff.protocol.errors import BadRequestError, TuffError
from tuff.version import __version__

# By the code of the error: the command that leads on. A word in capitals is a parameter of the
# command that failed, or a member of the error; where there is none, its help leads on.
_NEXT = {
    "topic_not_found": "tuff topics ls",
    "topic_already_exists": "tuff topics show TOPIC",
    "topic_held": "tuff holds ls TOPIC",
    "too_many_holds": "tuff holds ls TOPIC",
    "hold_not_found": "tuff holds ls TOPIC",
    "too_many_positions": "tuff positions ls TOPIC",
    "position_not_found": "tuff positions ls TOPIC",
    "transaction_unknown": "tuff tx ls",
    "transaction_conflict": "tuff tx abort TRANSACTION",
    "transaction_timed_out": "tuff tx show TRANSACTION",
    "transaction_invalidated": "tuff tx show TRANSACTION",
    "transaction_committed": "tuff tx show TRANSACTION",
    "transaction_aborted": "tuff tx show TRANSACTION",
    "transactions_in_progress": "tuff tx ls",
    "sink_not_found": "tuff sinks ls",
    "sink_in_use": "tuff tx ls",
    "transactions_unavailable": "tuff status",
    "storage_unavailable": "tuff status",
    "shutting_down": "tuff status",
    "starting": "tuff status",
    "overloaded": "tuff status",
    "internal": "tuff status",
    "connection_lost": "tuff status",
    "damaged_record": "tuff tail TOPIC --from NEXT",
}
# The sentence about the files says what to do.
_OFFLINE = {
    "command_refused",
    "wrong_file",
    "damaged_file",
    "damaged_files",
    "damaged_backup",
    "unreadable_file",
    "unreadable_files",
}


EXIT_CODES = """\b
Exit codes:
  0    done
  1    refused by the server, not all is well (tuff status), or a file is damaged
  2    the command line is wrong, or asks for what can't be
  3    the server can't be reached
  130  interrupted, or a question was answered with no

\b
TUFF_URL and TUFF_TOKEN are used where --url and --token are not given.
NO_COLOR switches colours off.
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.option("--url", envvar="TUFF_URL", help="The server's address (TUFF_URL).")
@click.option("--token", envvar="TUFF_TOKEN", help="A bearer token to send (TUFF_TOKEN).")
@click.version_option(__version__, prog_name="tuff", message="%(prog)s %(version)s")
@click.pass_context
def program(context: click.Context, url: str | None, token: str | None) -> None:
    """Publish a message if, and only if, your own change commits."""
    context.obj = Session(url, token)
    if os.environ.get("NO_COLOR"):
        context.color = False


tx.add_command(blockers)
FILES = (snapshot, log, table, fsck, salvage, backup, restore)
for command in (
    serve,
    status,
    topics,
    pub,
    tail,
    tx,
    sinks,
    holds,
    positions,
    *FILES,
    hbase,
    completion,
):
    program.add_command(command)


class CommandFailedError(Exception):
    """An error of a command, and the context that it was run in."""

    def __init__(self, error: TuffError | LaunchError, context: click.Context) -> None:
        super().__init__(str(error))
        self.error = error
        self.context = context


def _keep_context(command: click.Command) -> None:
    """Have the errors of a command, and of those below it, keep the context: what was typed is read
    there, wherever on the line it stood."""
    if isinstance(command, click.Group):
        for below in command.commands.values():
            _keep_context(below)
    elif (callback := command.callback) is not None:

        @wraps(callback)
        def run(*arguments: object, **parameters: object) -> object:
            try:
                return callback(*arguments, **parameters)
            except (TuffError, LaunchError) as error:
                raise CommandFailedError(error, click.get_current_context()) from error

        command.callback = run


_keep_context(program)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_closed_streams()
    sys.exit(_run(given))


def _open_closed_streams() -> None:
    """Where a shell closed a standard stream, Python has none, and no command reckons with that."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 - as long as the process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - as long as the process


def _run(arguments: list[str]) -> int:
    if instruction := os.environ.get(VARIABLE):
        return complete(program, instruction)
    return run_to_end(program, "tuff", arguments, tell=partial(_told, arguments))


def _told(arguments: list[str], error: Exception) -> int | None:
    match error:
        case click.ClickException():
            return _usage(error, arguments)
        case CommandFailedError(error=LaunchError() as failed):
            command = "pip install --force-reinstall tuff-messaging"
            return _tell(str(failed), command, EXIT_REFUSED)
        case CommandFailedError(error=TuffError() as failed):
            return _tell(failed.detail, _next_command(failed, error.context), _exit_code(failed))
        case OSError(strerror=str() as reason):
            # Files that are named on the command line are looked at before; what is left is a disk
            # that is full, or a terminal that is gone.
            what = "the input or output" if error.filename is None else error.filename
            return _tell(f"{what} failed: {reason}", None, EXIT_REFUSED)
        case _:
            return None


def _exit_code(error: TuffError) -> int:
    match error:
        case ConnectionLostError():
            return EXIT_UNREACHABLE
        case BadRequestError():
            return EXIT_USAGE
        case _:
            return EXIT_REFUSED


def _usage(error: click.ClickException, arguments: list[str]) -> int:
    message = error.format_message()
    if "\n" in message:
        click.echo(message, err=True)  # a group without a command: its help
        return EXIT_USAGE
    # Of the errors of usage not all have a context: an option without its value has none.
    context: click.Context | None = getattr(error, "ctx", None)
    path = _command_path(arguments) if context is None else context.command_path
    return _tell(message, f"{path} --help", EXIT_USAGE)


def _next_command(error: TuffError, context: click.Context) -> str | None:
    if isinstance(error, ServerNotTrustedError):
        return None
    if error.code == "topic_not_found" and context.command is pub:
        template = "tuff topics create TOPIC"
    else:
        template = _NEXT.get(error.code, "")
    known = {
        "TOPIC": context.params.get("topic"),
        "TRANSACTION": context.params.get("transaction"),
        "NEXT": error.members.get("next"),
    }
    words = [known.get(word, word) for word in template.split()]
    if not words or None in words:
        return None if error.code in _OFFLINE else f"{context.command_path} --help"
    return command_line(words, context)


def _command_path(arguments: list[str]) -> str:
    """The command that the words name, where they could not be parsed."""
    found: click.Command = program
    names = ["tuff"]
    for word in arguments:
        if isinstance(found, click.Group) and word in found.commands:
            found = found.commands[word]
            names.append(word)
    return " ".join(names)


def _tell(sentence: str, command: str | None, code: int) -> int:
    said = sentence.rstrip(" .")
    leads_on = command is None or "`tuff " in said
    click.echo(f"tuff: {said}" if leads_on else f"tuff: {said}; next: {command}", err=True)
    return code
