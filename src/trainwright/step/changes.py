"""What would make a run fit that does not: single changes of it, each priced, cheapest first.

Model and batch stay; devices are added as a last resort. A family of changes (ever smaller
microbatches, ever more blocks recomputed) stops at the first that is enough.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Final

from trainwright.errors import InvalidInput
from trainwright.model import NO_OFFLOAD
from trainwright.plans.configuration import even_blocks
from trainwright.profile import Recompute
from trainwright.step.predict import price_configuration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trainwright.cluster import Cluster
    from trainwright.plans import StepPrediction
    from trainwright.plans.configuration import Configuration
    from trainwright.profile.measured_model import Trained

    Attempts = Iterable[tuple[str, str, Configuration]]


_MOST_DEVICES: Final = 64  # times those of the run


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Options as on the command line, what they mean, and the run with them, priced."""

    options: str
    description: str
    configuration: Configuration
    step: StepPrediction

    @property
    def device_s(self) -> float:
        """What a step costs: seconds times devices."""
        return self.step.step_time_s * self.configuration.parallelism.num_devices


def changes_that_fit(
    model: Trained,
    cluster: Cluster,
    configuration: Configuration,
    fits: Callable[[Configuration, StepPrediction], bool],
    *,
    wanted: Callable[[Configuration], bool] = lambda _: True,
) -> tuple[Change, ...]:
    """Each wanted change that alone is enough, by device time of a step; empty where none is.

    What two families come to alike is named once.
    """
    found: list[Change] = []
    for attempts in _families(configuration, cluster, model):
        for options, description, changed in attempts:
            try:
                step = price_configuration(model, _grown(cluster, changed), changed)
            except InvalidInput:  # the model, the schedule or the network does not allow it
                continue
            if fits(changed, step) and wanted(changed):
                if any(changed == each.configuration for each in found):
                    break
                found.append(
                    Change(
                        options=options,
                        description=description,
                        configuration=changed,
                        step=step,
                    )
                )
                break
    return tuple(sorted(found, key=lambda change: change.device_s))


def _grown(cluster: Cluster, run: Configuration) -> Cluster:
    """The cluster with as many nodes as the run needs."""
    needed, pool = run.parallelism.num_devices, cluster.pool_of()
    if needed <= pool.num_devices:
        return cluster
    return cluster.with_nodes(-(-needed // pool.devices_per_node))


def _families(run: Configuration, cluster: Cluster, model: Trained) -> Iterator[Attempts]:
    smaller, more = _smaller_microbatches(run), _more_recompute(run, model.num_layers)
    steps = list(_leanest_steps(run))
    sharded = _sharded_and_lean(run, steps)
    if len(steps) == 1:  # the other is there already: only where this one alone is too little
        yield chain(smaller, more, sharded)
    else:
        yield from (smaller, more, sharded)
    yield _more_sharding(run)
    yield _more_of("tensor", "tp", run, cluster)
    yield _more_of("pipeline", "pp", run, cluster)
    yield _more_of("context", "cp", run, cluster)
    yield _leaner_kernels(run)
    yield _in_pieces(run)
    if cluster.accelerator.host is not None:
        yield _to_the_host(run)
    if model.experts is not None:
        yield _more_expert_parallel(run, model.experts.num_experts)
    yield _more_devices(run, cluster)
    yield _more_replicas(run, cluster)


def _leanest_steps(run: Configuration) -> Iterator[tuple[str, str]]:
    """Options and words of what the run lacks to hold the fewest activations."""
    if run.microbatch_size > 1:
        yield "--micro-batch 1", "microbatches of 1"
    if run.recompute is not Recompute.FULL or run.recompute_blocks is not None:
        yield "--recompute full", "recompute every block"


def _sharded_and_lean(
    run: Configuration, steps: Sequence[tuple[str, str]]
) -> Iterator[tuple[str, str, Configuration]]:
    """All of these steps together, if they are several, then with more sharding too."""
    if not steps:
        return
    lean = replace(run, microbatch_size=1, recompute=Recompute.FULL, recompute_blocks=None)
    flags, words = " ".join(flag for flag, _ in steps), ", ".join(word for _, word in steps)
    if len(steps) > 1:
        yield flags, words, lean
    for options, description, changed in _more_sharding(lean):
        yield f"{flags} {options}", f"{description}, {words}", changed


def _smaller_microbatches(run: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    size = run.microbatch_size
    while size > 1:
        size = next(s for s in range(size - 1, 0, -1) if run.microbatch_size % s == 0)
        changed = replace(run, microbatch_size=size)
        yield f"--micro-batch {size}", f"{size} sequences per microbatch", changed


def _more_recompute(
    run: Configuration, num_blocks: int
) -> Iterator[tuple[str, str, Configuration]]:
    if run.recompute is Recompute.NONE:
        changed = replace(run, recompute=Recompute.SELECTIVE, recompute_blocks=None)
        yield "--recompute selective", "recompute cheap operators", changed
    full = replace(run, recompute=Recompute.FULL, recompute_blocks=None)
    whole = run.recompute is Recompute.FULL and run.recompute_blocks is None
    largest = max(run.blocks_per_stage or even_blocks(num_blocks, run.num_stages))
    for blocks in () if whole else (1, 2, 4, 8, 16, 32, 64):
        if blocks >= largest:
            break
        changed = replace(full, recompute_blocks=blocks)
        yield f"--recompute full:{blocks}", f"recompute {blocks} blocks of each stage", changed
    if not whole:
        yield "--recompute full", "recompute every block", full


def _more_sharding(run: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    degrees = run.parallelism
    for stage in range(degrees.zero_stage + 1, 4):
        changed = replace(run, parallelism=replace(degrees, zero_stage=stage))
        yield f"--zero {stage}", f"ZeRO stage {stage}", changed
    if degrees.state_copies > 1:
        changed = replace(run, parallelism=replace(degrees, state_copies=1))
        yield "--state-copies 1", "one copy of sharded state", changed


def _more_of(
    axis: str, flag: str, run: Configuration, cluster: Cluster
) -> Iterator[tuple[str, str, Configuration]]:
    """Twice as much of an axis, four times, …, in exchange for replicas."""
    degrees, factor = run.parallelism, 2
    node = cluster.pool_of().devices_per_node
    while degrees.data % factor == 0 and run.blocks_per_stage is None:
        count = getattr(degrees, axis) * factor
        if axis == "tensor" and count > node:
            return
        data = degrees.data // factor
        more = {axis: count, "data": data}
        if axis == "tensor":
            more["sequence_parallel"] = True
        changed = replace(run, parallelism=replace(degrees, **more))
        yield f"--{flag} {count} --dp {data}", f"{axis} {count}, data {data}", changed
        factor *= 2


def _more_expert_parallel(
    run: Configuration, num_experts: int
) -> Iterator[tuple[str, str, Configuration]]:
    """Experts over twice as many devices, four times, …, of those that share a rank's data."""
    degrees, count = run.parallelism, 2 * run.parallelism.expert
    while count <= num_experts:
        changed = replace(run, parallelism=replace(degrees, expert=count))
        yield f"--ep {count}", f"expert parallel {count}", changed
        count *= 2


def _more_replicas(
    run: Configuration, cluster: Cluster
) -> Iterator[tuple[str, str, Configuration]]:
    """Twice as many replicas that share all state, four times, …, where there is no pipeline."""
    degrees, factor = run.parallelism, 2
    while factor <= _MOST_DEVICES and degrees.pipeline == 1:
        data = degrees.data * factor
        changed = replace(run, parallelism=replace(degrees, data=data, zero_stage=3))
        devices = changed.parallelism.num_devices
        nodes = -(-devices // cluster.pool_of().devices_per_node)
        yield (
            f"--dp {data} --zero 3 --nodes {nodes}",
            f"{data} replicas, {devices} devices",
            changed,
        )
        factor *= 2


def _more_devices(run: Configuration, cluster: Cluster) -> Iterator[tuple[str, str, Configuration]]:
    """Twice as many pipeline ranks, four times, …, on as many more devices; the batch stays."""
    degrees, factor = run.parallelism, 2
    while factor <= _MOST_DEVICES and run.blocks_per_stage is None:
        count = degrees.pipeline * factor
        changed = replace(run, parallelism=replace(degrees, pipeline=count))
        devices = changed.parallelism.num_devices
        nodes = -(-devices // cluster.pool_of().devices_per_node)
        options = f"--pp {count} --dp {degrees.data} --nodes {nodes}"
        yield options, f"{count} pipeline ranks, {devices} devices", changed
        factor *= 2


_LOSS_CHUNK: Final = 1024  # tokens: enough for a product to fill a device
_MLP_TILE: Final = 8192


def _in_pieces(run: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    """Loss and feed-forward parts over some of the tokens at a time."""
    if run.recipe.loss_chunk is None:
        run = replace(run, recipe=replace(run.recipe, loss_chunk=_LOSS_CHUNK))
        yield f"--loss-chunk {_LOSS_CHUNK}", "logits of some tokens at a time", run
    if run.recipe.mlp_tile is None:
        tiled = replace(run, recipe=replace(run.recipe, mlp_tile=_MLP_TILE))
        more = f"--loss-chunk {_LOSS_CHUNK} --mlp-tile {_MLP_TILE}"
        yield more, "logits and feed-forward parts of some tokens at a time", tiled


def _to_the_host(run: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    """The states of the optimizer, what blocks keep, or both in the memory of the host."""
    now = run.recipe.offload or NO_OFFLOAD
    states = replace(now, optimizer=1.0, gradients=1.0)
    flags = "--offload optimizer=1 --offload gradients=1"
    for words, flag, there in (
        ("optimizer states and gradients", flags, states),
        ("activations", "--offload activations=1", replace(now, activations=1.0)),
        ("all of these", f"{flags} --offload activations=1", replace(states, activations=1.0)),
    ):
        if there != now:
            changed = replace(run, recipe=replace(run.recipe, offload=there))
            yield flag, f"{words} on the host", changed


def _leaner_kernels(run: Configuration) -> Iterator[tuple[str, str, Configuration]]:
    if not run.fused_attention:
        yield "--flash-attention", "fused attention", replace(run, fused_attention=True)
    if not run.fused_cross_entropy:
        changed = replace(run, fused_cross_entropy=True)
        yield "--fused-cross-entropy", "fused cross entropy", changed
