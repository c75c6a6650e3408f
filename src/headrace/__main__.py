"""`python -m headrace` is the `headrace` command.

Imports: cli.
"""

from headrace.cli import main

main()
