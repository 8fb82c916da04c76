"""`plan` on a profiled model: the exact partitioner, or the equal split, as a document."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from trainwright._version import __version__
from trainwright.api.inputs import ProfileInput, setting_record
from trainwright.errors import InvalidInput
from trainwright.plan.results.estimate import OverflowRecord
from trainwright.plan.results.plan import Baseline, PlanResult, StageRecord
from trainwright.plan.results.request import PlanRequest, SpaceRecord
from trainwright.plan.status import BoundKind, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trainwright.execution import Budget
    from trainwright.partitioning.restrictions import Restrictions
    from trainwright.plan.plan import Plan
    from trainwright.plan.prediction import StageCost
    from trainwright.plan.stage import Stage
    from trainwright.profile import Profile, Setting

PLANNERS = ("exact", "equal")
ALL_LAYERS = "all"
_LONG_BATCH_S: Final = 1000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileQuestion:
    """A profile to plan, where, and how.

    `block_layer` is the name of the layers that the equal split deals out, or "all"; `None` leaves
    the choice to the profile.
    """

    given: ProfileInput
    setting: Setting
    restrictions: Restrictions
    planner: str = "exact"
    block_layer: str | None = None
    compare: bool = False
    warnings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.planner not in PLANNERS:
            raise InvalidInput.of(
                "planner", f'must be one of {", ".join(PLANNERS)}, got "{self.planner}"'
            )

    @property
    def splits_equally(self) -> bool:
        """Whether an equal split is asked for, alone or beside the plan."""
        return self.planner == "equal" or self.compare


def plan_profile(question: ProfileQuestion, budget: Budget) -> PlanResult:
    """Search, and where nothing fits say why; compare with the baselines if asked."""
    from trainwright.planning.compare import baselines
    from trainwright.planning.profile_planner import search
    from trainwright.planning.relax import diagnose

    started_s = budget.cpu_s
    profile, setting = question.given.profile, question.setting
    block_layer = _block_layer(question) if question.splits_equally else None
    _refuse_endless_times(profile, setting)
    outcome = search(
        profile,
        setting,
        restrictions=question.restrictions,
        planner=question.planner,
        block_layer=block_layer,
        budget=budget,
    )
    diagnosis, beside = None, tuple[Baseline, ...]()
    if outcome.status is Status.INFEASIBLE:
        diagnosis = diagnose(profile, setting, restrictions=question.restrictions, budget=budget)
    if question.compare:
        beside = tuple(
            baselines(
                profile,
                setting,
                restrictions=question.restrictions,
                best_time_s=outcome.time_per_sample_s,
                block_layer=block_layer,
                budget=budget,
            )
        )
    stages = stage_records(outcome.plan, outcome.stage_costs, profile) if outcome.plan else ()
    return PlanResult(
        status=outcome.status,
        time_per_sample_s=outcome.time_per_sample_s,
        lower_bound_s=outcome.lower_bound_s,
        bound_kind=BoundKind.PROVED,
        gap=outcome.gap,
        devices_used=outcome.plan.devices_used if outcome.plan else None,
        num_stages=len(stages) or None,
        stages=stages,
        binding=diagnosis.binding if diagnosis else None,
        relaxations=diagnosis.relaxations if diagnosis else (),
        baselines=beside,
        interrupted=outcome.interrupted or budget.interrupted,
        warnings=(
            *question.given.warnings,
            *question.warnings,
            *_warnings(question),
            *unit_warnings(question.given, outcome.time_per_sample_s, setting),
        ),
        solver_s=outcome.solver_s,
        search_s=budget.cpu_s - started_s,
        counters=dict(outcome.counters),
        request=profile_request(question, budget),
    )


def _block_layer(question: ProfileQuestion) -> str | None:
    """The name of the layers to deal out equally; `None` for all."""
    from trainwright.partitioning.equal import BLOCK_LAYER

    chosen = question.block_layer
    if chosen == ALL_LAYERS:
        return None
    names = {layer.name for layer in question.given.profile.structure.layers}
    if chosen is None:
        return BLOCK_LAYER if BLOCK_LAYER in names else None
    if chosen not in names:
        wanted = f"must be the name of at least one layer, or {ALL_LAYERS}"
        raise InvalidInput.of("block-layer", f'{wanted}, got "{chosen}"')
    return chosen


def _refuse_endless_times(profile: Profile, setting: Setting) -> None:
    """Times beyond all floats have no order, so a search over them would prove nothing."""
    import numpy as np

    costs, edges = profile.costs, profile.structure.edges
    longest_s, most_bytes = 0.0, 2 * sum(edge.bytes for edge in edges)
    with np.errstate(over="ignore"):
        boundary = np.concatenate(([0.0], np.cumsum(costs.boundary_bytes)))
        moved = np.diff(boundary[costs.boundary_offsets]) + costs.gradient_sync_bytes.sum(axis=1)
    for layer in profile.structure.layers:
        rows = costs.rows_of(layer.layer_class)
        longest_s += float(costs.duration_s[rows].max())
        most_bytes += float(moved[rows].max())
    if not math.isfinite(longest_s):
        raise InvalidInput.of("model", "must have times that add up to a finite number of seconds")
    if not math.isfinite(4 * most_bytes / setting.bandwidth_bytes_per_s):
        value = setting.bandwidth_bytes_per_s
        raise InvalidInput.of("bandwidth", f"must move all bytes in finite time, got {value!r}")


def _warnings(question: ProfileQuestion) -> Iterator[str]:
    """Options that were given and change nothing."""
    if question.block_layer is not None and not question.splits_equally:
        yield "block-layer applies to equal splits only and was not used"
    offered = set(question.given.profile.costs.option_ids)
    for option in sorted(question.restrictions.excluded_options - offered):
        yield f'exclude-option: the profile has no option "{option}"'


def unit_warnings(
    given: ProfileInput, time_per_sample_s: float | None, setting: Setting
) -> Iterator[str]:
    """A batch that takes this long is more likely one whose times were never in seconds."""
    if given.unit_assumed and time_per_sample_s is not None:
        batch_s = time_per_sample_s * setting.num_microbatches
        if batch_s > _LONG_BATCH_S:
            yield (
                f"a batch of {setting.num_microbatches} microbatches takes {batch_s:,.0f} s: the "
                "times in the file are read as seconds; if they are milliseconds, use "
                "--time-unit ms"
            )


def profile_request(question: ProfileQuestion, budget: Budget) -> PlanRequest:
    """The question as a document carries it."""
    restrictions = question.restrictions
    return PlanRequest(
        trainwright_version=__version__,
        model=question.given.embedded,
        setting=setting_record(question.setting),
        space=SpaceRecord(
            data_parallel=restrictions.data_parallel,
            tensor_parallel=restrictions.tensor_parallel,
            recompute=restrictions.recompute,
            excluded_options=tuple(sorted(restrictions.excluded_options)),
            planner=question.planner,
            block_layer=question.block_layer if question.splits_equally else None,
        ),
        time_limit_s=budget.time_limit_s,
    )


def stage_records(
    plan: Plan, costs: tuple[StageCost, ...], profile: Profile
) -> tuple[StageRecord, ...]:
    """The stages of a priced plan, as a document carries them."""
    return tuple(
        StageRecord(
            layers=stage.layers,
            data_parallel=stage.data_parallel,
            tensor_parallel=stage.tensor_parallel,
            options={str(layer): option for layer, option in stage.option_of.items()},
            num_recomputed=count_recomputed(stage, profile),
            time_per_sample_s=cost.time_per_sample_s,
            breakdown=cost.breakdown,
            memory_bytes=cost.memory_bytes,
            microbatches_in_flight=cost.microbatches_in_flight,
        )
        for stage, cost in zip(plan.stages, costs, strict=True)
    )


def overflow_records(costs: tuple[StageCost, ...], setting: Setting) -> tuple[OverflowRecord, ...]:
    """The stages that do not fit, as a document carries them."""
    from trainwright.partitioning.evaluate import find_overflows

    return tuple(
        OverflowRecord(stage=over.stage, missing_bytes=over.missing_bytes)
        for over in find_overflows(costs, setting)
    )


def count_recomputed(stage: Stage, profile: Profile) -> int:
    """How many layers of the stage run under an option that recomputes."""
    from trainwright.profile import Recompute

    table = profile.costs
    class_of = {layer.id: layer.layer_class for layer in profile.structure.layers}

    def recomputes(layer: int, option: str) -> bool:
        return any(
            table.option_ids[row] == option
            and table.tensor_parallel[row] == stage.tensor_parallel
            and table.recompute[row] is not Recompute.NONE
            for row in table.rows_of(class_of[layer])
        )

    return sum(recomputes(layer, option) for layer, option in stage.option_of.items())
