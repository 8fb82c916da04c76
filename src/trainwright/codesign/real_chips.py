"""Chips of the catalog on the same models, network and number of devices, in the same units.

A real chip's layers are priced by the roofline that `estimate` uses, with its fitted or assumed
efficiencies; plans are sought as for a template. So a comparison is between a chip as it was
measured and a template as it is modelled: the template's figures have no host, no imperfect
kernels.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trainwright.cluster import Surroundings
from trainwright.codesign.design_times import LayerTimes
from trainwright.codesign.uniform import fastest_plans
from trainwright.codesign.workload import RULES, tensor_hops
from trainwright.costing.layer import Platform, price_layer
from trainwright.model import Phase, precision_named
from trainwright.profile import Recompute

if TYPE_CHECKING:
    from trainwright.cluster import Accelerator
    from trainwright.codesign.uniform import UniformPlan
    from trainwright.codesign.workload import Chain, TrainingJob


def surroundings_of(device: Accelerator, links: Surroundings) -> Surroundings:
    """The memory of a real chip, with the network of `links`."""
    return replace(
        links,
        memory_bytes=device.usable_bytes,
        memory_bandwidth_bytes_per_s=device.memory_bandwidth_bytes_per_s,
        memory_efficiency=device.efficiency.memory,
        launch_s=device.launch_overhead_s,
    )


def real_chip_plan(
    device: Accelerator, job: TrainingJob, *, links: Surroundings, num_devices: int
) -> UniformPlan | None:
    """The fastest uniform plan of a model on `num_devices` real chips; None: it does not fit."""
    surroundings = surroundings_of(device, links)
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
    pace = surroundings.memory_bandwidth_bytes_per_s * surroundings.memory_efficiency.max
    return LayerTimes(
        forward_s=forward,
        backward_s=backward,
        weight_grad_s=weight_grad,
        update_s=(chain.update_bytes / pace)[None, :],
    )
