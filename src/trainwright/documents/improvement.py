"""The document of `improve`: how far a run is from the best plan, and what closes the distance."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

from trainwright.cluster import Cluster, NetworkLevel, Pool
from trainwright.documents import model_estimate
from trainwright.documents.fit import host_holds, run_fits
from trainwright.documents.jobs import PricedLayout
from trainwright.documents.model_plan import ModelPlanResult, profile_of
from trainwright.documents.plan_view import devices_by_pool, use_of_pools
from trainwright.documents.printing import layout_line
from trainwright.documents.profile_plan import count_recomputed
from trainwright.documents.runs import gaps_of_run, range_of, runs_on, trained_and_cluster
from trainwright.documents.view import (
    Line,
    Table,
    column,
    percent,
    seconds,
    size,
    table_of,
    taken_for_granted,
    warning_lines,
    words,
)
from trainwright.errors import Fault, InvalidInput
from trainwright.execution import Budget
from trainwright.formats.calibration_toml import deciding_memory
from trainwright.formats.document_json import encode
from trainwright.options.inputs import embed, naming_options
from trainwright.options.question import QUESTION_OPTION_OF, of_what_is_told_apart
from trainwright.planning.question.question import (
    Allowed,
    ModelQuestion,
    RunSettings,
    Workload,
    described,
    missing_of_plan,
)
from trainwright.planning.reasons.improve import (
    MOST_OF_IT,
    NEARLY_AS_FAST,
    Improvement,
    reachable,
    recommended,
    with_settings,
    worth_listing,
)
from trainwright.planning.search.framework import plan_runnable
from trainwright.plans import Plan, Stage, StepPrediction
from trainwright.plans.capability import capability_of
from trainwright.plans.configuration import (
    NO_OVERHEADS,
    Configuration,
    MemoryOverheads,
    PlanRequest,
    modes_beside,
    own_split,
)
from trainwright.plans.plan import FORMAT_VERSION, Parallelism
from trainwright.profile import Profile, Recompute
from trainwright.profile.measured_model import MeasuredModel
from trainwright.provenance import RARE, Origin
from trainwright.step.predict import predict_step, price_configuration
from trainwright.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from trainwright.model import TransformerConfig
    from trainwright.profile.measured_model import Trained


@dataclass(frozen=True, slots=True, kw_only=True)
class ImprovementRecord:
    """A change of one or two decisions that fits; `options` are those of `estimate` to add.

    `settings` are those of the file that the run was read from, empty where it was read from none.
    `gain_share` is of the way from the run to the best that is known, absent where the run does not
    fit and there is no gain to share. `evidence` compares the gain with the error of predictions,
    `risk` says what else changes. `another_training` says that what is trained or computed does.
    """

    dimensions: tuple[str, ...]
    options: str
    settings: tuple[str, ...] = ()
    step_time_s: float
    peak_memory_bytes: float
    speedup: float
    gain_share: float | None = None
    evidence: str = ""
    risk: str = ""
    another_training: bool = field(default=False, metadata={RARE: True})


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStage:
    """One virtual stage of a plan: its layers by index, and how each of them recomputes."""

    layers: tuple[int, ...]
    options: dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestPlanRecord:
    """The planner's plan for the same model, devices, batch and settings of the run.

    `options` are kernels, and what makes room, that it takes besides the run's, where the fastest
    change does; empty where it keeps the run's.
    """

    parallelism: Parallelism
    schedule: str
    micro_batch: int
    options: str = ""
    stages: tuple[PlannedStage, ...]
    num_recomputed: int
    step_time_s: float
    peak_memory_bytes: float
    speedup: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ImprovementResult:
    """A stated run beside better ones. `recommended` is the smallest change with most of the gain.

    Where the run does not fit, changes are those that make it fit and `recommended` is the smallest
    of those that are nearly as fast as the fastest. `changes` come fastest first, those that train
    in another way last, one of which is recommended only where nothing else fits; with `tried_all`
    no other change of one or two decisions is faster than the first of them. `best_plan` is absent
    where no plan was found that is as fast as all that is listed; `best_known_s` is the least step
    of anything that fits and trains as the run does, absent where nothing does: then each of
    `enough` would do, more devices among them. No plan of those searched takes less than
    `lower_bound_s`, which is absent where a plan cannot run as the run does, or is restricted more
    than the changes. Peaks are of the model; what a device must have for one adds the overheads of
    the request. Times in seconds; `speedup` is the run's step over the other's.
    """

    kind: str = "improvement"
    format_version: int = FORMAT_VERSION
    framework: str | None = None
    dialect: str | None = None
    run: PricedLayout
    run_fits: bool
    memory_limit_bytes: float
    best_known_s: float | None = None
    lower_bound_s: float | None = None
    best_plan: BestPlanRecord | None = None
    recommended: ImprovementRecord | None = None
    changes: tuple[ImprovementRecord, ...] = ()
    tried_all: bool = False
    enough: tuple[model_estimate.PricedChange, ...] = ()
    warnings: tuple[str, ...] = ()
    assumptions: dict[str, str] = field(default_factory=dict)
    request: model_estimate.ModelEstimateRequest | PlanRequest
    plan: ModelPlanResult | None = field(default=None, metadata={RARE: True})
    planned: ModelPlanResult | None = field(default=None, metadata={RARE: True})

    @property
    def configuration(self) -> Configuration:
        """The run as options state it; there is none on several pools."""
        assert isinstance(self.request, model_estimate.ModelEstimateRequest), (
            "a run on one pool is stated"
        )
        return self.request.configuration

    @property
    def overheads(self) -> MemoryOverheads:
        """What every device keeps beside the model."""
        if isinstance(self.request, model_estimate.ModelEstimateRequest):
            return self.request.configuration.overheads
        return self.request.overheads or NO_OVERHEADS


# The best plan of a run's question: same model, devices, batch and settings, priced alike
# ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPlan:
    """A plan, the profile it was cut from and its predicted step.

    `asked` is the run that it answers, with other kernels than the stated one where `options` name
    them.
    """

    asked: Configuration
    options: str
    plan: Plan
    profile: Profile
    step: StepPrediction


def with_weights_on_devices(run: Configuration) -> Configuration:
    """The run without weights on hosts, which no plan has; what else lies there stays."""
    moved = run.recipe.offload
    if moved is None or not moved.weights:
        return run
    return replace(run, recipe=replace(run.recipe, offload=replace(moved, weights=0.0)))


def allowed_for(
    run: Configuration,
    target: str | None,
    wanted: Callable[[Configuration], bool],
) -> Allowed:
    """Everything that the framework runs; "selective" only where it repeats what the run's does."""
    modes = modes_beside(run.recipe)
    allowed = Allowed(framework=target, recompute=modes)
    selective = replace(run, recompute=Recompute.SELECTIVE, recompute_blocks=None)
    if target is None or wanted(selective) or not wanted(run):
        return allowed
    others = tuple(mode for mode in modes if mode is not Recompute.SELECTIVE)
    return replace(allowed, recompute=others)


def with_kernels(run: Configuration, options: str, pool: Pool) -> Configuration:
    """The run with the kernels and the rooms that are named; raises `InvalidInput` for others."""
    found = with_settings(run, options, pool)
    if found is None:
        problem = f'must name kernels to add, or what makes room, got "{options}"'
        raise InvalidInput.of("best_plan.options", problem)
    return found


def unrunnable(priced: PricedPlan, question: ModelQuestion) -> tuple[str, ...]:
    """What the framework cannot express of such a plan whatever its stages; optimizers, kernels."""
    target, plan = question.allowed.framework, priced.plan
    if target is None:
        return ()
    assert plan.parallelism is not None, "the plans of this search are uniform"
    plain = replace(
        priced.asked,
        parallelism=plan.parallelism,
        microbatch_size=plan.microbatch_size or 1,
        schedule=plan.schedule,
        recompute=Recompute.NONE,
        recompute_blocks=None,
        blocks_per_stage=None,
    )
    if capability_of(target).splits_itself and plain.num_stages > 1:
        split = own_split(target, question.config, plain.num_stages)
        plain = replace(plain, blocks_per_stage=split)
    return gaps_of_run(plain, question.config, question.cluster, target)


def not_taken_over(run: Configuration) -> Iterator[str]:
    """What of the run no plan can have, so that a bound on plans says nothing about it."""
    degrees = run.parallelism
    if degrees.tensor > 1 and not degrees.sequence_parallel:
        yield (
            "plans use sequence parallelism wherever they use tensor parallelism; the run does not,"
            " so the best plan changes that too and no bound is given"
        )


def best_plan(
    question: ModelQuestion, asked: Configuration, options: str, budget: Budget, *, to_beat_s: float
) -> tuple[PricedPlan | None, float]:
    """The planner's answer, None where it has none, and what no plan is faster than.

    Plans slower than `to_beat_s` are not looked for.
    """
    with naming_options(QUESTION_OPTION_OF):
        outcome = plan_runnable(
            question,
            budget,
            num_alternatives=0,
            to_beat=to_beat_s,
            is_bounded=not any(not_taken_over(asked)),
        )
    if not outcome.priced:
        return None, outcome.lower_bound_s
    best = outcome.priced[0]
    priced = PricedPlan(
        asked=asked, options=options, plan=best.plan, profile=best.profile, step=best.step
    )
    return priced, outcome.lower_bound_s


def record_of(priced: PricedPlan, *, base_s: float) -> BestPlanRecord:
    """The plan as the document has it, beside a run that takes `base_s`."""
    plan, step = priced.plan, priced.step
    assert plan.parallelism is not None, "the plans of this search are uniform"
    return BestPlanRecord(
        parallelism=plan.parallelism,
        schedule=plan.schedule,
        micro_batch=plan.microbatch_size or 1,
        options=priced.options,
        stages=tuple(
            PlannedStage(
                layers=stage.layers,
                options={str(layer): option for layer, option in stage.option_of.items()},
            )
            for stage in plan.stages
        ),
        num_recomputed=sum(count_recomputed(stage, priced.profile) for stage in plan.stages),
        step_time_s=step.step_time_s,
        peak_memory_bytes=step.peak_memory_bytes,
        speedup=base_s / step.step_time_s,
    )


def priced_again(
    record: BestPlanRecord, question: ModelQuestion, asked: Configuration
) -> PricedPlan:
    """The plan of a record; raises `InvalidInput` where the question has no such plan."""
    degrees, batch = record.parallelism, question.workload.global_batch
    size = record.micro_batch
    if size < 1 or batch % (size * degrees.data):
        wanted = f"x dp must divide the global batch of {batch}"
        raise InvalidInput.of("best_plan.micro_batch", f"{wanted}, got {size} x {degrees.data}")
    if degrees.num_devices > question.num_devices:
        wanted = f"must use at most {question.num_devices} devices"
        raise InvalidInput.of("best_plan.parallelism", f"{wanted}, got {degrees.num_devices}")
    if degrees.sequence_parallel != (degrees.tensor > 1):
        wanted = "must be true just where tensor > 1"
        raise InvalidInput.of("best_plan.parallelism.sequence_parallel", wanted)
    layers = [layer for stage in record.stages for layer in stage.layers]
    options = [stage.options for stage in record.stages]
    if any({*map(str, s.layers)} != {*s.options} for s in record.stages):
        raise InvalidInput.of("best_plan.stages", "must say of each of their layers how it runs")
    count = degrees.pipeline * degrees.virtual_stages
    if len(options) != count:
        raise InvalidInput.of("best_plan.stages", f"must be {count}, got {len(options)}")
    plan = Plan(
        stages=tuple(
            Stage.uniform(
                stage.layers,
                tuple(stage.options[str(layer)] for layer in stage.layers),
                data_parallel=degrees.data,
                tensor_parallel=degrees.tensor,
            )
            for stage in record.stages
        ),
        num_microbatches=batch // size,
        microbatch_size=size,
        schedule=record.schedule,
        parallelism=degrees,
    )
    profile = profile_of(question, plan)
    if sorted(layers) != [layer.id for layer in profile.structure.layers]:
        raise InvalidInput([Fault("best_plan.stages", "must hold every layer once")])
    step = predict_step(plan, profile, question.cluster, **question.step_terms)
    return PricedPlan(asked=asked, options=record.options, plan=plan, profile=profile, step=step)


# The document of `improve`, from a run and what was found around it
# ------------------------------------------------------------------

_HAIR = 1 + 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """A run, priced, changes of it, the best plan and what no plan is faster than.

    All changes and the plan fit; `trainings` are those that train in another way. `bound_s` is 0
    where nothing is known. `tried_all` says that all changes of one or two decisions were priced.
    """

    model: Trained
    cluster: Cluster
    request: model_estimate.ModelEstimateRequest
    framework: str | None
    dialect: str | None = None
    step: StepPrediction
    changes: tuple[Improvement, ...]
    trainings: tuple[Improvement, ...] = ()
    plan: PricedPlan | None
    bound_s: float
    tried_all: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def config(self) -> TransformerConfig:
        """What the model is; raises `UnsupportedFeature` where only its costs are known."""
        return described(self.model)

    def helps(self, change: Improvement) -> bool:
        """Whether a change that fits is faster than the run, where the run fits too."""
        return not self.base_fits or change.step.step_time_s < self.step.step_time_s

    @property
    def base_fits(self) -> bool:
        """Whether the run itself does."""
        return self.fits(self.model, self.request.configuration, self.step)

    def fits(self, model: Trained, run: Configuration, step: StepPrediction) -> bool:
        """Whether a device and its host have room for a run, by the rules of `estimate`."""
        if not run_fits(model, run, step, self.cluster, framework=self.request.framework):
            return False
        return host_holds(model, self.cluster, run, step)

    def question_of(self, run: Configuration, allowed: Allowed) -> ModelQuestion:
        """What the planner is asked: all that the run is, but for what a plan decides.

        Its plans keep weights on the devices, wherever those of the run lie, and gradients until
        all are there.
        """
        settings = RunSettings.of(with_weights_on_devices(run))
        if settings.recipe.update_in_backward:
            recipe = replace(settings.recipe, update_in_backward=False)
            settings = replace(settings, recipe=recipe)
        with naming_options(QUESTION_OPTION_OF):
            return ModelQuestion(
                model=self.model,
                cluster=self.cluster,
                workload=Workload(
                    global_batch=run.global_batch,
                    sequence_length=run.sequence_length,
                    precision=run.recipe.precision,
                ),
                num_devices=run.parallelism.num_devices,
                allowed=of_what_is_told_apart(self.model, allowed),
                overheads=run.overheads,
                settings=settings,
                account=deciding_memory(self.request.framework, run.overheads),
            )


def chosen_of(found: Surroundings) -> Improvement | None:
    """The change that is recommended of those that were found."""
    changes, best_s, base_s = _compared(found)
    return _recommended(found, changes, base_s=base_s, best_s=best_s)


def _recommended(
    found: Surroundings, changes: tuple[Improvement, ...], *, base_s: float | None, best_s: float
) -> Improvement | None:
    """What trains in another way is recommended only where nothing else fits."""
    if base_s is None and math.isinf(best_s):
        changes = found.trainings
        best_s = min((each.step.step_time_s for each in changes), default=math.inf)
    return recommended(changes, base_s=base_s, best_s=best_s)


def _compared(found: Surroundings) -> tuple[tuple[Improvement, ...], float, float | None]:
    """Changes worth a line, the least step of all that is known, and the run's where it fits."""
    base_s = found.step.step_time_s if found.base_fits else None
    changes = worth_listing(filter(found.helps, found.changes))
    others_s = min((each.step.step_time_s for each in changes), default=base_s or math.inf)
    plan = _unbeaten(found.plan, others_s)
    return changes, min(others_s, math.inf if plan is None else plan.step.step_time_s), base_s


def document_of(found: Surroundings) -> ImprovementResult:
    """What the parts say of each other; a plan that something else beats is left out."""
    step = found.step
    changes, best_s, base_s = _compared(found)
    base_fits = base_s is not None
    plan = _unbeaten(found.plan, best_s)
    chosen = _recommended(found, changes, base_s=base_s, best_s=best_s)
    others = _other_trainings(found, best_s if base_fits else math.inf)

    def record(each: Improvement) -> ImprovementRecord:
        return _record(found, each, best_s if base_fits else None)

    return ImprovementResult(
        framework=found.framework,
        dialect=found.dialect,
        run=PricedLayout(step_time_s=step.step_time_s, peak_memory_bytes=step.peak_memory_bytes),
        run_fits=base_fits,
        memory_limit_bytes=found.cluster.accelerator.usable_bytes,
        best_known_s=best_s if math.isfinite(best_s) else None,
        lower_bound_s=_bound_s(found, best_s),
        best_plan=None if plan is None else record_of(plan, base_s=step.step_time_s),
        recommended=None if chosen is None else record(chosen),
        changes=tuple(map(record, (*changes, *others))),
        tried_all=found.tried_all,
        enough=() if math.isfinite(best_s) else _enough(found),
        warnings=found.warnings,
        assumptions=_assumptions(found),
        request=found.request,
    )


_MOST_TRAININGS: Final = 4  # lines of what trains in another way


def _other_trainings(found: Surroundings, best_s: float) -> tuple[Improvement, ...]:
    """The smallest of them; those are not worth it that gain little over what trains as asked."""
    faster = (t for t in found.trainings if t.step.step_time_s < NEARLY_AS_FAST * best_s)
    listed = sorted(faster, key=lambda t: (len(t.dimensions), t.step.step_time_s, t.options))
    return tuple(listed[:_MOST_TRAININGS])


def _enough(found: Surroundings) -> tuple[model_estimate.PricedChange, ...]:
    """What would make the run fit where nothing on its devices does."""
    run, target = found.request.configuration, found.framework
    return model_estimate.changes_enough(
        found.model,
        found.cluster,
        run,
        found.step,
        framework=target,
        software=target,
        runs_whole=True,
    )


def _unbeaten(plan: PricedPlan | None, others_s: float) -> PricedPlan | None:
    if plan is None or plan.step.step_time_s > others_s * _HAIR:
        return None
    return plan


def _bound_s(found: Surroundings, best_s: float) -> float | None:
    """The bound where it is one on all that is compared, the run among it."""
    if any(not_taken_over(found.request.configuration)):
        return None
    return found.bound_s if 0 < found.bound_s <= best_s * _HAIR else None


def _record(found: Surroundings, each: Improvement, best_s: float | None) -> ImprovementRecord:
    """A change; its share of the gain where there is one to share."""
    base_s, step_s = found.step.step_time_s, each.step.step_time_s
    return ImprovementRecord(
        dimensions=each.dimensions,
        options=each.options,
        settings=each.settings,
        step_time_s=step_s,
        peak_memory_bytes=each.step.peak_memory_bytes,
        speedup=base_s / step_s,
        gain_share=None
        if best_s is None or each.is_another_training
        else (base_s - step_s) / (base_s - best_s),
        evidence=_evidence(found, each),
        risk="; ".join(_risks(found, each)) or "none known",
        another_training=each.is_another_training,
    )


_TIGHT: Final = 0.05  # of what is usable: a margin that a prediction may miss


def _evidence(found: Surroundings, each: Improvement) -> str:
    """Whether the gain is more than one prediction may miss; errors that both share cancel."""
    if not found.base_fits:
        return "fits by prediction"
    spread = range_of(found.model, found.cluster, found.request.configuration)
    if spread is None:
        return "of measured layers"
    gain = found.step.step_time_s / each.step.step_time_s
    return "beyond the error" if gain > spread.high_ratio else "within the error: measure"


def _risks(found: Surroundings, each: Improvement) -> Iterator[str]:
    run, degrees = found.request.configuration, found.request.configuration.parallelism
    new, limit = each.run.parallelism, found.cluster.accelerator.usable_bytes
    if each.is_another_training:
        yield "another training"
    left = 1 - each.run.overheads.needed_bytes(each.step.peak_memory_bytes) / limit
    if left < _TIGHT:
        yield f"{max(left, 0.0):.1%} of the memory left"
    moved = (new.tensor, new.pipeline, new.expert, new.virtual_stages, new.zero_stage >= 2)
    if moved != (
        degrees.tensor, degrees.pipeline, degrees.expert, degrees.virtual_stages,
        degrees.zero_stage >= 2,
    ):  # fmt: skip
        yield "checkpoints have other shards"
    elif (new.zero_stage, new.data) != (degrees.zero_stage, degrees.data):
        yield "states of the optimizer have other shards"
    kernels = (run.fused_attention, run.fused_cross_entropy)
    if (each.run.fused_attention, each.run.fused_cross_entropy) != kernels:
        yield "another kernel rounds differently"


_COMPARED: Final = {
    "changes": "each is priced as estimate prices the run with its options; they change one "
    "decision or two",
    "best plan": "searched with the run's number formats, optimizer, kernels, overlap and "
    "memory overheads, its schedule simulated",
}


def _assumptions(found: Surroundings) -> dict[str, str]:
    """Where the times, sizes and bounds come from."""
    run, pool = found.request.configuration, found.cluster.pool_of()
    spread = range_of(found.model, found.cluster, run)
    if isinstance(found.model, MeasuredModel):
        return {
            **model_estimate.assumptions_of_measured(found.model, found.cluster, run),
            "network": "; ".join(map(_network_origin, pool.levels)),
            **_COMPARED,
        }
    assert spread is not None, "only of measured layers it is not known"
    peaks = pool.accelerator.provenance_of("peak_flops_per_s")
    usable = pool.accelerator.provenance_of("usable_fraction")
    said = model_estimate.assumptions_of(found.cluster, run, spread.source)
    return {
        **said,
        "peak rates": f"{peaks.origin}: {peaks.source}",
        "network": "; ".join(map(_network_origin, pool.levels)),
        "range": f"nine of ten measured steps take {spread.low_ratio:.2f} to "
        f"{spread.high_ratio:.2f} of what is predicted for the run ({spread.source})",
        "memory": f"{said['memory']} ({usable.origin}: {usable.source})",
        **_COMPARED,
    }


def _network_origin(level: object) -> str:
    assert isinstance(level, NetworkLevel)
    sources = dict(level.sources)
    origins = {
        name: str(sources[field].origin if field in sources else Origin.ASSUMED)
        for name, field in (("bandwidth", "bandwidth_bytes_per_s"), ("efficiency", "efficiency"))
    }
    words = ", ".join(f"{name} {origin}" for name, origin in origins.items())
    return f"{level.name}: {words}"


# The run that `improve` recommends, as `estimate` would price it
# ---------------------------------------------------------------


def recommended_run(document: ImprovementResult) -> model_estimate.ModelEstimateResult:
    """The document's run with its recommended change.

    Raises `InvalidInput` where none is recommended.
    """
    chosen = document.recommended
    if chosen is None:
        problem = "recommends no change: give the run's own estimate, or plan with `plan`"
        raise InvalidInput.of("document", problem)
    request = document.request
    assert isinstance(request, model_estimate.ModelEstimateRequest), "a run on one pool is stated"
    model, cluster = trained_and_cluster(request)
    changed = reachable(
        request.configuration,
        model,
        cluster.pool_of(),
        dimensions=chosen.dimensions,
        options=chosen.options,
    )
    if changed is None:
        raise InvalidInput.of("document", f'has no change "{chosen.options}" of its run')
    run, trained = changed
    if trained is not model:
        name = f"{request.model.name}, adapted"
        request = replace(request, model=embed("model", name, encode(trained)))
    return model_estimate.price_request(trained, cluster, replace(request, configuration=run))


# Whether an improvement still says what its own request makes of the run
# -----------------------------------------------------------------------
# The run, each change and the best plan are decisions, and so is what they take: all are priced
# again and the document is put together as `improve` does. What only the search knows (that no
# other change is worth listing, whether all were tried, the bound, whether a framework was asked
# for) is held against the rest.


def remake_improvement(document: ImprovementResult) -> ImprovementResult:
    """The document with every figure that follows from its run, its changes and its best plan.

    Costs what pricing each of its runs costs. Raises `InvalidInput` for decisions that cannot be.
    """
    request = document.request
    if not isinstance(request, model_estimate.ModelEstimateRequest):
        raise InvalidInput.of("request.configuration", "required field is missing")
    model, cluster = trained_and_cluster(request)
    bare = Surroundings(
        model=model,
        cluster=cluster,
        request=request,
        framework=document.framework,
        dialect=document.dialect,
        step=price_configuration(model, cluster, request.configuration),
        changes=(),
        plan=None,
        bound_s=document.lower_bound_s or 0.0,
        tried_all=document.tried_all,
        warnings=document.warnings,
    )
    listed = tuple(_changed_figures(document, bare))
    plan = _plan(document, bare)
    _refuse_what_does_not_fit(bare, listed, plan)
    found = tuple(each for each in listed if not each.is_another_training)
    others = tuple(each for each in listed if each.is_another_training)
    return document_of(replace(bare, changes=found, trainings=others, plan=plan))


def _changed_figures(document: ImprovementResult, bare: Surroundings) -> Iterator[Improvement]:
    run, pool = document.configuration, bare.cluster.pool_of()
    for index, one in enumerate(document.changes):
        if len(one.dimensions) not in (1, 2):
            problem = f"must be one decision or two, got {len(one.dimensions)}"
            raise InvalidInput.of(f"changes[{index}].dimensions", problem)
        changed = reachable(run, bare.model, pool, dimensions=one.dimensions, options=one.options)
        if changed is None:
            problem = f'is no change of {" and ".join(one.dimensions)}: "{one.options}"'
            raise InvalidInput.of(f"changes[{index}].options", problem)
        new, trained = changed
        _refuse_unable(document, new, bare, path=f"changes[{index}]")
        yield Improvement(
            dimensions=one.dimensions,
            options=one.options,
            settings=one.settings,
            run=new,
            model=None if trained is bare.model else described(trained),
            step=price_configuration(trained, bare.cluster, new),
        )


def _refuse_unable(
    document: ImprovementResult, changed: Configuration, bare: Surroundings, *, path: str
) -> None:
    if document.framework is None:
        return
    if not runs_on(changed, bare.model, bare.cluster, document.framework):
        gaps = gaps_of_run(changed, bare.config, bare.cluster, document.framework)
        raise InvalidInput.of(path, f"must be what {document.framework} runs: {gaps[0]}")


def _plan(document: ImprovementResult, bare: Surroundings) -> PricedPlan | None:
    if document.best_plan is None:
        return None
    pool = bare.cluster.pool_of()
    asked = with_kernels(document.configuration, document.best_plan.options, pool)
    allowed = Allowed(framework=document.framework)
    question = bare.question_of(asked, allowed)
    priced = priced_again(document.best_plan, question, asked)
    if gaps := unrunnable(priced, question):
        problem = f"must be what {document.framework} runs: {gaps[0]}"
        raise InvalidInput.of("best_plan", problem)
    return priced


def _plan_fits(bare: Surroundings, priced: PricedPlan) -> bool:
    allowed = Allowed(framework=bare.framework)
    question = bare.question_of(priced.asked, allowed)
    plan, profile, step = priced.plan, priced.profile, priced.step
    return missing_of_plan(question, plan, profile, step) <= 0


def _refuse_what_does_not_fit(
    bare: Surroundings, found: tuple[Improvement, ...], plan: PricedPlan | None
) -> None:
    faults = [
        Fault(f"changes[{index}]", "must fit in the memory of a device")
        for index, each in enumerate(found)
        if not bare.fits(each.model or bare.model, each.run, each.step)
    ]
    if plan is not None and not _plan_fits(bare, plan):
        faults.append(Fault("best_plan", "must fit in the memory of a device"))
    if faults:
        raise InvalidInput(faults)


# What the terminal and the page say alike of an improvement
# ----------------------------------------------------------


def needed_bytes(found: ImprovementResult, peak_bytes: float) -> float:
    """What a device must have usable for a run of that peak: what the limit is compared with."""
    return found.overheads.needed_bytes(peak_bytes)


def needed_line(found: ImprovementResult, peak_bytes: float) -> str:
    """What is compared, and what it is made of."""
    needed, limit = needed_bytes(found, peak_bytes), found.memory_limit_bytes
    if found.run_fits and needed > limit:
        return f"{format_bytes(needed)} if all were kept, less where the program reuses buffers"
    parts = needed_parts(found, peak_bytes)
    return f"needs {format_bytes(needed)} of {format_bytes(limit)} usable: {parts}"


def needed_parts(found: ImprovementResult, peak_bytes: float) -> str:
    """What a device must have usable, by parts."""
    overheads = found.overheads
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
        other = chosen is not None and chosen.another_training
        return "best small change that makes it fit" + (", another training" if other else "")
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
    short = f" (none was found that reaches {_wanted_share(chosen):.0%})"
    return said + (short if _falls_short(found, chosen) else "")


def _share_of_best(found: ImprovementResult, chosen: ImprovementRecord) -> float:
    """Of the best known speed."""
    return (found.best_known_s or chosen.step_time_s) / chosen.step_time_s


def _falls_short(found: ImprovementResult, chosen: ImprovementRecord) -> bool:
    """Whether the recommended change is the fastest because none has most of what is known."""
    share = chosen.gain_share
    reached = _share_of_best(found, chosen) if share is None else share
    return reached < _wanted_share(chosen) * (1 - 1e-9)


def _wanted_share(chosen: ImprovementRecord) -> float:
    """Of the gain, or of the best speed where the run does not fit."""
    return NEARLY_AS_FAST if chosen.gain_share is None else MOST_OF_IT


def slowdown(speedup: float) -> str:
    """A step beside that of a run that does not fit."""
    if speedup >= 1:
        return f"{speedup - 1:.1%} faster than your run would be"
    return f"{1 / speedup - 1:.1%} slower than your run would be"


def no_choice(found: ImprovementResult) -> str:
    """Why nothing is recommended."""
    lacks = "is faster" if found.run_fits else "makes it fit"
    where = f" that {found.framework} runs" if found.framework else ""
    if found.tried_all:
        return f"no change of one or two decisions{where} {lacks}"
    return f"no change of one or two decisions{where} was found that {lacks}"


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


# A run beside the best plan, and the changes on the way there
# ------------------------------------------------------------


def improvement_view(found: ImprovementResult) -> Iterator[Line]:
    """What the run takes, what the best plan takes, then the changes by size."""
    yield from _lines(found)
    if found.changes:
        yield change_table(found)
    if found.best_known_s is None:
        yield (
            model_estimate.enough_table(found.enough)
            if found.enough
            else model_estimate.NONE_ENOUGH
        )
    yield from taken_for_granted(found.assumptions)
    yield from warning_lines(found.warnings)


def _lines(found: ImprovementResult) -> Iterator[str]:
    run, chosen = found.run, found.recommended
    yield (
        f"your run: {format_seconds(run.step_time_s)} per step, {verdict(found)}: "
        f"{needed_line(found, run.peak_memory_bytes)}"
    )
    yield from _best_lines(found)
    if chosen is None:
        yield no_choice(found)
    else:
        step = format_seconds(chosen.step_time_s)
        yield f"{choice_title(found)}: {said(chosen)}: {step}, {choice_gain(found, chosen)}"


def _recomputed(best: ModelPlanResult) -> str:
    return f"{sum(stage.num_recomputed for stage in best.stages)} layers recomputed"


def _best_lines(found: ImprovementResult) -> Iterator[str]:
    if found.planned is not None and found.planned.parallelism is not None:
        best = found.planned
        yield (
            f"best plan: {format_seconds(best.step_time_s or 0.0)}, "
            f"{use_of_pools(best)}{layout_line(found.planned.parallelism)}, microbatch "
            f"{best.micro_batch}, schedule {best.schedule}, "
            + (f"on {devices_by_pool(best)}" if best.groups else _recomputed(best))
        )
    plan, where = found.best_plan, f" for {found.framework}" if found.framework else ""
    if plan is not None:
        yield (
            f"best plan{where}: {format_seconds(plan.step_time_s)}, {speed(found, plan.speedup)}, "
            f"needs {format_bytes(needed_bytes(found, plan.peak_memory_bytes))}: "
            f"{layout_line(plan.parallelism)}{added_kernels(plan)}, microbatch {plan.micro_batch}, "
            f"schedule {plan.schedule}, {plan.num_recomputed} layers recomputed"
        )
    elif found.planned is not None:
        pass  # said above
    elif found.best_known_s is None:
        yield f"best plan{where}: none was found that fits"
    else:
        known = "your run" if not found.changes else "the first change below"
        yield f"best known{where}: {format_seconds(found.best_known_s)}, {known}"
    if found.lower_bound_s is not None:
        bound = format_seconds(found.lower_bound_s)
        yield f"{bounded_plans(found)} takes less than {bound} (proved)"


def said(change: ImprovementRecord) -> str:
    """A change in the words of the run's file, or else as options of `estimate`."""
    if not change.settings:
        return change.options
    kept = [each for each in change.settings if not each.startswith(_WITHOUT)]
    dropped = [each.removeprefix(_WITHOUT) for each in change.settings if each not in kept]
    glue = " " if change.settings[0].removeprefix(_WITHOUT).startswith("--") else ", "
    parts = (glue.join(kept), f"{_WITHOUT}{glue.join(dropped)}" if dropped else "")
    return ", ".join(filter(None, parts))


_WITHOUT: Final = "without "  # what a setting starts with that is taken out


def change_table(found: ImprovementResult) -> Table:
    """The changes, fastest first; the recommended one is marked."""
    return table_of(
        "Changes",
        (
            words("change", "options"),
            column("decisions", on="page"),
            column("step", "step_time_s"),
            column("speed", "faster"),
            column("of the gain", "gain_share", on="both" if found.run_fits else "none"),
            column("memory needed", "needed_bytes"),
            column("peak memory", "peak_memory_bytes", on="page"),
            words("evidence"),
            words("risk"),
        ),
        (
            (
                said(each),
                len(each.dimensions),
                seconds(each.step_time_s),
                percent(each.speedup - 1, sign=True),
                percent(each.gain_share or 0.0, digits=0),
                size(needed_bytes(found, each.peak_memory_bytes)),
                size(each.peak_memory_bytes),
                each.evidence,
                each.risk,
            )
            for each in found.changes
        ),
        marked=(at for at, each in enumerate(found.changes) if each == found.recommended),
        caption=f"{changes_title(found)}, fastest first",
        note=f"{_whose_words(found)}The marked row is the {choice_title(found)}. The error is that "
        "of a step, which nine of ten predictions stay within.",
    )


def _whose_words(found: ImprovementResult) -> str:
    if found.plan is not None:
        return "Changes are of the plan's own decisions. "
    if found.dialect is not None:
        return "Changes are said in the settings of the file. "
    return "Options are written as trainwright estimate takes them, to be added to the run's. "
