"""The command line as a whole, and how an error of any part of it is told."""

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import NoReturn

import click

from tuff.cli.blockers import blockers
from tuff.cli.bookmarks import holds, positions
from tuff.cli.completion import VARIABLE, complete, completion
from tuff.cli.ending import EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, run_to_end
from tuff.cli.files import log, snapshot, table
from tuff.cli.hbase import hbase
from tuff.cli.options import Session
from tuff.cli.publishing import pub
from tuff.cli.repair import backup, fsck, restore, salvage
from tuff.cli.serving import serve
from tuff.cli.sinks import sinks
from tuff.cli.tailing import tail
from tuff.cli.topics import topics
from tuff.cli.transactions import tx
from tuff.client import DEFAULT_URL
from tuff.launch import LaunchError
from tuff.protocol.errors import TuffError
from tuff.transport import ConnectionLostError

# By the code of the error: the command that leads on.
_NEXT = {
    "topic_not_found": "tuff topics ls",
    "topic_already_exists": "tuff topics show TOPIC",
    "topic_held": "tuff holds ls TOPIC",
    "too_many_holds": "tuff holds ls TOPIC",
    "hold_not_found": "tuff holds ls TOPIC",
    "too_many_positions": "tuff positions ls TOPIC",
    "position_not_found": "tuff positions ls TOPIC",
    "transaction_unknown": "tuff tx ls",
    "transaction_conflict": "tuff tx abort ID",
    "transaction_timed_out": "tuff tx show ID",
    "transaction_invalidated": "tuff tx show ID",
    "transaction_committed": "tuff tx show ID",
    "transaction_aborted": "tuff tx show ID",
    "sink_not_found": "tuff sinks ls",
    "sink_in_use": "tuff tx ls",
    "transactions_unavailable": "curl HEALTH",
    "storage_unavailable": "curl HEALTH",
    "damaged_record": "tuff tail TOPIC --from NEXT",
    "connection_lost": "tuff serve",
}


EXIT_CODES = """\b
Exit codes:
  0    done
  1    refused by the server, or a file is damaged
  2    the command line is wrong
  3    the server can't be reached
  130  interrupted, or a question was answered with no

\b
TUFF_URL is the server's address, where --url does not say it.
NO_COLOR switches colours off.
"""


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.option("--url", envvar="TUFF_URL", help="The server's address (TUFF_URL).")
@click.pass_context
def program(context: click.Context, url: str | None) -> None:
    """Publish a message if, and only if, your own change commits."""
    context.obj = Session(url)
    if os.environ.get("NO_COLOR"):
        context.color = False


tx.add_command(blockers)
FILES = (snapshot, log, table, fsck, salvage, backup, restore)
for command in (serve, topics, pub, tail, tx, sinks, holds, positions, *FILES, hbase, completion):
    program.add_command(command)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and leave the process with its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    sys.exit(_run(given))


def _run(arguments: list[str]) -> int:
    if instruction := os.environ.get(VARIABLE):
        return complete(program, instruction)
    return run_to_end(program, "tuff", arguments, tell=partial(_told, arguments))


def _told(arguments: list[str], error: Exception) -> int | None:
    match error:
        case click.ClickException():
            return _usage(error, arguments)
        case TuffError():
            is_lost = isinstance(error, ConnectionLostError)
            code = EXIT_UNREACHABLE if is_lost else EXIT_REFUSED
            return _tell(error.detail, _next_command(error, arguments), code)
        case LaunchError():
            return _tell(str(error), "pip install --force-reinstall tuff-messaging", EXIT_REFUSED)
        case _:
            return None


def _usage(error: click.ClickException, arguments: list[str]) -> int:
    message = error.format_message()
    if "\n" in message:
        click.echo(message, err=True)  # a group without a command: its help
        return EXIT_USAGE
    return _tell(message, _help_command(arguments), EXIT_USAGE)


def _next_command(error: TuffError, arguments: list[str]) -> str:
    command = _NEXT.get(error.code)
    if command is None:
        return _help_command(arguments)
    # Pointers are the only long numbers on a command line; a topic stands first, or is not said.
    pointer = next((word for word in arguments if word.isdecimal() and len(word) > 15), "ID")
    topic = next((word for word in _behind_command(arguments) if not word.startswith("-")), "TOPIC")
    known = {
        "NEXT": str(error.members.get("next", "NEXT")),
        "ID": pointer,
        "TOPIC": topic,
        "HEALTH": f"{_url(arguments)}/health/ready",
    }
    return " ".join(known.get(word, word) for word in command.split())


def _url(arguments: list[str]) -> str:
    words = [part for word in arguments for part in word.split("=", 1)]
    given = words[words.index("--url") + 1 :][:1] if "--url" in words else []
    return next(filter(None, (*given, os.environ.get("TUFF_URL"))), DEFAULT_URL)


def _help_command(arguments: list[str]) -> str:
    count = len(arguments) - len(_behind_command(arguments))
    return " ".join(["tuff", *arguments[:count], "--help"])


def _behind_command(arguments: list[str]) -> list[str]:
    """What stands behind the names of commands."""
    found: click.Command = program
    for index, word in enumerate(arguments):
        if not isinstance(found, click.Group) or word not in found.commands:
            return arguments[index:]
        found = found.commands[word]
    return []


def _tell(sentence: str, command: str, code: int) -> int:
    said = sentence.rstrip(" .")
    names_one = "`tuff " in said
    click.echo(f"tuff: {said}" if names_one else f"tuff: {said}; next: {command}", err=True)
    return code
