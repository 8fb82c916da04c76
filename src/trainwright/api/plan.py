"""`trainwright plan`: the best plan of a model or a profile."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from trainwright.api.result import Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
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
    What does not apply to the kind of model given is not used, and a warning in the result says so.
    A placement problem (PHAZE's input) takes the options of a profile that restrict the search,
    and `cost_model`: "native" (if absent), "phaze-compat" or "phaze-general-dag".
    `jobs` processes, or a Dask cluster ("dask://HOST:PORT"), help to plan a model, with the same
    result but for `search_s`; one process searches if absent. `budget` may hold a time limit.

    The result carries the plan, a lower bound and the gap; `status` is `optimal` only where proved,
    and `infeasible` (with the reason and the smallest changes that help) where nothing fits.
    Raises `InvalidInput` with every fault of the input.
    """
    from trainwright.api.inputs import PlacementInput, resolve_setting, setting_overrides
    from trainwright.api.models import ModelInput, resolve_input
    from trainwright.api.plan_placement import PlacementQuestion, plan_placement
    from trainwright.api.plan_profile import ProfileQuestion, plan_profile
    from trainwright.execution import Budget as NoLimit
    from trainwright.execution.executor import executor_of
    from trainwright.partitioning.restrictions import Restrictions

    budget, executor = budget or NoLimit(), executor_of(jobs, name="jobs")
    overrides = setting_overrides(
        devices=devices, memory=memory, bandwidth=bandwidth, microbatches=microbatches
    )
    given = resolve_input(model, point=point, given=overrides, time_unit=time_unit)
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
        not_used = _given(
            bandwidth=bandwidth,
            microbatches=microbatches,
            planner=None if planner == "exact" else planner,
            block_layer=block_layer,
            compare=compare,
            point=point,
            cost_model=cost_model,
        )
        unused = (f"{name} applies to profiles only and was not used" for name in not_used)
        warnings = (*given.warnings, *unused)
        return Result(_plan_with(executor, call, budget, warnings=warnings))
    allows = _allows_recompute(recompute)
    partly = isinstance(recompute, bool) is False
    restrictions = Restrictions(
        data_parallel=data_parallel,
        tensor_parallel=tensor_parallel,
        recompute=allows,
        excluded_options=frozenset(exclude_options),
    )
    not_used = [*_given(**_named(options), jobs=jobs), *(["recompute"] if partly else [])]
    if isinstance(given, PlacementInput):
        not_used += _given(
            exclude_option=sorted(restrictions.excluded_options) or None,
            block_layer=block_layer,
            compare=compare,
            point=point,
        )
        placement = PlacementQuestion(
            given=given,
            restrictions=restrictions,
            cost_model=cost_model or "native",
            planner=planner,
            warnings=tuple(f"{name} does not apply and was not used" for name in not_used),
        )
        return Result(plan_placement(placement, budget))
    not_used += _given(cost_model=cost_model)
    question = ProfileQuestion(
        given=given,
        setting=resolve_setting(given.setting, overrides),
        restrictions=restrictions,
        planner=planner,
        block_layer=block_layer,
        compare=compare,
        warnings=tuple(f"{name} {_BELONGS_TO.get(name, _MODELS)}" for name in not_used),
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


_MODELS: Final = "applies to models only and was not used"
_BELONGS_TO: Final = {"cost-model": "applies to placement problems only and was not used"}


def _allows_recompute(recompute: bool | Names) -> bool:
    return recompute if isinstance(recompute, bool) else True


def _named(options: Mapping[str, object]) -> dict[str, object]:
    return {"zero" if name == "zero_stage" else name: value for name, value in options.items()}


def _given(**options: object) -> list[str]:
    """Names, as on the command line, of options that were given."""
    given = (name for name, value in options.items() if value is not None and value is not False)
    return [name.replace("_", "-") for name in given]
