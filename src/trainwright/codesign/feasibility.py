"""Why no design holds a plan: what fits does not depend on cores, only on memory and devices."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.units import format_bytes

if TYPE_CHECKING:
    from trainwright.codesign.question import CodesignQuestion
    from trainwright.codesign.workload import Chain


def least_bytes(chain: Chain, num_devices: int) -> float:
    """No plan on that many devices keeps less on its fullest device.

    Everything that is static, optimizer states spread over all devices, and one microbatch's
    activations at the option that keeps least, dealt out evenly; or the largest single layer.
    """
    counts = chain.class_counts
    saved = chain.saved_bytes.min(axis=0)
    stages = max(1, num_devices // chain.tensor_degree)
    spread = float((chain.static_bytes + saved) @ counts) / min(stages, int(counts.sum()))
    sharded = float(chain.sharded_bytes @ counts) / stages
    transient = chain.transient_bytes.min(axis=0)
    single = float((chain.static_bytes + chain.sharded_bytes / stages + saved + transient).max())
    return max(spread + sharded, single)


def why_infeasible(question: CodesignQuestion) -> str:
    """The first model that fits nowhere, with what it lacks; else the power limit."""
    for variant in question.variants:
        memory = variant.surroundings.memory_bytes
        for job in question.jobs_of(variant):
            degrees = [t for t in job.tensor_degrees if t <= question.num_devices]
            needed = min(least_bytes(job.chain(t), question.num_devices) for t in degrees)
            if needed > memory:
                return (
                    f"{job.name} needs at least {format_bytes(needed)} on a device of "
                    f"{format_bytes(memory)}, {format_bytes(needed - memory)} more"
                )
    if question.max_power_watts is not None:
        return f"no design that holds the models stays within {question.max_power_watts:g} W"
    return "no uniform plan fits the memory of the devices"
