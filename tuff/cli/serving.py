"""`tuff serve`: become the server process (protocol §8)."""

import os
import sys

import click

from tuff.launch import server_command


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
def serve(*, arguments: tuple[str, ...]) -> None:
    """Run the server, with its own flags.

    --config FILE.toml, --data DIR, --host H, --port N (0: a free one), and
    --set section.key=value, as often as needed; --until-stdin-closes ends it with its parent.
    """
    command = server_command(arguments)
    sys.stdout.flush()
    # The server takes this process over, so that signals reach it and its exit code is ours.
    os.execv(command[0], command)
