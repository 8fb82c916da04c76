"""Numbers in, orders out: build, check, simulate and bound pipeline schedules."""
