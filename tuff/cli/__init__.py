"""The `tuff` command: a server's topics, messages, transactions and files, for people and scripts.

Exit codes: 0 done; 1 refused by the server, or a file is damaged; 2 the command line is wrong;
3 the server can't be reached; 130 interrupted.
"""

from tuff.cli.program import main

__all__ = ["main"]
