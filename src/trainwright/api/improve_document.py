"""The document of `improve`, from a run and what was found around it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from trainwright.api.improve_plan import PricedPlan
    from trainwright.cluster import Cluster
    from trainwright.model import TransformerConfig
    from trainwright.plan import StepPrediction
    from trainwright.plan.results.improvement import ImprovementRecord, ImprovementResult
    from trainwright.plan.results.model_estimate import ModelEstimateRequest, PricedChange
    from trainwright.planning.improve import Improvement

_HAIR = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """A run, priced, changes of it, the best plan and what no plan is faster than.

    All changes and the plan fit. `bound_s` is 0 where nothing is known. `tried_all` says that all
    changes of one or two decisions were priced.
    """

    model: TransformerConfig
    cluster: Cluster
    request: ModelEstimateRequest
    framework: str | None
    step: StepPrediction
    changes: tuple[Improvement, ...]
    plan: PricedPlan | None
    bound_s: float
    tried_all: bool = False
    warnings: tuple[str, ...] = ()

    def helps(self, change: Improvement) -> bool:
        """Whether a change that fits is faster than the run, where the run fits too."""
        return not self.fits(self.step) or change.step.step_time_s < self.step.step_time_s

    def fits(self, step: StepPrediction) -> bool:
        """Whether a device has room for the step, by the rule of `estimate`."""
        needed_bytes = self.request.configuration.overheads.needed_bytes(step.peak_memory_bytes)
        return needed_bytes <= self.cluster.accelerator.usable_bytes


def document_of(found: Surroundings) -> ImprovementResult:
    """What the parts say of each other; a plan that something else beats is left out."""
    from trainwright.api.improve_plan import record_of
    from trainwright.plan.results.export import PricedLayout
    from trainwright.plan.results.improvement import ImprovementResult
    from trainwright.planning.improve import recommended, worth_listing

    step = found.step
    run_fits = found.fits(step)
    base_s = step.step_time_s if run_fits else None
    changes = worth_listing(filter(found.helps, found.changes))
    others_s = min((each.step.step_time_s for each in changes), default=base_s or math.inf)
    plan = _unbeaten(found.plan, others_s)
    best_s = min(others_s, math.inf if plan is None else plan.step.step_time_s)
    chosen = recommended(changes, base_s=base_s, best_s=best_s)

    def record(each: Improvement) -> ImprovementRecord:
        return _record(each, step.step_time_s, best_s if run_fits else None)

    return ImprovementResult(
        framework=found.framework,
        run=PricedLayout(step_time_s=step.step_time_s, peak_memory_bytes=step.peak_memory_bytes),
        run_fits=run_fits,
        memory_limit_bytes=found.cluster.accelerator.usable_bytes,
        best_known_s=best_s if math.isfinite(best_s) else None,
        lower_bound_s=_bound_s(found, best_s),
        best_plan=None if plan is None else record_of(plan, base_s=step.step_time_s),
        recommended=None if chosen is None else record(chosen),
        changes=tuple(map(record, changes)),
        tried_all=found.tried_all,
        enough=() if math.isfinite(best_s) else _enough(found),
        warnings=found.warnings,
        assumptions=_assumptions(found),
        request=found.request,
    )


def _enough(found: Surroundings) -> tuple[PricedChange, ...]:
    """What would make the run fit where nothing on its devices does."""
    from trainwright.api.estimate_model import changes_enough

    run, target = found.request.configuration, found.framework
    return changes_enough(found.model, found.cluster, run, found.step, framework=target)


def _unbeaten(plan: PricedPlan | None, others_s: float) -> PricedPlan | None:
    if plan is None or plan.step.step_time_s > others_s * _HAIR:
        return None
    return plan


def _bound_s(found: Surroundings, best_s: float) -> float | None:
    """The bound where it is one on all that is compared, the run among it."""
    from trainwright.api.improve_plan import not_taken_over

    if any(not_taken_over(found.request.configuration)):
        return None
    return found.bound_s if 0 < found.bound_s <= best_s * _HAIR else None


def _record(each: Improvement, base_s: float, best_s: float | None) -> ImprovementRecord:
    """A change; its share of the gain where there is one to share."""
    from trainwright.plan.results.improvement import ImprovementRecord

    step_s = each.step.step_time_s
    return ImprovementRecord(
        dimensions=each.dimensions,
        options=each.options,
        step_time_s=step_s,
        peak_memory_bytes=each.step.peak_memory_bytes,
        speedup=base_s / step_s,
        gain_share=None if best_s is None else (base_s - step_s) / (base_s - best_s),
    )


def _assumptions(found: Surroundings) -> dict[str, str]:
    """Where the times, sizes and bounds come from."""
    from trainwright.api.estimate_model import assumptions_of
    from trainwright.pricing.interval import time_range

    run, pool = found.request.configuration, found.cluster.pool_of()
    spread = time_range(found.model, found.cluster, run)
    peaks = pool.accelerator.provenance_of("peak_flops_per_s")
    usable = pool.accelerator.provenance_of("usable_fraction")
    said = assumptions_of(found.cluster, run, spread.source)
    return {
        **said,
        "peak rates": f"{peaks.origin}: {peaks.source}",
        "network": "; ".join(map(_network_origin, pool.levels)),
        "range": f"nine of ten measured steps take {spread.low_ratio:.2f} to "
        f"{spread.high_ratio:.2f} of what is predicted for the run ({spread.source})",
        "memory": f"{said['memory']} ({usable.origin}: {usable.source})",
        "changes": "each is priced as estimate prices the run with its options; they change one "
        "decision or two",
        "best plan": "searched with the run's number formats, optimizer, kernels, overlap and "
        "memory overheads, its schedule simulated",
    }


def _network_origin(level: object) -> str:
    from trainwright.cluster import NetworkLevel
    from trainwright.provenance import Origin

    assert isinstance(level, NetworkLevel)
    sources = dict(level.sources)
    origins = {
        name: str(sources[field].origin if field in sources else Origin.ASSUMED)
        for name, field in (("bandwidth", "bandwidth_bytes_per_s"), ("efficiency", "efficiency"))
    }
    words = ", ".join(f"{name} {origin}" for name, origin in origins.items())
    return f"{level.name}: {words}"
