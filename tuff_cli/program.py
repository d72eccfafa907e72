"""The command `tuff`: its groups, `tuff serve`, `tuff completion`, and what an error says."""

import os
import sys
from collections.abc import Iterator, MutableMapping, Sequence
from functools import partial, wraps
from importlib import import_module
from typing import NoReturn

import click
from click.shell_completion import get_completion_class, shell_complete

from tuff.errors import ConnectionLostError, ServerNotTrustedError
from tuff.launch import LaunchError, server_command
from tuff.protocol.errors import BadRequestError, TuffError
from tuff.protocol.ids import TopicId
from tuff.version import __version__
from tuff_cli.options import DEFAULT_NAMESPACE, Target, command_line, server_options
from tuff_cli.output import EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, run_to_end

COMPLETION_VARIABLE = "_TUFF_COMPLETE"  # click's protocol: a shell asks for completions with it

# The module of each command, which has the command under its name.
_MODULES = {
    **{name: name for name in ("status", "top", "doctor", "explain", "topics", "pub", "tail")},
    **{name: name for name in ("delayed", "groups", "share", "dlq", "disk", "sql")},
    **{name: name for name in ("hbase", "cluster", "access")},
    "tx": "transactions",
    **dict.fromkeys(("sinks", "holds", "positions"), "holds_positions_sinks"),
    **dict.fromkeys(("snapshot", "log", "table"), "snapshot_log_table"),
    **dict.fromkeys(("fsck", "salvage", "backup", "restore"), "fsck_and_backup"),
}

# By the code of the error: the command to run next. A word in capitals is a parameter of the
# command that failed, or a member of the error; if it has no value, the help is named instead.
_NEXT = {
    "topic_not_found": "tuff topics ls",
    "topic_already_exists": "tuff topics show TOPIC",
    "topic_held": "tuff holds ls TOPIC",
    "too_many_holds": "tuff holds ls TOPIC",
    "hold_not_found": "tuff holds ls TOPIC",
    "too_many_positions": "tuff positions ls TOPIC",
    "position_not_found": "tuff positions ls TOPIC",
    "group_not_found": "tuff groups ls NAMESPACE",
    "group_already_exists": "tuff share show TOPIC GROUP",
    "group_not_empty": "tuff groups show GROUP",
    "delayed_not_found": "tuff delayed ls TOPIC",
    "transaction_unknown": "tuff tx ls",
    "transaction_conflict": "tuff tx abort TRANSACTION",
    "transaction_timed_out": "tuff tx show TRANSACTION",
    "transaction_invalidated": "tuff tx show TRANSACTION",
    "transaction_committed": "tuff tx show TRANSACTION",
    "transaction_aborted": "tuff tx show TRANSACTION",
    "transaction_prepared": "tuff tx prepared",
    "transaction_not_prepared": "tuff tx show TRANSACTION",
    "too_many_prepared": "tuff tx prepared",
    "transactions_in_progress": "tuff tx ls",
    "sink_not_found": "tuff sinks ls",
    "sink_in_use": "tuff tx ls",
    "transactions_unavailable": "tuff status",
    "storage_unavailable": "tuff status",
    "storage_outcome_unknown": "tuff status",
    "shutting_down": "tuff status",
    "starting": "tuff status",
    "ownership_moving": "tuff status",
    "server_not_found": "tuff cluster status",
    "topic_not_movable": "tuff cluster status",
    "overloaded": "tuff status",
    "internal": "tuff status",
    "connection_lost": "tuff status",
    "damaged_record": "tuff tail TOPIC --from NEXT",
}
# Codes of errors whose text itself says what to do, or that nothing can be done.
_WITHOUT_ADVICE = {
    "archive_unavailable",
    "unauthenticated",
    "forbidden",
    "command_refused",
    "wrong_file",
    "damaged_file",
    "damaged_files",
    "not_in_cluster",
    "damaged_backup",
    "unreadable_file",
    "unreadable_files",
}


EXIT_CODES = """\b
Exit codes:
  0    done
  1    refused by the server, degraded or down (tuff status), or a file is corrupt
  2    the command line is wrong, or asks for something impossible
  3    the server can't be reached
  130  interrupted, or a question was answered with no

\b
TUFF_URL and TUFF_TOKEN set --url and --token; so do TUFF_TOKEN_FILE, TUFF_TLS_CA_FILE,
TUFF_TLS_CERTIFICATE_FILE and TUFF_TLS_KEY_FILE their options.
SSL_CERT_FILE names the certificate authorities for https, if not the system's.
NO_COLOR switches colours off.
"""


class _Commands(MutableMapping[str, click.Command]):
    """The commands by name. The module of a command is imported when that command is looked up: all
    of them take longer to load than most commands to run."""

    def __init__(self) -> None:
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            found = getattr(import_module(f"tuff_cli.{_MODULES[name]}"), name)
            _keep_context(found)
            self._loaded[name] = found
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        return iter({**_MODULES, **self._loaded})

    def __len__(self) -> int:
        return len({**_MODULES, **self._loaded})

    def __contains__(self, name: object) -> bool:
        return name in _MODULES or name in self._loaded


@click.group(
    commands=_Commands(),
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=EXIT_CODES,
)
@partial(server_options, reads_environment=True)
@click.version_option(__version__, prog_name="tuff", message="%(prog)s %(version)s")
@click.pass_context
def program(context: click.Context) -> None:
    """Topics, messages and transactions of a Tuff server, and the files of a stopped one."""
    context.ensure_object(Target)
    if os.environ.get("NO_COLOR"):
        context.color = False


@program.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(*, arguments: tuple[str, ...]) -> None:
    """Run a server in this process.

    Its options: --config FILE.toml, --data DIR, --host H, --port N (0: a free port),
    --set section.key=value (may be repeated), and --until-stdin-closes, which stops the server when
    its standard input is closed.
    """
    command = server_command(arguments)
    sys.stdout.flush()
    # The server replaces this process: signals reach it, and its exit code is that of the command.
    os.execv(command[0], command)


@program.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, *, shell: str) -> None:
    """Print the completion script of SHELL.

    \b
    bash: eval "$(tuff completion bash)"        in ~/.bashrc
    zsh:  eval "$(tuff completion zsh)"         in ~/.zshrc
    fish: tuff completion fish | source         in ~/.config/fish/config.fish
    """
    found = get_completion_class(shell)
    assert found is not None, "click knows each of them"
    click.echo(found(context.find_root().command, {}, "tuff", COMPLETION_VARIABLE).source())


class CommandFailedError(Exception):
    """An error of a command, and the context in which the command ran."""

    def __init__(self, error: TuffError | LaunchError, context: click.Context) -> None:
        super().__init__(str(error))
        self.error = error
        self.context = context


def _keep_context(command: click.Command) -> None:
    """Make the errors of a command, and of its subcommands, keep the context: it has the parameters
    and the address that the next command needs."""
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


for each in (serve, completion):
    _keep_context(each)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    _open_closed_streams()
    sys.exit(_run(given))


def _open_closed_streams() -> None:
    """Replace standard streams that the shell closed: Python has None for them."""
    if sys.stdin is None:
        sys.stdin = open(os.devnull)  # noqa: SIM115 - for the life of the process
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - for the life of the process


def _run(arguments: list[str]) -> int:
    if instruction := os.environ.get(COMPLETION_VARIABLE):
        return shell_complete(program, {}, "tuff", COMPLETION_VARIABLE, instruction)
    return run_to_end(program, "tuff", arguments, report=partial(_report, arguments))


def _report(arguments: list[str], error: Exception) -> int | None:
    match error:
        case click.ClickException():
            return _report_usage(error, arguments)
        case CommandFailedError(error=LaunchError() as failed):
            command = "pip install --force-reinstall tuff-messaging"
            return _print_error(str(failed), command, EXIT_REFUSED)
        case CommandFailedError(error=TuffError() as failed):
            next_command = _next_command(failed, error.context)
            return _print_error(failed.detail, next_command, _exit_code(failed))
        case OSError(strerror=str() as reason):
            # The files on the command line were checked before. This is a full disk, or a closed
            # terminal.
            what = "the input or output" if error.filename is None else error.filename
            return _print_error(f"{what} failed: {reason}", None, EXIT_REFUSED)
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


def _report_usage(error: click.ClickException, arguments: list[str]) -> int:
    message = error.format_message()
    if message.startswith("Usage: "):
        click.echo(message, err=True)  # a group without a command: its help
        return EXIT_USAGE
    message = " ".join(message.split())  # click lists the choices of an argument in lines
    # Not every usage error has a context: that of an option without its value has none.
    context: click.Context | None = getattr(error, "ctx", None)
    path = _command_path(arguments) if context is None else context.command_path
    return _print_error(message, f"{path} --help", EXIT_USAGE)


def _next_command(error: TuffError, context: click.Context) -> str | None:
    if isinstance(error, ServerNotTrustedError):
        return None
    topic = context.params.get("topic")
    if error.code == "topic_not_found" and isinstance(topic, TopicId) and topic.number is not None:
        template, topic = "tuff topics show TOPIC", topic.base
    elif error.code == "topic_not_found" and isinstance(topic, TopicId) and topic.name.isdigit():
        # `orders:1` is the topic 1 of the namespace orders, and most likely a partition was meant.
        number = f"{DEFAULT_NAMESPACE}:{topic.namespace}:{topic.name}"
        return f"tuff topics ls; a partition is named with its namespace, as {number}"
    elif error.code == "topic_not_found" and context.command.name == "pub":
        template = "tuff topics create TOPIC"
    else:
        template = _NEXT.get(error.code, "")
    group = context.params.get("group")
    known = {
        "TOPIC": topic,
        "GROUP": group,
        "NAMESPACE": getattr(group, "namespace", None),
        "TRANSACTION": context.params.get("transaction"),
        "NEXT": error.members.get("next"),
    }
    words = [known.get(word, word) for word in template.split()]
    if not words or None in words:
        return None if error.code in _WITHOUT_ADVICE else f"{context.command_path} --help"
    return command_line(words, context)


def _command_path(arguments: list[str]) -> str:
    """The command that a command line names which could not be parsed."""
    found: click.Command = program
    names = ["tuff"]
    for word in arguments:
        if isinstance(found, click.Group) and word in found.commands:
            found = found.commands[word]
            names.append(word)
    return " ".join(names)


def _print_error(sentence: str, next_command: str | None, code: int) -> int:
    line = sentence.rstrip(" .")
    has_advice = next_command is None or "`tuff " in line
    click.echo(f"tuff: {line}" if has_advice else f"tuff: {line}; next: {next_command}", err=True)
    return code
