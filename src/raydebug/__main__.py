"""`python -m raydebug` is `raydebug`."""

from raydebug.cli import main

main()
