"""The legal values nearest to one that is not."""

from __future__ import annotations


def nearest_multiples(value: int, unit: int) -> str:
    """The multiples of `unit` on both sides of `value`, the lower one where it is positive."""
    lower = value // unit * unit
    return f"{lower}, {lower + unit}" if lower else str(unit)


def divisors_of(value: int) -> tuple[int, ...]:
    """All divisors, ascending."""
    return tuple(d for d in range(1, value + 1) if value % d == 0)
