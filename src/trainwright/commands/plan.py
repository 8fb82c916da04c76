"""`trainwright plan`: the best plan of a model or a profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from trainwright.commands import command_line as options
from trainwright.commands.command_line import any_number, read_config, shares
from trainwright.commands.output import (
    budget,
    check_output,
    emit,
    finish,
    parse_count,
    parse_number,
    parse_share,
    parse_time_limit,
    parse_tokens,
)
from trainwright.documents.open import Result
from trainwright.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Unpack

    from trainwright.commands.sweep import SweepReport
    from trainwright.documents.mixed_plan import MixedPlanResult
    from trainwright.documents.model_plan import ModelPlanResult
    from trainwright.execution import Budget
    from trainwright.execution.executor import Executor
    from trainwright.options.question import ModelCall, ModelOptions
    from trainwright.options.space import Names
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
    from trainwright.documents.placement import PlacementQuestion, plan_placement
    from trainwright.documents.profile_plan import ProfileQuestion, plan_profile
    from trainwright.execution import Budget as NoLimit
    from trainwright.execution.executor import executor_of
    from trainwright.options.inputs import (
        ModelInput,
        PlacementInput,
        ProfileInput,
        resolve_input,
        resolve_setting,
        setting_overrides,
    )
    from trainwright.options.question import ModelOptions
    from trainwright.options.refuse import kind_of, refuse_foreign, refuse_unknown
    from trainwright.partitioning.problem import Restrictions

    refuse_unknown(plan, options, ModelOptions)
    budget, executor = budget or NoLimit(), executor_of(jobs, name="jobs")
    overrides = setting_overrides(
        devices=devices, memory=memory, bandwidth=bandwidth, microbatches=microbatches
    )
    on_cluster = options.get("cluster") is not None
    given = resolve_input(
        model, point=point, given=overrides, time_unit=time_unit, on_cluster=on_cluster
    )
    exclude_options = tuple(exclude_options)
    partly = {} if isinstance(recompute, bool) else {"recompute": recompute}
    refuse_foreign(
        kind_of(given, on_cluster=on_cluster),
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
    if isinstance(given, ModelInput) or (on_cluster and isinstance(given, ProfileInput)):
        from trainwright.options.question import model_call

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
    from trainwright.documents.mixed_plan import plan_mixed_model
    from trainwright.documents.model_plan import plan_model

    started_s = budget.cpu_s
    document: ModelPlanResult | MixedPlanResult
    with executor.crew() as crew:
        if len(call.question.cluster.pools) > 1:
            document = plan_mixed_model(call, budget, warnings=warnings, crew=crew)
        else:
            document = plan_model(call, budget, warnings=warnings, crew=crew)
    return document if crew is None else replace(document, search_s=budget.cpu_s - started_s)


# `trainwright plan`
# ------------------

_DEGREE = "N|A..B"


def command(
    model: Annotated[
        str,
        typer.Argument(
            metavar="MODEL",
            help="A profile (JSON), a config.json or its folder, or the name of a catalog model.",
        ),
    ],
    cluster: Annotated[
        str | None, typer.Option(help="A catalog cluster or a TOML file (for a model).")
    ] = None,
    nodes: Annotated[str | None, typer.Option(help="Nodes of the cluster.", metavar="N")] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            help="Number of devices; for a model also 64..4096 (doubling) or 64,96,128.",
            metavar="N",
        ),
    ] = None,
    memory: options.Memory = None,
    bandwidth: options.Bandwidth = None,
    microbatches: options.Microbatches = None,
    global_batch: Annotated[
        str | None, typer.Option(help="Sequences per step, over all replicas.", metavar="N")
    ] = None,
    sequence: Annotated[str | None, typer.Option(help="Tokens per sequence.", metavar="N")] = None,
    micro_batch: Annotated[
        str | None, typer.Option(help="Sequences per microbatch.", metavar=_DEGREE)
    ] = None,
    tp: Annotated[str | None, typer.Option(help="Tensor-parallel degree.", metavar=_DEGREE)] = None,
    pp: Annotated[str | None, typer.Option(help="Pipeline ranks.", metavar=_DEGREE)] = None,
    dp: Annotated[str | None, typer.Option(help="Data-parallel degree.", metavar=_DEGREE)] = None,
    cp: Annotated[
        str | None, typer.Option(help="Context-parallel degree.", metavar=_DEGREE)
    ] = None,
    ep: Annotated[str | None, typer.Option(help="Expert-parallel degree.", metavar=_DEGREE)] = None,
    etp: Annotated[
        str | None, typer.Option(help="Devices that share one expert.", metavar=_DEGREE)
    ] = None,
    virtual_stages: Annotated[
        str | None, typer.Option(help="Stages per pipeline rank.", metavar=_DEGREE)
    ] = None,
    zero: Annotated[
        str | None, typer.Option(help="ZeRO stages, such as 1 or 0,1; all if absent.")
    ] = None,
    mapping: Annotated[
        str | None,
        typer.Option(
            help="Of tp-cp-ep-dp-pp,tp-cp-ep-pp-dp: how devices are numbered; both if absent.",
            metavar="ORDERS",
        ),
    ] = None,
    state_copies: Annotated[
        str | None,
        typer.Option(
            help="Groups of replicas that each hold all sharded state; if absent one, or as many "
            "as fill nodes.",
            metavar=_DEGREE,
        ),
    ] = None,
    recompute: Annotated[
        str | None, typer.Option(help="Of none,selective,full; all if absent.", metavar="MODES")
    ] = None,
    schedule: Annotated[
        str | None,
        typer.Option(
            help="Families, such as 1f1b,v-half; searched: other orders, too.", metavar="NAMES"
        ),
    ] = None,
    framework: Annotated[
        str | None, typer.Option(help="Only plans that this framework can run.", metavar="NAME")
    ] = None,
    top: Annotated[
        str | None, typer.Option(help="Runners-up to show; 5 if absent.", metavar="N")
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="step-time (if absent), tokens-per-device, cost, energy or devices.",
            metavar="NAME",
        ),
    ] = None,
    pareto: Annotated[
        str | None, typer.Option(help="Mark what no row beats in both, as step-time,cost.")
    ] = None,
    tokens: Annotated[
        str | None, typer.Option(help="Tokens of the whole training, as 15T.", metavar="N")
    ] = None,
    price: Annotated[
        str | None, typer.Option(help="Price of a device for an hour.", metavar="X")
    ] = None,
    power: Annotated[
        str | None, typer.Option(help="Watts of a device; its rating if absent.", metavar="X")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option(help="When the training must be done, as 30d.", metavar="TIME")
    ] = None,
    mtbf: Annotated[
        str | None, typer.Option(help="Between failures of one device.", metavar="TIME")
    ] = None,
    checkpoint_bandwidth: Annotated[
        str | None, typer.Option(help="Of each device to storage.", metavar="RATE")
    ] = None,
    restart: Annotated[
        str | None, typer.Option(help="From a failure to training again.", metavar="TIME")
    ] = None,
    reserve: options.Reserve = None,
    workspace: options.Workspace = None,
    fragmentation: options.Fragmentation = None,
    precision: options.Precision = None,
    optimizer: options.Optimizer = None,
    gradient_dtype: options.GradientDtype = None,
    main_weight_dtype: options.MainWeightDtype = None,
    moment_dtype: options.MomentDtype = None,
    dropout: options.Dropout = None,
    context_exchange: options.ContextExchange = None,
    expert_imbalance: options.ExpertImbalance = None,
    capacity_factor: options.CapacityFactor = None,
    dispatch_dtype: options.DispatchDtype = None,
    token_dispatcher: options.TokenDispatcher = None,
    overlap: options.Overlap = None,
    calibration: options.Calibration = None,
    no_data_parallel: Annotated[
        bool, typer.Option("--no-data-parallel", help="One replica per stage.")
    ] = False,
    no_tensor_parallel: Annotated[
        bool, typer.Option("--no-tensor-parallel", help="Do not split layers.")
    ] = False,
    no_recompute: Annotated[
        bool, typer.Option("--no-recompute", help="Drop every option that recomputes.")
    ] = False,
    exclude_option: Annotated[
        list[str] | None, typer.Option(help="Drop options with this id (repeatable).")
    ] = None,
    per_stage_degrees: Annotated[
        bool,
        typer.Option(
            "--per-stage-degrees",
            help="For a model: let stages differ in degrees, which no framework runs yet.",
        ),
    ] = False,
    planner: Annotated[
        str, typer.Option(help="exact, or equal; placement: exact, profile.")
    ] = "exact",
    block_layer: Annotated[
        str | None,
        typer.Option(
            help="Equal split: name of the layers to deal out evenly, or all; "
            "transformer blocks if absent, where there are some.",
            metavar="NAME",
        ),
    ] = None,
    compare: Annotated[
        bool, typer.Option("--compare", help="Also show restricted modes and equal splits.")
    ] = False,
    point: options.Point = None,
    time_unit: options.TimeUnit = None,
    cost_model: Annotated[
        str | None,
        typer.Option(
            help="For a placement problem: native, phaze-compat or phaze-general-dag.",
            metavar="NAME",
        ),
    ] = None,
    jobs: Annotated[
        str | None,
        typer.Option(
            help="Processes to search a model's plans with, or dask://HOST:PORT; the same result.",
            metavar="N",
        ),
    ] = None,
    time_limit: options.TimeLimit = None,
    config: Annotated[
        Path | None,
        typer.Option(help="A TOML file of these options.", is_eager=True, callback=read_config),
    ] = None,
    output: options.Output = None,
    as_json: options.Json = False,
) -> None:
    """Find the best plan, and prove it."""
    from trainwright.options.clusters import is_several

    check_output(output, model, cluster, config)
    space: ModelOptions = {
        "cluster": cluster,
        "nodes": parse_count(nodes, "nodes"),
        "global_batch": parse_count(global_batch, "global-batch"),
        "sequence": parse_count(sequence, "sequence"),
        "micro_batch": micro_batch,
        "tp": tp,
        "pp": pp,
        "dp": dp,
        "cp": cp,
        "ep": ep,
        "etp": etp,
        "virtual_stages": virtual_stages,
        "zero_stage": zero,
        "mapping": mapping,
        "state_copies": state_copies,
        "schedule": schedule,
        "framework": framework,
        "per_stage_degrees": per_stage_degrees,
        "reserve": reserve,
        "workspace": workspace,
        "fragmentation": parse_share(fragmentation, "fragmentation"),
        "calibration": calibration,
        "precision": precision,
        "optimizer": optimizer,
        "gradient_dtype": gradient_dtype,
        "main_weight_dtype": main_weight_dtype,
        "moment_dtypes": moment_dtype,
        "dropout": any_number(dropout, "dropout"),
        "context_exchange": context_exchange,
        "expert_imbalance": any_number(expert_imbalance, "expert-imbalance"),
        "capacity_factor": any_number(capacity_factor, "capacity-factor"),
        "dispatch_dtype": dispatch_dtype,
        "token_dispatcher": token_dispatcher,
        "overlap": shares(overlap),
        "top": parse_count(top, "top", least=0),
    }
    methods: dict[str, Any] = {
        "data_parallel": not no_data_parallel,
        "tensor_parallel": not no_tensor_parallel,
        "recompute": _recompute(recompute, forbidden=no_recompute),
        "exclude_options": exclude_option or (),
    }
    goal = {
        "objective": objective,
        "pareto": pareto,
        "tokens": parse_tokens(tokens, "tokens"),
        "price": parse_number(price, "price"),
        "power": parse_number(power, "power"),
        "deadline": deadline,
        "mtbf": mtbf,
        "checkpoint_bandwidth": checkpoint_bandwidth,
        "restart": restart,
    }
    given_goal = {name: value for name, value in goal.items() if value is not None}
    profile_options: dict[str, Any] = {
        "bandwidth": bandwidth,
        "microbatches": parse_count(microbatches, "microbatches"),
        "planner": planner,
        "block_layer": block_layer,
        "compare": compare,
        "point": parse_count(point, "point", least=0),
        "time_unit": time_unit,
        "cost_model": cost_model,
    }
    several = is_several(devices) or objective not in (None, "step-time") or pareto is not None
    result: Result | SweepReport
    with budget(parse_time_limit(time_limit)) as allowed:
        if several:
            _refuse_of_profiles(model, profile_options)
            result = _sweep(
                model, devices, memory, allowed, jobs=jobs, **space, **methods, **given_goal
            )
        else:
            _refuse_without_sweep(given_goal)
            result = plan(
                model,
                devices=parse_count(devices, "devices"),
                memory=memory,
                jobs=jobs,
                budget=allowed,
                **profile_options,
                **methods,
                **space,
            )
    emit(result, as_json=as_json, output=output)
    finish(result.status.exit_code, interrupted=allowed.interrupted)


def _sweep(
    model: str, devices: str | None, memory: str | None, allowed: Budget, **options: Any
) -> SweepReport:
    from trainwright.commands.sweep import sweep

    if devices is None:
        raise InvalidInput.of("devices", "must be given for an objective, as --devices 64..4096")
    return sweep(model, devices=devices, memory=memory, budget=allowed, **options)


def _refuse_of_profiles(model: str, given: Mapping[str, object]) -> None:
    """A sweep is for models alone, and knows no other options."""
    from trainwright.options.inputs import ModelInput, resolve_model
    from trainwright.options.refuse import Kind, given_foreign

    faults = given_foreign(Kind.MODEL, given)
    if faults and isinstance(resolve_model(model), ModelInput):
        raise InvalidInput(faults)


def _refuse_without_sweep(goal: Mapping[str, object]) -> None:
    """Totals of a training belong to the table of a sweep."""
    faults = [
        Fault(name.replace("_", "-"), "must be given with several --devices or an --objective")
        for name in goal
        if name != "objective"
    ]
    if faults:
        raise InvalidInput(faults)


def _recompute(modes: str | None, *, forbidden: bool) -> bool | str:
    if modes is not None and forbidden:
        problem = f'must not be given together with --no-recompute, got "{modes}"'
        raise InvalidInput.of("recompute", problem)
    return modes if modes is not None else not forbidden
