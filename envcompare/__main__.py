"""Let `python -m envcompare` be the command."""

from envcompare.cli import main

main()
