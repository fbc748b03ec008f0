"""Run the command line as `python -m envcompare`."""

from envcompare.cli import main

main()
