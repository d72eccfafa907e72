"""`python -m tuff.cli`, where the command itself is not on the path."""

from tuff.cli.program import main

main()
