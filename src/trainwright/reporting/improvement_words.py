"""What the terminal and the page say alike of an improvement."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.plan.results.improvement import MOST_OF_IT
from trainwright.units import format_bytes

if TYPE_CHECKING:
    from trainwright.plan.results.improvement import (
        BestPlanRecord,
        ImprovementRecord,
        ImprovementResult,
    )


def needed_bytes(found: ImprovementResult, peak_bytes: float) -> float:
    """What a device must have usable for a run of that peak: what the limit is compared with."""
    return found.request.configuration.overheads.needed_bytes(peak_bytes)


def needed_line(found: ImprovementResult, peak_bytes: float) -> str:
    """What is compared, and what it is made of."""
    needed, limit = needed_bytes(found, peak_bytes), found.memory_limit_bytes
    parts = needed_parts(found, peak_bytes)
    return f"needs {format_bytes(needed)} of {format_bytes(limit)} usable: {parts}"


def needed_parts(found: ImprovementResult, peak_bytes: float) -> str:
    """What a device must have usable, by parts."""
    overheads = found.request.configuration.overheads
    parts = [f"a peak of {format_bytes(peak_bytes)}"]
    if overheads.fragmentation:
        parts.append(f"{overheads.fragmentation:.0%} fragmentation")
    if overheads.reserve_bytes:
        parts.append(f"{format_bytes(overheads.reserve_bytes)} kept free")
    return ", ".join(parts)


def verdict(found: ImprovementResult) -> str:
    """Whether the run fits, as words."""
    return "fits" if found.run_fits else "does not fit"


def speed(found: ImprovementResult, speedup: float) -> str:
    """A step against that of the run."""
    return f"{speedup - 1:+.1%} speed" if found.run_fits else slowdown(speedup)


def choice_title(found: ImprovementResult) -> str:
    """What the recommended change is."""
    chosen = found.recommended
    if not found.run_fits:
        return "best small change that makes it fit"
    if chosen is not None and _falls_short(found, chosen):
        return "fastest small change"
    return "smallest change with most of the gain"


def choice_gain(found: ImprovementResult, chosen: ImprovementRecord) -> str:
    """What the recommended change gains; where the run does not fit, how near the best it is."""
    if chosen.gain_share is not None:
        said = f"{chosen.speedup - 1:+.1%} speed, {chosen.gain_share:.0%} of the gain"
    else:
        of_best = f"{_share_of_best(found, chosen):.0%} of the best known speed"
        said = f"{slowdown(chosen.speedup)}, {of_best}"
    short = f" (none was found that reaches {MOST_OF_IT:.0%})"
    return said + (short if _falls_short(found, chosen) else "")


def _share_of_best(found: ImprovementResult, chosen: ImprovementRecord) -> float:
    """Of the best known speed."""
    return (found.best_known_s or chosen.step_time_s) / chosen.step_time_s


def _falls_short(found: ImprovementResult, chosen: ImprovementRecord) -> bool:
    """Whether the recommended change is the fastest because none has most of what is known."""
    share = chosen.gain_share
    return (_share_of_best(found, chosen) if share is None else share) < MOST_OF_IT * (1 - 1e-9)


def slowdown(speedup: float) -> str:
    """A step beside that of a run that does not fit."""
    if speedup >= 1:
        return f"{speedup - 1:.1%} faster than your run would be"
    return f"{1 / speedup - 1:.1%} slower than your run would be"


def no_choice(found: ImprovementResult) -> str:
    """Why nothing is recommended."""
    lacks = "is faster" if found.run_fits else "makes it fit"
    return f"no change of one or two decisions {lacks}"


def changes_title(found: ImprovementResult) -> str:
    """What the listed changes have in common."""
    return "changes that fit and are faster" if found.run_fits else "changes that make it fit"


def added_kernels(plan: BestPlanRecord) -> str:
    """Kernels that the plan has and the run has not."""
    return f", {plan.options}" if plan.options else ""


def bounded_plans(found: ImprovementResult) -> str:
    """What the plans have in common that are bounded."""
    where = f" for {found.framework}" if found.framework else ""
    kernels = found.best_plan.options if found.best_plan is not None else ""
    added = f", {kernels} or not," if kernels else ""
    return f"no plan{where} with the run's settings{added}"
