"""`python -m trainwright`."""

from trainwright.cli.main import main

main()
