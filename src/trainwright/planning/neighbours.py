"""Runs that differ from one run in a single decision, as a person would try them.

A decision is a dimension: the degree of an axis (in exchange for replicas), the microbatch, ZeRO,
recomputation, the schedule, a kernel. Changing two dimensions is changing one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from trainwright.plan.axis_order import AXIS_ORDERS, mapping_name
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.cluster import Pool
    from trainwright.model import TransformerConfig
    from trainwright.plan.configuration import Configuration
    from trainwright.plan.parallelism import Parallelism

_FAMILIES: Final = ("1f1b", "zb-h1", "zb-v", "v-half", "v-min")
_V: Final = frozenset({"zb-v", "v-half", "v-min"})
_CHUNKS: Final = (2, 3, 4, 5)
_FIRST_BLOCKS: Final = (1, 2, 4, 8, 16)
_FLAGS: Final = {"tensor": "tp", "pipeline": "pp", "context": "cp", "expert": "ep"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One decision changed: its dimension, the options that say so, and the run."""

    dimension: str
    options: str
    run: Configuration


def moves(run: Configuration, model: TransformerConfig, pool: Pool) -> Iterator[Move]:
    """Every run that differs in one dimension; not all of them need be legal."""
    yield from _axes(run, model, pool)
    yield from _microbatches(run)
    yield from _sharding(run)
    yield from _mappings(run)
    yield from _recompute(run)
    yield from _schedules(run)
    yield from _kernels(run)


def _axes(run: Configuration, model: TransformerConfig, pool: Pool) -> Iterator[Move]:
    degrees = run.parallelism
    for axis in ("tensor", "pipeline", "context"):
        limit = pool.devices_per_node if axis == "tensor" else model.num_layers
        for count in _doubled_and_halved(getattr(degrees, axis), limit):
            group = degrees.num_devices // degrees.data // getattr(degrees, axis) * count
            if degrees.num_devices % group:
                continue
            data = degrees.num_devices // group
            changed = _with_axis(degrees, axis, count, data)
            split = run.blocks_per_stage if axis != "pipeline" else None
            schedule = "1f1b" if changed.pipeline == 1 else run.schedule
            new = replace(run, parallelism=changed, blocks_per_stage=split, schedule=schedule)
            yield Move(dimension=axis, options=f"--{_FLAGS[axis]} {count} --dp {data}", run=new)
    if model.experts is not None:
        for count in _doubled_and_halved(degrees.expert, model.experts.num_experts):
            changed = replace(degrees, expert=count)
            yield Move(
                dimension="expert", options=f"--ep {count}", run=replace(run, parallelism=changed)
            )


def _with_axis(degrees: Parallelism, axis: str, count: int, data: int) -> Parallelism:
    match axis:
        case "tensor":
            return replace(degrees, tensor=count, data=data, sequence_parallel=count > 1)
        case "pipeline":
            chunks = degrees.virtual_stages if count > 1 else 1
            return replace(degrees, pipeline=count, data=data, virtual_stages=chunks)
        case _:
            return replace(degrees, context=count, data=data)


def _doubled_and_halved(value: int, limit: int) -> list[int]:
    """Powers of two times the value in both directions, nearest first."""
    up = [value * 2**k for k in range(1, 8) if value * 2**k <= limit]
    down = [value // 2**k for k in range(1, 8) if value % 2**k == 0]
    return sorted({*up, *down})


def _microbatches(run: Configuration) -> Iterator[Move]:
    for size in _doubled_and_halved(run.microbatch_size, 32):
        new = replace(run, microbatch_size=size)
        yield Move(dimension="microbatch", options=f"--micro-batch {size}", run=new)


def _sharding(run: Configuration) -> Iterator[Move]:
    for stage in range(4):
        if stage != run.parallelism.zero_stage:
            copies = run.parallelism.state_copies if stage else 1
            sharded = replace(run.parallelism, zero_stage=stage, state_copies=copies)
            new = replace(run, parallelism=sharded)
            yield Move(dimension="zero", options=f"--zero {stage}", run=new)
    for copies in _doubled_and_halved(run.parallelism.state_copies, run.parallelism.data):
        new = replace(run, parallelism=replace(run.parallelism, state_copies=copies))
        yield Move(dimension="copies", options=f"--state-copies {copies}", run=new)


def _mappings(run: Configuration) -> Iterator[Move]:
    degrees = run.parallelism
    if min(degrees.pipeline, degrees.data) == 1:
        return
    for order in AXIS_ORDERS:
        if order != degrees.axis_order:
            new = replace(run, parallelism=replace(degrees, axis_order=order))
            yield Move(dimension="mapping", options=f"--mapping {mapping_name(order)}", run=new)


def _recompute(run: Configuration) -> Iterator[Move]:
    found: dict[str, Configuration] = {
        mode.value: replace(run, recompute=mode, recompute_blocks=None) for mode in Recompute
    }
    for count in _FIRST_BLOCKS:
        found[f"full:{count}"] = replace(run, recompute=Recompute.FULL, recompute_blocks=count)
    for text, new in found.items():
        if new != run:
            yield Move(dimension="recompute", options=f"--recompute {text}", run=new)


def _schedules(run: Configuration) -> Iterator[Move]:
    degrees = run.parallelism
    if degrees.pipeline == 1:
        return
    offered = [(name, 2 if name in _V else 1) for name in _FAMILIES]
    offered += [("interleaved", chunks) for chunks in _CHUNKS]
    for name, chunks in offered:
        if (name, chunks) == (run.schedule, degrees.virtual_stages):
            continue
        same = chunks == degrees.virtual_stages
        new = replace(
            run,
            schedule=name,
            parallelism=replace(degrees, virtual_stages=chunks),
            blocks_per_stage=run.blocks_per_stage if same else None,
        )
        options = f"--schedule {name}" + (f" --virtual-stages {chunks}" if chunks > 1 else "")
        yield Move(dimension="schedule", options=options, run=new)


def _kernels(run: Configuration) -> Iterator[Move]:
    if not run.fused_attention:
        new = replace(run, fused_attention=True)
        yield Move(dimension="attention", options="--flash-attention", run=new)
    if not run.fused_cross_entropy:
        new = replace(run, fused_cross_entropy=True)
        yield Move(dimension="cross entropy", options="--fused-cross-entropy", run=new)
