"""Co-design: which accelerator, and with which plan; areas, energy, the exact search."""
