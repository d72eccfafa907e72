"""How far a long input is, on a terminal; anywhere else nothing is said."""

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress as Bar

LONG_COUNT = 5_000  # messages; fewer are in before anybody wonders


class Progress:
    """A bar on standard error, once an input turns out to be long."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        self._bar: Bar | None = None
        # At a terminal somebody types the lines, and a bar would stand between them.
        is_typed = sys.stdin is not None and sys.stdin.isatty()
        self._is_wanted = sys.stderr.isatty() and not is_typed

    def tell(self, count: int, *, read_bytes: int) -> None:
        """So many messages are in, of an input that was read so far."""
        if not self._is_wanted or count < LONG_COUNT:
            return
        if self._bar is None:
            self._bar = _bar(self._size_bytes)
        task = self._bar.task_ids[0]
        self._bar.update(task, completed=read_bytes, description=f"{count} messages", refresh=True)

    def close(self) -> None:
        """Take it off the screen."""
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
