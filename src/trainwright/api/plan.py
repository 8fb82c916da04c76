"""`trainwright plan`: the best plan of a model or a profile."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trainwright.api.result import Result

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from trainwright.execution import Budget
    from trainwright.profile import Profile, ProfileFile


def plan(
    model: str | Path | Profile | ProfileFile,
    *,
    cluster: str | Path | None = None,
    nodes: int | None = None,
    devices: int | None = None,
    memory: str | float | None = None,
    bandwidth: str | float | None = None,
    microbatches: int | None = None,
    global_batch: int | None = None,
    sequence: int | None = None,
    micro_batch: int | None = None,
    data_parallel: bool = True,
    tensor_parallel: bool = True,
    recompute: bool = True,
    exclude_options: Iterable[str] = (),
    zero_stage: int | None = None,
    per_stage_degrees: bool = False,
    planner: str = "exact",
    block_layer: str | None = None,
    compare: bool = False,
    point: int | None = None,
    time_unit: str | None = None,
    cost_model: str | None = None,
    calibration: str | Path | None = None,
    budget: Budget | None = None,
) -> Result:
    """Plan `model`: a profile or placement problem, a `config.json`, or a catalog model's name.

    A profile takes `devices`, `memory`, `bandwidth` and `microbatches` (they override what its file
    states); a model takes `cluster`, `nodes` or `devices`, `memory` (of a device, in place of the
    cluster's), `global_batch`, `sequence`, `micro_batch`, `zero_stage` (1 if absent) and
    `calibration` (a file of `calibrate`, or a built-in software line). Memory and bandwidth are
    bytes and bytes per second, or text with a unit. The equal split deals out the layers named
    `block_layer`, or "all"; if absent, the transformer blocks where the profile has some, else all.
    `time_unit` ("ms", …) is that of a Piper profile's times, seconds if absent.
    What does not apply to the kind of model given is not used, and a warning in the result says so.
    A placement problem (PHAZE's input) takes the options of a profile that restrict the search,
    and `cost_model`: "native" (if absent), "phaze-compat" or "phaze-general-dag".
    `budget` may hold a time limit.

    The result carries the plan, a lower bound and the gap; `status` is `optimal` only where proved,
    and `infeasible` (with the reason and the smallest changes that help) where nothing fits.
    Raises `InvalidInput` with every fault of the input.
    """
    from trainwright.api.inputs import resolve_setting, setting_overrides
    from trainwright.api.models import ModelInput, resolve_input
    from trainwright.api.plan_model import plan_model, resolve_cluster, resolve_workload
    from trainwright.api.plan_placement import PlacementInput, PlacementQuestion, plan_placement
    from trainwright.api.plan_profile import ProfileQuestion, plan_profile
    from trainwright.execution import Budget as NoLimit
    from trainwright.partitioning.restrictions import Restrictions

    budget = budget or NoLimit()
    overrides = setting_overrides(
        devices=devices, memory=memory, bandwidth=bandwidth, microbatches=microbatches
    )
    given = resolve_input(model, point=point, given=overrides, time_unit=time_unit)
    restrictions = Restrictions(
        data_parallel=data_parallel,
        tensor_parallel=tensor_parallel,
        recompute=recompute,
        excluded_options=frozenset(exclude_options),
    )
    if isinstance(given, PlacementInput):
        not_used = _given(
            cluster=cluster,
            nodes=nodes,
            global_batch=global_batch,
            sequence=sequence,
            micro_batch=micro_batch,
            zero=zero_stage,
            per_stage_degrees=per_stage_degrees,
            calibration=calibration,
            exclude_option=sorted(restrictions.excluded_options) or None,
            planner=None if planner == "exact" else planner,
            block_layer=block_layer,
            compare=compare,
            point=point,
        )
        return Result(
            plan_placement(
                PlacementQuestion(
                    given=given,
                    restrictions=restrictions,
                    cost_model=cost_model or "native",
                    warnings=tuple(f"{name} does not apply and was not used" for name in not_used),
                ),
                budget,
            )
        )
    if isinstance(given, ModelInput):
        where, num_devices = resolve_cluster(
            cluster, nodes=nodes, devices=devices, memory_bytes=overrides.get("memory_bytes")
        )
        if calibration is not None:
            from trainwright.api.calibrate import calibrated

            where = calibrated(where, calibration)
        not_used = _given(
            bandwidth=bandwidth,
            microbatches=microbatches,
            planner=None if planner == "exact" else planner,
            block_layer=block_layer,
            compare=compare,
            point=point,
            cost_model=cost_model,
        )
        return Result(
            plan_model(
                given,
                cluster=where,
                num_devices=num_devices,
                workload=resolve_workload(global_batch=global_batch, sequence=sequence),
                restrictions=restrictions,
                micro_batch=micro_batch,
                zero_stage=zero_stage,
                per_stage_degrees=per_stage_degrees,
                warnings=[f"{name} applies to profiles only and was not used" for name in not_used],
                budget=budget,
            )
        )
    not_used = _given(
        cluster=cluster,
        nodes=nodes,
        global_batch=global_batch,
        sequence=sequence,
        micro_batch=micro_batch,
        zero=zero_stage,
        per_stage_degrees=per_stage_degrees,
        calibration=calibration,
        cost_model=cost_model,
    )
    question = ProfileQuestion(
        given=given,
        setting=resolve_setting(given.setting, overrides),
        restrictions=restrictions,
        planner=planner,
        block_layer=block_layer,
        compare=compare,
        warnings=tuple(f"{name} applies to models only and was not used" for name in not_used),
    )
    return Result(plan_profile(question, budget))


def _given(**options: object) -> list[str]:
    """Names, as on the command line, of options that were given."""
    given = (name for name, value in options.items() if value is not None and value is not False)
    return [name.replace("_", "-") for name in given]
