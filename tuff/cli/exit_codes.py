"""Exit codes, and running a command line to one, also if it is interrupted or its output closed."""

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
    report: Callable[[Exception], int | None],
) -> int:
    """Run a command line; returns its exit code. `report` prints an error and returns its code, or
    None for a bug, which is raised."""
    try:
        # `program.main` would handle a broken pipe itself, as a failure.
        with program.make_context(name, list(arguments)) as context:
            program.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as left:
        return left.exit_code
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except Exception as error:
        if isinstance(error, BrokenPipeError) and _is_output_closed():
            _discard_output()  # its reader, for example `head`, has exited
            return 0
        code = report(error)
        if code is None:
            raise
        try:
            sys.stdout.flush()
        except OSError:
            _discard_output()  # the disk is full, as `error` has reported
        return code
    return 0


def _discard_output() -> None:
    """Discard what Python has buffered; flushing it at exit would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_output_closed() -> bool:
    """Whether the broken pipe is our standard output, and not one to a process that we started."""
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)
    return bool(poller.poll(0))
