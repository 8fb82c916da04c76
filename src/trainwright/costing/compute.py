"""How long an operator takes on one device: a roofline with efficiencies (Williams et al., 2009).

    time = launch overhead + max( FLOPs / (peak · e(FLOPs)), bytes / (bandwidth · e_m(bytes)) )

All efficiencies grow with size, which is that of the products that run at once where a kernel does
many (experts: four, the streams of Transformer Engine's grouped products); attention kernels have
one per direction. Kernels do not overlap. Where the host cannot start
kernels as fast as they run is settled per layer, in `layer`.
"""

from __future__ import annotations

from typing import Final

from trainwright.cluster import Accelerator, Saturating
from trainwright.model import Operator, OperatorKind, Phase, Work

_NARROW: Final = ("fp8", "fp4")
_PRODUCTS_AT_ONCE: Final = 4


def operator_time_s(
    operator: Operator, phase: Phase, *, accelerator: Accelerator, dtype: str
) -> float:
    """Seconds that one phase of `operator` takes; 0 where it has no work there.

    Raises `UnsupportedFeature` when the device does not multiply in `dtype`.
    """
    work = operator.work(phase)
    if not (work.flops or work.bytes):
        return 0.0
    compute_s = 0.0
    if work.flops:
        share = _compute_efficiency(operator, phase, work, accelerator)
        if dtype in _NARROW:
            share *= accelerator.efficiency.fp8_ratio
        compute_s = work.flops / (accelerator.peak(dtype) * share)
    return accelerator.launch_overhead_s + max(compute_s, memory_time_s(work.bytes, accelerator))


def memory_time_s(traffic_bytes: float, accelerator: Accelerator) -> float:
    """Seconds to move `traffic_bytes` of states between the device and its memory.

    On a chip that is described by its cores, the lanes that update them may take longer.
    """
    share = accelerator.efficiency.memory.at(traffic_bytes)
    moved_s = traffic_bytes / (accelerator.memory_bandwidth_bytes_per_s * share)
    if accelerator.cores is None:
        return moved_s
    return max(moved_s, traffic_bytes / accelerator.cores.update_bytes_per_s)


def _compute_efficiency(
    operator: Operator, phase: Phase, work: Work, accelerator: Accelerator
) -> float:
    efficiency = accelerator.efficiency
    if operator.kind is not OperatorKind.ATTENTION:
        products = 1 if operator.matrix is None else operator.matrix.matrices
        return efficiency.gemm.at(work.flops / max(1.0, products / _PRODUCTS_AT_ONCE))
    share = efficiency.attention_forward
    if phase is Phase.INPUT_GRAD:
        share = efficiency.attention_backward
    return Saturating(max=share, half=efficiency.attention_half_flops).at(work.flops)
