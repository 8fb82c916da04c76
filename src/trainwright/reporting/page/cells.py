"""Cells of quantities: shown with a unit, sorted and copied as bare SI numbers."""

from __future__ import annotations

from trainwright.reporting.page.blocks import Cell
from trainwright.units import format_bytes, format_part, format_seconds


def seconds(value_s: float) -> Cell:
    """A duration, sorted and copied in seconds."""
    return Cell(text=format_seconds(value_s), value=value_s)


def part_of_step(part_s: float, step_s: float) -> Cell:
    """A part of a step, 0 where only rounding is left of it."""
    return Cell(text=format_part(part_s, step_s), value=part_s)


def size(value_bytes: float) -> Cell:
    """A size, sorted and copied in bytes."""
    return Cell(text=format_bytes(value_bytes), value=value_bytes)


def share(fraction: float, digits: int = 1) -> Cell:
    """A fraction as a percentage."""
    return Cell(text=f"{fraction:.{digits}%}", value=fraction)
