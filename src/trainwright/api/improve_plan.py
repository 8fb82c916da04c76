"""The best plan of a run's question: same model, devices, batch and settings, priced alike."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from trainwright.api.inputs import naming_options
from trainwright.errors import Fault, InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from trainwright.cluster import Cluster
    from trainwright.execution import Budget
    from trainwright.model import TransformerConfig
    from trainwright.plan import Plan, StepPrediction
    from trainwright.plan.configuration import Configuration
    from trainwright.plan.results.improvement import BestPlanRecord
    from trainwright.planning.allowed import Allowed
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.profile import Profile


_KERNELS: Final = {
    "--flash-attention": "fused_attention",
    "--fused-cross-entropy": "fused_cross_entropy",
}


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


def question_of(
    model: TransformerConfig, cluster: Cluster, run: Configuration, allowed: Allowed
) -> ModelQuestion:
    """What the planner is asked: all that the run is, but for what a plan decides."""
    from trainwright.api.model_options import QUESTION_OPTION_OF
    from trainwright.planning.model_question import ModelQuestion
    from trainwright.planning.model_space import Workload
    from trainwright.planning.run_settings import RunSettings

    with naming_options(QUESTION_OPTION_OF):
        return ModelQuestion(
            model=model,
            cluster=cluster,
            workload=Workload(
                global_batch=run.global_batch,
                sequence_length=run.sequence_length,
                precision=run.recipe.precision,
            ),
            num_devices=run.parallelism.num_devices,
            allowed=allowed,
            overheads=run.overheads,
            settings=RunSettings.of(run),
        )


def allowed_for(
    run: Configuration, target: str | None, wanted: Callable[[Configuration], bool]
) -> Allowed:
    """Everything that the framework runs; "selective" only where it repeats what the run's does."""
    from trainwright.planning.allowed import Allowed
    from trainwright.profile import Recompute

    allowed = Allowed(framework=target)
    selective = replace(run, recompute=Recompute.SELECTIVE, recompute_blocks=None)
    if target is None or wanted(selective) or not wanted(run):
        return allowed
    others = tuple(mode for mode in Recompute if mode is not Recompute.SELECTIVE)
    return replace(allowed, recompute=others)


def with_kernels(run: Configuration, options: str) -> Configuration:
    """The run with the kernels that are named; raises `InvalidInput` where it has them already."""
    found = run
    for word in options.split():
        field = _KERNELS.get(word)
        if field is None or getattr(found, field):
            raise InvalidInput.of("best_plan.options", f'must name kernels to add, got "{word}"')
        changed: dict[str, Any] = {field: True}
        found = replace(found, **changed)
    return found


def kernels_between(run: Configuration, other: Configuration) -> str:
    """The kernels that the other has and the run has not."""
    added = (
        word for word, field in _KERNELS.items() if getattr(other, field) > getattr(run, field)
    )
    return " ".join(added)


def unrunnable(priced: PricedPlan, question: ModelQuestion) -> tuple[str, ...]:
    """What the framework cannot express of such a plan whatever its stages; optimizers, kernels."""
    from trainwright.api.improve_gaps import gaps_of_run
    from trainwright.profile import Recompute

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
    return gaps_of_run(plain, question.model, question.cluster, target)


def not_taken_over(run: Configuration) -> Iterator[str]:
    """What of the run no plan can have, so that a bound on plans says nothing about it."""
    degrees = run.parallelism
    if degrees.tensor > 1 and not degrees.sequence_parallel:
        yield (
            "plans use sequence parallelism wherever they use tensor parallelism; the run does not,"
            " so the best plan changes that too and no bound is given"
        )


def best_plan(
    question: ModelQuestion, asked: Configuration, options: str, budget: Budget
) -> tuple[PricedPlan | None, float]:
    """The planner's answer, None where it has none, and what no plan is faster than."""
    from trainwright.api.model_options import QUESTION_OPTION_OF
    from trainwright.planning.framework import plan_runnable

    with naming_options(QUESTION_OPTION_OF):
        outcome = plan_runnable(question, budget, num_alternatives=0)
    if not outcome.priced:
        return None, outcome.least_bound_s
    best = outcome.priced[0]
    priced = PricedPlan(
        asked=asked, options=options, plan=best.plan, profile=best.profile, step=best.step
    )
    return priced, outcome.least_bound_s


def record_of(priced: PricedPlan, *, base_s: float) -> BestPlanRecord:
    """The plan as the document has it, beside a run that takes `base_s`."""
    from trainwright.api.plan_profile import count_recomputed
    from trainwright.plan.results.improvement import BestPlanRecord, PlannedStage

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
    from trainwright.api.recompute_model import predicted, profile_of
    from trainwright.plan import Plan, Stage

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
    step = predicted(question, plan, profile)
    return PricedPlan(asked=asked, options=record.options, plan=plan, profile=profile, step=step)
