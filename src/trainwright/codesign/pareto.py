"""The front of throughput, area, power and energy per token over all designs.

Every design stands for itself with its fastest plan, so the front is exact over designs: nothing is
left out by a bound. A point is dominated where another is no worse in all objectives and better in
one; with `epsilon`, where another is no worse than (1 + epsilon) times it in all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Indices = NDArray[np.int64]


def front(figures: Floats, *, epsilon: float = 0.0) -> Indices:
    """Rows of `figures` [n, objectives] that no other dominates, ascending by the first column.

    Of equal rows the first stays. With `epsilon` points are taken in that order, and dropped where
    one taken already is no worse than (1 + epsilon) times them; the least of every objective is
    taken first, so that each single optimum stays.
    """
    order = np.lexsort(figures.T[::-1])
    kept: list[int] = []
    taken = np.zeros((0, figures.shape[1]))
    for row in order.tolist():
        point = figures[row]
        if not (taken <= point).all(axis=1).any():
            kept.append(row)
            taken = np.vstack([taken, point])
    exact = np.array(kept, dtype=np.int64)
    if not epsilon or not exact.size:
        return exact
    return _thinned(figures, exact, epsilon)


def _thinned(figures: Floats, exact: Indices, epsilon: float) -> Indices:
    first = [int(exact[np.argmin(figures[exact, k])]) for k in range(figures.shape[1])]
    kept = list(dict.fromkeys(first))
    for row in exact.tolist():
        near = (figures[kept] <= figures[row] * (1.0 + epsilon)).all(axis=1)
        if row not in kept and not near.any():
            kept.append(row)
    return np.array(sorted(kept, key=lambda row: tuple(figures[row])), dtype=np.int64)


def hypervolume(figures: Floats, reference: Floats) -> float:
    """Share of the box between zero and `reference` that points of three objectives dominate.

    Slices along the last objective, each a staircase in the other two: O(n² log n).
    """
    inside = figures[(figures < reference).all(axis=1)] / reference
    if not inside.size:
        return 0.0
    inside = inside[np.argsort(inside[:, 2], kind="stable")]
    volume = 0.0
    for k in range(len(inside)):
        depth = (inside[k + 1, 2] if k + 1 < len(inside) else 1.0) - inside[k, 2]
        volume += depth * _staircase(inside[: k + 1, :2])
    return float(volume)


def _staircase(points: Floats) -> float:
    area, lowest = 0.0, 1.0
    for x, y in points[np.lexsort(points.T[::-1])].tolist():
        if y < lowest:
            area += (1.0 - x) * (lowest - y)
            lowest = y
    return area
