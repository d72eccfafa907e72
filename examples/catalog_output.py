"""The output of the example on the terminal."""

from rich.console import Console
from rich.text import Text

_out = Console(highlight=False, soft_wrap=True)


def print_heading(title: str) -> None:
    _out.print()
    _out.print(Text(f"── {title}", style="bold cyan"))


def print_text(text: str) -> None:
    _out.print(Text(text))


def print_facts(*pairs: tuple[str, object]) -> None:
    """Print findings, one per line."""
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        _out.print(Text.assemble("  ", (name.ljust(width), "dim"), "  ", (str(value), "bold")))
