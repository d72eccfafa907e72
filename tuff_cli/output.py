"""Output of the commands, tables or JSON, with notices and a progress bar on standard error; and
their exit codes, also if they are interrupted or their output is closed.

Text from messages and names is escaped, so that it can't control the terminal.
"""

import json
import os
import select
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from tuff.protocol.json_objects import json_of
from tuff.protocol.sentences import counted

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

CELL_LENGTH_MAX = 120  # characters; keeps a table readable, and --json prints all of a value
LONG_COUNT = 5_000  # messages; publishing fewer takes no noticeable time

EXIT_REFUSED = 1
EXIT_USAGE = 2
EXIT_UNREACHABLE = 3
EXIT_INTERRUPTED = 130


@dataclass(frozen=True, slots=True)
class Table:
    """What `print_table` prints."""

    columns: Sequence[str]
    rows: Iterable[Sequence[object]]
    title: str
    cell_length_max: int = CELL_LENGTH_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a command prints at its end: with --json the value `json`, else the table and then the
    lines."""

    json: object
    table: Table | None = None
    lines: Sequence[str] = ()
    exit_code: int = 0


def print_result(result: Result, *, as_json: bool) -> None:
    """Print the result of a command. Raises: Exit: the result has an exit code above 0."""
    if as_json:
        print_json(result.json)
    else:
        if result.table is not None:
            print_table(result.table)
        for line in result.lines:
            click.echo(line)
    if result.exit_code:
        raise click.exceptions.Exit(result.exit_code)


def mib(size_bytes: int) -> str:
    """A size in MiB, with one decimal place below 10."""
    return f"{size_bytes / (1 << 20):.{1 if size_bytes < 10 << 20 else 0}f} MiB"


def field_table(
    fields: Mapping[str, object], *, title: str, cell_length_max: int = CELL_LENGTH_MAX
) -> Table:
    """The fields of one object, one below the other."""
    return Table(("field", "value"), fields.items(), title, cell_length_max)


def print_json(value: object) -> None:
    """One value on one line, as JSON: values of replies have the forms of the protocol."""
    click.echo(json.dumps(value, ensure_ascii=False, default=json_of))


def print_table(table: Table) -> None:
    """A table with a title line; without rows, a line that says so."""
    # Loading it takes longer than most commands run, and --json does not need it.
    from rich.console import Console
    from rich.table import Table as Lines
    from rich.text import Text

    # A pipe has no width, and a script that reads a table needs unwrapped lines.
    is_terminal = sys.stdout.isatty()
    console = Console(
        width=None if is_terminal else table.cell_length_max * len(table.columns), highlight=False
    )
    lines = Lines(box=None, header_style="bold", pad_edge=False)
    for column in table.columns:
        lines.add_column(column, overflow="fold")
    for row in table.rows:
        lines.add_row(*(Text(shown(cell, length_max=table.cell_length_max)) for cell in row))
    with console.capture() as captured:
        console.print(Text(table.title, style="bold cyan"))
        console.print(lines if lines.rows else Text("  none", style="dim"))
    # rich pads each line to the width of the table: a pipe gets no trailing spaces.
    for line in captured.get().splitlines():
        click.echo(line if is_terminal else line.rstrip())


def notice(sentence: str) -> None:
    """Print a sentence to standard error."""
    click.secho(f"tuff: {sentence}", err=True, fg="yellow")


def shown(cell: object, *, length_max: int = CELL_LENGTH_MAX) -> str:
    """A cell's text: None is a dash, a list its items, and control characters are escaped."""
    match cell:
        case None:
            return "-"
        case bool():
            return "yes" if cell else "no"
        case list() | tuple():
            text = ", ".join(map(shown, cell)) or "-"
        case dict():
            text = json.dumps(cell, ensure_ascii=False)
        case _:
            text = printable(str(cell))
    return text if len(text) <= length_max else text[: length_max - 1] + "…"


def printable(text: str) -> str:
    """The text with control characters escaped."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one == "\t" else one.encode("unicode_escape").decode("ascii")
        for one in text
    )


def payload_text(payload: bytes) -> str:
    """A payload as text; bytes that are not printable are escaped."""
    return printable(payload.decode("utf-8", errors="backslashreplace"))


def moment(time_ms: int | None) -> str | None:
    """A time in ms, as ISO 8601 in UTC."""
    if time_ms is None:
        return None
    try:
        time = datetime.fromtimestamp(time_ms / 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"  # an id has 64 bits for it, more than a calendar date can have
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(duration_ms: int) -> str:
    """A duration in hours and minutes, minutes and seconds, or seconds."""
    whole_s = round(duration_ms / 1000)
    minutes, rest_s = divmod(abs(whole_s), 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" if whole_s < 0 else ""
    if hours:
        return f"{sign}{hours} h {minutes} min"
    return f"{sign}{minutes} min {rest_s} s" if minutes else f"{sign}{rest_s} s"


def at_least(count: int, is_lower_bound: bool) -> str:  # noqa: FBT001 - what a reply has
    """A count, and whether it is a lower bound."""
    return f"at least {count}" if is_lower_bound else str(count)


class Progress:
    """A progress bar on standard error, shown once an input is long; only at a terminal."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._bar: Bar | None = None
        # If the lines are typed, a bar would appear between them.
        is_typed = sys.stdin is not None and sys.stdin.isatty()
        self._is_wanted = sys.stderr.isatty() and not is_typed

    def update(self, count: int, *, read_bytes: int) -> None:
        """Show how many messages were published, and how many bytes of the input were read."""
        if not self._is_wanted or count < LONG_COUNT:
            return
        if self._bar is None:
            self._bar = _bar(self._size_bytes)
        task = self._bar.task_ids[0]
        self._bar.update(
            task, completed=read_bytes, description=counted(count, "message"), refresh=True
        )

    def close(self) -> None:
        """Remove the bar from the screen."""
        if self._bar is not None:
            self._bar.stop()


def _bar(size_bytes: int) -> "Bar":
    # Loading it takes longer than most commands run.
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), TransferSpeedColumn())
    bar = Bar(
        *columns,
        TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
        auto_refresh=False,
    )
    bar.add_task("", total=size_bytes or None)
    bar.start()
    return bar


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
            _require_variables()
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


def _require_variables() -> None:
    # click takes an empty variable for one that is not set, and the default server would answer.
    for variable, value in os.environ.items():
        if variable.startswith("TUFF_") and not value.strip():
            raise click.UsageError(
                f"the environment variable {variable} is empty; give it a value, or unset it"
            )


def _discard_output() -> None:
    """Discard what Python has buffered; flushing it at exit would fail."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_output_closed() -> bool:
    """Whether the broken pipe is our standard output, and not one to a process that we started."""
    poller = select.poll()
    poller.register(sys.stdout.fileno(), 0)
    return bool(poller.poll(0))
