"""`trainwright plan`: the best plan of a model or a profile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from trainwright.api.result import Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path
    from typing import Unpack

    from trainwright.api.model_options import ModelOptions
    from trainwright.api.model_request import ModelCall
    from trainwright.api.space_options import Names
    from trainwright.execution import Budget
    from trainwright.execution.executor import Executor
    from trainwright.plan.results.mixed_plan import MixedPlanResult
    from trainwright.plan.results.model_plan import ModelPlanResult
    from trainwright.profile import Profile, ProfileFile


def plan(
    model: str | Path | Profile | ProfileFile,
    *,
    devices: int | None = None,
    memory: str | float | None = None,
    bandwidth: str | float | None = None,
    microbatches: int | None = None,
    data_parallel: bool = True,
    tensor_parallel: bool = True,
    recompute: bool | Names = True,
    exclude_options: Iterable[str] = (),
    planner: str = "exact",
    block_layer: str | None = None,
    compare: bool = False,
    point: int | None = None,
    time_unit: str | None = None,
    cost_model: str | None = None,
    jobs: str | int | None = None,
    budget: Budget | None = None,
    **options: Unpack[ModelOptions],
) -> Result:
    """Plan `model`: a profile or placement problem, a `config.json`, or a catalog model's name.

    A profile takes `devices`, `memory`, `bandwidth` and `microbatches` (they override what its file
    states); a model takes `devices`, `memory` (of a device, in place of the cluster's) and the
    options of `ModelOptions`: `cluster`, `nodes`, `global_batch`, `sequence`, degrees to fix or
    bound (`tp`, `pp`, `dp`, `cp`, `ep`, `etp`, `virtual_stages`, `micro_batch`, each a number or a
    range such as "4..8"), `zero_stage`, `schedule`, `framework`, `per_stage_degrees`, `top`, and
    `calibration` (a file of `calibrate`, or a built-in software line), and what a device keeps free
    (`reserve`, `workspace`, `fragmentation`, as for `estimate`). Memory and bandwidth are
    bytes and bytes per second, or text with a unit. `recompute` may list the modes that a model's
    plan may use: "none,selective,full". The equal split deals out the layers named `block_layer`,
    or "all"; if absent, the transformer blocks where the profile has some, else all. `time_unit`
    ("ms", …) is that of a Piper profile's times, seconds if absent.
    An option that means nothing for the kind of model given is refused.
    A placement problem (PHAZE's input) takes the options of a profile that restrict the search,
    and `cost_model`: "native" (if absent), "phaze-compat" or "phaze-general-dag".
    `jobs` processes, or a Dask cluster ("dask://HOST:PORT"), help to plan a model, with the same
    result but for `search_s`; one process searches if absent. `budget` may hold a time limit.

    The result carries the plan, a lower bound and the gap; `status` is `optimal` only where proved,
    and `infeasible` (with the reason and the smallest changes that help) where nothing fits.
    Raises `InvalidInput` with every fault of the input.
    """
    from trainwright.api.foreign_options import kind_of, refuse_foreign
    from trainwright.api.inputs import PlacementInput, resolve_setting, setting_overrides
    from trainwright.api.keywords import refuse_unknown
    from trainwright.api.model_options import ModelOptions
    from trainwright.api.models import ModelInput, resolve_input
    from trainwright.api.plan_placement import PlacementQuestion, plan_placement
    from trainwright.api.plan_profile import ProfileQuestion, plan_profile
    from trainwright.execution import Budget as NoLimit
    from trainwright.execution.executor import executor_of
    from trainwright.partitioning.restrictions import Restrictions

    refuse_unknown(plan, options, ModelOptions)
    budget, executor = budget or NoLimit(), executor_of(jobs, name="jobs")
    overrides = setting_overrides(
        devices=devices, memory=memory, bandwidth=bandwidth, microbatches=microbatches
    )
    given = resolve_input(model, point=point, given=overrides, time_unit=time_unit)
    exclude_options = tuple(exclude_options)
    partly = {} if isinstance(recompute, bool) else {"recompute": recompute}
    refuse_foreign(
        kind_of(given),
        {
            "bandwidth": bandwidth,
            "microbatches": microbatches,
            "planner": planner,
            "block_layer": block_layer,
            "compare": compare,
            "point": point,
            "time_unit": time_unit,
            "cost_model": cost_model,
            "exclude_options": exclude_options,
        },
        {**options, **partly},
    )
    if isinstance(given, ModelInput):
        from trainwright.api.model_options import model_call

        call = model_call(
            given,
            options,
            devices=devices,
            memory_bytes=overrides.get("memory_bytes"),
            data_parallel=data_parallel,
            tensor_parallel=tensor_parallel,
            recompute=recompute,
            exclude_options=exclude_options,
        )
        return Result(_plan_with(executor, call, budget, warnings=given.warnings))
    restrictions = Restrictions(
        data_parallel=data_parallel,
        tensor_parallel=tensor_parallel,
        recompute=recompute is not False,
        excluded_options=frozenset(exclude_options),
    )
    unused = () if jobs is None else ("jobs applies to models only and was not used",)
    if isinstance(given, PlacementInput):
        placement = PlacementQuestion(
            given=given,
            restrictions=restrictions,
            cost_model=cost_model or "native",
            planner=planner,
            warnings=unused,
        )
        return Result(plan_placement(placement, budget))
    question = ProfileQuestion(
        given=given,
        setting=resolve_setting(given.setting, overrides),
        restrictions=restrictions,
        planner=planner,
        block_layer=block_layer,
        compare=compare,
        warnings=unused,
    )
    return Result(plan_profile(question, budget))


def _plan_with(
    executor: Executor, call: ModelCall, budget: Budget, *, warnings: Sequence[str]
) -> ModelPlanResult | MixedPlanResult:
    """Search; the time of workers is known when they have ended."""
    from trainwright.api.plan_mixed import plan_mixed_model
    from trainwright.api.plan_model import plan_model

    started_s = budget.cpu_s
    document: ModelPlanResult | MixedPlanResult
    with executor.crew() as crew:
        if len(call.question.cluster.pools) > 1:
            document = plan_mixed_model(call, budget, warnings=warnings, crew=crew)
        else:
            document = plan_model(call, budget, warnings=warnings, crew=crew)
    return document if crew is None else replace(document, search_s=budget.cpu_s - started_s)
