"""`python -m koordra` is the program `koordra`."""

from koordra.cli.main import main

main()
