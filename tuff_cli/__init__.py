"""The `tuff` command, for terminals and scripts; program.py has its exit codes."""

import sys
from collections.abc import Sequence
from typing import NoReturn

from tuff.optional_packages import Extra, MissingExtraError


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with its code."""
    try:
        with Extra("the command tuff", "cli"):
            from tuff_cli import program

            program.main(arguments)
    except MissingExtraError as error:
        sys.exit(f"tuff: {error}")
