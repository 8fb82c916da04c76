"""Areas as a floor plan: rectangles that fill a square in proportion, each as square as it gets.

Squarified treemaps (Bruls, Huizing, van Wijk, 2000): areas from large to small are laid in rows
along the shorter side of what is left, and a row is closed when one more would make it worse.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from trainwright.reporting.page.blocks import Block, FloorPlan, percent

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trainwright.reporting.page.blocks import Part

    Box = tuple[float, float, float, float]  # x, y, width, height, of a unit square

_LABELLED: Final = (0.3, 0.16)  # width and height that leave room for two lines of text


def lay_out(parts: Sequence[Part], *, title: str, note: str = "") -> FloorPlan:
    """The parts with an area, the largest first."""
    kept = sorted((p for p in parts if p.amount > 0), key=lambda part: -part.amount)
    boxes = squarify([part.amount for part in kept])
    blocks = tuple(
        Block(
            part=part,
            x=percent(x),
            y=percent(y),
            width=percent(width),
            height=percent(height),
            is_labelled=width >= _LABELLED[0] and height >= _LABELLED[1],
        )
        for part, (x, y, width, height) in zip(kept, boxes, strict=True)
    )
    return FloorPlan(title=title, blocks=blocks, note=note)


def squarify(areas: Sequence[float]) -> list[Box]:
    """One box per area, which are positive and sorted from large to small."""
    total = sum(areas)
    left: Box = (0.0, 0.0, 1.0, 1.0)
    boxes: list[Box] = []
    row: list[float] = []
    for area in (amount / total for amount in areas):
        side = min(left[2], left[3])
        if row and _worst([*row, area], side) > _worst(row, side):
            laid, left = _lay_row(row, left)
            boxes += laid
            row = []
        row.append(area)
    if row:
        boxes += _lay_row(row, left)[0]
    return boxes


def _worst(row: Sequence[float], side: float) -> float:
    """The largest ratio of sides in a row along `side`."""
    thickness = sum(row) / side
    return max(max(thickness**2 / area, area / thickness**2) for area in row)


def _lay_row(row: Sequence[float], left: Box) -> tuple[list[Box], Box]:
    x, y, width, height = left
    boxes: list[Box] = []
    if width >= height:  # a column at the left
        thickness = sum(row) / height
        for area in row:
            boxes.append((x, y, thickness, area / thickness))
            y += area / thickness
        return boxes, (x + thickness, left[1], width - thickness, height)
    thickness = sum(row) / width
    for area in row:
        boxes.append((x, y, area / thickness, thickness))
        x += area / thickness
    return boxes, (left[0], left[1] + thickness, width, height - thickness)
