"""Runs that differ from one run in a single decision, as a person would try them.

A decision is a dimension: the degree of an axis (in exchange for replicas), the microbatch, ZeRO,
recomputation, the schedule, a kernel. Changing two dimensions is changing one after the other. What
follows from a decision is said with it: other replicas, another split, the chunks of a schedule.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from trainwright.plan.axis_order import AXIS_ORDERS, mapping_name
from trainwright.plan.configuration import even_blocks
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
_DEGREES: Final = {"tensor": "tp", "pipeline": "pp", "context": "cp", "data": "dp", "expert": "ep"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """One decision changed: its dimension, what was chosen there, and the run."""

    dimension: str
    choice: str
    run: Configuration


def moves(run: Configuration, model: TransformerConfig, pool: Pool) -> Iterator[Move]:
    """Every run that differs in one dimension; not all of them need be legal."""
    yield from _axes(run, model, pool)
    yield from _sequence(run)
    yield from _microbatches(run)
    yield from _sharding(run)
    yield from _mappings(run)
    yield from _recompute(run)
    yield from _schedules(run, model)
    yield from _kernels(run)


def options_between(run: Configuration, other: Configuration) -> str:
    """What makes `other` of `run` where it is added to the options of `estimate`."""
    return " ".join(_changed_options(run, other))


def _changed_options(run: Configuration, other: Configuration) -> Iterator[str]:
    before, after = run.parallelism, other.parallelism
    for name, flag in _DEGREES.items():
        if (degree := getattr(after, name)) != getattr(before, name):
            yield f"--{flag} {degree}"
    if after.tensor > 1 and after.sequence_parallel != before.sequence_parallel:
        yield "--sequence-parallel" if after.sequence_parallel else "--no-sequence-parallel"
    if other.microbatch_size != run.microbatch_size:
        yield f"--micro-batch {other.microbatch_size}"
    if after.zero_stage != before.zero_stage:
        yield f"--zero {after.zero_stage}"
    if after.state_copies != before.state_copies:
        yield f"--state-copies {after.state_copies}"
    if after.axis_order != before.axis_order:
        yield f"--mapping {mapping_name(after.axis_order)}"
    if (other.recompute, other.recompute_blocks) != (run.recompute, run.recompute_blocks):
        first = other.recompute_blocks
        yield f"--recompute {other.recompute}" + ("" if first is None else f":{first}")
    if other.schedule != run.schedule:
        yield f"--schedule {other.schedule}"
    if after.virtual_stages != before.virtual_stages:
        yield f"--virtual-stages {after.virtual_stages}"
    if other.blocks_per_stage != run.blocks_per_stage and other.blocks_per_stage is not None:
        yield f"--blocks {','.join(map(str, other.blocks_per_stage))}"
    if other.fused_attention != run.fused_attention:
        yield "--flash-attention"
    if other.fused_cross_entropy != run.fused_cross_entropy:
        yield "--fused-cross-entropy"


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
            split = _split(run, changed, model)
            schedule = "1f1b" if changed.pipeline == 1 else run.schedule
            new = replace(run, parallelism=changed, blocks_per_stage=split, schedule=schedule)
            yield Move(dimension=axis, choice=str(count), run=new)
    if model.experts is not None:
        for count in _doubled_and_halved(degrees.expert, model.experts.num_experts):
            changed = replace(degrees, expert=count)
            new = replace(run, parallelism=changed)
            yield Move(dimension="expert", choice=str(count), run=new)


def _split(
    run: Configuration, degrees: Parallelism, model: TransformerConfig
) -> tuple[int, ...] | None:
    """The stated split where it still has a part for each virtual stage, else an even one."""
    count = degrees.pipeline * degrees.virtual_stages
    if run.blocks_per_stage is None or len(run.blocks_per_stage) == count:
        return run.blocks_per_stage
    return even_blocks(model.num_layers, count)


def _with_axis(degrees: Parallelism, axis: str, count: int, data: int) -> Parallelism:
    match axis:
        case "tensor":
            sequence = count > 1 and (degrees.sequence_parallel or degrees.tensor == 1)
            return replace(degrees, tensor=count, data=data, sequence_parallel=sequence)
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


def _sequence(run: Configuration) -> Iterator[Move]:
    degrees = run.parallelism
    if degrees.tensor > 1 and not degrees.sequence_parallel:
        new = replace(run, parallelism=replace(degrees, sequence_parallel=True))
        yield Move(dimension="sequence", choice="parallel", run=new)


def _microbatches(run: Configuration) -> Iterator[Move]:
    for size in _doubled_and_halved(run.microbatch_size, 32):
        new = replace(run, microbatch_size=size)
        yield Move(dimension="microbatch", choice=str(size), run=new)


def _sharding(run: Configuration) -> Iterator[Move]:
    for stage in range(4):
        if stage != run.parallelism.zero_stage:
            copies = run.parallelism.state_copies if stage else 1
            sharded = replace(run.parallelism, zero_stage=stage, state_copies=copies)
            new = replace(run, parallelism=sharded)
            yield Move(dimension="zero", choice=str(stage), run=new)
    for copies in _doubled_and_halved(run.parallelism.state_copies, run.parallelism.data):
        new = replace(run, parallelism=replace(run.parallelism, state_copies=copies))
        yield Move(dimension="copies", choice=str(copies), run=new)


def _mappings(run: Configuration) -> Iterator[Move]:
    degrees = run.parallelism
    if min(degrees.pipeline, degrees.data) == 1:
        return
    for order in AXIS_ORDERS:
        if order != degrees.axis_order:
            new = replace(run, parallelism=replace(degrees, axis_order=order))
            yield Move(dimension="mapping", choice=mapping_name(order), run=new)


def _recompute(run: Configuration) -> Iterator[Move]:
    found: dict[str, Configuration] = {
        mode.value: replace(run, recompute=mode, recompute_blocks=None) for mode in Recompute
    }
    for count in _FIRST_BLOCKS:
        found[f"full:{count}"] = replace(run, recompute=Recompute.FULL, recompute_blocks=count)
    for text, new in found.items():
        if new != run:
            yield Move(dimension="recompute", choice=text, run=new)


def _schedules(run: Configuration, model: TransformerConfig) -> Iterator[Move]:
    degrees = run.parallelism
    if degrees.pipeline == 1:
        return
    offered = [(name, 2 if name in _V else 1) for name in _FAMILIES]
    offered += [("interleaved", chunks) for chunks in _CHUNKS]
    for name, chunks in offered:
        if (name, chunks) == (run.schedule, degrees.virtual_stages):
            continue
        chunked = replace(degrees, virtual_stages=chunks)
        split = _split(run, chunked, model)
        new = replace(run, schedule=name, parallelism=chunked, blocks_per_stage=split)
        yield Move(dimension="schedule", choice=f"{name} {chunks}", run=new)


def _kernels(run: Configuration) -> Iterator[Move]:
    if not run.fused_attention:
        new = replace(run, fused_attention=True)
        yield Move(dimension="attention", choice="fused", run=new)
    if not run.fused_cross_entropy:
        new = replace(run, fused_cross_entropy=True)
        yield Move(dimension="cross entropy", choice="fused", run=new)
