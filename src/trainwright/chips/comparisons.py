"""Published strategies ("experts"), priced on a design beside its optimum.

A strategy is a depth, a data and a tensor degree; its blocks are dealt out evenly, ⌈L/p⌉ to a stage
as far as they last, the layers before them go to the first stage and those behind to the last. The
table is PHAZE's (Wang et al., ICML 2024), after the papers of the models.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright._native._core import one_f_one_b_ends_s
from trainwright.chips.design_times import LayerTimes
from trainwright.chips.plans import UniformPlan, fastest_plans
from trainwright.chips.technology import surroundings_in
from trainwright.chips.workload import RULES, Replication, tensor_hops
from trainwright.costing.layer import Platform, price_layer
from trainwright.model import Phase, precision_named
from trainwright.model.config import LayerKind
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.arrays import Floats
    from trainwright.chips.workload import Chain, TrainingJob
    from trainwright.cluster import Accelerator, Pool, Surroundings


@dataclass(frozen=True, slots=True, kw_only=True)
class Strategy:
    """Pipeline depth, data and tensor degree."""

    pipeline: int
    data: int
    tensor: int

    @property
    def num_devices(self) -> int:
        """Devices it asks for."""
        return self.pipeline * self.data * self.tensor


EXPERTS: Final = {
    "opt-350m": Strategy(pipeline=12, data=85, tensor=1),
    "bert-large": Strategy(pipeline=8, data=128, tensor=1),
    "gpt2-xl": Strategy(pipeline=32, data=32, tensor=1),
    "megatron-gpt2-2.5b": Strategy(pipeline=8, data=32, tensor=4),
    "megatron-gpt2-8.3b": Strategy(pipeline=8, data=16, tensor=8),
    "gpt3-175b": Strategy(pipeline=32, data=8, tensor=4),
    "llama2-7b": Strategy(pipeline=8, data=128, tensor=1),
}


def even_starts(chain: Chain, depth: int) -> tuple[int, ...]:
    """First layer of each stage; stages that no block is left for do not exist."""
    blocks = [i for i, kind in enumerate(chain.graph.kinds) if kind is LayerKind.BLOCK]
    size = math.ceil(len(blocks) / depth)
    return (0, *(blocks[k] for k in range(size, len(blocks), size)))


def expert_plan(
    chain: Chain,
    times: LayerTimes,
    strategy: Strategy,
    *,
    job: TrainingJob,
    surroundings: Surroundings,
) -> UniformPlan | None:
    """The strategy on the one design of `times`, at its faster recompute mode; None: out of memory.

    Replicas that the microbatches do not divide over take the larger share.
    """
    starts = even_starts(chain, strategy.pipeline)
    m = math.ceil(job.num_microbatches / strategy.data)
    replication = Replication.over(strategy.data, surroundings)
    transfers_s = chain.transfer_s(surroundings)
    best: UniformPlan | None = None
    for option, mode in enumerate(chain.recompute):
        if not _fits(chain, option, starts, replication, m, surroundings.memory_bytes):
            continue
        step_s = _step_s(chain, times, option, starts, replication, m, transfers_s)
        if best is None or step_s < best.step_s:
            best = UniformPlan(
                step_s=step_s,
                tensor_degree=strategy.tensor,
                data_degree=strategy.data,
                recompute=(Recompute(mode),) * len(starts),
                starts=starts,
            )
    return best


def _fits(
    chain: Chain,
    option: int,
    starts: tuple[int, ...],
    replication: Replication,
    m: int,
    memory_bytes: float,
) -> bool:
    for rank, stage in enumerate(np.split(chain.layer_class, starts[1:])):
        in_flight = min(len(starts) - rank, m)
        held = (
            replication.beside_bytes
            + replication.layer_bytes(chain.static_bytes)[stage].sum()
            + in_flight * chain.saved_bytes[option, stage].sum()
            + chain.transient_bytes[option, stage].max()
        )
        if held > memory_bytes:
            return False
    return True


def _step_s(
    chain: Chain,
    times: LayerTimes,
    option: int,
    starts: tuple[int, ...],
    replication: Replication,
    m: int,
    transfers_s: Floats,
) -> float:
    stages = np.split(chain.layer_class, starts[1:])
    count = len(stages)
    forward_s = np.array([times.forward_s[0, stage].sum() for stage in stages])
    backward_s = np.array([times.backward_s[0, option, stage].sum() for stage in stages])
    ends_s = one_f_one_b_ends_s(
        forward_s=forward_s,
        backward_s=backward_s,
        in_flight=np.array([min(count - i, m) for i in range(count)], dtype=np.int64),
        replicas=np.ones(count, dtype=np.int64),
        feed_offset=np.array([min(i, count - 1) for i in range(count + 1)], dtype=np.int64),
        feed_target=np.arange(1, count, dtype=np.int32),
        feed_s=np.array([transfers_s[start - 1] for start in starts[1:]]),
        num_microbatches=m,
    )
    sync_bytes = np.array([chain.sync_bytes[stage].sum() for stage in stages])
    update_s = np.array([times.update_s[0, stage].sum() for stage in stages])
    exposed_s = replication.exposed_s(sync_bytes, forward_s, backward_s)
    return float((ends_s + exposed_s + update_s / replication.update_parts).max())


# Chips of the catalog on the same models, network and number of devices, in the same units
# -----------------------------------------------------------------------------------------
# A real chip's layers are priced by the roofline that `estimate` uses, with the constants expected
# of it; plans are sought as for a template, which loses what a device without runs of its own does.


def real_chip_plan(
    pool: Pool, job: TrainingJob, *, links: Surroundings, num_devices: int
) -> UniformPlan | None:
    """The fastest uniform plan of a model on `num_devices` real chips; None: it does not fit.

    `pool` is what `device_as_run` makes of the chip in the network of `links`.
    """
    device, surroundings = pool.accelerator, surroundings_in(pool, links)
    best: UniformPlan | None = None
    for degree in sorted(set(job.tensor_degrees)):
        if degree > num_devices:
            continue
        chain = job.chain(degree, precision=precision_named(device.default_precision))
        (found,) = fastest_plans(
            chain,
            real_times(device, chain, surroundings),
            job=job,
            surroundings=surroundings,
            num_devices=num_devices,
            cutoff_s=np.array([np.inf if best is None else best.step_s]),
        )
        best = found or best
    return best


def real_times(device: Accelerator, chain: Chain, surroundings: Surroundings) -> LayerTimes:
    """Layers of a chain on a real chip, as those of one design."""
    hops = tensor_hops(surroundings, chain.tensor_degree)
    platform = Platform(
        accelerator=device,
        dtype=device.default_precision,
        hops=dict.fromkeys(("tensor", "expert_tensor"), hops) | {"expert": (), "context": ()},
    )
    rules = {mode: RULES[mode] for mode in chain.recompute}
    forward = np.zeros((1, len(chain.kernels)))
    backward = np.zeros((1, len(chain.recompute), len(chain.kernels)))
    weight_grad = np.zeros((1, len(chain.kernels)))
    for index, layer in enumerate(chain.graph.classes):
        prices = {p.recompute: p for p in price_layer(layer, chain.graph.run, rules, platform)}
        for option, mode in enumerate(chain.recompute):
            repeated = mode is Recompute.FULL and chain.repeats[index]
            phase_s = prices[mode].phase_s
            forward[0, index] = phase_s[Phase.FORWARD]
            weight_grad[0, index] = phase_s[Phase.WEIGHT_GRAD]
            backward[0, option, index] = phase_s[Phase.INPUT_GRAD] + phase_s[Phase.WEIGHT_GRAD]
            backward[0, option, index] += phase_s[Phase.RECOMPUTE] if repeated else 0.0
    pace = surroundings.memory_bandwidth_bytes_per_s * surroundings.efficiency.memory.max
    return LayerTimes(
        forward_s=forward,
        backward_s=backward,
        weight_grad_s=weight_grad,
        update_s=(chain.update_bytes / pace)[None, :],
    )
