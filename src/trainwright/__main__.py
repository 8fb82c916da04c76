"""`python -m trainwright`."""

from trainwright_start import main

main()
