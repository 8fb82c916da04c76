"""`trainwright plan`: the best plan of a model or a profile."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trainwright.commands.model import open_model_of
from trainwright.commands.output import budget, check_output, emit, finish
from trainwright.documents.open import Result
from trainwright.errors import Fault, InvalidInput
from trainwright.execution import Budget
from trainwright.execution import Budget as NoLimit
from trainwright.options import inputs
from trainwright.options.option import Kind, Options
from trainwright.options.table import given_foreign, read, refuse_foreign, rows_of, verb
from trainwright.partitioning.downset_dp import Restrictions
from trainwright.profile import Profile, ProfileFile

if TYPE_CHECKING:
    from trainwright.commands.sweep import SweepReport


@verb
def plan(
    model: str | Path | Profile | ProfileFile, *, budget: Budget | None = None, **options: Any
) -> Result:
    """Plan `model`: a profile or placement problem, a `config.json`, or a catalog model's name.

    A profile takes `devices`, `memory`, `bandwidth` and `microbatches` (they override what its
    file states); a model takes a `cluster` (a name, a file or a noun), `global_batch`, `sequence`,
    `memory` (of a device, in place of the cluster's) and degrees to fix or bound (`tp`, `pp`, `dp`,
    `cp`, `ep`, `etp`, `virtual_stages`, `micro_batch`, `state_copies`, each a number or a range
    such as "4..8"); `zero`, `mapping` and `schedule` may be lists, and `recompute` lists the
    modes that a model's plan may use: "none,selective,full". How the model trains, and what a
    device keeps free, is said as for `estimate`; `docs/cli-reference.md` describes every option.
    Memory and bandwidth are bytes and bytes per second, or text with a unit. An option that means
    nothing for the kind of model given is refused.

    `jobs` processes, or a Dask cluster ("dask://HOST:PORT"), help to plan a model, with the same
    result but for `search_s`; one process searches if absent. `budget` may hold a time limit.

    The result carries the plan, a lower bound and the gap; `status` is `optimal` only where proved,
    and `infeasible` (with the reason and the smallest changes that help) where nothing fits.
    Raises `InvalidInput` with every fault of the input.
    """
    options = read("plan", options)
    budget = budget or NoLimit()
    overrides = inputs.setting_overrides(options)
    on_cluster = options.get("cluster") is not None
    given = open_model_of(model, options, given=overrides)
    refuse_foreign(
        "plan", inputs.kind_of(given, on_cluster=on_cluster), inputs.unused(given, options)
    )
    if isinstance(given, inputs.ModelInput) or (
        on_cluster and isinstance(given, inputs.ProfileInput)
    ):
        from trainwright.documents.model_search import plan_on_cluster
        from trainwright.execution.executor import executor_of
        from trainwright.options.question import model_call

        executor = executor_of(options.get("jobs"))
        call = model_call(given, options)
        long = given.beyond(options.get("sequence")) if isinstance(given, inputs.ModelInput) else ()
        started_s = budget.cpu_s
        with executor.crew() as crew:
            document = plan_on_cluster(call, budget, warnings=(*given.warnings, *long), crew=crew)
        if crew is not None:  # the time of workers is known when they have ended
            document = replace(document, search_s=budget.cpu_s - started_s)
        return Result(document)
    restrictions = Restrictions(
        data_parallel=options.get("data_parallel", True),
        tensor_parallel=options.get("tensor_parallel", True),
        recompute=options.get("recompute") is not False,
        excluded_options=frozenset(options.get("exclude_option", ())),
    )
    notes = ("jobs applies to models only and was not used",) if "jobs" in options else ()
    planner = options.get("planner", "exact")
    if isinstance(given, inputs.PlacementInput):
        from trainwright.documents.placement import PlacementQuestion, plan_placement

        placement = PlacementQuestion(
            given=given,
            restrictions=restrictions,
            cost_model=options.get("cost_model", "native"),
            planner=planner,
            warnings=notes,
        )
        return Result(plan_placement(placement, budget))
    from trainwright.documents.profile_plan import ProfileQuestion, plan_profile

    if "cost_model" in options:
        given, note = inputs.with_costs_of(options["cost_model"], given)
        notes = (*notes, note)
    question = ProfileQuestion(
        given=given,
        setting=inputs.resolve_setting(given.setting, overrides),
        restrictions=restrictions,
        planner=planner,
        block_layer=options.get("block_layer"),
        compare=options.get("compare", False),
        warnings=notes,
    )
    return Result(plan_profile(question, budget))


# `trainwright plan`
# ------------------

_OF_A_SWEEP = frozenset(row.name for row in rows_of("sweep")) - {
    row.name for row in rows_of("plan")
}


def command(
    model: str,
    *,
    output: Path | None = None,
    as_json: bool = False,
    reasons: bool = True,
    verbose: bool = False,
    time_limit: float | None = None,
    **options: Any,
) -> None:
    """Plan once, or for several numbers of devices where they or an objective are given.

    A plan of a model that is written to a file has its reasons, unless they are not wanted.
    """
    check_output(output, model, options.get("cluster"))
    goal = _OF_A_SWEEP.intersection(options)
    wanted = options.get("objective") not in (None, "step-time") or "pareto" in options
    result: Result | SweepReport
    with budget(time_limit) as allowed:
        several = isinstance(options.get("devices"), str) or "sweep" in options
        if several or wanted:  # a list or a range
            result = _sweep(model, allowed, options)
        else:
            _refuse_without_sweep(goal)
            alone = {name: value for name, value in options.items() if name not in goal}
            result = plan(model, budget=allowed, **alone)
            if output is not None and reasons:
                from trainwright.documents.explanation import with_reasons

                result = Result(with_reasons(result.document, allowed))
    emit(result, as_json=as_json, output=output, verbose=verbose)
    finish(result.status.exit_code, interrupted=allowed.interrupted)


def _sweep(model: str, allowed: Budget, options: Options) -> SweepReport:
    """A sweep is for models and profiles on a cluster, and knows no other options."""
    from trainwright.commands.sweep import sweep

    on_cluster = options.get("cluster") is not None
    kinds = (Kind.MODEL, Kind.MEASURED) if on_cluster else (Kind.MODEL,)
    if any(given_foreign("plan", kind, options) for kind in kinds):
        given = open_model_of(model, options)
        kind = inputs.kind_of(given, on_cluster=on_cluster)
        if kind in kinds and (faults := given_foreign("plan", kind, inputs.unused(given, options))):
            raise InvalidInput(faults)
    if "devices" not in options and "sweep" not in options:
        raise InvalidInput.of("devices", "must be given for an objective, as --devices 64..4096")
    known = {row.name for row in rows_of("sweep")} | {"devices"}
    of_both = {name: value for name, value in options.items() if name in known}
    return sweep(model, budget=allowed, **of_both)


def _refuse_without_sweep(goal: frozenset[str]) -> None:
    """Totals of a training belong to the table of a sweep."""
    faults = [
        Fault(row.flag, "must be given with several --devices or an --objective")
        for row in rows_of("sweep")
        if row.name in goal and row.name != "objective"
    ]
    if faults:
        raise InvalidInput(faults)
