"""`tuff-pipeline NAME`: the jobs as commands, their errors and exit codes."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import click

from pipeline import archive, audit, compact, lag, replay_archive
from pipeline.frames import failure_of_spark
from pipeline.job import Settings
from tuff.errors import ConnectionLostError
from tuff.protocol.errors import TuffError
from tuff.tls import TlsFiles
from tuff_cli.options import PathType
from tuff_cli.output import EXIT_REFUSED, EXIT_UNREACHABLE, EXIT_USAGE, run_to_end

EXIT_CODES = """\b
Exit codes:
  0    done
  1    refused by the server, failed in Spark, or an archive differs from its manifest
  2    the command line is wrong
  3    the server can't be reached
  130  interrupted
"""


_FILE = PathType(exists=True, dir_okay=False, path_type=Path)


@click.group(context_settings={"help_option_names": ["-h", "--help"]}, epilog=EXIT_CODES)
@click.option(
    "--url",
    envvar="TUFF_URL",
    help="The server's address, or several of a cluster, separated by commas (TUFF_URL).",
)
@click.option(
    "--token-file",
    envvar="TUFF_TOKEN_FILE",
    type=_FILE,
    help="A file, on the driver and all executors, with the bearer token (TUFF_TOKEN_FILE).",
)
@click.option(
    "--tls-ca-file",
    envvar="TUFF_TLS_CA_FILE",
    type=_FILE,
    help="On all hosts: the authorities of the server's certificate (TUFF_TLS_CA_FILE).",
)
@click.option(
    "--tls-certificate-file",
    envvar="TUFF_TLS_CERTIFICATE_FILE",
    type=_FILE,
    help="On all hosts: the client's certificate (TUFF_TLS_CERTIFICATE_FILE).",
)
@click.option(
    "--tls-key-file",
    envvar="TUFF_TLS_KEY_FILE",
    type=_FILE,
    help="On all hosts: its key, if it is in another file (TUFF_TLS_KEY_FILE).",
)
@click.option("--master", default="local[*]", show_default=True, help="Spark's master.")
@click.pass_context
def program(
    context: click.Context,
    url: str | None,
    token_file: Path | None,
    tls_ca_file: Path | None,
    tls_certificate_file: Path | None,
    tls_key_file: Path | None,
    master: str,
) -> None:
    """Spark jobs over topics. Progress goes to standard error, the result to standard output."""
    tls_files = TlsFiles(tls_ca_file, tls_certificate_file, tls_key_file)
    context.obj = Settings(url, master, token_file, tls_files)


for module in (archive, compact, replay_archive, audit, lag):
    program.add_command(module.main)


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    sys.exit(run(list(sys.argv[1:] if arguments is None else arguments)))


def run(arguments: list[str]) -> int:
    """Run the command line; returns the exit code."""
    return run_to_end(program, "tuff-pipeline", arguments, report=_report)


def _report(error: Exception) -> int | None:
    found = _message_of(error)
    if found is None:
        return None
    message, code = found
    click.secho(f"tuff-pipeline: {message}", err=True, fg="red")
    return code


def _message_of(error: Exception) -> tuple[str, int] | None:
    """The message and exit code of an error; None for a bug, which prints its stack trace."""
    match error:
        case click.ClickException():
            return error.format_message(), EXIT_USAGE
        case ConnectionLostError():
            return error.detail, EXIT_UNREACHABLE
        case TuffError():
            return error.detail, EXIT_REFUSED
        case ModuleNotFoundError(name="pyspark" | "pyarrow"):
            return "this needs Spark; pip install 'tuff-messaging[spark]'", EXIT_REFUSED
        case OSError(filename=str() as file, strerror=str() as reason):
            return f"{file}: {reason}", EXIT_REFUSED
        case _:
            failure = failure_of_spark(error)
            return None if failure is None else (failure, EXIT_REFUSED)
