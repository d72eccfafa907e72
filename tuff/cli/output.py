"""Tables for people, JSON for programs; what came from strangers never drives the terminal."""

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime

import click

CELL_LENGTH_MAX = 120  # characters; a longer one drowns the table, and --json has it whole


def print_json(value: object) -> None:
    """One JSON value on one line."""
    click.echo(json.dumps(value, ensure_ascii=False))


def print_table(
    columns: Sequence[str],
    rows: Iterable[Sequence[object]],
    *,
    title: str,
    cell_length_max: int = CELL_LENGTH_MAX,
) -> None:
    """A table with a title line; where there are no rows, a line that says so."""
    # Loading it takes longer than most commands run, and --json does without.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # A pipe has no width of its own, and a script that reads a table wants its lines whole.
    width = None if sys.stdout.isatty() else cell_length_max * len(columns)
    console = Console(width=width, highlight=False)
    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(Text(shown(cell, length_max=cell_length_max)) for cell in row))
    console.print(Text(title, style="bold cyan"))
    console.print(table if table.rows else Text("  none", style="dim"))


def notice(sentence: str) -> None:
    """Something the person should know, beside the output and not in it."""
    click.secho(f"tuff: {sentence}", err=True, fg="yellow")


def counted(count: int, what: str) -> str:
    """`1 topic`, `2 topics`."""
    return f"{count} {what}{'' if count == 1 else 's'}"


def shown(cell: object, *, length_max: int = CELL_LENGTH_MAX) -> str:
    """A cell's text: None is a dash, a list its items, and nothing in it controls the terminal."""
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
    """The text with control characters escaped, since a message must not drive the terminal."""
    if text.isprintable():
        return text
    return "".join(
        one if one.isprintable() or one == "\t" else one.encode("unicode_escape").decode("ascii")
        for one in text
    )


def payload_text(payload: bytes) -> str:
    """A payload for people: its text, with what is not printable escaped."""
    return printable(payload.decode("utf-8", errors="backslashreplace"))


def moment(time_ms: int | None) -> str | None:
    """A time in ms, as ISO 8601 in UTC."""
    if time_ms is None:
        return None
    try:
        time = datetime.fromtimestamp(time_ms / 1000, tz=UTC)
    except (OverflowError, ValueError, OSError):
        return f"{time_ms} ms"  # an id may hold any 64 bits, a calendar may not
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def seconds(duration_ms: int) -> str:
    """A duration for people."""
    whole_s = round(duration_ms / 1000)
    minutes, rest_s = divmod(abs(whole_s), 60)
    hours, minutes = divmod(minutes, 60)
    sign = "-" if whole_s < 0 else ""
    if hours:
        return f"{sign}{hours} h {minutes} min"
    return f"{sign}{minutes} min {rest_s} s" if minutes else f"{sign}{rest_s} s"
