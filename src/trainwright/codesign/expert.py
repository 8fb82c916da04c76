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
from trainwright.codesign.uniform import UniformPlan
from trainwright.model.layer_kind import LayerKind
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.cluster import Surroundings
    from trainwright.codesign.design_times import LayerTimes
    from trainwright.codesign.workload import Chain, TrainingJob


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
    best: UniformPlan | None = None
    for option, mode in enumerate(chain.recompute):
        if not _fits(chain, option, starts, strategy, m, surroundings):
            continue
        step_s = _step_s(chain, times, option, starts, strategy, m, surroundings)
        if best is None or step_s < best.step_s:
            best = UniformPlan(
                step_s=step_s,
                tensor_degree=strategy.tensor,
                data_degree=strategy.data,
                recompute=(Recompute(mode),) * len(starts),
                starts=starts,
            )
    return best


def stage_sizes(chain: Chain, depth: int) -> tuple[int, ...]:
    """Layers of each stage of an even cut."""
    starts = even_starts(chain, depth)
    ends = (*starts[1:], len(chain.graph.layers))
    return tuple(end - start for start, end in zip(starts, ends, strict=True))


def _fits(
    chain: Chain,
    option: int,
    starts: tuple[int, ...],
    strategy: Strategy,
    m: int,
    surroundings: Surroundings,
) -> bool:
    classes = chain.layer_class
    for rank, stage in enumerate(np.split(classes, starts[1:])):
        in_flight = min(len(starts) - rank, m)
        held = (
            chain.static_bytes[stage].sum()
            + chain.sharded_bytes[stage].sum() / strategy.data
            + in_flight * chain.saved_bytes[option, stage].sum()
            + chain.transient_bytes[option, stage].max()
        )
        if held > surroundings.memory_bytes:
            return False
    return True


def _step_s(
    chain: Chain,
    times: LayerTimes,
    option: int,
    starts: tuple[int, ...],
    strategy: Strategy,
    m: int,
    surroundings: Surroundings,
) -> float:
    stages = np.split(chain.layer_class, starts[1:])
    count = len(stages)
    transfers = chain.transfer_s(surroundings)
    ends = one_f_one_b_ends_s(
        forward_s=np.array([times.forward_s[0, stage].sum() for stage in stages]),
        backward_s=np.array([times.backward_s[0, option, stage].sum() for stage in stages]),
        in_flight=np.array([min(count - i, m) for i in range(count)], dtype=np.int64),
        replicas=np.ones(count, dtype=np.int64),
        feed_offset=np.array([min(i, count - 1) for i in range(count + 1)], dtype=np.int64),
        feed_target=np.arange(1, count, dtype=np.int32),
        feed_s=np.array([transfers[start - 1] for start in starts[1:]]),
        num_microbatches=m,
    )
    d = strategy.data
    hops = 2 * (d - 1) if d > 1 else 0
    sync = np.array([chain.sync_bytes[stage].sum() for stage in stages])
    update = np.array([times.update_s[0, stage].sum() for stage in stages]) / d
    byte_s = 1.0 / surroundings.link_bandwidth_bytes_per_s
    backward = np.array([times.backward_s[0, option, stage].sum() for stage in stages])
    sync_s = hops * surroundings.link_latency_s + hops / d * sync * byte_s
    after = np.maximum(sync_s - surroundings.gradient_overlap * backward, 0.0) + update
    return float((ends + after).max())
