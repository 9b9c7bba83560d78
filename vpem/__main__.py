"""``python -m vpem``: the command line, where the command `vpem` is not on the path."""

from vpem_cli import main

main()
