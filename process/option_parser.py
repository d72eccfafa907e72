"""The options of `server.py` and its offline commands."""

import argparse
from collections.abc import Sequence
from difflib import get_close_matches
from typing import Any, NoReturn

EXIT_USAGE = 2


class OptionParser(argparse.ArgumentParser):
    """Takes options by their whole names, and refuses all else in one sentence. An abbreviation
    would mean something else once there is another option that begins so."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**{**given, "allow_abbrev": False})

    def add_subparsers(self, **given: Any) -> Any:
        return super().add_subparsers(**{"parser_class": OptionParser, **given})

    def parse_known_args(  # type: ignore[override]  # of the overloads this program uses one
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Refuses what is not known here, where the options that are known are those of the
        command."""
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self._refuse(unknown[0])
        return found, unknown

    def _refuse(self, word: str) -> NoReturn:
        name = word.partition("=")[0]
        if not name.startswith("-"):
            self.error(f"{name} is one word too many")
        near = get_close_matches(name, self._option_string_actions, 1)
        meant = f"; {near[0]} is one" if near else ""
        self.error(f"there is no option {name}{meant}")

    def error(self, message: str) -> NoReturn:
        self.exit(EXIT_USAGE, f"tuff: {message}; see `{self.prog} --help`\n")
