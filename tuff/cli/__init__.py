"""The `tuff` command, for terminals and scripts; program.py has its exit codes."""

from tuff.cli.program import main

__all__ = ["main"]
