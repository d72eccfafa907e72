"""How a command line ends: its exit codes, and the endings that no command answers by itself."""

import os
import select
import sys
from collections.abc import Callable, Sequence

import click

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_INTERRUPTED = 130


def run_to_end(
    program: click.Group,
    name: str,
    arguments: Sequence[str],
    *,
    tell: Callable[[Exception], int | None],
) -> int:
    """Run a command line; its exit code. `tell` says what an error is and gives its code, or None
    for a bug, which is raised."""
    try:
        # `program.main` would answer a broken pipe by itself, as a failure.
        with program.make_context(name, list(arguments)) as context:
            program.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as left:
        return left.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_unread():
            _drop_output()  # the reader, `head` for one, has enough
            return 0
        code = tell(error)
        if code is None:
            raise
        try:
            sys.stdout.flush()
        except OSError:
            _drop_output()  # the disk behind it is full, which `error` has said
        return code
    return 0


def _drop_output() -> None:
    """What Python still holds of our output goes nowhere; else the end of the process fails."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_unread() -> bool:
    """Whether the pipe that broke was our output: it may have been one to a program of ours."""
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)
    return bool(poller.poll(0))
