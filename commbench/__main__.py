"""``python -m commbench``: the command line."""

from commbench.cli import main

main()
