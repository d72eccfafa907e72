"""`python -m tuff.cli`: the command, if `tuff` is not on the path."""

from tuff.cli.program import main

main()
