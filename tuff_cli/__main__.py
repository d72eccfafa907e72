"""`python -m tuff_cli`: the command, if `tuff` is not on the path."""

from tuff_cli import main

main()
