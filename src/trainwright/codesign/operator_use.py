"""Operator by operator on one design: what its time goes to, and how busy its unit is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trainwright.codesign.design_times import (
    ProductCache,
    kernel_times_s,
    lanes_per_s,
)
from trainwright.codesign.space import subspace
from trainwright.costing.tiled import machine_of, machine_taking, product_times

if TYPE_CHECKING:
    from trainwright.cluster import Surroundings
    from trainwright.codesign.nodes import Design
    from trainwright.codesign.question import CodesignQuestion
    from trainwright.codesign.space import DesignSpace
    from trainwright.codesign.workload import Chain
    from trainwright.costing.chip_work import ChipKernel
    from trainwright.costing.tiled import TiledMachine, Tiles


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorUse:
    """One kernel on one design. `bound` names the longest of its parts.

    `utilisation` is the share of its time in which its unit would be enough: the multipliers for
    kernels with products, the vector lanes for all others.
    """

    kernel: ChipKernel
    seconds: float
    bound: str
    utilisation: float
    tiles: Tiles | None


def operator_uses(
    question: CodesignQuestion, design: Design, chain: Chain
) -> tuple[OperatorUse, ...]:
    """The kernels of the most frequent layer class of `chain` on a design."""
    space = subspace(question.space, np.array([design.index]))
    surroundings = question.variants[design.variant].surroundings
    most = int(np.argmax(chain.class_counts))
    return tuple(_uses(space, surroundings, chain, chain.kernels[most]))


def _uses(
    space: DesignSpace, surroundings: Surroundings, chain: Chain, kernels: tuple[ChipKernel, ...]
) -> Iterator[OperatorUse]:
    machine = machine_of(space.template(0), surroundings, element_bytes=chain.element_bytes)
    table = ProductCache(space, chain, surroundings).table(np.arange(1))
    lanes = lanes_per_s(space, surroundings)
    for kernel in kernels:
        seconds = float(kernel_times_s(kernel, table, lanes, surroundings)[0])
        parts, tiles = _parts(kernel, machine, float(lanes[0]), surroundings)
        busy = kernel.array_flops / machine.peak_flops_per_s if kernel.products else parts["vector"]
        yield OperatorUse(
            kernel=kernel,
            seconds=seconds,
            bound=max(parts, key=lambda name: parts[name]),
            utilisation=busy / seconds,
            tiles=tiles,
        )


def _parts(
    kernel: ChipKernel, machine: TiledMachine, lanes: float, surroundings: Surroundings
) -> tuple[dict[str, float], Tiles | None]:
    """Seconds by what they are spent on, were each alone; tiles of the first product."""
    pace = surroundings.memory_bandwidth_bytes_per_s
    parts = {
        "vector": kernel.lane_cycles / lanes,
        "hbm": kernel.memory_bytes / pace,
        "launch": surroundings.launch_s,
    }
    if not kernel.products:
        return parts, None
    wide = any(product.wide for product in kernel.products)
    found = product_times([machine_taking(machine, wide=wide)], kernel.products)
    glb_s = found.glb_bytes[0].sum() / machine.glb_bandwidth_bytes_per_s
    parts["mac"] = kernel.share * float(found.compute_s[0].sum())
    parts["glb"] = kernel.share * float(glb_s)
    parts["hbm"] += float(found.memory_bytes[0].sum()) / pace
    return parts, found.tiles(0, 0)
