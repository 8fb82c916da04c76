"""Profiles cut into stages: the exact downset program, the equal split, placements."""
