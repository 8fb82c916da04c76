"""The fastest uniform plans of a chain on many designs, by the native kernel.

A uniform plan has one tensor degree t, d replicas and p ranks on p·t·d devices. Under 1F1B all
stages recompute alike, or each takes the quickest choice that fits it; the cut makes the longest
stage as short as memory allows. The schedule is run action by action; optimizer states are sharded
over the replicas (ZeRO 1); gradients are synchronised after a rank's last backward. The recurrence
is in `native/uniform_plan.hpp`; `family_plans` tries other schedules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from trainwright._native._core import UniformProblem, fastest_uniform_plans
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from trainwright.cluster import Surroundings
    from trainwright.codesign.design_times import LayerTimes
    from trainwright.codesign.workload import Chain, TrainingJob

IN_V: Final = ("v-half", "v-min")


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformPlan:
    """One plan; `starts` is the first layer of each stage, `recompute` what each does."""

    step_s: float
    tensor_degree: int
    data_degree: int
    recompute: tuple[Recompute, ...]
    starts: tuple[int, ...]
    schedule: str = "1f1b"

    @property
    def num_chunks(self) -> int:
        """Stages of a rank: 2 in V, where rank r of p owns stages r and 2p-1-r."""
        return 2 if self.schedule in IN_V else 1

    @property
    def num_ranks(self) -> int:
        """Pipeline depth."""
        return len(self.starts) // self.num_chunks

    @property
    def crossed_cuts(self) -> tuple[int, ...]:
        """First layers of the stages whose input comes from another rank."""
        turn = self.num_ranks if self.num_chunks == 2 else 0
        return tuple(start for stage, start in enumerate(self.starts) if stage not in (0, turn))

    @property
    def recompute_name(self) -> str:
        """What all stages do, or "mixed"."""
        return str(self.recompute[0]) if len(set(self.recompute)) == 1 else "mixed"

    def stages(self, num_layers: int) -> tuple[range, ...]:
        """The layers of each stage."""
        ends = (*self.starts[1:], num_layers)
        return tuple(range(start, end) for start, end in zip(self.starts, ends, strict=True))

    @property
    def num_devices(self) -> int:
        """Devices that the plan uses."""
        return self.num_ranks * self.tensor_degree * self.data_degree


def fastest_plans(
    chain: Chain,
    times: LayerTimes,
    *,
    job: TrainingJob,
    surroundings: Surroundings,
    num_devices: int,
    cutoff_s: NDArray[np.float64],
) -> list[UniformPlan | None]:
    """The fastest plan of each design below its cutoff; None where nothing fits, or none is."""
    count = cutoff_s.size
    step_s, degree, starts, options = fastest_uniform_plans(
        problem_of(chain, job=job, surroundings=surroundings, num_devices=num_devices),
        forward_s=times.forward_s,
        backward_s=np.ascontiguousarray(times.backward_s.reshape(count, -1)),
        update_s=times.update_s,
        cutoff_s=np.ascontiguousarray(cutoff_s),
    )
    return [
        UniformPlan(
            step_s=float(step_s[i]),
            tensor_degree=chain.tensor_degree,
            data_degree=int(degree[i]),
            recompute=tuple(chain.recompute[option] for option in options[i]),
            starts=tuple(starts[i]),
        )
        if np.isfinite(step_s[i])
        else None
        for i in range(count)
    ]


def problem_of(
    chain: Chain, *, job: TrainingJob, surroundings: Surroundings, num_devices: int
) -> UniformProblem:
    """The chain as the kernel reads it."""
    return UniformProblem(
        layer_class=chain.layer_class,
        transfer_s=chain.transfer_s(surroundings),
        saved_bytes=chain.saved_bytes.ravel(),
        transient_bytes=chain.transient_bytes.ravel(),
        static_bytes=chain.static_bytes,
        sharded_bytes=chain.sharded_bytes,
        sync_bytes=chain.sync_bytes,
        data_degrees=job.data_degrees,
        memory_bytes=surroundings.memory_bytes,
        link_byte_s=1.0 / surroundings.link_bandwidth_bytes_per_s,
        link_latency_s=surroundings.link_latency_s,
        sync_overlap=surroundings.gradient_overlap,
        update_shards=True,
        tensor_degree=chain.tensor_degree,
        num_devices=num_devices,
        num_microbatches=job.num_microbatches,
    )


def work_bounds_s(
    chain: Chain, times: LayerTimes, *, job: TrainingJob, num_devices: int
) -> NDArray[np.float64]:
    """No plan of a design is faster: the devices share the work of all microbatches evenly.

    p·d·t devices run N/d microbatches whose longest stage has at least 1/p of the work W of the
    chain, so a step takes N·t·W/D at least, of the option with the least work.
    """
    per_class = times.forward_s[:, None, :] + times.backward_s
    work_s = (per_class * chain.class_counts).sum(axis=2).min(axis=1)
    bounds: NDArray[np.float64] = job.num_microbatches * chain.tensor_degree * work_s / num_devices
    return bounds
