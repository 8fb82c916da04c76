"""The proof of a machine room checked again, sharing nothing with the search but the pricing.

A certificate is the tree of boxes that the search opened, each with the axis it was cut along and
the designs that went on. That no system is missing follows from the tree alone: the halves of a cut
cover its box, and what did not go on was closed there. What was closed is priced in full, without
any bound: a design in the most capable system of its box must need a rate of the least capable one
at least as high as the stated bound. Closed designs are drawn from a seed; so are systems of the
whole room. `Faults` of a tree say where it goes wrong.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trainwright.chips.room import AXES
from trainwright.errors import CheckFailed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trainwright.arrays import Indices
    from trainwright.chips.room import Limits, Room, RoomPricer
    from trainwright.execution import Budget

_CLOSE = 1.0 - 1e-8
_NODE = AXES.index("node_devices")
_INSIDE = (AXES.index("node_gbytes_per_s"), AXES.index("topology"))


class Branch(NamedTuple):
    """One box of a certificate: where it was cut (None: nowhere), what of each stacks went on."""

    axis: int | None
    left: Mapping[int, Indices]


class Closed(NamedTuple):
    """Designs that a certificate closes in a box, which is from `low` to `high`."""

    low: tuple[int, ...]
    high: tuple[int, ...]
    stacks: int
    designs: Indices


@dataclass(frozen=True, slots=True, kw_only=True)
class RoomProof:
    """What was checked: boxes, closed designs (all of them, and those priced), systems drawn."""

    boxes: int
    closed: int
    repriced: int
    drawn: int


def closed_by(room: Room, tree: Mapping[str, Branch], num_designs: int) -> Iterator[Closed]:
    """Every closed part of a room; raises `CheckFailed` where the tree leaves something out."""
    everything = {stacks: np.arange(num_designs) for stacks in room.stacks}
    whole = tuple(size - 1 for size in room.sizes)
    waiting = [("", (0,) * len(AXES), whole, everything)]
    visited = 0
    while waiting:
        path, low, high, designs = waiting.pop()
        if path not in tree:
            raise CheckFailed(f"the certificate has no box at {path!r}")
        branch, visited = tree[path], visited + 1
        if room.node_devices[high[_NODE]] == 1:
            # A domain of one chip has no links: the first value of their axes stands for all.
            if any(low[axis] for axis in _INSIDE):
                continue
            high = tuple(0 if axis in _INSIDE else at for axis, at in enumerate(high))
        for stacks, rows in designs.items():
            on = branch.left.get(stacks, np.zeros(0, dtype=np.int64))
            if np.setdiff1d(on, rows).size:
                raise CheckFailed(f"designs appear from nowhere in the box at {path!r}")
            yield Closed(low, high, stacks, np.setdiff1d(rows, on))
        if branch.axis is None:
            if any(rows.size for rows in branch.left.values()):
                raise CheckFailed(f"the box at {path!r} is neither closed nor cut")
            continue
        axis = branch.axis
        if not (0 <= axis < len(AXES) and low[axis] < high[axis]):
            raise CheckFailed(f"the box at {path!r} cannot be cut along axis {axis}")
        middle = (low[axis] + high[axis]) // 2
        upper = tuple(middle if i == axis else at for i, at in enumerate(high))
        lower = tuple(middle + 1 if i == axis else at for i, at in enumerate(low))
        left = {stacks: rows for stacks, rows in branch.left.items() if rows.size}
        waiting += [(path + "0", low, upper, left), (path + "1", lower, high, left)]
    if visited != len(tree):
        raise CheckFailed(f"{len(tree) - visited} boxes of the certificate belong nowhere")


def prove(
    pricer: RoomPricer,
    tree: Mapping[str, Branch],
    *,
    aim: str,
    limits: Limits,
    lower_bound: float,
    sample: int,
    seed: int,
    budget: Budget,
) -> RoomProof:
    """Check a certificate; raises `CheckFailed` with the first thing that contradicts it.

    `sample` closed designs are priced in the best system of their boxes, and as many systems drawn
    from the whole room, each for what it is.
    """
    room, random = pricer.room, np.random.default_rng(seed)
    parts = [
        part for part in closed_by(room, tree, len(pricer.question.space)) if part.designs.size
    ]
    sizes = np.array([part.designs.size for part in parts])
    total = int(sizes.sum())
    count = min(sample, total)
    chosen = (
        np.sort(random.choice(total, count, replace=False))
        if total < 1e7
        else _drawn(random, total, count)
    )
    offsets = np.concatenate(([0], np.cumsum(sizes)))
    of_part: dict[int, list[int]] = defaultdict(list)
    for at in chosen.tolist():
        part = int(np.searchsorted(offsets, at, side="right")) - 1
        of_part[part].append(int(parts[part].designs[at - offsets[part]]))
    done = 0
    for part, designs in of_part.items():
        if budget.stopped:
            break
        _check(pricer, parts[part], np.array(designs), aim, limits, lower_bound)
        done += len(designs)
    drawn = 0
    for _ in range(sample):
        if budget.stopped:
            break
        place = tuple(int(random.integers(size)) for size in room.sizes)
        stacks = int(random.choice(room.stacks))
        one = np.array([int(random.integers(len(pricer.question.space)))])
        if pricer.is_sound(stacks, room.system(place)):
            _check(pricer, Closed(place, place, stacks, one), one, aim, limits, lower_bound)
            drawn += 1
    return RoomProof(boxes=len(tree), closed=total, repriced=done, drawn=drawn)


def _drawn(random: np.random.Generator, total: int, count: int) -> Indices:
    return np.unique(random.integers(total, size=count))


def _check(
    pricer: RoomPricer,
    part: Closed,
    designs: Indices,
    aim: str,
    limits: Limits,
    lower_bound: float,
) -> None:
    """Steps of the most capable system, in a domain of any size, at the rate of the least."""
    room, most = pricer.room, pricer.room.system(part.high)
    sizes = room.node_devices[part.low[_NODE] : part.high[_NODE] + 1]
    each = [pricer.steps_s(part.stacks, most._replace(node_devices=n), designs) for n in sizes]
    steps_s = np.min(each, axis=0)
    low = room.system(part.low)
    if part.low == part.high:
        figures, _ = pricer.price(part.stacks, low, designs)
    else:
        nothing = np.zeros_like(steps_s)
        figures = pricer.figures(part.stacks, low, designs, steps_s, nothing)
    values = np.where(limits.kept(figures), figures.of(aim), np.inf)
    if (values < lower_bound * _CLOSE).any():
        row = int(np.argmin(values))
        raise CheckFailed(
            f"design {int(designs[row])} with {part.stacks} stacks reaches {values[row]:.6g} in "
            f"{room.system(part.high)}, below the bound of {lower_bound:.6g}"
        )
